"""The TPU kernel itself: run by Pallas' interpreter, and compiled for a described TPU where libtpu is installed."""

import functools
import importlib.util
import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.sharding import AxisType

from transformer.config import MESH_AXES, MeshConfig
from transformer.models.attention import attend, biases, request, splash
from transformer.models.masks import AttentionMask, visible
from transformer.training.partitioning import LOGICAL_AXES, make_mesh
from transformer.types import UserError

B, H, K = 2, 6, 20


@pytest.fixture
def on_tpu(monkeypatch):
    """Requests are for a TPU; the kernel is interpreted, in the smallest blocks, so that small inputs have several."""
    monkeypatch.setattr(request, "platform", lambda: "tpu")
    monkeypatch.setattr(splash, "BLOCKS", (splash.UNIT,))
    monkeypatch.setattr(kernels, "make_splash_mha", functools.partial(kernels.make_splash_mha, interpret=True))


def arrays(num_queries: int, num_keys: int, groups: int, dtype="float32", batch: int = B, head_dim: int = K):
    rng = np.random.default_rng(0)
    shapes = (num_queries, H), (num_keys, groups), (num_keys, groups)
    return tuple(jnp.asarray(rng.normal(size=(batch, *shape, head_dim)), dtype) for shape in shapes)


def results(implementation: str, mask: AttentionMask, qkv, **options):
    """The output, and the gradients of a projection of it."""

    def run(*qkv):
        output = attend(*qkv, mask, implementation=implementation, **options)
        weights = jnp.cos(jnp.arange(output.size)).reshape(output.shape)
        return jnp.sum(output.astype(jnp.float32) * weights), output

    (_, output), gradients = jax.jit(jax.value_and_grad(run, argnums=(0, 1, 2), has_aux=True))(*qkv)
    return [np.asarray(array, np.float32) for array in (output, *gradients)]


def packed(num: int, *lengths: int):
    """Segment ids and positions [1, num] of texts of these lengths, then padding."""
    ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    return tuple(np.pad(values, (0, num - len(ids)))[None].astype(np.int32) for values in (ids, positions))


def rows(*of_each):
    return tuple(np.concatenate(arrays) for arrays in zip(*of_each, strict=True))


IDS, POSITIONS = rows(packed(256, 130, 61, 1, 50), packed(256, 7, 200))
OTHER_IDS, _ = rows(packed(384, 17, 250, 100), packed(384, 3, 250, 50))
LENGTHS = np.array([201, 0], np.int32)
MASKS = {
    "none": (AttentionMask(), 128, 256, 3),
    "causal, more keys": (AttentionMask(causal=True), 128, 384, 6),
    # The last rows of queries see nothing: their blocks are never run.
    "window, more queries": (AttentionMask(window=70), 512, 128, 1),
    "window, causal, lengths": (
        AttentionMask(causal=True, window=40, query_lengths=np.array([256, 77]), key_lengths=LENGTHS),
        256,
        256,
        2,
    ),
    "packed": (
        AttentionMask(
            causal=True,
            window=90,
            query_segment_ids=IDS,
            key_segment_ids=IDS,
            query_positions=POSITIONS,
            key_positions=POSITIONS,
        ),
        256,
        256,
        3,
    ),
    "packed, other keys": (AttentionMask(query_segment_ids=IDS, key_segment_ids=OTHER_IDS), 256, 384, 2),
    # Rows that the kernel's unit does not divide.
    "short": (AttentionMask(causal=True), 19, 19, 2),
    "one query": (AttentionMask(), 1, 130, 3),
    "uneven lengths": (AttentionMask(window=30, query_lengths=LENGTHS, key_lengths=LENGTHS), 205, 205, 1),
}


@pytest.mark.parametrize("name", MASKS)
def test_the_kernel_agrees_with_dense_forward_and_gradient(on_tpu, name):
    mask, num_queries, num_keys, groups = MASKS[name]
    qkv = arrays(num_queries, num_keys, groups)
    softcap = 2.0 if name == "packed" else None
    got = results("splash", mask, qkv, scale=0.3, softcap=softcap)
    expected = results("dense", mask, qkv, scale=0.3, softcap=softcap)
    for array, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(array, wanted, atol=2e-5)
    # Rows that see nothing are zeros exactly, not nearly.
    np.testing.assert_array_equal(got[0] == 0, expected[0] == 0)


def test_bfloat16_and_padding_full_of_nan(on_tpu):
    mask = AttentionMask(causal=True, query_lengths=np.array([128, 77]), key_lengths=np.array([101, 77]))
    qkv = arrays(128, 128, 2, "bfloat16")
    expected = results("dense", mask, qkv)
    padding = jnp.arange(128) >= mask.key_lengths[:, None]
    poisoned = [qkv[0], *(jnp.where(padding[..., None, None], jnp.nan, array) for array in qkv[1:])]
    got = results("splash", mask, poisoned)
    for array, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(array, wanted, atol=4e-2)


