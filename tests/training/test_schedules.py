"""Schedules: against their formulas in plain Python, and the paper's peaks."""

import math
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from transformer.config import SCHEDULES_FREE_OF_NUM_STEPS, TrainingConfig
from transformer.training.schedules import SCHEDULES, make_schedule, peak_rate
from transformer.types import UserError

ENDING = sorted(set(SCHEDULES) - set(SCHEDULES_FREE_OF_NUM_STEPS))


def config(name: str, **values) -> TrainingConfig:
    return TrainingConfig(schedule=name, **values)


def rates(c: TrainingConfig, updates: Iterable[int], d_model: int = 512) -> list[float]:
    """The rates of updates counted from 1."""
    return make_schedule(c, d_model)(jnp.asarray(list(updates)) - 1).tolist()


def oracle(c: TrainingConfig, d_model: int, s: int) -> float:
    w, n, peak, final = c.warmup_steps, c.num_steps, c.learning_rate, c.final_learning_rate
    decay = c.decay_steps if c.decay_steps is not None else max(n // 10, 1)
    if c.schedule == "paper":
        return peak / math.sqrt(d_model) * min(1 / math.sqrt(s), s * w**-1.5 if w else math.inf)
    if c.schedule == "inverse_square_root":
        return peak * (s / w if s < w else math.sqrt(max(w, 1) / s))
    if c.schedule == "constant_inverse_square_root":
        return peak * (1 if s < w else math.sqrt(max(w, 1) / s))
    if s < w:
        return peak * s / w
    if c.schedule == "linear":
        return final + (peak - final) * (1 if s == w else max(0, (n - s) / (n - w)) if n > w else 1)
    if c.schedule == "cosine":
        part = min(1, (s - w) / (n - w)) if n > w else 0
        return final + (peak - final) * (1 + math.cos(math.pi * part)) / 2
    if c.schedule == "warmup_stable_decay":
        return final + (peak - final) * min(1, max(0, (n - s) / decay))
    return peak


@pytest.mark.parametrize("name", SCHEDULES)
@given(
    num_steps=st.integers(1, 500),
    warmup_steps=st.integers(0, 400),
    decay_steps=st.none() | st.integers(1, 100),
    final=st.sampled_from([0.0, 1e-4]),
    part=st.floats(0, 1),
)
def test_agrees_with_its_formula_at_every_update(name, num_steps, warmup_steps, decay_steps, final, part):
    decay = decay_steps if decay_steps is not None else max(num_steps // 10, 1)
    assume(warmup_steps + decay <= num_steps)
    c = config(
        name,
        learning_rate=0.02,
        num_steps=num_steps,
        warmup_steps=warmup_steps,
        decay_steps=decay_steps,
        final_learning_rate=final,
    )
    updates = [1, 2, max(warmup_steps, 1), warmup_steps + 1, 1 + round(part * (num_steps - 1)), num_steps]
    assert rates(c, updates, 37) == pytest.approx([oracle(c, 37, s) for s in updates], rel=1e-5, abs=2e-9)


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_the_papers_peaks(d_model, peak):
    c = config("paper")
    assert c.warmup_steps == 4000
    first, before, top, after = rates(c, [1, 3999, 4000, 4001], d_model)
    assert top == pytest.approx(peak, abs=5e-7)
    assert before < top > after
    assert first == pytest.approx(top / 4000)


def test_a_peak_that_is_held_from_the_start_falls_as_if_it_had_been_climbed_to():
    names = ("constant_inverse_square_root", "inverse_square_root")
    held, climbed = (rates(config(name, learning_rate=3e-4, warmup_steps=100), range(1, 1001)) for name in names)
    assert held[:100] == pytest.approx([3e-4] * 100) and held[99:] == climbed[99:]


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"paper", "constant_inverse_square_root"}))
def test_learning_rate_is_the_peak_and_is_reached_at_the_last_update_of_the_warm_up(name):
    c = config(name, learning_rate=3e-4, num_steps=1000, warmup_steps=100)
    all_rates = rates(c, range(1, 1001))
    assert max(all_rates) == pytest.approx(3e-4) == all_rates[99]
    assert all_rates[0] == pytest.approx(3e-6)
    assert all_rates[98] < all_rates[99]


@pytest.mark.parametrize("name", ENDING)
def test_the_last_update_has_the_final_rate_and_so_has_all_after_it(name):
    c = config(name, learning_rate=3e-4, num_steps=1000, warmup_steps=100, final_learning_rate=2e-5)
    before, last, later = rates(c, [999, 1000, 1500])
    assert before > last == later == pytest.approx(2e-5)


@pytest.mark.parametrize("name", SCHEDULES_FREE_OF_NUM_STEPS)
def test_schedules_said_to_be_free_of_num_steps_are(name):
    short, long = (config(name, num_steps=n, warmup_steps=10) for n in (20, 2000))
    assert rates(short, range(1, 21)) == rates(long, range(1, 21))


@pytest.mark.parametrize("name", SCHEDULES)
def test_traced_and_untraced_agree(name):
    c = config(name, num_steps=50, warmup_steps=7)
    schedule = make_schedule(c, 64)
    for step in (0, 6, 7, 49):
        traced = jax.jit(schedule)(jnp.int32(step))
        assert traced.dtype == jnp.float32
        assert traced == pytest.approx(float(schedule(step)), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", ENDING)
def test_a_warm_up_longer_than_the_run_is_refused(name):
    with pytest.raises(UserError, match=r"training\.warmup_steps=101 .*training\.num_steps=100"):
        make_schedule(config(name, num_steps=100, warmup_steps=101), 64)


@pytest.mark.parametrize(("warmup_steps", "decay_steps"), [(60, 41), (0, 101), (0, 0), (91, None)])
def test_a_decay_that_does_not_fit_is_refused(warmup_steps, decay_steps):
    with pytest.raises(UserError, match=r"training\.decay_steps="):
        make_schedule(
            config("warmup_stable_decay", num_steps=100, warmup_steps=warmup_steps, decay_steps=decay_steps), 64
        )


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UserError, match=r"training\.schedule=cosin is not one of .*did you mean cosine\?"):
        make_schedule(config("cosin"), 64)


@pytest.mark.parametrize("name", SCHEDULES)
@given(num_steps=st.integers(1, 60), warmup=st.integers(0, 70), final=st.floats(0, 2), data=st.data())
def test_the_peak_so_far_is_the_highest_rate_of_all_updates(name, num_steps, warmup, final, data):
    if name in ENDING:
        warmup = min(warmup, num_steps - 1)
    decay_steps = data.draw(st.integers(1, max(num_steps - warmup, 1)))
    c = config(name, num_steps=num_steps, warmup_steps=warmup, decay_steps=decay_steps, final_learning_rate=final)
    updates = data.draw(st.integers(1, num_steps))
    all_rates = rates(c, range(1, 61))[:updates]  # one shape, one compilation
    rate, update = peak_rate(make_schedule(c, 512), warmup, updates)
    assert rate == pytest.approx(max(all_rates), rel=1e-6)
    assert all_rates[update - 1] == pytest.approx(rate, rel=1e-6)
