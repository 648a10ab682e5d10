import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoding.table_model import (
    BOS,
    EOS,
    as_lists,
    check_form,
    initial_state,
    jit,
    next_log_probs,
    random_tables,
    step,
    teacher_forced,
)
from transformer.decoding.beam_search import beam_search
from transformer.decoding.sampling import greedy
from transformer.types import UserError

KINDS = ["smooth", "ties", "forbidden"]
BATCH = 5
SEEDS = st.integers(0, 2**32 - 1)


def limits_up_to(largest):
    return st.lists(st.integers(0, largest), min_size=BATCH, max_size=BATCH)


@functools.cache
def compiled(beam_size, max_steps, num_best, penalty, alpha):
    def search(table_BMV, limits_B):
        return beam_search(
            step,
            initial_state(table_BMV, beam_size),
            batch_size=table_BMV.shape[0],
            beam_size=beam_size,
            bos_id=BOS,
            eos_id=EOS,
            max_steps=max_steps,
            limits_B=limits_B,
            length_penalty=penalty,
            alpha=alpha,
            num_best=num_best,
        )

    return jit(search)


def search(table, limits, *, beam_size, max_steps, num_best, penalty, alpha):
    run = compiled(beam_size, max_steps, num_best, penalty, alpha)
    found = jax.tree.map(np.asarray, run(table, np.array(limits, np.int32)))
    check_form(found, limits)
    for outputs in as_lists(found):
        assert len({tokens for tokens, _, _ in outputs}) == len(outputs)
    return found


def divisor(penalty, alpha, n):
    """Wu et al. 2016, equation 14, and fairseq's, written once more."""
    return np.float32({"gnmt": (5 + n) ** alpha / 6**alpha, "power": float(n) ** alpha, "none": 1.0}[penalty])


def all_outputs(table, limit, penalty, alpha):
    """Every output there is, best first."""
    vocab_size = table.shape[-1]
    words = [token for token in range(vocab_size) if token != EOS]
    outputs = [(*prefix, EOS) for length in range(limit) for prefix in itertools.product(words, repeat=length)] + (
        list(itertools.product(words, repeat=limit)) if limit else []
    )
    scored = [(tokens, teacher_forced(table, tokens) / divisor(penalty, alpha, len(tokens))) for tokens in outputs]
    return sorted([(tokens, score) for tokens, score in scored if score > -np.inf], key=lambda output: -output[1])


def never_early(table, limit, beam_size, penalty, alpha):
    """Beam search in plain Python that goes on to the limit whatever it has found. Best first."""
    live = [((), np.float32(0))]
    finished = []
    for length in range(1, limit + 1):
        candidates = []
        for tokens, log_prob in live:
            for token, more in enumerate(next_log_probs(table, tokens)):
                if more > -np.inf:
                    candidates.append(((*tokens, token), log_prob + more))
        candidates.sort(key=lambda candidate: -candidate[1])
        for tokens, log_prob in candidates[:beam_size]:
            if tokens[-1] == EOS or length == limit:
                finished.append((tokens, log_prob / divisor(penalty, alpha, length)))
        live = [candidate for candidate in candidates if candidate[0][-1] != EOS][:beam_size]
    return sorted(finished, key=lambda output: -output[1])


def assert_same(found, expected):
    assert [tokens for tokens, _, _ in found] == [tokens for tokens, _ in expected]
    np.testing.assert_allclose([score for _, score, _ in found], [score for _, score in expected], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("vocab_size", "beam_size", "max_steps", "penalty", "alpha"),
    [
        (2, 5, 4, "none", 0.0),
        (2, 5, 4, "power", -1.0),
        (3, 1, 7, "gnmt", 0.6),
        (5, 3, 7, "none", 0.0),
        (5, 3, 7, "gnmt", 0.6),
        (5, 3, 7, "gnmt", -1.0),
        (5, 3, 7, "gnmt", 2.0),
        (5, 3, 7, "power", 0.0),
        (5, 3, 7, "power", 1.0),
        (5, 3, 7, "power", -1.0),
    ],
)
@given(seed=SEEDS, kind=st.sampled_from(KINDS), data=st.data())
def test_equals_a_search_in_python_that_never_stops_early(
    vocab_size, beam_size, max_steps, penalty, alpha, seed, kind, data
):
    table = random_tables(seed, BATCH, vocab_size, kind)
    limits = data.draw(limits_up_to(max_steps))
    found = search(
        table, limits, beam_size=beam_size, max_steps=max_steps, num_best=beam_size, penalty=penalty, alpha=alpha
    )
    for outputs, sentence, limit in zip(as_lists(found), table, limits, strict=True):
        assert_same(outputs, never_early(sentence, limit, beam_size, penalty, alpha)[:beam_size])


