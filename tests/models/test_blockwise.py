"""The kernels that work in blocks: any size of block gives what ``dense`` gives, and what it costs is as promised."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer.models.attention import attend, blockwise, local
from transformer.models.attention.biases import Alibi, RelativeBias
from transformer.models.masks import AttentionMask
from transformer.types import UserError

B, H, G, K = 2, 6, 2, 5


def arrays(T: int, S: int, dtype: str = "float32"):
    """Queries, keys, values and the gradient of the output."""
    rng = np.random.default_rng(T * S)
    shapes = (B, T, H, K), (B, S, G, K), (B, S, G, K), (B, T, H, K)
    return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


def program(implementation, **options):
    """Compiled when it is first called: the size of blocks is that of then."""

    @jax.jit
    def run(inputs, mask, bias):
        *qkv, d_output = inputs
        output, pullback = jax.vjp(
            lambda qkv, bias: attend(*qkv, mask, bias=bias, implementation=implementation, **options), qkv, bias
        )
        return output, pullback(d_output)

    return run


def output_and_gradients(implementation, inputs, mask, bias=None, **options):
    """Of queries, keys, values and bias."""
    return program(implementation, **options)(inputs, mask, bias)


def assert_equal(got, expected, atol=2e-5):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(other, np.float64), atol=atol, rtol=1e-4)


def relative_bias(seed: int = 5) -> RelativeBias:
    table = np.random.default_rng(seed).normal(size=(8, H)).astype(np.float32)
    return RelativeBias(jnp.asarray(table), bidirectional=True, max_distance=17)


BIASES = {"none": lambda: None, "relative": relative_bias, "alibi": lambda: Alibi(jnp.linspace(0.1, 0.7, H))}


@pytest.mark.parametrize("block, T, S", [(1, 5, 3), (4, 29, 11), (7, 23, 29), (512, 23, 29)])
def test_blockwise_is_dense_whatever_the_size_of_a_block(monkeypatch, block, T, S):
    monkeypatch.setattr(blockwise, "BLOCK", block)
    inputs = arrays(T, S)
    rng = np.random.default_rng(7)
    lengths = {"query_lengths": np.array([T, T // 2]), "key_lengths": np.array([3, S])}
    positions = {
        "query_positions": rng.integers(0, 19, (B, T), np.int32),
        "key_positions": rng.integers(-1, 19, (B, S), np.int32),
    }
    masks = {
        "relative": AttentionMask(causal=True, window=6, **lengths),
        "alibi": AttentionMask(causal=True, prefix_lengths=np.array([9, 0]), matrix=rng.random((B, T, S)) < 0.5),
        "none": AttentionMask(window=3, **positions),
    }
    for bias, mask in masks.items():
        got, expected = (
            output_and_gradients(implementation, inputs, mask, BIASES[bias](), softcap=1.7, scale=0.6)
            for implementation in ("blockwise", "dense")
        )
        assert_equal(got, expected)


@given(
    query_blocks=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    key_blocks=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 12),
)
@settings(max_examples=200)
def test_the_pairs_that_are_computed_are_those_that_somebody_sees(query_blocks, key_blocks, causal, window):
    wanted = []
    for i, j in itertools.product(range(query_blocks[0]), range(key_blocks[0])):
        queries, keys = (np.arange(size) + index * size for index, size in ((i, query_blocks[1]), (j, key_blocks[1])))
        distances = queries[:, None] - keys
        seen = (distances >= 0) | (not causal)
        seen &= window is None or np.abs(distances) < window
        wanted += [[i, j]] if seen.any() else []
    firsts = np.arange(query_blocks[0]) * query_blocks[1]
    got = blockwise.seen_pairs(AttentionMask(causal=causal, window=window), firsts, query_blocks[1], key_blocks)
    assert np.stack([got.query_blocks, got.key_blocks], axis=1).tolist() == wanted
    assert got.counted.all() and (got.first_queries == firsts[got.query_blocks]).all()


@pytest.mark.parametrize("field", ["query_positions", "key_positions", "prefix_lengths"])
def test_all_pairs_are_computed_where_positions_are_not_the_default(field):
    mask = AttentionMask(causal=True, window=2, **{field: np.zeros((1, 1), np.int32)})
    assert len(blockwise.seen_pairs(mask, (0, 2, 4), 2, (5, 2)).counted) == 15


def scans(jaxpr):
    """The scans in a program, and in what it calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        else:
            for inner in equation.params.values():
                if hasattr(inner, "jaxpr"):
                    yield from scans(inner.jaxpr)