@pytest.mark.parametrize("rules", [LOGICAL_AXES, ()], ids=["batch over devices", "no rules"])
def test_under_a_mesh_every_device_runs_the_kernel_on_its_own_rows(on_tpu, rules):
    """XLA cannot partition a Pallas call. Without rules every device runs it on all rows."""
    ids, positions = rows(*[packed(128, 50, 60), packed(128, 128)] * 2)
    mask = AttentionMask(
        causal=True, query_segment_ids=ids, key_segment_ids=ids, query_positions=positions, key_positions=positions
    )
    qkv = arrays(128, 128, 2, batch=4)
    expected = results("dense", mask, qkv)
    mesh = make_mesh(MeshConfig(data=2))
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        run = functools.partial(attend, mask=mask, implementation="splash")
        program = str(jax.make_jaxpr(run)(*qkv))
        got = results("splash", mask, qkv)
    assert "shard_map" in program
    assert ("f32[2,6,128,20]" in program) == bool(rules)
    for array, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(array, wanted, atol=2e-5)


@pytest.mark.parametrize("name", ["packed, other keys", "lengths", "query lengths"])
def test_segments_say_what_the_predicate_says(name):
    """Padding meets nothing, not even padding."""
    mask = {
        "packed, other keys": MASKS["packed, other keys"][0],
        "lengths": AttentionMask(query_lengths=np.array([201, 30]), key_lengths=LENGTHS),
        "query lengths": AttentionMask(query_lengths=LENGTHS),
    }[name]
    queries, keys = splash.segments(mask, B, 256, 384)
    expected = jnp.broadcast_to(visible(mask, (0, 256), (0, 384)), (B, 256, 384))
    np.testing.assert_array_equal(queries[:, :, None] == keys[:, None, :], expected)


def test_blocks_divide_the_length():
    sizes = [(splash.block_sizes(n, 512).block_q, splash.block_sizes(512, n).block_kv_dkv) for n in (1024, 768, 384)]
    assert sizes == [(512, 512), (256, 256), (128, 128)]


@pytest.mark.parametrize(
    ("mask", "options", "reason"),
    [
        (AttentionMask(matrix=np.ones((B, 256, 256), bool)), {}, "no matrix"),
        (AttentionMask(causal=True, prefix_lengths=LENGTHS), {}, "no prefix lengths"),
        (AttentionMask(causal=True, query_positions=POSITIONS), {}, "query positions only as those of packed rows"),
        (
            AttentionMask(causal=True, query_positions=POSITIONS, key_positions=POSITIONS),
            {},
            "query positions and key positions only as those of packed rows",
        ),
        (AttentionMask(), {"bias": biases.Alibi(np.ones(H, np.float32))}, r"no bias to the logits \(Alibi\)"),
        (AttentionMask(), {"dropout_rate": 0.1, "dropout_rng": jax.random.key(0)}, "no attention dropout"),
        (AttentionMask(), {"dtype": "float16"}, "float32 or bfloat16, not float16"),
    ],
)
def test_refusals_give_the_reason_and_name_who_can(on_tpu, mask, options, reason):
    qkv = arrays(256, 256, 2, options.pop("dtype", "float32"))
    with pytest.raises(UserError, match=rf"=splash cannot serve here: .*{reason}.*; use auto, or one of dense"):
        attend(*qkv, mask, implementation="splash", **options)


def test_other_platforms_are_refused():
    with pytest.raises(UserError, match=r"=splash cannot serve here: it runs on TPUs, and this is for cpu"):
        attend(*arrays(128, 128, 2), AttentionMask(), implementation="splash")


@pytest.fixture(scope="module")
def described_tpu():
    """A mesh of the four chips of a TPU v5e that is not there: programs are compiled for it, not run."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip(f"the TPU compiler is not installed: pip install 'jax[tpu]=={jax.__version__}'")
    from jax.experimental import topologies

    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    topology = topologies.get_topology_desc("v5e:2x2", platform="tpu")
    types = (AxisType.Auto,) * len(MESH_AXES)
    return jax.sharding.Mesh(np.array(topology.devices).reshape(4, 1, 1, 1, 1), MESH_AXES, axis_types=types)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("name", ["causal", "window", "packed", "lengths"])
def test_compiles_for_a_tpu_with_gradients(described_tpu, name, head_dim):
    batch, length = 8, 1_024
    ids = np.ones((batch, length), np.int32)
    mask = {
        "causal": AttentionMask(causal=True),
        "window": AttentionMask(window=300),
        "packed": AttentionMask(
            causal=True, query_segment_ids=ids, key_segment_ids=ids, query_positions=ids, key_positions=ids
        ),
        "lengths": AttentionMask(causal=True, window=300, query_lengths=ids[:, 0], key_lengths=ids[:, 0]),
    }[name]

    def run(mask, *qkv):
        return jax.grad(
            lambda *qkv: jnp.sum(attend(*qkv, mask, softcap=30.0, implementation="splash").astype(jnp.float32)),
            argnums=(0, 1, 2),
        )(*qkv)

    rows_sharding = jax.sharding.NamedSharding(described_tpu, jax.sharding.PartitionSpec("data"))
    described = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=rows_sharding),
        (mask, *arrays(length, length, 2, "bfloat16", batch, head_dim)),
    )
    with jax.set_mesh(described_tpu), nn.logical_axis_rules(LOGICAL_AXES):
        compiled = jax.jit(run).lower(*described).compile()
    text = compiled.as_text()
    assert "splash_mha_fwd" in text and "splash_mha_dkv" in text and "splash_mha_dq" in text
    assert f"{length},{length}]" not in text
