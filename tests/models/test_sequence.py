"""Rows shared out along their length: the attention of one device, evenly shared, with a share of its memory."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from transformer.config import MeshConfig, ModelConfig
from transformer.models.attention import attend, blockwise, choose
from transformer.models.attention.biases import Alibi
from transformer.models.attention.request import Request
from transformer.models.attention.sequence import pairs_of_devices
from transformer.models.causal_lm import CausalLM
from transformer.models.masks import AttentionMask
from transformer.plan.collectives import collectives
from transformer.training.partitioning import LOGICAL_AXES, make_mesh
from transformer.types import UserError

B, T, H, G, K = 2, 48, 4, 2, 5
RNG = np.random.default_rng(0)
QUERY, KEY, VALUE, COTANGENT = (RNG.normal(size=(B, T, heads, K)).astype(np.float32) for heads in (H, G, G, H))
SEGMENTS = np.array([[1] * 20 + [2] * 25 + [0] * 3, [1] * T], np.int32)
POSITIONS = np.array([[*range(20), *range(25), 0, 0, 0], range(T)], np.int32)
LENGTHS = np.array([30, T], np.int32)
MASKS = {
    "all": AttentionMask(),
    "causal": AttentionMask(causal=True),
    "window": AttentionMask(causal=True, window=7),
    "lengths": AttentionMask(causal=True, query_lengths=LENGTHS, key_lengths=LENGTHS),
    "segments": AttentionMask(causal=True, query_segment_ids=SEGMENTS, key_segment_ids=SEGMENTS),
    "positions": AttentionMask(
        causal=True,
        query_segment_ids=SEGMENTS,
        key_segment_ids=SEGMENTS,
        query_positions=POSITIONS,
        key_positions=POSITIONS,
    ),
    "prefix": AttentionMask(causal=True, prefix_lengths=np.array([5, 17], np.int32)),
}


def on_mesh(implementation, sizes, *, mask, bias=None, shapes=None):
    """Attention and its gradients, compiled for a mesh, and arguments that lie upon it (or shapes of such)."""

    def run(query, key, value, cotangent):
        function = functools.partial(attend, mask=mask, bias=bias, implementation=implementation)
        output, pullback = jax.vjp(function, query, key, value)
        return output, pullback(cotangent)

    mesh = make_mesh(MeshConfig(**sizes))
    with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXES):
        places = [
            NamedSharding(mesh, nn.logical_to_mesh_axes(("batch", "length", heads, "head_dim")))
            for heads in ("heads", "kv_heads", "kv_heads", "heads")
        ]
        if shapes is None:
            arguments = [
                jax.device_put(x, place) for x, place in zip((QUERY, KEY, VALUE, COTANGENT), places, strict=True)
            ]
        else:
            length, heads, kv_heads = shapes
            arguments = [
                jax.ShapeDtypeStruct((1, length, number, 64), jnp.float32, sharding=place)
                for number, place in zip((heads, kv_heads, kv_heads, heads), places, strict=True)
            ]
        return jax.jit(run).lower(*arguments).compile(), arguments, mesh


@pytest.mark.parametrize("sizes", [{"data": 1, "sequence": 4}, {"data": 1, "sequence": 2, "tensor": 2}], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_it_is_the_attention_of_one_device(name, sizes):
    bias = Alibi(np.array([0.5, 0.25, 0.1, 0.05], np.float32)) if name in ("lengths", "all") else None
    alone, arguments, _ = on_mesh("dense", {"data": 1}, mask=MASKS[name], bias=bias)
    expected = alone(*arguments)
    shared, arguments, _ = on_mesh("blockwise", sizes, mask=MASKS[name], bias=bias)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), shared(*arguments), expected)


def test_only_keys_and_values_are_gathered():
    program, _, mesh = on_mesh("blockwise", {"data": 1, "sequence": 4}, mask=MASKS["causal"])
    found = collectives(program.as_text(), mesh.shape)
    gathered = [each for each in found if each.kind == "all-gather"]
    assert sum(len(each.shapes) for each in gathered) == 2
    assert all(np.prod(shape.dims) == B * T * G * K for each in gathered for shape in each.shapes)
    assert {each.kind for each in found} == {"all-gather", "reduce-scatter", "collective-permute"}


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_the_work_of_a_causal_row_is_even(n):
    chunk, block = 4 * 16, 16
    keys = 2 * n * chunk
    pairs = pairs_of_devices(MASKS["causal"], n, chunk, block, keys, True)
    assert pairs.counted.all(), "some device has fewer pairs"
    chunks = pairs.first_queries // chunk
    assert [sorted(set(row)) for row in chunks.tolist()] == [[e, 2 * n - 1 - e] for e in range(n)]


def test_a_device_of_four_has_a_third_of_the_work_and_the_memory_at_most():
    length, n = 8_192, 4
    blocks = blockwise.cut_into(length)
    alone = blockwise.seen_pairs(MASKS["causal"], blocks[1] * np.arange(blocks[0]), blocks[1], blocks)
    chunk = length // (2 * n)
    block = min(blockwise.BLOCK, chunk)
    shared = pairs_of_devices(MASKS["causal"], n, chunk, block, length, True)
    assert shared.counted.shape[1] * block <= len(alone.counted) * blocks[1] / 3
    for implementation, heads in (("dense", (2, 2)), ("blockwise", (16, 1))):  # keys and values are whole on each
        of_one, of_each = (
            on_mesh(implementation, sizes, mask=MASKS["causal"], shapes=(length, *heads))[0].memory_analysis()
            for sizes in ({"data": 1}, {"data": 1, "sequence": n})
        )
        assert of_each.temp_size_in_bytes <= of_one.temp_size_in_bytes / 3


def test_kernels_that_cannot_say_so_and_auto_takes_one_that_can():
    request = Request("cpu", "float32", T, T, K, MASKS["window"], None, None, 0.0, length_shares=4)
    with pytest.raises(
        UserError, match=r"local cannot serve here: mesh.sequence=4 shares out .* one of dense, blockwise"
    ):
        choose("local", request)
    assert choose("auto", request).function is blockwise.blockwise
    assert choose("local", request._replace(length_shares=1))


def test_rows_that_do_not_divide():
    model = CausalLM(ModelConfig(variant="decoder_only", d_model=8, d_ff=8, num_heads=2, num_decoder_layers=1), 11)
    tokens = jnp.zeros((4, 10), jnp.int32)
    params = model.init(jax.random.key(0), tokens, MASKS["causal"], deterministic=True)
    mesh = make_mesh(MeshConfig(sequence=4))
    with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXES), pytest.raises(UserError, match="rows of 10 tokens"):
        jax.eval_shape(lambda p: model.apply(p, tokens, MASKS["causal"], deterministic=True), params)
