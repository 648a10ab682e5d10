"""What is handed to cuDNN, read from the program lowered for a GPU: no GPU is needed to see the mask and the sizes."""

import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import oracle
from transformer.models.attention import attend, biases, fused, request
from transformer.models.masks import AttentionMask
from transformer.types import UserError

B, T, H, K = 2, 192, 6, 24
LENGTHS = np.array([192, 77], np.int32)
CUDNN = "jax._src.cudnn.fused_attention_stablehlo"


@pytest.fixture
def on_gpu(monkeypatch):
    """Requests are for a GPU, and JAX takes our word that cuDNN is installed."""
    monkeypatch.setattr(request, "platform", lambda: "gpu")
    attend(*arrays(T, T, 2), AttentionMask(), implementation="dense")  # the module is imported with its first use
    monkeypatch.setattr(sys.modules[CUDNN], "check_cudnn_version", lambda: 91_000)


def arrays(num_queries: int, num_keys: int, groups: int, dtype="bfloat16", head_dim: int = K):
    shapes = (B, num_queries, H, head_dim), (B, num_keys, groups, head_dim), (B, num_keys, groups, head_dim)
    return tuple(jnp.zeros(shape, dtype) for shape in shapes)


def lowered(mask: AttentionMask, num_keys: int = T, groups: int = 2) -> str:
    """The program of output and gradients, for CUDA."""

    def run(mask, *qkv):
        return jax.value_and_grad(
            lambda *qkv: jnp.sum(attend(*qkv, mask, implementation="fused").astype(jnp.float32)), argnums=(0, 1, 2)
        )(*qkv)

    return jax.jit(run).trace(mask, *arrays(T, num_keys, groups)).lower(lowering_platforms=("cuda",)).as_text()


def calls(text: str) -> dict[str, dict]:
    """The cuDNN calls of a program by name, each with the description of the attention that it was given."""
    found = re.findall(r'custom_call @(__cudnn\$\w+)\(.*?backend_config = "(.*?)"[,}]', text)
    return {name: json.loads(re.sub(r"\\22|\\\"", '"', config))["cudnn_fmha_backend_config"] for name, config in found}


@pytest.mark.parametrize(
    ("mask", "kind", "window"),
    [
        (AttentionMask(), "PADDING", 0),
        (AttentionMask(causal=True), "CAUSAL", 0),
        (AttentionMask(causal=True, window=50), "CAUSAL", 50),
        (AttentionMask(causal=True, window=1), "CAUSAL", 1),
        (AttentionMask(key_lengths=LENGTHS), "PADDING", 0),
        (AttentionMask(query_lengths=LENGTHS), "PADDING", 0),
        (AttentionMask(causal=True, query_lengths=LENGTHS, key_lengths=LENGTHS), "PADDING_CAUSAL", 0),
        (AttentionMask(causal=True, window=50, key_lengths=LENGTHS), "PADDING_CAUSAL", 50),
    ],
)
def test_cudnn_is_told_the_kind_of_mask_and_gets_no_matrix(on_gpu, mask, kind, window):
    text = lowered(mask)
    found = calls(text)
    assert set(found) == {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}
    for description in found.values():
        assert description["mask_type"] == kind
        assert description["sliding_window_length"] == window
        assert description["fmha_scale"] == pytest.approx(K**-0.5)
        assert description["dropout_rate"] == 0
    assert f"{T}x{K}x" in text and f"{T}x{T}x" not in text


def test_queries_and_keys_may_differ_in_number_without_causal(on_gpu):
    text = lowered(AttentionMask(query_lengths=LENGTHS, key_lengths=LENGTHS), num_keys=320)
    assert {description["mask_type"] for description in calls(text).values()} == {"PADDING"}
    assert f"{T}x320x" not in text and f"320x{T}x" not in text


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 1), (True, 3), (True, 40)])
@pytest.mark.parametrize("with_query_lengths", [False, True])
def test_queries_that_see_a_key_come_first(causal, window, with_query_lengths):
    """The count that stands in for the mask's rows, against the predicate of the oracle, one query at a time."""
    num_queries = num_keys = 13
    key_lengths = np.array([13, 7, 1, 0], np.int32)
    query_lengths = np.array([5, 11, 13, 2], np.int32) if with_query_lengths else None
    mask = AttentionMask(causal=causal, window=window, query_lengths=query_lengths, key_lengths=key_lengths)
    counts = fused.seeing_queries(mask, num_queries, jnp.asarray(key_lengths))
    for b, count in enumerate(counts):
        sees = [any(oracle.sees(mask, b, t, s) for s in range(num_keys)) for t in range(num_queries)]
        assert sees == [t < count for t in range(num_queries)]


