"""The TPU kernel that ships with JAX, splash attention: skips blocks that the static mask hides, no T x S array."""

import dataclasses
from typing import Any, Optional

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jaxtyping import Array, Float, PRNGKeyArray

from transformer.models.attention.biases import Bias
from transformer.models.attention.request import Request
from transformer.models.masks import AttentionMask, key_present, query_present

UNIT = 128  # lanes of a TPU's vector registers: the kernel wants multiples of it for T and S
BLOCKS = (512, 256, UNIT)  # sizes of a block of queries or keys, best first
NO_QUERY, NO_KEY = -1, -2  # segments of padding: no other is the same
HIDDEN = kernels.DEFAULT_MASK_VALUE  # what the kernel puts in place of a hidden logit


def splash(
    query_BTHK: Float[Array, "B T H K"],
    key_BSGK: Float[Array, "B S G K"],
    value_BSGK: Float[Array, "B S G K"],
    mask: AttentionMask,
    *,
    bias: Optional[Bias],
    scale: float,
    softcap: Optional[float],
    dropout_rate: float,
    dropout_rng: Optional[PRNGKeyArray],
) -> Float[Array, "B T H K"]:
    """Attention by one Pallas kernel forward and two backward; see ``attend``, and ``refusal`` for what it leaves out.

    ``causal`` and the window are static and compare slots. Positions are accepted beside segments only: those of
    packed rows count up by one along the slots of a segment, so that within a segment slots compare as positions do.

    Rows are filled up to what the kernel wants. Lengths, empty slots and what rows are filled up with become segments
    that meet no other. A query that sees no key gives zeros because every head has a sink, a logit without a value:
    next to any logit its weight is exactly 0, next to none it is 1.
    """
    B, num_queries, H, _ = query_BTHK.shape
    num_keys = key_BSGK.shape[1]
    T, S = (-(-num // UNIT) * UNIT for num in (num_queries, num_keys))
    if num_keys < S and not jax.tree.leaves(mask):
        mask = dataclasses.replace(mask, key_lengths=jnp.array([num_keys]))
    ids = segments(mask, B, num_queries, num_keys)
    if ids is not None:
        ids = kernels.SegmentIds(_fill(ids.q, T, NO_QUERY), _fill(ids.kv, S, NO_KEY))
    attention = kernels.make_splash_mha(
        masks.MultiHeadMask([static_mask(mask, T, S)] * H),
        block_sizes=block_sizes(T, S),
        attn_logits_soft_cap=softcap,
        head_shards=1,
        q_seq_shards=1,
    )
    query_BHTK, key_BGSK, value_BGSK = (
        jnp.swapaxes(_fill(array, size, 0), 1, 2)
        for array, size in ((query_BTHK * scale, T), (key_BSGK, S), (value_BSGK, S))
    )
    sinks_H = jnp.full(H, HIDDEN / 2)
    output_BHTK = jax.vmap(attention, in_axes=(0, 0, 0, 0, None))(query_BHTK, key_BGSK, value_BGSK, ids, sinks_H)
    return jnp.swapaxes(output_BHTK, 1, 2)[:, :num_queries]


def static_mask(mask: AttentionMask, num_queries: int, num_keys: int) -> Any:
    """What ``causal`` and the window hide, in the kernel's terms; evaluated a block at a time."""
    shape = num_queries, num_keys
    if mask.window is not None:
        return masks.LocalMask(shape, (mask.window - 1, 0 if mask.causal else mask.window - 1), offset=0)
    return masks.CausalMask(shape) if mask.causal else masks.FullMask(shape)


def segments(mask: AttentionMask, batch_size: int, num_queries: int, num_keys: int) -> Optional[kernels.SegmentIds]:
    """The segments [B, T] and [B, S] of a mask with arrays, None for one without; padding never meets padding."""
    if not jax.tree.leaves(mask):
        return None
    query_ids = 1 if mask.query_segment_ids is None else mask.query_segment_ids
    key_ids = 1 if mask.key_segment_ids is None else mask.key_segment_ids
    queries_BT = jnp.where(query_present(mask, (0, num_queries)), query_ids, NO_QUERY)
    keys_BS = jnp.where(key_present(mask, (0, num_keys)), key_ids, NO_KEY)
    return kernels.SegmentIds(
        jnp.broadcast_to(queries_BT, (batch_size, num_queries)), jnp.broadcast_to(keys_BS, (batch_size, num_keys))
    )


def _fill(array: Any, length: int, value: int) -> Any:
    """The array with its second axis as long as this, by a value at its end."""
    widths = [(0, 0)] * array.ndim
    widths[1] = (0, length - array.shape[1])
    return jnp.pad(array, widths, constant_values=value)


def block_sizes(num_queries: int, num_keys: int) -> kernels.BlockSizes:
    """The largest blocks that divide both, in all three kernels."""
    q, kv = (next(block for block in BLOCKS if size % block == 0) for size in (num_queries, num_keys))
    return kernels.BlockSizes(
        block_q=q, block_kv=kv, block_q_dkv=q, block_kv_dkv=kv, block_q_dq=q, block_kv_dq=kv, block_kv_compute=kv
    )


def refusal(request: Request) -> Optional[str]:
    """Why the kernel cannot serve."""
    if request.platform != "tpu":
        return f"it runs on TPUs, and this is for {request.platform}"
    if request.dtype not in ("float32", "bfloat16"):
        return f"it computes in float32 or bfloat16, not {request.dtype}"
    if fields := request.fields("prefix_lengths", "matrix"):
        return f"it takes no {' and '.join(fields)}"
    positions = request.fields("query_positions", "key_positions")
    packed = len(request.fields("query_segment_ids", "key_segment_ids")) == 2
    if positions and not (len(positions) == 2 and packed and request.num_queries == request.num_keys):
        return f"it takes {' and '.join(positions)} only as those of packed rows, beside their segments"
    if request.bias is not None:
        return f"it adds no bias to the logits ({type(request.bias).__name__})"
    if request.dropout_rate:
        return "it has no attention dropout"
    return None
