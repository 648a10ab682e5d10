"""Sliding windows: every block of queries attends to the blocks of keys that its window reaches, and to no other."""

from typing import Any, Optional

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from transformer.models.attention.biases import Bias
from transformer.models.attention.dense import dense
from transformer.models.attention.request import Request
from transformer.models.masks import AttentionMask, key_positions, key_present, query_positions, query_present

BLOCK = 128  # queries that a block has at most


def local(
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
    """Attention within ``mask.window``, with time and memory linear in T; see ``attend``.

    The blocks of a row become rows of a batch, each with its part of the mask, and ``dense`` does the rest.

    The window compares positions, a block is cut by slots. Positions are therefore either the default, or those of
    packed rows in self-attention: consecutive within a segment, the same for queries and keys. Keys of the same segment
    are then as many slots away as positions, and those of other segments are hidden anyway. Whether given positions are
    consecutive is not checked.

    Reference: Beltagy et al., Longformer (2020), section 3.1; blocks of queries over neighbouring blocks of keys as in
    Zaheer et al., Big Bird (2020), appendix D.
    """
    assert mask.window is not None  # refused
    B, T, H, K = query_BTHK.shape
    blocks = -(-T // BLOCK)
    size = -(-T // blocks)
    before = min(-(-(mask.window - 1) // size), blocks - 1)  # blocks of keys
    after = 0 if mask.causal else before

    def of_queries(array: Any) -> Any:
        """[B, T, ...] -> [B * blocks, size, ...]"""
        array = jnp.broadcast_to(array, (B, T, *array.shape[2:]))
        return _fill(array, 0, blocks * size - T).reshape(B * blocks, size, *array.shape[2:])

    def of_keys(array: Any) -> Any:
        """[B, T, ...] -> [B * blocks, (before + 1 + after) * size, ...]"""
        array = jnp.broadcast_to(array, (B, T, *array.shape[2:]))
        filled = _fill(array, before * size, (blocks + after) * size - T).reshape(B, -1, size, *array.shape[2:])
        shifted = [filled[:, shift : shift + blocks] for shift in range(before + 1 + after)]
        return jnp.concatenate(shifted, axis=2).reshape(B * blocks, -1, *array.shape[2:])

    whole = (0, T)
    packed = mask.query_segment_ids is not None and mask.key_segment_ids is not None
    query_segments_BT = jnp.where(query_present(mask, whole), mask.query_segment_ids if packed else 1, 0)
    key_segments_BT = jnp.where(key_present(mask, whole), mask.key_segment_ids if packed else 1, 0)
    if mask.query_positions is None:  # the same in every block, from its first key on
        query_positions_BT = jnp.arange(before * size, (before + 1) * size)[None]
        key_positions_BS = jnp.arange((before + 1 + after) * size)[None]
    else:
        query_positions_BT = of_queries(query_positions(mask, whole))
        key_positions_BS = of_keys(key_positions(mask, whole))
    output_BTHK = dense(
        of_queries(query_BTHK),
        of_keys(key_BSGK),
        of_keys(value_BSGK),
        AttentionMask(
            causal=mask.causal,
            window=mask.window,
            query_segment_ids=of_queries(query_segments_BT),
            key_segment_ids=of_keys(key_segments_BT),
            query_positions=query_positions_BT,
            key_positions=key_positions_BS,
        ),
        bias=bias,
        scale=scale,
        softcap=softcap,
        dropout_rate=dropout_rate,
        dropout_rng=dropout_rng,
    )
    return output_BTHK.reshape(B, blocks * size, H, K)[:, :T]


def refusal(request: Request) -> Optional[str]:
    """Windows in self-attention, without a prefix or a matrix; positions as packed rows have them."""
    if request.mask.window is None:
        return "it is for sliding windows, and the mask has none"
    if request.num_queries != request.num_keys:
        return f"it takes as many queries as keys, not {request.num_queries} and {request.num_keys}"
    if request.mask.prefix_lengths is not None:
        return "a prefix is seen from outside of the window"
    if request.mask.matrix is not None:
        return "it has no T x S matrix, and the mask is one"
    positions = request.fields("query_positions", "key_positions")
    if positions and len(positions + request.fields("query_segment_ids", "key_segment_ids")) < 4:
        return "positions may be far from slots, unless they come for queries and keys with segments (packed rows)"
    return None


def _fill(array: Any, before: int, after: int) -> Any:
    return jnp.pad(array, ((0, 0), (before, after)) + ((0, 0),) * (array.ndim - 2))