@pytest.mark.parametrize(
    ("vocab_size", "max_steps", "penalty", "alpha"),
    [(1, 3, "none", 0.0), (2, 4, "gnmt", 0.6), (2, 4, "power", -1.0), (3, 3, "none", 0.0), (3, 3, "power", 2.0)],
)
@given(seed=SEEDS, kind=st.sampled_from(["smooth", "forbidden"]), data=st.data())
def test_a_beam_as_wide_as_the_space_is_exhaustive(vocab_size, max_steps, penalty, alpha, seed, kind, data):
    width = vocab_size**max_steps
    limits = data.draw(limits_up_to(max_steps))
    table = random_tables(seed, BATCH, vocab_size, kind)
    found = search(table, limits, beam_size=width, max_steps=max_steps, num_best=width, penalty=penalty, alpha=alpha)
    for outputs, sentence, limit in zip(as_lists(found), table, limits, strict=True):
        assert_same(outputs, all_outputs(sentence, limit, penalty, alpha))


@given(seed=SEEDS, kind=st.sampled_from(KINDS), limits=limits_up_to(7))
def test_scores_are_those_of_teacher_forcing(seed, kind, limits):
    table = random_tables(seed, BATCH, 5, kind)
    found = search(table, limits, beam_size=3, max_steps=7, num_best=3, penalty="gnmt", alpha=0.6)
    for outputs, sentence in zip(as_lists(found), table, strict=True):
        for tokens, score, log_prob in outputs:
            np.testing.assert_allclose(log_prob, teacher_forced(sentence, tokens), rtol=1e-6)
            np.testing.assert_allclose(score, log_prob / divisor("gnmt", 0.6, len(tokens)), rtol=1e-6)


@pytest.mark.parametrize(("penalty", "alpha"), [("gnmt", 0.6), ("power", -1.0)])
@given(seed=SEEDS, kind=st.sampled_from(KINDS), limits=limits_up_to(7))
def test_asking_for_more_never_changes_the_best(penalty, alpha, seed, kind, limits):
    table = random_tables(seed, BATCH, 5, kind)
    more = search(table, limits, beam_size=3, max_steps=7, num_best=3, penalty=penalty, alpha=alpha)
    for num_best in (1, 2):
        fewer = search(table, limits, beam_size=3, max_steps=7, num_best=num_best, penalty=penalty, alpha=alpha)
        for few, many in zip(fewer, more, strict=True):
            np.testing.assert_array_equal(few, many[:, :num_best])


@given(seed=SEEDS, kind=st.sampled_from(KINDS), limits=limits_up_to(7))
def test_beam_of_one_without_penalty_is_greedy(seed, kind, limits):
    table = random_tables(seed, BATCH, 3, kind)
    beam = search(table, limits, beam_size=1, max_steps=7, num_best=1, penalty="none", alpha=0.0)
    plain = compiled_greedy(table, np.array(limits, np.int32))
    check_form(plain, limits)
    for one, other in zip(beam, plain, strict=True):
        np.testing.assert_array_equal(one, other)
    for outputs, sentence, limit in zip(as_lists(plain), table, limits, strict=True):
        tokens = ()
        while len(tokens) < limit and EOS not in tokens and next_log_probs(sentence, tokens).max() > -np.inf:
            tokens = (*tokens, int(np.argmax(next_log_probs(sentence, tokens))))
        complete = limit > 0 and (EOS in tokens or len(tokens) == limit)
        assert [found for found, _, _ in outputs] == ([tokens] if complete else [])


