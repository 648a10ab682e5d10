"""Every kernel against the oracle, for every kind of mask; and what must never leak."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import oracle
from transformer.models.attention import KERNELS, attend, attention_weights
from transformer.models.masks import AttentionMask
from transformer.types import UserError

B, T, S, H, K = 2, 7, 11, 6, 5
SEGMENTS_T = np.array([[1, 1, 1, 2, 2, 0, 0], [1, 2, 2, 3, 3, 3, 0]], np.int32)
SEGMENTS_S = np.array([[1, 1, 2, 2, 2, 2, 2, 0, 0, 0, 0], [2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]], np.int32)
POSITIONS_S = np.array([[3, -1, 0, 1, 2, 5, -1, 4, 6, 7, -1], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, -1]], np.int32)
POSITIONS_T = np.array([[4, 5, 6, 7, 8, 9, 10], [0, 0, 1, 2, 2, 3, 4]], np.int32)
LENGTHS_T, LENGTHS_S = np.array([7, 3], np.int32), np.array([9, 0], np.int32)
MATRIX = np.random.default_rng(3).random((B, T, S)) < 0.3

MASKS = {
    "none": AttentionMask(),
    "causal": AttentionMask(causal=True),
    "window": AttentionMask(window=3),
    "causal window": AttentionMask(causal=True, window=2),
    "key lengths": AttentionMask(key_lengths=LENGTHS_S),
    "both lengths": AttentionMask(causal=True, query_lengths=LENGTHS_T, key_lengths=LENGTHS_S),
    "segments": AttentionMask(query_segment_ids=SEGMENTS_T, key_segment_ids=SEGMENTS_S),
    "cache": AttentionMask(causal=True, query_positions=POSITIONS_T, key_positions=POSITIONS_S),
    "prefix": AttentionMask(causal=True, prefix_lengths=np.array([4, 0], np.int32)),
    "prefix window": AttentionMask(causal=True, window=2, prefix_lengths=np.array([1, 3], np.int32)),
    "matrix": AttentionMask(matrix=MATRIX),
    "matrix in a cache": AttentionMask(
        causal=True, query_positions=POSITIONS_T, key_positions=POSITIONS_S, matrix=MATRIX
    ),
}
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}


def arrays(groups: int, dtype: str = "float32", seed: int = 0):
    rng = np.random.default_rng(seed)
    shapes = (B, T, H, K), (B, S, groups, K), (B, S, groups, K)
    return tuple(rng.normal(size=shape).astype(jnp.dtype(dtype)) for shape in shapes)


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("mask", MASKS)
def test_kernels_agree_with_the_oracle_forward_and_gradient(implementation, mask):
    for groups, dtype in ((6, "float32"), (2, "bfloat16")):
        query, key, value = arrays(groups, dtype)
        run = jax.jit(lambda q, k, v: attend(q, k, v, MASKS[mask], implementation=implementation))
        expected, weights = oracle.attention(query, key, value, MASKS[mask])
        np.testing.assert_allclose(np.asarray(run(query, key, value), np.float64), expected, atol=TOLERANCE[dtype])
        got = jax.jit(attention_weights)(query, key, MASKS[mask])
        np.testing.assert_allclose(np.asarray(got, np.float64), weights, atol=TOLERANCE[dtype])

    # The gradient of a random projection of the output, by differences of the oracle along random directions.
    query, key, value = arrays(2, seed=1)
    rng = np.random.default_rng(2)
    cotangent = rng.normal(size=expected.shape)
    gradients = jax.jit(jax.grad(lambda *qkv: jnp.sum(run(*qkv) * cotangent), argnums=(0, 1, 2)))(query, key, value)
    for number, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)

        def moved(step, number=number, direction=direction):
            inputs = [np.asarray(array, np.float64) for array in (query, key, value)]
            inputs[number] = inputs[number] + step * direction
            return np.sum(oracle.attention(*inputs, MASKS[mask])[0] * cotangent)

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        assert np.sum(np.asarray(gradient, np.float64) * direction) == pytest.approx(slope, abs=2e-3)


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("mask", ["both lengths", "segments", "cache"])
def test_padding_never_reaches_an_output_or_a_gradient(implementation, poison, mask):
    query, key, value = arrays(3)
    mask = MASKS[mask]
    present_T = np.array([[any(oracle.sees(mask, b, t, s) for s in range(S)) for t in range(T)] for b in range(B)])
    present_S = np.array([[any(oracle.sees(mask, b, t, s) for t in range(T)) for s in range(S)] for b in range(B)])
    padding_S = (
        np.asarray(mask.key_lengths)[:, None] <= np.arange(S)
        if mask.key_lengths is not None
        else (
            np.asarray(mask.key_segment_ids) == 0
            if mask.key_segment_ids is not None
            else np.asarray(mask.key_positions) < 0
        )
    )
    padding_T = (
        np.asarray(mask.query_lengths)[:, None] <= np.arange(T)
        if mask.query_lengths is not None
        else (np.asarray(mask.query_segment_ids) == 0 if mask.query_segment_ids is not None else np.zeros((B, T), bool))
    )

    @jax.jit
    def run(query, key, value):
        return jax.value_and_grad(
            lambda *qkv: (lambda out: (jnp.sum(jnp.sin(out)), out))(attend(*qkv, mask, implementation=implementation)),
            argnums=(0, 1, 2),
            has_aux=True,
        )(query, key, value)

    (_, clean), clean_gradients = run(query, key, value)
    query = jnp.where(padding_T[..., None, None], poison, query)
    key, value = (jnp.where(padding_S[..., None, None], poison, array) for array in (key, value))
    (_, output), gradients = run(query, key, value)
    np.testing.assert_array_equal(output, clean)
    for gradient, wanted in zip(gradients, clean_gradients, strict=True):
        np.testing.assert_array_equal(gradient, wanted)
    assert not np.asarray(output)[~present_T].any()
    assert not np.asarray(gradients[2])[~present_S].any()


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_row_that_sees_nothing_gives_zeros(implementation, dtype):
    query, key, value = arrays(6, dtype)
    mask = AttentionMask(matrix=np.zeros((B, T, S), bool))

    @jax.jit
    def run(*qkv):
        output, pullback = jax.vjp(lambda *qkv: attend(*qkv, mask, implementation=implementation), *qkv)
        return output, pullback(jnp.ones_like(output))

    output, gradients = run(query, key, value)
    assert output.dtype == dtype and not np.asarray(output, np.float32).any()
    for gradient in gradients:
        assert not np.asarray(gradient, np.float32).any()


def test_an_unknown_implementation_and_heads_that_do_not_group_are_errors():
    query, key, value = map(jnp.asarray, arrays(6))
    with pytest.raises(UserError, match=r"model.attention_implementation=dens is not one of .*did you mean dense"):
        attend(query, key, value, AttentionMask(), implementation="dens")
    with pytest.raises(ValueError, match="6 query heads do not group over 4"):
        attend(query, jnp.zeros((B, S, 4, K)), jnp.zeros((B, S, 4, K)), AttentionMask())


def test_scale_and_dropout():
    query, key, value = map(jnp.asarray, arrays(6))
    expected, _ = oracle.attention(query, key, value, AttentionMask(), scale=0.7)
    np.testing.assert_allclose(attend(query, key, value, AttentionMask(), scale=0.7), expected, atol=1e-5)
    rng = jax.random.key(0)
    clean = attend(query, key, value, AttentionMask())
    keys = jax.random.split(rng, 500)
    dropped = jax.vmap(lambda r: attend(query, key, value, AttentionMask(), dropout_rate=0.3, dropout_rng=r))(keys)
    assert not np.allclose(dropped[0], clean)
    np.testing.assert_allclose(dropped.mean(0), clean, atol=0.12)
    np.testing.assert_array_equal(attend(query, key, value, AttentionMask(), dropout_rate=0.3), clean)
