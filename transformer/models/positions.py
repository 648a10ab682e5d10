"""Where a token stands: one class a scheme, one line in ``POSITION_ENCODINGS``.

A scheme may add to the embeddings, turn queries and keys, or add to the logits. A token's position is given, never
counted, so packed rows and cached steps need no case of their own. Angles are float32 whatever the compute dtype.
"""

import math
from typing import Any, NamedTuple, Optional

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig
from transformer.models.attention.biases import Alibi, Bias, RelativeBias, alibi_slopes
from transformer.types import one_of


class Rotation(NamedTuple):
    """By how much each position's queries and keys are turned, one angle for each pair of their components.

    cosines, sines  [B, T, R / 2] float32; the first R components of a head are turned
    """

    cosines: Any
    sines: Any


class PositionEncoding(nn.Module):
    """The base of all schemes, and the scheme ``none``: changes nothing.

    bidirectional: whether queries see what comes after them, as in an encoder.
    """

    config: ModelConfig
    bidirectional: bool

    def add(self, embeddings_BTD: Float[Array, "B T D"], positions_BT: Int[Array, "#B T"]) -> Float[Array, "B T D"]:
        """Embeddings with what the scheme adds to them."""
        return embeddings_BTD

    def rotation(self, positions_BT: Int[Array, "#B T"]) -> Optional[Rotation]:
        """How queries and keys of self-attention are turned; see ``rotate``."""
        return None

    def bias(self) -> Optional[Bias]:
        """What is added to the logits of self-attention."""
        return None


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


class Learned(PositionEncoding):
    """A trained vector for each of the first ``max_positions`` positions; NaN further on, so that it is seen.

    Reference: Gehring et al. 2017, section 3.1; Vaswani et al. 2017, table 3, row (E).
    """

    def setup(self) -> None:
        initializer = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("positions", "embed"))
        shape = (self.config.max_positions, self.config.d_model)
        self.embedding: Any = self.param("embedding", initializer, shape, jnp.float32)

    def add(self, embeddings_BTD: Float[Array, "B T D"], positions_BT: Int[Array, "#B T"]) -> Float[Array, "B T D"]:
        places_BT = jnp.maximum(positions_BT, 0)  # padding may stand at -1
        encoding = jnp.take(self.embedding, places_BT, axis=0, mode="fill", fill_value=jnp.nan)
        return embeddings_BTD + encoding.astype(embeddings_BTD.dtype)


class Rotary(PositionEncoding):
    """Queries and keys turned by angles that grow with their positions, so that their product knows the distance.

    Reference: Su et al., RoFormer (2021), section 3.2.
    """

    def rotation(self, positions_BT: Int[Array, "#B T"]) -> Optional[Rotation]:
        frequencies, factor = rotary_frequencies(self.config)
        angles_BTR = positions_BT.astype(jnp.float32)[..., None] * frequencies
        return Rotation(jnp.cos(angles_BTR) * factor, jnp.sin(angles_BTR) * factor)


class Relative(PositionEncoding):
    """T5's trained bias for buckets of distances, one table for all layers of a stack; see ``RelativeBias``."""

    def setup(self) -> None:
        shape = (self.config.relative_num_buckets, self.config.num_heads)
        initializer = nn.initializers.normal(self.config.d_model**-0.5)
        boxed = nn.with_logical_partitioning(initializer, ("buckets", "heads"))
        self.embedding: Any = self.param("embedding", boxed, shape, jnp.float32)

    def bias(self) -> Optional[Bias]:
        return RelativeBias(self.embedding, self.bidirectional, self.config.relative_max_distance)


class LinearBias(PositionEncoding):
    """A penalty that grows with the distance, at a rate of each head's own; see ``Alibi``."""

    def bias(self) -> Optional[Bias]:
        return Alibi(jnp.asarray(alibi_slopes(self.config.num_heads)))


POSITION_ENCODINGS: dict[str, type[PositionEncoding]] = {
    "none": PositionEncoding,
    "sinusoidal": Sinusoidal,
    "sinusoidal_half_split": SinusoidalHalfSplit,
    "learned": Learned,
    "rotary": Rotary,
    "relative_bias": Relative,
    "alibi": LinearBias,
}


