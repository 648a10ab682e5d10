"""What cached decoding keeps of the tokens it has seen: an argument and a result, never hidden state."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig


class Cache(NamedTuple):
    """Keys and values of earlier tokens. Who sees what is decided by the stored positions, never by the slot's order.

    keys, values  [L, B, N, G, K]  in the compute dtype
    positions     [B, N]           int32, -1 where a slot is empty
    index         []               int32, the next free slot, the same for all rows
    """

    keys: Any
    values: Any
    positions: Any
    index: Any


def init_cache(config: ModelConfig, batch_size: int, max_length: int) -> Cache:
    """An empty cache for the decoder: ``max_length`` slots in each of ``batch_size`` rows. Needs no parameters."""
    head_dim = config.head_dim or config.d_model // config.num_heads
    shape = (config.num_decoder_layers, batch_size, max_length, config.num_heads, head_dim)
    zeros = jnp.zeros(shape, config.dtype)
    return Cache(zeros, zeros, jnp.full((batch_size, max_length), -1, jnp.int32), jnp.zeros((), jnp.int32))


def reserve(cache: Cache, positions_BT: Int[Array, "#B T"]) -> tuple[Cache, Any]:
    """Take the next T slots for tokens at these positions; gives the cache and the first slot.

    Raises:
      ValueError: past the last slot. Under jit, where the index is not known, what is written then is NaN (see
        ``write``), so that it cannot pass unseen.
    """
    size, length = positions_BT.shape[1], cache.positions.shape[1]
    if not isinstance(cache.index, jax.core.Tracer) and int(cache.index) + size > length:
        raise ValueError(f"the cache holds {length} tokens a row; {int(cache.index)} are taken, {size} more do not fit")
    positions_BT = jnp.broadcast_to(positions_BT, (cache.positions.shape[0], size)).astype(jnp.int32)
    positions_BN = jax.lax.dynamic_update_slice(cache.positions, positions_BT, (0, cache.index))
    return cache._replace(positions=positions_BN, index=cache.index + size), cache.index


def write(
    stored_LBNGK: Float[Array, "L B N G K"], layer: Any, slot: Any, new_BTGK: Float[Array, "B T G K"]
) -> Float[Array, "L B N G K"]:
    """Put the keys or values of T tokens of one layer into the slots from ``slot`` on, in place under jit."""
    fits = slot + new_BTGK.shape[1] <= stored_LBNGK.shape[2]
    new_BTGK = jnp.where(fits, new_BTGK, jnp.nan).astype(stored_LBNGK.dtype)
    return jax.lax.dynamic_update_slice(stored_LBNGK, new_BTGK[None], (layer, 0, slot, 0, 0))


def read(stored_LBNGK: Float[Array, "L B N G K"], layer: Any) -> Float[Array, "B N G K"]:
    """One layer's keys or values."""
    return jax.lax.dynamic_index_in_dim(stored_LBNGK, layer, keepdims=False)