def test_one_pair_is_compiled_and_only_those_seen_are_run(monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK", 4)

    def found(T: int, causal: bool):
        mask = AttentionMask(causal=causal)
        jaxpr = jax.make_jaxpr(lambda inputs: output_and_gradients("blockwise", inputs, mask))(arrays(T, T)).jaxpr
        return [(scan.params["length"], len(str(scan.params["jaxpr"]).splitlines())) for scan in scans(jaxpr)]

    (forward, forward_size), (backward, backward_size) = found(8, causal=True)
    assert forward == backward == 3
    assert found(32, causal=True) == [(36, forward_size), (36, backward_size)]
    assert [length for length, _ in found(32, causal=False)] == [64, 64]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_over_blocks_are_float32_whatever_the_inputs(monkeypatch, dtype):
    """Adding ones up in bfloat16 ends at 256, in float16 at 2,048."""
    monkeypatch.setattr(blockwise, "BLOCK", 1)
    many, few = jnp.ones((1, 3_001, 1, 1), dtype), jnp.ones((1, 2, 1, 1), dtype)
    output, _ = output_and_gradients("blockwise", (0 * few, many, many, few), AttentionMask())
    np.testing.assert_array_equal(np.asarray(output, np.float32), 1)
    _, ((_, _, d_value), _) = output_and_gradients("blockwise", (0 * many, few, few, many), AttentionMask())
    np.testing.assert_allclose(np.asarray(d_value, np.float32), 3_001 / 2, rtol=2**-8)


def test_the_gradient_of_a_bias_is_added_up_in_float32_and_comes_in_its_own_dtype(monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK", 2)
    inputs = arrays(37, 41)
    bias = relative_bias()
    half = RelativeBias(bias.table.astype(jnp.bfloat16), bias.bidirectional, bias.max_distance)
    full = RelativeBias(half.table.astype(jnp.float32), bias.bidirectional, bias.max_distance)
    _, (_, got) = output_and_gradients("blockwise", inputs, AttentionMask(), half)
    _, (_, expected) = output_and_gradients("dense", inputs, AttentionMask(), full)
    assert got.table.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got.table, expected.table.astype(jnp.bfloat16))


def test_blockwise_refuses_dropout_and_says_what_serves():
    *qkv, _ = arrays(7, 11)
    with pytest.raises(UserError, match=r"blockwise cannot serve here: .*dropout.*; use auto, or one of dense"):
        attend(*qkv, AttentionMask(), dropout_rate=0.1, dropout_rng=jax.random.key(0), implementation="blockwise")


@pytest.mark.parametrize(
    "T, window, causal",
    [
        (3, 50, True),
        (29, 1, False),
        (29, 3, True),
        (28, 4, False),
        (29, 4, True),
        (29, 5, False),
        (29, 11, True),
        (29, 50, False),
    ],
)
def test_local_is_dense_whatever_the_window(monkeypatch, T, window, causal):
    """Blocks of 4: windows smaller than, equal to and larger than a block, and than the whole."""
    monkeypatch.setattr(local, "BLOCK", 4)
    inputs = arrays(T, T)
    mask = AttentionMask(causal=causal, window=window, query_lengths=np.array([T, 2]), key_lengths=np.array([T - 1, T]))
    got, expected = (
        output_and_gradients(implementation, inputs, mask, relative_bias(), softcap=1.7, scale=0.6)
        for implementation in ("local", "dense")
    )
    assert_equal(got, expected)


def test_local_is_dense_in_packed_rows(monkeypatch):
    monkeypatch.setattr(local, "BLOCK", 5)
    T = 31
    inputs, bias = arrays(T, T), relative_bias()
    one, other = program("local"), program("dense")

    @given(ends=st.lists(st.integers(1, T), min_size=1, max_size=9, unique=True).map(sorted))
    def check(ends):
        sizes = np.diff([0, *ends])
        segments = [*enumerate(sizes, start=1), (0, T - ends[-1])]
        rows = segments, segments[::-1]
        ids = np.array([[number for number, size in row for _ in range(size)] for row in rows], np.int32)
        positions = np.array([[position for _, size in row for position in range(size)] for row in rows], np.int32)
        mask = AttentionMask(
            causal=True,
            window=7,
            query_segment_ids=ids,
            key_segment_ids=ids,
            query_positions=positions,
            key_positions=positions,
        )
        assert_equal(one(inputs, mask, bias), other(inputs, mask, bias))

    check()


def test_local_drops_weights_at_the_rate_and_drops_none_without_a_key(monkeypatch):
    monkeypatch.setattr(local, "BLOCK", 5)
    *qkv, _ = arrays(13, 13)
    mask = AttentionMask(causal=True, window=11)
    clean = attend(*qkv, mask, implementation="local")

    @jax.jit
    @jax.vmap
    def drop(rng):
        return attend(*qkv, mask, dropout_rate=0.3, dropout_rng=rng, implementation="local")

    dropped = drop(jax.random.split(jax.random.key(0), 2_000))
    assert not np.allclose(dropped[0], dropped[1])
    np.testing.assert_allclose(dropped.mean(0), clean, atol=0.15)
    np.testing.assert_array_equal(attend(*qkv, mask, dropout_rate=0.3, implementation="local"), clean)


POSITIONS = {"query_positions": np.zeros((B, 7), np.int32), "key_positions": np.zeros((B, 7), np.int32)}
SEGMENTS = {"query_segment_ids": np.ones((B, 7), np.int32), "key_segment_ids": np.ones((B, 7), np.int32)}


@pytest.mark.parametrize(
    "S, fields, reason",
    [
        (7, {"causal": True}, "sliding windows"),
        (11, {"window": 3}, "as many queries as keys, not 7 and 11"),
        (7, {"window": 3, "prefix_lengths": np.ones(B, np.int32)}, "prefix"),
        (7, {"window": 3, "matrix": np.ones((B, 7, 7), bool)}, "T x S matrix"),
        (7, {"window": 3, **POSITIONS}, "positions may be far from slots"),
        (7, {"window": 3, **SEGMENTS, "query_positions": POSITIONS["query_positions"]}, "positions may be far"),
    ],
)
def test_local_refuses_with_the_reason(S, fields, reason):
    *qkv, _ = arrays(7, S)
    with pytest.raises(
        UserError, match=rf"local cannot serve here: .*{reason}.*; use auto, or one of dense, blockwise"
    ):
        attend(*qkv, AttentionMask(**fields), implementation="local")


def compiled(implementation: str, length: int, mask: AttentionMask, bias=None):
    """Forward and backward, compiled for one row of two heads and never run."""
    shape = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.float32)

    def run(query, key, value, d_output, bias):
        output, pullback = jax.vjp(
            lambda *inputs: attend(*inputs[:3], mask, bias=inputs[3], implementation=implementation),
            *(query, key, value, bias),
        )
        return output, pullback(d_output)

    return jax.jit(run).lower(shape, shape, shape, shape, bias).compile()


