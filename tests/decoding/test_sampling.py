import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
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
from transformer.decoding.sampling import _likely, _nucleus, greedy, sample
from transformer.types import UserError

BATCH = 5
VOCAB = 7
SEEDS = st.integers(0, 2**32 - 1)


@jit
def keys(seed, lines):
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(seed), lines)


@functools.cache
def compiled(num_samples, max_steps, **options):
    def draw(table_BMV, keys_B, limits_B):
        return sample(
            step,
            initial_state(table_BMV, num_samples),
            batch_size=table_BMV.shape[0],
            num_samples=num_samples,
            keys_B=keys_B,
            bos_id=BOS,
            eos_id=EOS,
            max_steps=max_steps,
            limits_B=limits_B,
            **options,
        )

    return jit(draw)


def draw(table, seed, lines, limits, num_samples=3, max_steps=11, **options):
    run = compiled(num_samples, max_steps, **options)
    drawn = jax.tree.map(np.asarray, run(table, keys(np.uint32(seed), np.array(lines)), np.array(limits, np.int32)))
    check_form(drawn, limits)
    return drawn


def allowed(log_probs, temperature, top_k, top_p, min_p=0.0):
    """What sampling draws from, by definition and one token at a time: {token: probability}."""
    order = sorted(range(len(log_probs)), key=lambda token: -log_probs[token])[: top_k or None]
    weights = {token: np.exp(np.float64(log_probs[token]) / temperature) for token in order}
    total = sum(weights.values())
    kept, share = {}, 0.0
    for token in order:
        kept[token] = weights[token]
        share += weights[token] / total
        if share >= top_p:
            break
    kept = {token: weight for token, weight in kept.items() if weight >= min_p * max(kept.values())}
    return {token: weight / sum(kept.values()) for token, weight in kept.items() if weight > 0}


@pytest.mark.parametrize(
    "options", [dict(), dict(top_p=0.6), dict(temperature=1.5, top_k=5, top_p=0.7), dict(temperature=2.0, min_p=0.3)]
)
@given(
    seed=SEEDS,
    kind=st.sampled_from(["smooth", "forbidden"]),
    limits=st.lists(st.integers(0, 11), min_size=5, max_size=5),
)
@settings(max_examples=10)
def test_outputs_are_allowed_and_have_the_scores_of_the_model(options, seed, kind, limits):
    table = random_tables(seed, BATCH, VOCAB, kind)
    drawn = draw(table, seed, range(BATCH), limits, **options)
    settings_of = dict(temperature=1.0, top_k=0, top_p=1.0) | options
    for outputs, sentence in zip(as_lists(drawn), table, strict=True):
        for tokens, score, log_prob in outputs:
            assert score == log_prob
            np.testing.assert_allclose(log_prob, teacher_forced(sentence, tokens), rtol=1e-5)
            for place, token in enumerate(tokens):
                assert token in allowed(next_log_probs(sentence, tokens[:place]), **settings_of)


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(temperature=0.5),
        dict(temperature=2.0, top_k=3),
        dict(temperature=1.5, top_k=5, top_p=0.7, min_p=0.2),
    ],
)
def test_frequencies(options):
    """Of the first two tokens together, by the chi-square statistic of 20,000 draws."""
    num_samples, batch_size = 4_000, 5
    sentence = random_tables(3, 1, VOCAB, "smooth")
    sentence[..., EOS] = -np.inf
    drawn = draw(
        np.tile(sentence, (batch_size, 1, 1)),
        0,
        range(batch_size),
        [2] * batch_size,
        num_samples=num_samples,
        max_steps=2,
        **options,
    )
    settings_of = dict(temperature=1.0, top_k=0, top_p=1.0) | options
    expected = {
        (first, second): p * q
        for first, p in allowed(next_log_probs(sentence[0], ()), **settings_of).items()
        for second, q in allowed(next_log_probs(sentence[0], (first,)), **settings_of).items()
    }
    pairs = drawn.tokens.reshape(-1, 2)
    counts = {pair: 0 for pair in expected}
    for pair in pairs.tolist():
        counts[tuple(pair)] += 1
    total = num_samples * batch_size
    common = [pair for pair in expected if expected[pair] * total >= 5]
    statistic = sum((counts[pair] - total * expected[pair]) ** 2 / (total * expected[pair]) for pair in common)
    # The mean of the statistic is its degrees of freedom d, its variance 2 d.
    assert statistic < len(common) + 5 * np.sqrt(2 * len(common))


