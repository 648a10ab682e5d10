"""Every kernel against the oracle, for every kind of mask; and what must never leak."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import oracle
from transformer.models.attention import KERNELS, attend, attention_weights, blockwise, local
from transformer.models.attention.biases import Alibi, RelativeBias, alibi_slopes
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
# Of as many queries as keys, S of each, for kernels that know nothing else.
PACKED = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]], np.int32)
PACKED_POSITIONS = np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 0], range(S)], np.int32)
SELF_LENGTHS = np.array([8, 0], np.int32)
MASKS |= {
    f"self: {name}": mask
    for name, mask in {
        "window": AttentionMask(window=3),
        "causal window": AttentionMask(causal=True, window=6),
        "causal window of one": AttentionMask(causal=True, window=1),
        "wide window": AttentionMask(causal=True, window=40),
        "window, lengths": AttentionMask(window=4, query_lengths=SELF_LENGTHS, key_lengths=SELF_LENGTHS),
        "window, packed": AttentionMask(causal=True, window=3, query_segment_ids=PACKED, key_segment_ids=PACKED),
        "window, packed, positions": AttentionMask(
            causal=True,
            window=3,
            query_segment_ids=PACKED,
            key_segment_ids=PACKED,
            query_positions=PACKED_POSITIONS,
            key_positions=PACKED_POSITIONS,
        ),
    }.items()
}
TOLERANCE = {
    "float32": 1e-5,
    "bfloat16": 3e-2,
    "float16": 4e-3,
}  # of outputs; of slopes, a share of the gradient's size
BIASES = {
    None: None,
    "alibi": Alibi(alibi_slopes(H)),
    "relative": RelativeBias(np.random.default_rng(4).normal(size=(8, H)).astype(np.float32), True, 7),
    "relative, causal": RelativeBias(np.random.default_rng(5).normal(size=(6, H)).astype(np.float32), False, 9),
}
HERE = [name for name in KERNELS if name not in ("fused", "splash")]  # those have tests of their own
CASES = [
    (implementation, mask)
    for implementation in HERE
    for mask in MASKS
    if implementation != "local" or mask.startswith("self: ")
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that a short row has several."""
    monkeypatch.setattr(blockwise, "BLOCK", 4)
    monkeypatch.setattr(local, "BLOCK", 4)


def num_queries(mask: str) -> int:
    return S if mask.startswith("self: ") else T


def arrays(groups: int, dtype: str = "float32", seed: int = 0, queries: int = T):
    rng = np.random.default_rng(seed)
    shapes = (B, queries, H, K), (B, S, groups, K), (B, S, groups, K)
    return tuple(rng.normal(size=shape).astype(jnp.dtype(dtype)) for shape in shapes)


@pytest.mark.parametrize(("implementation", "mask"), CASES)
def test_kernels_agree_with_the_oracle_forward_and_gradient(implementation, mask):
    """Groupings of heads, dtypes, biases and caps are spread over the masks; the slow test has them all."""
    number = list(MASKS).index(mask)
    bias = list(BIASES)[number % len(BIASES)]
    softcap = 1.5 if number % 3 == 0 else None
    agrees_with_the_oracle(implementation, mask, groups=2, dtype="float32", bias=bias, softcap=softcap)
    agrees_with_the_oracle(implementation, mask, groups=6, dtype="bfloat16", bias=None, softcap=None, gradient=False)


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "mask"), CASES)
def test_every_kernel_mask_grouping_bias_cap_and_dtype(implementation, mask):
    for number, (bias, softcap) in enumerate(itertools.product(BIASES, (None, 0.7))):
        agrees_with_the_oracle(implementation, mask, (1, 3)[(number + number // 2) % 2], "float32", bias, softcap)
    for dtype, bias in (("bfloat16", "relative"), ("float16", None)):
        agrees_with_the_oracle(implementation, mask, 3, dtype, bias, 0.7, gradient=False)


def agrees_with_the_oracle(implementation, mask, groups, dtype, bias, softcap, gradient=True):
    query, key, value = arrays(groups, dtype, queries=num_queries(mask))
    description, options = MASKS[mask], {"bias": BIASES[bias], "softcap": softcap}
    rng = np.random.default_rng(2)
    cotangent = rng.normal(size=query.shape)

    def run(query, key, value, bias):
        return attend(
            query, key, value, description, bias=bias, softcap=softcap, implementation=implementation
        )  # fmt: skip

    @jax.jit
    def run_and_differentiate(*inputs):
        output, pullback = jax.vjp(run, *inputs)
        return output, pullback(cotangent.astype(output.dtype))

    seen = oracle.sees_all(description, *query.shape[:2], S)
    inputs = (query, key, value, BIASES[bias])
    output, gradients = run_and_differentiate(*inputs)
    expected, weights = oracle.attention(query, key, value, description, **options, seen_BTS=seen)
    assert output.dtype == dtype
    np.testing.assert_allclose(np.asarray(output, np.float64), expected, atol=TOLERANCE[dtype])
    if implementation == "dense":
        got = jax.jit(lambda query, key: attention_weights(query, key, description, **options))(query, key)
        np.testing.assert_allclose(np.asarray(got, np.float64), weights, atol=TOLERANCE[dtype])
    if not gradient:
        return

    # The gradient of a random projection of the output, by differences of the oracle along random directions.
    leaves, gradients = jax.tree.leaves(inputs), jax.tree.leaves(gradients)
    for number, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)

        def moved(step, number=number, direction=direction):
            changed = [np.asarray(array, np.float64) for array in leaves]
            changed[number] = changed[number] + step * direction
            *qkv, moved_bias = jax.tree.unflatten(jax.tree.structure(inputs), changed)
            options = {"bias": moved_bias, "softcap": softcap, "seen_BTS": seen}
            return np.sum(oracle.attention(*qkv, description, **options)[0] * cotangent)

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        gradient = np.asarray(gradient, np.float64)
        tolerance = 2e-3 if dtype == "float32" else TOLERANCE[dtype] * np.linalg.norm(gradient)
        assert np.sum(gradient * direction) == pytest.approx(slope, abs=tolerance)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("implementation", "mask"),
    [
        case
        for case in CASES
        if case[1] in ("both lengths", "segments", "cache", "self: window, lengths", "self: window, packed")
    ],
)
def test_padding_never_reaches_an_output_or_a_gradient(implementation, poison, mask):
    T = num_queries(mask)
    query, key, value = arrays(3, queries=T)
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


@pytest.mark.parametrize("implementation", HERE)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_row_that_sees_nothing_gives_zeros(implementation, dtype):
    query, key, value = arrays(6, dtype, queries=S)
    mask = AttentionMask(window=3, key_lengths=np.zeros(B, np.int32))

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
