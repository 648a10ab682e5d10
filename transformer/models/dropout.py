"""Dropout from half a random word an element: on CPU the random bits cost more than the rest of it."""

from typing import Optional

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

LEVELS = 2**16


def dropout(values: Float[Array, "*shape"], rate: float, rng: Optional[PRNGKeyArray]) -> Float[Array, "*shape"]:
    """Set a share ``rate`` of the values to zero and scale the rest so that the expectation stays.

    Args:
      values: of any shape.
      rate: in [0, 1), rounded to a multiple of 2^-16, which the scale takes into account.
      rng: a key; None: the values as they are.

    Reference: Srivastava et al. 2014; in the inverted form that all current codebases use.
    """
    dropped = round(rate * LEVELS)
    if rng is None or dropped == 0:
        return values
    keep = jax.random.bits(rng, values.shape, jnp.uint16) >= dropped
    return jnp.where(keep, values * (LEVELS / (LEVELS - dropped)), 0).astype(values.dtype)