@given(seed=SEEDS, data=st.data())
@settings(max_examples=10)
def test_depends_on_seed_and_line_only(seed, data):
    options = dict(top_p=0.6)
    table = random_tables(seed, BATCH, VOCAB, "smooth")
    limits = np.array(data.draw(st.lists(st.integers(0, 11), min_size=BATCH, max_size=BATCH)))
    lines = np.arange(100, 100 + BATCH)
    together = draw(table, seed, lines, limits, **options)
    order = np.array(data.draw(st.permutations(range(BATCH))))
    shuffled = draw(table[order], seed, lines[order], limits[order], **options)
    stays = np.array(data.draw(st.lists(st.booleans(), min_size=BATCH, max_size=BATCH)))
    alone = draw(np.where(stays[:, None, None], table, np.nan), seed, lines, np.where(stays, limits, 0), **options)
    fewer = draw(table, seed, lines, limits, num_samples=2, **options)
    for whole, permuted, part, first in zip(together, shuffled, alone, fewer, strict=True):
        np.testing.assert_array_equal(permuted, whole[order])
        np.testing.assert_array_equal(part[stays], whole[stays])
        np.testing.assert_array_equal(first, whole[:, :2])


def test_seeds_lines_samples_and_steps_differ():
    table = np.full((BATCH, 97, VOCAB), -np.log(VOCAB - 1), np.float32)
    table[..., EOS] = -np.inf
    draws = [draw(table, seed, range(BATCH), [11] * BATCH) for seed in (0, 1)]
    outputs = np.concatenate([drawn.tokens.reshape(-1, 11) for drawn in draws])
    assert len(np.unique(outputs, axis=0)) == len(outputs)
    assert all(len(set(output)) > 1 for output in outputs.tolist())


def test_one_token_left_is_greedy():
    table = random_tables(5, BATCH, VOCAB, "smooth")
    best = jit(greedy, static_argnums=0, static_argnames=("batch_size", "bos_id", "eos_id", "max_steps"))(
        step,
        initial_state(jnp.asarray(table), 1),
        batch_size=BATCH,
        bos_id=BOS,
        eos_id=EOS,
        max_steps=11,
        limits_B=jnp.full(BATCH, 11),
    )
    for options in (dict(top_k=1), dict(top_p=1e-6), dict(min_p=1.0)):
        for drawn, expected in zip(draw(table, 0, range(BATCH), [11] * BATCH, **options), best, strict=True):
            np.testing.assert_array_equal(drawn, np.repeat(expected, 3, axis=1))


@pytest.mark.parametrize("top_p", [1e-6, 0.125, 0.3, 0.625, 0.8, 0.999])
@pytest.mark.parametrize("weights", [[1] * 8, [1, 1, 1, 1, 4, 4, 4], [0, 1, 0], [1], [0, 0]])
def test_of_equal_tokens_the_first_make_the_smallest_set(top_p, weights):
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array(weights, np.float32))
    kept = nucleus(log_probs[None, None], top_p)[0, 0] > -np.inf
    expected = allowed(log_probs, 1.0, 0, top_p) if any(weights) else []
    assert np.flatnonzero(kept).tolist() == sorted(expected)


nucleus = jit(_nucleus, static_argnums=1)
likely = jit(_likely, static_argnums=(1, 2))


@pytest.mark.parametrize(("top_p", "min_p"), [(1.0, 0.21), (0.8, 0.3), (1.0, 1.0)])
@given(weights=st.lists(st.integers(0, 40), min_size=13, max_size=13).filter(any))
def test_a_share_of_the_largest_probability_is_needed(top_p, min_p, weights):
    """Of what the nucleus leaves, as ``transformers`` has it: the nucleus is taken of all tokens."""
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array(weights, np.float32) / np.float32(sum(weights)))
    shares = np.cumsum(sorted(weights, reverse=True)) / sum(weights)
    assume(top_p == 1 or np.abs(shares - top_p).min() > 1e-5)
    kept = np.asarray(likely(log_probs[None, None], top_p, min_p))[0, 0]
    expected = allowed(log_probs, 1.0, 0, top_p, min_p)
    assert np.flatnonzero(kept > -np.inf).tolist() == sorted(expected)
    np.testing.assert_array_equal(kept[sorted(expected)], log_probs[sorted(expected)])


def test_keeping_all_tokens_is_plain_sampling():
    table = random_tables(6, BATCH, VOCAB, "smooth")
    plain = draw(table, 0, range(BATCH), [11] * BATCH)
    for drawn, expected in zip(draw(table, 0, range(BATCH), [11] * BATCH, top_k=VOCAB + 5), plain, strict=True):
        np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize(
    "options",
    [dict(temperature=0.0), dict(top_k=-1), dict(top_p=0.0), dict(top_p=1.5), dict(min_p=-0.1), dict(min_p=1.1)],
)
def test_user_errors(options):
    (name,) = options
    with pytest.raises(UserError, match=f"{name}="):
        draw(random_tables(0, BATCH, VOCAB, "smooth"), 0, range(BATCH), [3] * BATCH, **options)