def test_what_surrounds_the_kernel_gives_zeros_for_rows_that_see_nothing(on_gpu, monkeypatch):
    """The lengths that the kernel gets are never 0; whatever it gives rows without keys, NaN included, is replaced."""
    seen = {}

    def kernel(query, key, value, *, query_seq_lengths, key_value_seq_lengths, **_):
        seen.update(queries=query_seq_lengths, keys=key_value_seq_lengths)
        padding = jnp.arange(T) >= query_seq_lengths[:, None]
        return jnp.where(padding[..., None, None], jnp.nan, query + 1)

    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    mask = AttentionMask(causal=True, window=50, key_lengths=np.array([77, 0], np.int32))

    def run(query, key, value):
        output = attend(query, key, value, mask, implementation="fused")
        return jnp.sum(output.astype(jnp.float32)), output

    (_, output), gradient = jax.value_and_grad(run, has_aux=True)(*arrays(T, T, 2))
    np.testing.assert_array_equal(seen["queries"], [77 + 49, 1])
    np.testing.assert_array_equal(seen["keys"], [77, 1])
    expected = np.zeros((B, T, H, K))
    expected[0, : 77 + 49] = 1
    np.testing.assert_array_equal(np.asarray(output, np.float32), expected)
    np.testing.assert_array_equal(np.asarray(gradient, np.float32), expected)


SEGMENTS, POSITIONS = np.ones((B, T), np.int32), np.tile(np.arange(T, dtype=np.int32), (B, 1))


@pytest.mark.parametrize(
    ("mask", "options", "reason"),
    [
        (AttentionMask(query_segment_ids=SEGMENTS, key_segment_ids=SEGMENTS), {}, "no query segment ids .*=bucket"),
        (AttentionMask(causal=True, query_positions=POSITIONS), {}, "no query positions"),
        (AttentionMask(causal=True, key_positions=POSITIONS), {}, "no key positions"),
        (AttentionMask(causal=True, prefix_lengths=LENGTHS), {}, "no prefix lengths"),
        (AttentionMask(matrix=np.ones((B, T, T), bool)), {}, "no matrix"),
        (AttentionMask(), {"bias": biases.Alibi(np.ones(H, np.float32))}, r"no bias to the logits \(Alibi\)"),
        (AttentionMask(), {"softcap": 30.0}, "no softcap"),
        (AttentionMask(), {"dropout_rate": 0.1, "dropout_rng": jax.random.key(0)}, "no attention dropout"),
        (AttentionMask(window=7), {}, "window for causal masks only"),
        (AttentionMask(causal=True), {"num_queries": 64}, "as many queries as keys, not for 64 and 192"),
        (AttentionMask(), {"dtype": "float32"}, "bfloat16 or float16, not float32"),
        (AttentionMask(), {"head_dim": 20}, "a multiple of 8 up to 128 here, not 20"),
        (AttentionMask(), {"head_dim": 136}, "a multiple of 8 up to 128 here, not 136"),
    ],
)
def test_refusals_give_the_reason_and_name_who_can(on_gpu, mask, options, reason):
    sizes = {name: options.pop(name) for name in ("dtype", "head_dim") if name in options}
    qkv = arrays(options.pop("num_queries", T), T, 2, **sizes)
    with pytest.raises(UserError, match=rf"=fused cannot serve here: .*{reason}.*; use auto, or one of dense"):
        attend(*qkv, mask, implementation="fused", **options)


def test_other_platforms_are_refused():
    with pytest.raises(UserError, match=r"=fused cannot serve here: it runs on NVIDIA GPUs, and this is for cpu"):
        attend(*arrays(T, T, 2), AttentionMask(), implementation="fused")


def test_the_size_of_a_head_follows_the_device(on_gpu, monkeypatch):
    def asked(head_dim):
        return fused.refusal(
            request.Request.of(*arrays(T, T, 2, head_dim=head_dim)[:2], AttentionMask(), None, None, 0.0)
        )

    for capability, largest in ((None, 128), ("8.9", 128), ("9.0", 256), ("10.0", 256)):
        monkeypatch.setattr(fused, "compute_capability", lambda capability=capability: capability)
        assert asked(largest) is None
        assert f"up to {largest} here" in asked(largest + 8)
    monkeypatch.setattr(fused, "compute_capability", lambda: "gfx942")
    assert "AMD" in asked(64)
