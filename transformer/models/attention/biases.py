"""What is added to the logits for the distance of a key, as a description: kernels evaluate it a block at a time."""

import math
from typing import Any, Optional

import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.models.masks import AttentionMask, Span, key_positions, query_positions


@flax.struct.dataclass
class Alibi:
    """``-slope |query's position - key's position|``, one slope a head.

    slopes  [H]  float32, above 0

    Reference: Press et al., Train Short, Test Long (2022), section 3. They look back only; the absolute value is for
    encoders, as in their published code.
    """

    slopes: Any

    def __call__(self, distances_BTS: Int[Array, "B T S"]) -> Float[Array, "B H T S"]:
        slopes_H11 = jnp.asarray(self.slopes, jnp.float32)[:, None, None]
        return -slopes_H11 * jnp.abs(distances_BTS)[:, None].astype(jnp.float32)


@flax.struct.dataclass
class RelativeBias:
    """A trained number for each head and each bucket of distances: exact ones near by, logarithmic ones further on.

    table          [buckets, H]
    bidirectional  static: half of the buckets are for keys that come after the query
    max_distance   static: all distances from there on share the last bucket

    Reference: Raffel et al., T5 (2020), section 2.1 and their code.
    """

    table: Any
    bidirectional: bool = flax.struct.field(pytree_node=False)
    max_distance: int = flax.struct.field(pytree_node=False)

    def __call__(self, distances_BTS: Int[Array, "B T S"]) -> Float[Array, "B H T S"]:
        buckets_BTS = distance_buckets(
            distances_BTS, self.table.shape[0], bidirectional=self.bidirectional, max_distance=self.max_distance
        )
        return jnp.moveaxis(jnp.asarray(self.table, jnp.float32)[buckets_BTS], -1, 1)


Bias = Alibi | RelativeBias


def bias_block(bias: Bias, mask: AttentionMask, queries: Span, keys: Span) -> Float[Array, "#B H T S"]:
    """The bias of a span of queries and a span of keys, in float32, from the positions in the mask."""
    distances_BTS = key_positions(mask, keys)[:, None, :] - query_positions(mask, queries)[:, :, None]
    return bias(distances_BTS)


def distance_buckets(
    distances: Int[Array, "..."], num_buckets: int, *, bidirectional: bool, max_distance: int
) -> Int[Array, "..."]:
    """T5's bucket, from 0 up, of each ``key's position - query's position``. Reference: see ``RelativeBias``."""
    first = jnp.zeros_like(distances)
    if bidirectional:
        num_buckets //= 2
        first = jnp.where(distances > 0, num_buckets, 0)
        distances = jnp.abs(distances)
    else:
        distances = jnp.maximum(-distances, 0)
    exact = num_buckets // 2
    ratio = jnp.log(jnp.maximum(distances, 1).astype(jnp.float32) / exact) / math.log(max_distance / exact)
    far = jnp.minimum(exact + (ratio * (num_buckets - exact)).astype(jnp.int32), num_buckets - 1)
    return first + jnp.where(distances < exact, distances, far)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """``2^(-8 h / H)`` for h = 1 to H where H is a power of two.

    For other H the slopes of the power of two below, then every second one of the power of two above. Reference: Press
    et al. 2022, section 3, and their published code for the other H.
    """
    below = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (head + 1) / below) for head in range(below)]
    slopes += [2.0 ** (-4.0 * (2 * head + 1) / below) for head in range(num_heads - below)]
    return np.asarray(slopes, np.float32)


def finish_logits(
    logits_BHTS: Float[Array, "B H T S"],
    mask: AttentionMask,
    queries: Span,
    keys: Span,
    *,
    bias: Optional[Bias],
    softcap: Optional[float],
) -> Float[Array, "B H T S"]:
    """What comes between the scaled dot products and the mask: ``softcap * tanh(logits / softcap)``, then the bias.

    Reference: Gemma Team, Gemma 2 (2024), section 2, for the cap.
    """
    if softcap is not None:
        logits_BHTS = softcap * jnp.tanh(logits_BHTS / softcap)
    if bias is not None:
        logits_BHTS = logits_BHTS + bias_block(bias, mask, queries, keys)
    return logits_BHTS