def temporary_bytes(*arguments) -> int:
    return compiled(*arguments).memory_analysis().temp_size_in_bytes


def test_operations_of_local_double_with_the_length():
    mask = AttentionMask(causal=True, window=256)
    short, long = (compiled("local", length, mask).cost_analysis()["flops"] for length in (4_096, 8_192))
    assert 1.98 < long / short < 2.02
    # Six products of T queries with the keys of their block and of the two before, against all of T keys.
    assert long > 6 * 2 * 8_192 * 3 * local.BLOCK * 2 * 64
    assert compiled("dense", 8_192, mask).cost_analysis()["flops"] > 15 * long


@pytest.mark.slow
@pytest.mark.parametrize("bias", [None, RelativeBias(np.zeros((32, 2), np.float32), False, 128)])
@pytest.mark.parametrize("causal", [True, False])
def test_memory_of_blockwise_is_a_fraction_of_dense_and_linear(causal, bias):
    mask = AttentionMask(causal=causal)
    short, long = (temporary_bytes("blockwise", length, mask, bias) for length in (8_192, 16_384))
    assert short * 32 <= temporary_bytes("dense", 8_192, mask, bias)
    assert long <= 2.05 * short


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_memory_of_local_is_a_fraction_of_dense_and_linear(causal):
    mask = AttentionMask(causal=causal, window=256)
    short, long = (temporary_bytes("local", length, mask) for length in (8_192, 16_384))
    assert short * 10 <= temporary_bytes("dense", 8_192, mask)
    assert long <= 2.05 * short
