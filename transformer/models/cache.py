"""What cached decoding keeps of the tokens it has seen: an argument and a result, never hidden state.

Layers whose windows differ keep different numbers of tokens, so there is one set of arrays for each layer of the
pattern that a stack repeats (see ``layer_pattern``). A layer with a window keeps no more than the window: its slots are
a ring. Visibility is decided by the stored positions, never by a slot's place.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig
from transformer.models.masks import AttentionMask


class LayerCache(NamedTuple):
    """Of the L layers of a stack that stand at the same place of the pattern, N slots a row each.

    keys, values  [L, B, N, G, K]  in the compute dtype
    positions     [B, N]           int32, -1 where a slot is empty
    """

    keys: Any
    values: Any
    positions: Any


class Cache(NamedTuple):
    """Keys and values of earlier tokens.

    layers  one LayerCache for each layer of the pattern
    index   []  int32: how many tokens a row holds, the same for all rows, with those that a ring has lost
    """

    layers: tuple[LayerCache, ...]
    index: Any


@flax.struct.dataclass
class Slots:
    """Where a layer puts the keys and values of T tokens, and who sees what then.

    first  []: the first slot; they fill it and those after it, around the end of a ring
    ring   static: whether the slots are a ring, which T tokens may overwrite where queries still look
    mask   over the keys that ``extend`` gives
    """

    first: Any
    ring: bool = flax.struct.field(pytree_node=False)
    mask: AttentionMask


def layer_pattern(config: ModelConfig) -> tuple[ModelConfig, ...]:
    """The layers that a stack repeats over its depth, each as a config of its own in which the pattern is resolved:
    ``attention_window`` is None for a global layer, ``num_experts`` 0 for one without a mixture."""
    windows = [config.attention_window if name == "local" else None for name in config.attention_pattern]
    if len(set(windows)) == 1:
        windows = windows[:1]
    every = config.experts_every if config.num_experts else 1
    length = math.lcm(len(windows), every)
    return tuple(
        dataclasses.replace(
            config,
            attention_window=windows[place % len(windows)],
            num_experts=config.num_experts if place % every == every - 1 else 0,
        )
        for place in range(length)
    )


def init_cache(config: ModelConfig, batch_size: int, max_length: int, tokens_per_position: int = 1) -> Cache:
    """An empty cache for the decoder. Needs no parameters.

    Args:
      max_length: positions that a row can hold at least; layers with a window hold the window, and then never end.
      tokens_per_position: hypotheses that share a row, each with a token of its own at every position.
    """
    pattern = layer_pattern(config)
    layers = []
    for layer in pattern:
        slots, window = max_length * tokens_per_position, layer.attention_window
        if (
            window is not None and window <= slots
        ):  # `reserve` takes so many slots for a ring, so it must be a whole one
            slots = window * tokens_per_position
        shape = config.num_decoder_layers // len(pattern), batch_size, slots, config.kv_heads, config.head_size
        zeros = jnp.zeros(shape, config.dtype)
        layers.append(LayerCache(zeros, zeros, jnp.full((batch_size, slots), -1, jnp.int32)))
    return Cache(tuple(layers), jnp.zeros((), jnp.int32))


def reserve(
    cache: Cache, positions_BT: Int[Array, "#B T"], mask: AttentionMask, config: ModelConfig
) -> tuple[Cache, tuple[Slots, ...]]:
    """Take the next slots for tokens at these positions.

    Args:
      mask: what they may see; its matrix, if any, is [B, T, M] over all the tokens in the order in which they came. The
        cache knows padding by its position, -1, and one text a row.

    Raises:
      ValueError: for lengths or segments in the mask; for a prefix, which is seen from everywhere, in a ring, which
        forgets; past the last slot of a layer that is no ring. Under jit, where the index is not known, what is
        written then is NaN (see ``extend``), so that it cannot pass unseen.
    """
    for name in ("key_lengths", "query_segment_ids", "key_segment_ids"):
        if getattr(mask, name) is not None:
            raise ValueError(f"a cache takes no {name}: padding has position -1, and a row has one text")
    size, batch_size = positions_BT.shape[1], cache.layers[0].positions.shape[0]
    positions_BT = jnp.broadcast_to(positions_BT, (batch_size, size)).astype(jnp.int32)
    layers, slots = [], []
    for layer, layer_config in zip(cache.layers, layer_pattern(config), strict=True):
        number = layer.positions.shape[1]
        ring = layer_config.attention_window is not None and layer_config.attention_window <= number
        if ring and mask.prefix_lengths is not None:
            raise ValueError(f"a cache of {number} slots in a ring forgets a prefix, which is seen from everywhere")
        taken = cache.index
        if not ring and not isinstance(taken, jax.core.Tracer) and int(taken) + size > number:
            raise ValueError(f"the cache holds {number} tokens a row; {int(taken)} are taken, {size} more do not fit")
        positions_BN = _write(layer.positions, positions_BT, taken, ring, axis=1)
        arrived_N = jnp.arange(number)  # which of all the tokens stands in each slot
        seen_BS = positions_BN
        if ring and size > 1:
            seen_BS = jnp.concatenate([layer.positions, positions_BT], axis=1)
            arrived_N = jnp.concatenate([_arrived(taken, number), taken + jnp.arange(size)])
        elif ring:
            arrived_N = _arrived(taken + size, number)
        matrix = mask.matrix
        if matrix is not None and ring:
            matrix = jnp.take(matrix, jnp.maximum(arrived_N, 0), axis=2)
        seen = dataclasses.replace(mask, query_positions=positions_BT, key_positions=seen_BS, matrix=matrix)
        layers.append(layer._replace(positions=positions_BN))
        slots.append(Slots(taken, ring, seen))
    return Cache(tuple(layers), cache.index + size), tuple(slots)


def extend(
    stored_LBNGK: Float[Array, "L B N G K"], layer: Any, slots: Slots, new_BTGK: Float[Array, "B T G K"]
) -> tuple[Float[Array, "L B N G K"], Float[Array, "B S G K"]]:
    """Store the keys or values of T tokens of one layer, in place under jit; gives the array and what queries see.

    One token may take the place of the oldest before it looks around; several at once must look first, because the
    earlier ones still see what the later ones overwrite.
    """
    number, size = stored_LBNGK.shape[2], new_BTGK.shape[1]
    new_BTGK = new_BTGK.astype(stored_LBNGK.dtype)
    if slots.ring and size > 1:
        before_BNGK = _layer(stored_LBNGK, layer)
        after_BNGK = _write(before_BNGK, new_BTGK, slots.first, True, axis=1)
        stored_LBNGK = jax.lax.dynamic_update_index_in_dim(stored_LBNGK, after_BNGK, layer, 0)
        return stored_LBNGK, jnp.concatenate([before_BNGK, new_BTGK], axis=1)
    if slots.ring:
        first = slots.first % number
    else:
        first = slots.first
        new_BTGK = jnp.where(first + size <= number, new_BTGK, jnp.nan)
    stored_LBNGK = jax.lax.dynamic_update_slice(stored_LBNGK, new_BTGK[None], (layer, 0, first, 0, 0))
    return stored_LBNGK, _layer(stored_LBNGK, layer)


def _layer(stored_LBNGK: Any, layer: Any) -> Any:
    return jax.lax.dynamic_index_in_dim(stored_LBNGK, layer, keepdims=False)


def _write(stored: Any, new: Any, first: Any, ring: bool, axis: int) -> Any:
    """``new`` into the slots from ``first`` on; of more than a ring holds, the last."""
    if not ring:
        return jax.lax.dynamic_update_slice_in_dim(stored, new, first, axis)
    number, size = stored.shape[axis], new.shape[axis]
    kept = min(number, size)
    slots = (first + size - kept + jnp.arange(kept)) % number
    return stored.at[:, slots].set(new[:, size - kept :])


def _arrived(total: Any, number: int) -> Any:
    """Which of ``total`` tokens stands in each slot of a ring; below 0 where none has come."""
    return total - 1 - (total - 1 - jnp.arange(number)) % number
