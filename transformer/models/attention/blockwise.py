"""Exact attention that never holds the T x S matrix: blocks of it, one after another, in pure XLA.

Queries and keys are cut into blocks of equal size. One scan goes over the pairs of a block of queries and a block of
keys, so that a single pair is compiled, whatever the length. The letters are those of ``transformer.types``, and

    N blocks of T queries each    M blocks of S keys each    R query heads to a key/value head
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from transformer.models.attention.biases import Bias, finish_logits
from transformer.models.attention.request import Request
from transformer.models.masks import AttentionMask, visible

BLOCK = 256  # queries, and keys, that a block has at most

LOWEST = np.finfo(np.float32).min


class Pairs(NamedTuple):
    """The pairs of a block of queries and a block of keys that are computed, in order of the queries.

    query_blocks   int32 [pairs]
    key_blocks     int32 [pairs]
    first_queries  int32 [pairs], where in its row the block of queries begins
    counted        bool [pairs], False for one that only makes up the number
    """

    query_blocks: Any
    key_blocks: Any
    first_queries: Any
    counted: Any


def blockwise(
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
    """Attention by online softmax over blocks of keys; see ``attend``.

    Memory beyond the arguments is linear in T and S, for the gradients too: the backward pass computes the weights of
    each block once more, from the logarithm of each row's sum. Pairs of blocks that ``causal`` and ``window`` hide
    altogether are not computed, where positions are the default.

    Reference: Rabe and Staats, Self-attention Does Not Need O(n^2) Memory (2021); Dao et al., FlashAttention (2022),
    appendix B. The order of the blocks is ours.
    """
    del dropout_rate, dropout_rng  # refused
    T = query_BTHK.shape[1]
    number, block = cut_into(T)
    missing = number * block - T
    pairs = seen_pairs(mask, block * np.arange(number), block, cut_into(key_BSGK.shape[1]))
    query_BTHK = jnp.pad(query_BTHK, ((0, 0), (0, missing), (0, 0), (0, 0)))
    mask = _lengthened(mask, (T, T + missing), (0, 0))
    options: Any = {"bias": bias, "scale": scale, "softcap": softcap}
    return over_pairs(query_BTHK, key_BSGK, value_BSGK, mask, pairs, block, **options)[:, :T]


def over_pairs(
    query_BTHK: Float[Array, "B T H K"],
    key_BSGK: Float[Array, "B S G K"],
    value_BSGK: Float[Array, "B S G K"],
    mask: AttentionMask,
    pairs: Pairs,
    block: int,
    *,
    bias: Optional[Bias],
    scale: float,
    softcap: Optional[float],
) -> Float[Array, "B T H K"]:
    """Attention of some blocks of queries, wherever in their rows these stand, over whole rows of keys.

    Args:
      query_BTHK: T is a multiple of ``block``.
      mask: of whole rows.
      pairs: that are computed; those left out count as hidden.
      block: queries in a block.
    """
    S = key_BSGK.shape[1]
    number, key_block = cut_into(S)
    query_NBHTK = _cut(query_BTHK * scale, block)
    key_MBGSK, value_MBGSK = _cut(key_BSGK, key_block), _cut(value_BSGK, key_block)
    N, B, H, _, K = query_NBHTK.shape
    G = key_MBGSK.shape[2]
    mask = _lengthened(mask, (0, 0), (S, number * key_block))
    if bias is not None:  # its gradient adds up in float32, too
        bias = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), bias)
    query_NBGRTK = query_NBHTK.reshape(N, B, G, H // G, block, K)
    output_NBGRTK = _attention(softcap, query_NBGRTK, key_MBGSK, value_MBGSK, mask, bias, pairs)
    return jnp.transpose(output_NBGRTK, (1, 0, 4, 2, 3, 5)).reshape(query_BTHK.shape)


def refusal(request: Request) -> Optional[str]:
    """Everything but attention dropout."""
    if request.dropout_rate:
        return "it has no attention dropout: the backward pass would have to draw each block's random numbers again"
    return None


def cut_into(length: int) -> tuple[int, int]:
    """As few blocks of one size as there must be, and that size; the last may reach past the end."""
    number = -(-length // BLOCK)
    return number, -(-length // number)


def seen_pairs(
    mask: AttentionMask, first_queries: Sequence[int] | np.ndarray, block: int, key_blocks: tuple[int, int]
) -> Pairs:
    """All pairs but those of which ``causal`` and ``window`` are known to hide everything when the program is traced.

    Args:
      first_queries: where each block of queries begins.
      block: queries in a block.
      key_blocks: how many, and the keys in each.
    """
    M, S = key_blocks
    firsts_N = np.asarray(first_queries, np.int32)
    first_query_N1, first_key_1M = firsts_N[:, None], S * np.arange(M)[None, :]
    last_query_N1, last_key_1M = first_query_N1 + block - 1, first_key_1M + S - 1
    seen_NM = np.ones((len(firsts_N), M), bool)
    if mask.query_positions is None and mask.key_positions is None and mask.prefix_lengths is None:
        if mask.causal:
            seen_NM &= first_key_1M <= last_query_N1
        if mask.window is not None:
            seen_NM &= first_query_N1 - last_key_1M < mask.window
            seen_NM &= first_key_1M - last_query_N1 < mask.window
    queries, keys = np.argwhere(seen_NM).T.astype(np.int32)
    return Pairs(queries, keys, firsts_N[queries], np.ones(len(queries), bool))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    softcap: Optional[float],
    query_NBGRTK: Float[Array, "N B G R T K"],
    key_MBGSK: Float[Array, "M B G S K"],
    value_MBGSK: Float[Array, "M B G S K"],
    mask: AttentionMask,
    bias: Optional[Bias],
    pairs: Pairs,
) -> Float[Array, "N B G R T K"]:
    return _forward(softcap, query_NBGRTK, key_MBGSK, value_MBGSK, mask, bias, pairs)[0]


def _forward(
    softcap: Optional[float],
    query_NBGRTK: Float[Array, "N B G R T K"],
    key_MBGSK: Float[Array, "M B G S K"],
    value_MBGSK: Float[Array, "M B G S K"],
    mask: AttentionMask,
    bias: Optional[Bias],
    pairs: Pairs,
) -> tuple[Float[Array, "N B G R T K"], Any]:
    """The output, and what the backward pass needs."""

    def add_pair(rows: Any, pair: Pairs) -> tuple[Any, None]:
        i, j = pair.query_blocks, pair.key_blocks
        output_BGRTK, top_BGRT, sum_BGRT = _read(rows, i)
        seen, finish = _block(mask, pair, query_NBGRTK, key_MBGSK, softcap)
        logits_BGRTS = jnp.where(seen, finish(_dot_products(query_NBGRTK[i], key_MBGSK[j]), bias), LOWEST)
        new_top_BGRT = jnp.maximum(top_BGRT, jnp.max(logits_BGRTS, axis=-1))
        # Where a row has seen nothing yet, LOWEST - LOWEST would weigh a hidden key with 1.
        weights_BGRTS = jnp.where(seen, jnp.exp(logits_BGRTS - new_top_BGRT[..., None]), 0)
        kept_BGRT = jnp.exp(top_BGRT - new_top_BGRT)
        sum_BGRT = sum_BGRT * kept_BGRT + jnp.sum(weights_BGRTS, axis=-1)
        output_BGRTK = output_BGRTK * kept_BGRT[..., None] + jnp.einsum(
            "BGRTS,BGSK->BGRTK",
            weights_BGRTS.astype(value_MBGSK.dtype),
            value_MBGSK[j],
            preferred_element_type=jnp.float32,
        )
        return _write(rows, i, (output_BGRTK, new_top_BGRT, sum_BGRT)), None

    rows = (
        jnp.zeros(query_NBGRTK.shape, jnp.float32),
        jnp.full(query_NBGRTK.shape[:-1], LOWEST, jnp.float32),
        jnp.zeros(query_NBGRTK.shape[:-1], jnp.float32),
    )
    (output_NBGRTK, top_NBGRT, sum_NBGRT), _ = jax.lax.scan(add_pair, rows, jax.tree.map(jnp.asarray, pairs))
    sum_NBGRT = jnp.where(sum_NBGRT == 0, 1, sum_NBGRT)  # a row that sees nothing
    output_NBGRTK = (output_NBGRTK / sum_NBGRT[..., None]).astype(value_MBGSK.dtype)
    log_sum_NBGRT = top_NBGRT + jnp.log(sum_NBGRT)
    return output_NBGRTK, (query_NBGRTK, key_MBGSK, value_MBGSK, mask, bias, pairs, output_NBGRTK, log_sum_NBGRT)


def _backward(softcap: Optional[float], kept: Any, d_output_NBGRTK: Float[Array, "N B G R T K"]) -> tuple[Any, ...]:
    """Gradients of queries, keys, values and bias; the mask and the pairs have none."""
    query_NBGRTK, key_MBGSK, value_MBGSK, mask, bias, pairs, output_NBGRTK, log_sum_NBGRT = kept
    dtype = value_MBGSK.dtype
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    # What a row's softmax takes off the gradient of each of its weights.
    mean_NBGRT = einsum("NBGRTK,NBGRTK->NBGRT", d_output_NBGRTK, output_NBGRTK)

    def add_pair(sums: Any, pair: Pairs) -> tuple[Any, None]:
        i, j = pair.query_blocks, pair.key_blocks
        d_query_NBGRTK, d_key_MBGSK, d_value_MBGSK, d_bias = sums
        query_BGRTK, key_BGSK, d_output_BGRTK = query_NBGRTK[i], key_MBGSK[j], d_output_NBGRTK[i]
        seen, finish = _block(mask, pair, query_NBGRTK, key_MBGSK, softcap)
        logits_BGRTS, pullback = jax.vjp(finish, _dot_products(query_BGRTK, key_BGSK), bias)
        weights_BGRTS = jnp.where(seen, jnp.exp(logits_BGRTS - log_sum_NBGRT[i][..., None]), 0)
        d_weights_BGRTS = einsum("BGRTK,BGSK->BGRTS", d_output_BGRTK, value_MBGSK[j])
        d_logits_BGRTS = jnp.where(seen, weights_BGRTS * (d_weights_BGRTS - mean_NBGRT[i][..., None]), 0)
        d_products_BGRTS, d_bias_of_pair = pullback(d_logits_BGRTS)
        d_products_BGRTS = d_products_BGRTS.astype(dtype)
        d_query_BGRTK = einsum("BGRTS,BGSK->BGRTK", d_products_BGRTS, key_BGSK)
        d_key_BGSK = einsum("BGRTS,BGRTK->BGSK", d_products_BGRTS, query_BGRTK)
        d_value_BGSK = einsum("BGRTS,BGRTK->BGSK", weights_BGRTS.astype(dtype), d_output_BGRTK)
        sums = (
            _write(d_query_NBGRTK, i, d_query_NBGRTK[i] + d_query_BGRTK),
            _write(d_key_MBGSK, j, d_key_MBGSK[j] + d_key_BGSK),
            _write(d_value_MBGSK, j, d_value_MBGSK[j] + d_value_BGSK),
            jax.tree.map(jnp.add, d_bias, d_bias_of_pair),
        )
        return sums, None

    inputs = query_NBGRTK, key_MBGSK, value_MBGSK, bias
    sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), inputs)
    sums, _ = jax.lax.scan(add_pair, sums, jax.tree.map(jnp.asarray, pairs))
    d_query, d_key, d_value, d_bias = jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), sums, inputs)
    return d_query, d_key, d_value, None, d_bias, None


_attention.defvjp(_forward, _backward)


def _block(mask: AttentionMask, pair: Pairs, query_NBGRTK: Any, key_MBGSK: Any, softcap: Optional[float]) -> Any:
    """Of one pair: which keys are seen, to be broadcast, and a function that finishes its logits."""
    B, G, R, T = query_NBGRTK.shape[1:5]
    S = key_MBGSK.shape[3]
    spans = (pair.first_queries, T), (pair.key_blocks * S, S)

    def finish(products_BGRTS: Float[Array, "B G R T S"], bias: Optional[Bias]) -> Float[Array, "B G R T S"]:
        logits_BHTS = products_BGRTS.reshape(B, G * R, T, S)
        return finish_logits(logits_BHTS, mask, *spans, bias=bias, softcap=softcap).reshape(B, G, R, T, S)

    return visible(mask, *spans)[:, None, None] & pair.counted, finish


def _dot_products(query_BGRTK: Any, key_BGSK: Any) -> Float[Array, "B G R T S"]:
    return jnp.einsum("BGRTK,BGSK->BGRTS", query_BGRTK, key_BGSK, preferred_element_type=jnp.float32)


def _read(arrays: Any, index: Any) -> Any:
    return jax.tree.map(lambda array: array[index], arrays)


def _write(arrays: Any, index: Any, values: Any) -> Any:
    return jax.tree.map(lambda a, v: jax.lax.dynamic_update_index_in_dim(a, v, index, 0), arrays, values)


def _cut(array_BTHK: Float[Array, "B T H K"], block: int) -> Float[Array, "N B H block K"]:
    """Into blocks, the last one filled up with zeros."""
    B, T, H, K = array_BTHK.shape
    N = -(-T // block)
    array_BTHK = jnp.pad(array_BTHK, ((0, 0), (0, N * block - T), (0, 0), (0, 0)))
    return jnp.transpose(array_BTHK.reshape(B, N, block, H, K), (1, 0, 3, 2, 4))


def _lengthened(mask: AttentionMask, queries: tuple[int, int], keys: tuple[int, int]) -> AttentionMask:
    """The mask for queries and keys that were filled up from one length to another: no query sees a key of those."""
    more_queries, more_keys = (0, queries[1] - queries[0]), (0, keys[1] - keys[0])

    def pad(values: Any, *widths: tuple[int, int]) -> Optional[Shaped[Array, "..."]]:
        return None if values is None else jnp.pad(values, ((0, 0), *widths))

    key_lengths = mask.key_lengths
    if more_keys[1]:
        key_lengths = jnp.array([keys[0]]) if key_lengths is None else jnp.minimum(key_lengths, keys[0])
    return dataclasses.replace(
        mask,
        key_lengths=key_lengths,
        query_segment_ids=pad(mask.query_segment_ids, more_queries),
        key_segment_ids=pad(mask.key_segment_ids, more_keys),
        query_positions=pad(mask.query_positions, more_queries),
        key_positions=pad(mask.key_positions, more_keys),
        matrix=pad(mask.matrix, more_queries, more_keys),
    )
