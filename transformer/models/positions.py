"""Where a token stands: one class a scheme, one line in ``POSITION_ENCODINGS``.

A scheme may add to the embeddings; a token's position is given, never counted, so packed rows and cached steps need no
case of their own.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig


class PositionEncoding(nn.Module):
    """The base of all schemes, and the scheme ``none``: changes nothing."""

    config: ModelConfig

    def add(self, embeddings_BTD: Float[Array, "B T D"], positions_BT: Int[Array, "#B T"]) -> Float[Array, "B T D"]:
        """Embeddings with what the scheme adds to them."""
        return embeddings_BTD


class Sinusoidal(PositionEncoding):
    """Sines at the even, cosines at the odd places of the width: PE(p, 2i) = sin(p / 10000^(2i/D)).

    Reference: Vaswani et al. 2017, section 3.5.
    """

    def add(self, embeddings_BTD: Float[Array, "B T D"], positions_BT: Int[Array, "#B T"]) -> Float[Array, "B T D"]:
        sines, cosines = _sinusoids(positions_BT, embeddings_BTD.shape[-1])
        encoding = jnp.stack([sines, cosines], axis=-1).reshape(*positions_BT.shape, -1)
        return embeddings_BTD + encoding[..., : embeddings_BTD.shape[-1]].astype(embeddings_BTD.dtype)


class SinusoidalHalfSplit(PositionEncoding):
    """All sines in the first half of the width, all cosines in the second.

    Reference: the form of Tensor2Tensor, fairseq and Marian; the frequencies are the paper's (theirs end at exactly
    1/10000, a difference of one part in D/2 in the exponent).
    """

    def add(self, embeddings_BTD: Float[Array, "B T D"], positions_BT: Int[Array, "#B T"]) -> Float[Array, "B T D"]:
        encoding = jnp.concatenate(_sinusoids(positions_BT, embeddings_BTD.shape[-1]), axis=-1)
        return embeddings_BTD + encoding[..., : embeddings_BTD.shape[-1]].astype(embeddings_BTD.dtype)


POSITION_ENCODINGS: dict[str, type[PositionEncoding]] = {
    "none": PositionEncoding,
    "sinusoidal": Sinusoidal,
    "sinusoidal_half_split": SinusoidalHalfSplit,
}


def _sinusoids(positions_BT: Any, width: int) -> tuple[Any, Any]:
    """Sines and cosines [B, T, ceil(width / 2)], in float32 whatever the compute dtype."""
    frequencies = 10_000.0 ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = positions_BT.astype(jnp.float32)[..., None] * frequencies
    return jnp.sin(angles), jnp.cos(angles)