@jit
def compiled_greedy(table_BMV, limits_B):
    state = initial_state(table_BMV, 1)
    return greedy(step, state, batch_size=BATCH, bos_id=BOS, eos_id=EOS, max_steps=7, limits_B=limits_B)


@given(seed=SEEDS, kind=st.sampled_from(KINDS), data=st.data())
def test_batch_mates_order_and_padding_rows_change_nothing(seed, kind, data):
    arguments = dict(beam_size=3, max_steps=7, num_best=3, penalty="gnmt", alpha=0.6)
    table = random_tables(seed, BATCH, 5, kind)
    limits = np.array(data.draw(limits_up_to(7)))
    together = search(table, limits, **arguments)
    order = np.array(data.draw(st.permutations(range(BATCH))))
    shuffled = search(table[order], limits[order], **arguments)
    stays = np.array(data.draw(st.lists(st.booleans(), min_size=BATCH, max_size=BATCH)))
    # Padding rows of a real model may hold NaN.
    alone = search(np.where(stays[:, None, None], table, np.nan), np.where(stays, limits, 0), **arguments)
    for whole, permuted, part in zip(together, shuffled, alone, strict=True):
        np.testing.assert_array_equal(permuted, whole[order])
        np.testing.assert_array_equal(part[stays], whole[stays])
    assert np.all(alone.scores[~stays] == -np.inf)


def test_stops_as_soon_as_nothing_better_can_come():
    # EOS has probability 0.9 after any history. The best output is EOS alone, with a score of log 0.9 = -0.105.
    table = jnp.broadcast_to(jnp.log(jnp.array([0.9, 0.06, 0.04])), (3, 97, 3))
    calls = []

    def counting(state, parents_BW, tokens_BW):
        jax.debug.callback(lambda: calls.append(1))
        return step(state, parents_BW, tokens_BW)

    def number_of_calls(searching, limits):
        calls.clear()
        searching(np.array(limits, np.int32))
        jax.effects_barrier()
        return len(calls)

    def with_penalty(penalty, alpha):
        sizes = dict(batch_size=3, beam_size=2, bos_id=BOS, eos_id=EOS, max_steps=11)
        rule = dict(length_penalty=penalty, alpha=alpha)
        return jit(lambda limits_B: beam_search(counting, initial_state(table, 2), limits_B=limits_B, **sizes, **rule))

    none, power = with_penalty("none", 0.0), with_penalty("power", 2.0)
    assert number_of_calls(none, [0, 0, 0]) == 0
    assert number_of_calls(none, [11, 0, 0]) == 1
    # The best live hypothesis after t calls has log-probability t log 0.06, which may come to be divided by 11^2:
    # -0.023, -0.047, -0.070, -0.093, -0.116. Only the fifth is below -0.105.
    assert number_of_calls(power, [11, 0, 0]) == 5
    # What counts is the limit of the sentence, not the size of the buffer: log 0.06 / 5^2 is below -0.105.
    assert number_of_calls(power, [0, 5, 0]) == 1


def test_limits_above_max_steps_are_max_steps():
    table = random_tables(0, BATCH, 5, "smooth")
    arguments = dict(beam_size=3, max_steps=7, num_best=3, penalty="gnmt", alpha=0.6)
    at = search(table, [7] * BATCH, **arguments)
    above = compiled(*arguments.values())(table, np.full(BATCH, 1000, np.int32))
    for one, other in zip(above, at, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(num_best=3), "num_best=3 must lie in 1 to beam_size=2"),
        (dict(num_best=0), "num_best=0"),
        (dict(penalty="gmnt"), "length_penalty=gmnt is not one of gnmt, power, none"),
        (dict(penalty="power", alpha=1e3), "alpha=1000.0"),
    ],
)
def test_user_errors(change, message):
    arguments = dict(beam_size=2, max_steps=7, num_best=1, penalty="gnmt", alpha=0.6) | change
    with pytest.raises(UserError, match=message):
        search(random_tables(0, BATCH, 5, "smooth"), [7] * BATCH, **arguments)
