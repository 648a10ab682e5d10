"""The k largest of many, faster than ``jax.lax.top_k`` where k is small."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

CHUNK = 32
"""Neighbours that are compared by their maximum first. The best of 16 to 128 for a vocabulary of 8,000."""


def k_largest(values: Float[Array, "*rows V"], k: int) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
    """The k largest values of each row, largest first, and their indices. Of equal values the lower index comes first.

    The k largest values lie in the k chunks with the largest maxima. Taking the maxima is one vectorised pass; only
    these chunks are then looked at closely. The result is that of ``lax.top_k``, ties included: chunks with equal
    maxima are taken from the left, and are searched in their order.
    """
    vocab_size = values.shape[-1]
    if vocab_size <= 4 * k * CHUNK:
        largest, indices = lax.top_k(values, k)
        return largest, indices
    missing = -vocab_size % CHUNK
    padded = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)], constant_values=-jnp.inf)
    maxima = padded.reshape(*values.shape[:-1], -1, CHUNK).max(axis=-1)
    chunks = jnp.sort(lax.top_k(maxima, k)[1], axis=-1)
    indices = (chunks[..., None] * CHUNK + jnp.arange(CHUNK)).reshape(*values.shape[:-1], k * CHUNK)
    nearby = jnp.take_along_axis(values, indices, axis=-1, mode="fill", fill_value=-jnp.inf)
    largest, places = lax.top_k(nearby, k)
    return largest, jnp.take_along_axis(indices, places, axis=-1)
