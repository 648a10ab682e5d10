"""Cross-entropy: against NumPy in float64, its invariances, and what stands where the weight is 0."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from transformer.config import ModelConfig
from transformer.tasks.losses import LABEL_SMOOTHING_FORMS, add_auxiliary_losses, cross_entropy
from transformer.types import UserError

B, T, V = 3, 5, 11
PADDING = 2


def example(seed: int = 0, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    logits = random.normal(size=(B, T, V)).astype(np.float32) * scale
    targets = (PADDING + random.integers(1, V, (B, T))).astype(np.int32) % V  # every class but padding
    weights = (random.random((B, T)) < 0.7).astype(np.float32)
    weights[0, 0] = 1.0
    return logits, targets, weights


@functools.partial(jax.jit, static_argnames=("form", "label_smoothing"))
def loss_of(logits, targets, weights, form="uniform", label_smoothing=0.1):
    sums = cross_entropy(logits, targets, weights, label_smoothing=label_smoothing, form=form, padding_id=PADDING)
    return sums["loss"][0], sums


def distribution(form: str, e: float, target: int) -> np.ndarray:
    """What the papers and programs say, written out class by class."""
    q = {
        "uniform": np.full(V, e / V),
        "others": np.full(V, e / (V - 1)),
        "without_padding": np.full(V, e / (V - 2)),
    }[form]
    q[target] = 1 - e + (e / V if form == "uniform" else 0)
    if form == "without_padding":
        q[PADDING] = 0
    return q


@pytest.mark.parametrize("form", LABEL_SMOOTHING_FORMS)
@given(seed=st.integers(0, 10**6), e=st.sampled_from([0.0, 0.1, 0.37]), scale=st.sampled_from([0.0, 1.0, 30.0]))
def test_agrees_with_the_sum_over_all_classes(form, seed, e, scale):
    logits, targets, weights = example(seed, scale)
    log_probs = log_softmax(logits.astype(np.float64), axis=-1)
    _, sums = loss_of(logits, targets, weights, form, e)
    wanted = {"loss": 0.0, "nll": 0.0, "accuracy": 0.0}
    for place in np.ndindex(B, T):
        q = distribution(form, e, targets[place])
        assert np.isclose(q.sum(), 1)
        wanted["loss"] += weights[place] * -(q @ log_probs[place])
        wanted["nll"] += weights[place] * -log_probs[place][targets[place]]
        wanted["accuracy"] += weights[place] * (logits[place].argmax() == targets[place])
    assert set(sums) == set(wanted)
    for name, (total, count) in sums.items():
        np.testing.assert_allclose(total, wanted[name], rtol=2e-6, atol=2e-5, err_msg=name)
        assert count == weights.sum()


@pytest.mark.parametrize("form", LABEL_SMOOTHING_FORMS)
def test_gradient_is_softmax_minus_the_distribution(form):
    logits, targets, weights = example()
    gradient = jax.grad(lambda x: loss_of(x, targets, weights, form)[0])(jnp.asarray(logits))
    softmax = np.exp(log_softmax(logits.astype(np.float64), axis=-1))
    for place in np.ndindex(B, T):
        wanted = weights[place] * (softmax[place] - distribution(form, 0.1, targets[place]))
        np.testing.assert_allclose(gradient[place], wanted, atol=1e-6)


def test_accuracy_takes_the_first_of_equal_logits_as_argmax_does():
    logits = np.zeros((2, V), np.float32)
    logits[:, [3, 5]] = 1.0
    assert loss_of(logits, np.array([3, 5], np.int32), np.ones(2, np.float32))[1]["accuracy"] == (1.0, 2.0)


def test_forms_have_the_published_numbers_at_ten_classes():
    assert LABEL_SMOOTHING_FORMS["uniform"](0.1, 10) == pytest.approx((0.91, 0.01, 0.01))
    assert LABEL_SMOOTHING_FORMS["others"](0.1, 10) == pytest.approx((0.9, 0.1 / 9, 0.1 / 9))
    assert LABEL_SMOOTHING_FORMS["without_padding"](0.1, 10) == pytest.approx((0.9, 0.1 / 8, 0.0))


@pytest.mark.parametrize("form", LABEL_SMOOTHING_FORMS)
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 3e38])
def test_weight_zero_leaves_no_trace_in_sums_or_gradient(form, garbage):
    logits, targets, weights = example()
    clean = jax.value_and_grad(lambda x: loss_of(x, targets, weights, form), has_aux=True)(jnp.asarray(logits))
    # New arrays: JAX may still be reading those that it was given.
    bad_logits = jnp.where(weights[..., None] == 0, garbage, logits)
    bad_targets = jnp.where(weights == 0, 10**6, targets)
    dirty = jax.value_and_grad(lambda x: loss_of(x, bad_targets, weights, form), has_aux=True)(bad_logits)
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)
    assert not np.any(dirty[1][weights == 0])


@given(seed=st.integers(0, 10**6), shift=st.sampled_from([-1e4, -3.0, 1e4]))
def test_a_constant_added_to_the_logits_changes_nothing(seed, shift):
    logits, targets, weights = example(seed)
    # The shifted logits themselves are rounded to 1e4 * 2^-24.
    np.testing.assert_allclose(
        loss_of(logits + np.float32(shift), targets, weights)[0], loss_of(logits, targets, weights)[0], atol=3e-2
    )


@given(seed=st.integers(0, 10**6), cut=st.integers(1, B - 1))
def test_sums_add_up_over_parts_and_merged_rows(seed, cut):
    logits, targets, weights = example(seed)
    _, whole = loss_of(logits, targets, weights)
    parts = [loss_of(logits[rows], targets[rows], weights[rows])[1] for rows in (slice(cut), slice(cut, None))]
    added = jax.tree.map(lambda *values: sum(values), *parts)
    _, merged = loss_of(logits.reshape(-1, V), targets.reshape(-1), weights.reshape(-1))
    for other in (added, merged):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole, other)


def test_weights_may_be_fractions():
    logits, targets, _ = example()
    one = np.ones((B, T), np.float32)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, 0.25 * b, rtol=1e-6),
        loss_of(logits, targets, 0.25 * one)[1],
        loss_of(logits, targets, one)[1],
    )


def test_bfloat16_logits_are_summed_in_float32():
    logits, targets, weights = example()
    rounded = jnp.asarray(logits, jnp.bfloat16)
    assert loss_of(rounded, targets, weights)[0] == loss_of(rounded.astype(jnp.float32), targets, weights)[0]


def test_a_class_ruled_out_by_minus_infinity_is_harmless_without_smoothing():
    logits, targets, weights = example()
    logits[..., PADDING] = -np.inf
    value, gradient = jax.value_and_grad(lambda x: loss_of(x, targets, weights, label_smoothing=0.0)[0])(
        jnp.asarray(logits)
    )
    assert np.isfinite(value) and np.all(np.isfinite(gradient))


def test_a_bad_target_or_logit_under_a_weight_is_seen():
    logits, targets, weights = example()
    targets[0, 0] = V
    assert np.isnan(loss_of(logits, targets, weights)[0])
    logits, targets, weights = example()
    logits[0, 0] = np.nan
    loss, sums = loss_of(logits, targets, weights)
    assert np.isnan(loss) and np.isfinite(sums["accuracy"][0])


def test_unknown_form_and_missing_padding_id():
    logits, targets, weights = example()
    with pytest.raises(UserError, match=r"training\.label_smoothing_form=other is not one of .*did you mean others\?"):
        loss_of(logits, targets, weights, "other")
    with pytest.raises(ValueError, match="needs padding_id"):
        cross_entropy(*map(jnp.asarray, (logits, targets, weights)), label_smoothing=0.1, form="without_padding")


def test_auxiliary_losses_are_added_with_their_weights_and_logged():
    """Two layers scanned in the decoder, one in the encoder: each layer's mean counts once."""
    collected = {
        "sums": {
            "encoder": {"layers": {"feed_forward": {"load_balancing": (jnp.array([6.0]), jnp.array([3.0]))}}},
            "decoder": {
                "layers": {
                    "feed_forward": {
                        "load_balancing": (jnp.array([4.0, 10.0]), jnp.array([2.0, 2.0])),
                        "router_z": (jnp.array([8.0, 0.0]), jnp.array([2.0, 2.0])),
                        "dropped_share": (jnp.array([1.0, 0.0]), jnp.array([4.0, 4.0])),
                    }
                }
            },
        }
    }
    config = ModelConfig(load_balancing_weight=0.5, router_z_weight=0.25)
    sums = add_auxiliary_losses({"loss": (jnp.array(7.0), jnp.array(10.0))}, collected, config)
    assert float(sums["loss"][0]) == 7 + 10 * (0.5 * (2 + 2 + 5) + 0.25 * 4)
    assert tuple(map(float, sums["load_balancing"])) == (20, 7)
    assert tuple(map(float, sums["dropped_share"])) == (1, 8)
    assert add_auxiliary_losses({"loss": (1.0, 2.0)}, {}, config) == {"loss": (1.0, 2.0)}
