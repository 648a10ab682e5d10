"""What a query may see, as a description: every attention kernel lowers the same description in its own way."""

from typing import Any, Optional

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

Span = tuple[Any, int]  # start (an int or a traced scalar) and static size of a run of queries or keys


@flax.struct.dataclass
class AttentionMask:
    """Every field that is set takes something away; a mask with no field set lets every query see every key.

    causal             static: keys at later positions are hidden
    window             static: keys further away than ``window - 1`` positions are hidden
    query_lengths      [B]     queries from there on are padding and see nothing
    key_lengths        [B]     keys from there on are padding
    query_segment_ids  [B, T]  a query sees its own segment only; 0 is padding
    key_segment_ids    [B, S]
    query_positions    [B, T]  what ``causal``, ``window`` and ``prefix_lengths`` compare; default 0, 1, 2, ...
    key_positions      [B, S]  -1 is an empty slot of a cache
    prefix_lengths     [B]     keys at positions below are seen whatever ``causal`` and ``window`` say
    matrix             [B, T, S]  True where a query may see a key
    """

    causal: bool = flax.struct.field(pytree_node=False, default=False)
    window: Optional[int] = flax.struct.field(pytree_node=False, default=None)
    query_lengths: Any = None
    key_lengths: Any = None
    query_segment_ids: Any = None
    key_segment_ids: Any = None
    query_positions: Any = None
    key_positions: Any = None
    prefix_lengths: Any = None
    matrix: Any = None


def visible(mask: AttentionMask, queries: Span, keys: Span) -> Bool[Array, "#B #T #S"]:
    """The one predicate: whether each query of a span may see each key of a span.

    Same segment and no padding; and the key's slot filled; and not hidden by ``causal`` or ``window``, which compare
    positions, unless inside the prefix; and allowed by the matrix.

    A span must lie within the queries or keys: past their end a traced start would be moved back.
    """
    query_positions_BT1 = query_positions(mask, queries)[..., None]
    key_positions_B1S = key_positions(mask, keys)[:, None, :]
    seen = jnp.ones((1, 1, 1), bool)
    if mask.causal:
        seen &= key_positions_B1S <= query_positions_BT1
    if mask.window is not None:
        seen &= jnp.abs(query_positions_BT1 - key_positions_B1S) < mask.window
    if mask.prefix_lengths is not None:
        seen |= key_positions_B1S < mask.prefix_lengths[:, None, None]
    seen &= query_present(mask, queries)[..., None] & key_present(mask, keys)[:, None, :]
    if mask.query_segment_ids is not None:
        seen &= _part(mask.query_segment_ids, queries)[..., None] == _part(mask.key_segment_ids, keys)[:, None, :]
    if mask.matrix is not None:
        matrix = _slice(mask.matrix, queries, 1)
        seen &= _slice(matrix, keys, 2)
    return seen


def query_positions(mask: AttentionMask, queries: Span) -> Int[Array, "#B T"]:
    """Where in its text each query of a span stands."""
    return _part(mask.query_positions, queries)


def key_positions(mask: AttentionMask, keys: Span) -> Int[Array, "#B S"]:
    """Where in its text each key of a span stands; -1 for an empty slot of a cache."""
    return _part(mask.key_positions, keys)


def query_present(mask: AttentionMask, queries: Span) -> Bool[Array, "#B #T"]:
    """Whether each query is more than padding."""
    return _present(queries, mask.query_lengths, mask.query_segment_ids, None)


def key_present(mask: AttentionMask, keys: Span) -> Bool[Array, "#B #S"]:
    """Whether each key is more than padding or an empty slot."""
    return _present(keys, mask.key_lengths, mask.key_segment_ids, mask.key_positions)


def _present(span: Span, lengths: Any, segment_ids: Any, positions: Any) -> Any:
    present = jnp.ones((1, 1), bool)
    if lengths is not None:
        present &= _part(None, span) < lengths[:, None]
    if segment_ids is not None:
        present &= _slice(segment_ids, span, 1) != 0
    if positions is not None:
        present &= _slice(positions, span, 1) >= 0
    return present


def _part(values_BN: Any, span: Span) -> Any:
    """The span's part of an array [B, N], or of 0, 1, 2, ... where there is none."""
    if values_BN is None:
        return (span[0] + jnp.arange(span[1]))[None, :]
    return _slice(values_BN, span, 1)


def _slice(values: Any, span: Span, axis: int) -> Any:
    start, size = span
    if isinstance(start, int):
        return jax.lax.slice_in_dim(values, start, start + size, axis=axis)
    return jax.lax.dynamic_slice_in_dim(values, start, size, axis)
