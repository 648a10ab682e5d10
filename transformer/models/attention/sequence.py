"""Attention over rows whose length devices share: each has some queries, and gathers the keys and values of all."""

from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray

from transformer.models.attention.biases import Bias
from transformer.models.attention.blockwise import BLOCK, Pairs, cut_into, over_pairs, seen_pairs
from transformer.models.masks import AttentionMask
from transformer.models.sharding import count_shares, shared_over


def over_sequence(
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
    """``blockwise`` with the queries of a row shared out over the axis of the mesh that shares its length.

    Under a causal mask the last queries see all keys and the first ones few. So the row is cut into 2 n chunks for n
    devices, and device e computes chunks e and 2 n - 1 - e: all have the same number of pairs of blocks. The chunks of
    queries go there and those of the output back; keys and values are gathered.

    Left to the partitioner, the loop over blocks would gather queries, keys and values everywhere and share nothing.

    Reference: Llama 3 (2024), section 3.3.2, for gathered keys and values and the mirrored chunks.
    """
    del dropout_rate, dropout_rng  # refused
    length, rows, heads, kv_heads = (shared_over(name) for name in ("length", "batch", "heads", "kv_heads"))
    n, T, S = count_shares(length), query_BTHK.shape[1], key_BSGK.shape[1]
    mirrored = mask.causal and mask.query_positions is None and T % (2 * n) == 0
    chunk = T // (2 * n) if mirrored else T // n
    block = next(size for size in range(min(BLOCK, chunk), 0, -1) if chunk % size == 0)
    pairs = pairs_of_devices(mask, n, chunk, block, S, mirrored)

    def run(query_BTHK: Any, key_BSGK: Any, value_BSGK: Any, mask: AttentionMask, bias: Any) -> Any:
        device = lax.axis_index(length)
        own = jax.tree.map(lambda leaf: jnp.asarray(leaf)[device], pairs)
        if mirrored:
            query_BTHK = to_mirrored(query_BTHK, length, n)
        key_BSGK, value_BSGK = (lax.all_gather(x, length, axis=1, tiled=True) for x in (key_BSGK, value_BSGK))
        output_BTHK = over_pairs(
            query_BTHK, key_BSGK, value_BSGK, mask, own, block, bias=bias, scale=scale, softcap=softcap
        )
        return from_mirrored(output_BTHK, length, n) if mirrored else output_BTHK

    queries, keys = PartitionSpec(rows, length, heads), PartitionSpec(rows, length, kv_heads)
    of_mask = jax.tree.map(lambda leaf: PartitionSpec(rows if leaf.shape[0] > 1 else None), mask)
    of_bias = jax.tree.map(lambda leaf: PartitionSpec(*[None] * (leaf.ndim - 1), heads), bias)
    # The loop starts from zeros that do not vary over devices, as its results do: that is not checked.
    return jax.shard_map(run, in_specs=(queries, keys, keys, of_mask, of_bias), out_specs=queries, check_vma=False)(
        query_BTHK, key_BSGK, value_BSGK, mask, bias
    )


def pairs_of_devices(mask: AttentionMask, n: int, chunk: int, block: int, num_keys: int, mirrored: bool) -> Pairs:
    """The pairs of each device, [n, pairs]: as many for all, some of which may not count."""
    found = []
    for device in range(n):
        chunks = (device, 2 * n - 1 - device) if mirrored else (device,)
        firsts = np.concatenate([number * chunk + np.arange(0, chunk, block) for number in chunks])
        found.append(seen_pairs(mask, firsts, block, cut_into(num_keys)))
    most = max(len(pairs.counted) for pairs in found)

    def together(*leaves: np.ndarray) -> np.ndarray:
        return np.stack([np.pad(leaf, (0, most - len(leaf))) for leaf in leaves])

    return Pairs(*map(together, *found))


def to_mirrored(x_BTHK: Any, axis: tuple[str, ...], n: int) -> Any:
    """From device d holding chunks 2 d and 2 d + 1 of a row to device e holding chunks e and 2 n - 1 - e.

    The even chunks go to all devices, one each, and so do the odd ones.
    """
    even, odd = jnp.split(x_BTHK, 2, axis=1)
    even = lax.ppermute(even, axis, [(d, _home(2 * d, n)) for d in range(n)])
    odd = lax.ppermute(odd, axis, [(d, _home(2 * d + 1, n)) for d in range(n)])
    return _in_order(even, odd, axis)


def from_mirrored(x_BTHK: Any, axis: tuple[str, ...], n: int) -> Any:
    """The way back."""
    lower, upper = jnp.split(x_BTHK, 2, axis=1)
    even, odd = jnp.split(_in_order(lower, upper, axis), 2, axis=1)
    even = lax.ppermute(even, axis, [(_home(2 * d, n), d) for d in range(n)])
    odd = lax.ppermute(odd, axis, [(_home(2 * d + 1, n), d) for d in range(n)])
    return jnp.concatenate([even, odd], axis=1)


def _home(chunk: int, n: int) -> int:
    return min(chunk, 2 * n - 1 - chunk)


def _in_order(first: Any, second: Any, axis: tuple[str, ...]) -> Any:
    """Both, the other way round on odd devices: there the lower of the two chunks is the odd one."""
    swapped = lax.axis_index(axis) % 2 == 1
    return jnp.concatenate([jnp.where(swapped, second, first), jnp.where(swapped, first, second)], axis=1)