def position_encoding(config: ModelConfig, *, bidirectional: bool) -> PositionEncoding:
    """The config's scheme for one stack."""
    scheme: type[PositionEncoding] = one_of("model.position_encoding", config.position_encoding, POSITION_ENCODINGS)
    return scheme(config, bidirectional)


def rotate(x_BTHK: Float[Array, "B T H K"], rotation: Optional[Rotation]) -> Float[Array, "B T H K"]:
    """Turn the pairs (component i, component i + R / 2) of every head, for i < R / 2; the rest of it stays.

    These pairs are those of GPT-NeoX and Llama; RoFormer's are neighbours, (2 i, 2 i + 1): the same up to the order of
    the components, but weights do not carry over.
    """
    if rotation is None:
        return x_BTHK
    half = rotation.cosines.shape[-1]
    cosines, sines = rotation.cosines[:, :, None], rotation.sines[:, :, None]
    first, second = (x_BTHK[..., part].astype(jnp.float32) for part in (slice(half), slice(half, 2 * half)))
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    return jnp.concatenate([*(part.astype(x_BTHK.dtype) for part in turned), x_BTHK[..., 2 * half :]], axis=-1)


LLAMA3_LOW, LLAMA3_HIGH = 1.0, 4.0  # turns within the original length: below all is stretched, above nothing
YARN_SLOW, YARN_FAST = 1.0, 32.0  # the same


def rotary_frequencies(config: ModelConfig) -> tuple[np.ndarray, float]:
    """Radians a position [R / 2], and a factor on the cosines and sines. With R = qk_head_dim * rotary_fraction, theta,
    the scaling factor s and the length L in training: ``f_i = theta^(-2 i / R)``, and by ``rotary_scaling``

    linear   f / s. Chen et al., Position Interpolation (2023).
    ntk      theta s^(R / (R - 2)) in place of theta: the slowest becomes s times as slow, the fastest stays.
             bloc97 (2023), as told in YaRN, section 3.1.
    llama3   f / s where f turns less than once within L, f where it turns more than 4 times, linear in the number of
             turns between. Llama 3.1 (2024) and its published code.
    yarn     f / s below 1 turn, f above 32, between them a line over the index i; cosines and sines grow by
             0.1 ln(s) + 1. Peng et al., YaRN (2023), section 3, as in their code: its line is over i and ends at
             whole indices, that of their equation 18 is over the number of turns.
    """
    theta, scale, length = config.rotary_theta, config.rotary_scaling_factor, config.rotary_original_length
    width = rotary_width(config)
    if config.rotary_scaling == "ntk":
        theta *= scale ** (width / (width - 2))
    index = np.arange(width // 2, dtype=np.float64)
    frequencies = theta ** (-2 * index / width)
    stretched, factor = np.zeros_like(index), 1.0  # how much of the stretching each frequency takes
    if config.rotary_scaling == "linear":
        stretched += 1
    if config.rotary_scaling == "llama3":
        turns = length * frequencies / (2 * math.pi)
        stretched = 1 - np.clip((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW), 0, 1)
    if config.rotary_scaling == "yarn":
        fast, slow = (
            width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (YARN_FAST, YARN_SLOW)
        )
        first, last = max(math.floor(fast), 0), min(math.ceil(slow), width - 1)
        stretched = np.clip((index - first) / max(last - first, 0.001), 0, 1)
        factor = 0.1 * math.log(scale) + 1
    return ((1 - stretched) * frequencies + stretched * frequencies / scale).astype(np.float32), factor


def rotary_width(config: ModelConfig) -> int:
    """R: how many components of a head are turned, rounded down to whole pairs."""
    return 2 * int(config.qk_head_size * config.rotary_fraction / 2)


def _sinusoids(positions_BT: Any, width: int) -> tuple[Any, Any]:
    """Sines and cosines [B, T, ceil(width / 2)]."""
    frequencies = 10_000.0 ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = positions_BT.astype(jnp.float32)[..., None] * frequencies
    return jnp.sin(angles), jnp.cos(angles)
