"""Vision Transformers: an image as a row of patches, the shared stack of layers, and a classifier on top."""

import dataclasses
from typing import Any, Optional

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from transformer.config import ModelConfig
from transformer.models.encoder_only import Classifier
from transformer.models.layers import single_stack_scales
from transformer.models.linear import glorot
from transformer.models.masks import AttentionMask
from transformer.models.named_parts import check_names
from transformer.models.stacks import Stack
from transformer.types import UserError, one_of

CUBIC_A, SMOOTHING_CUBIC_A = -0.75, -0.5  # of the cubic convolution kernel; Keys 1981 has -0.5


class PatchEmbedding(nn.Module):
    """Patches to vectors, row by row: one linear map of all pixels and channels of a patch.

    Reference: Dosovitskiy et al. 2021, equation 1. A convolution whose stride is its kernel's size is the same, and has
    the same kernel.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, images_BHWC: Float[Array, "B H W C"]) -> Float[Array, "B N D"]:
        P, D, dtype = self.config.patch_size, self.config.d_model, jnp.dtype(self.config.dtype)
        batch_size, height, width, C = images_BHWC.shape
        initializer = nn.with_logical_partitioning(glorot(3, 4), (None, None, None, "embed"))
        kernel_PPCD: Any = self.param("kernel", initializer, (P, P, C, D), jnp.float32)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), ("features",))
        bias: Any = self.param("bias", zeros, (D,), jnp.float32)
        rows, columns = patch_grid(self.config, height, width)
        patches = images_BHWC.astype(dtype).reshape(batch_size, rows, P, columns, P, C).swapaxes(2, 3)
        x_ND = patches.reshape(-1, P * P * C) @ kernel_PPCD.astype(dtype).reshape(-1, D) + bias.astype(dtype)
        return x_ND.reshape(batch_size, rows * columns, D)


class GridPositions(nn.Module):
    """The base of all schemes for images, and the scheme ``none``: adds nothing."""

    config: ModelConfig

    def __call__(self, rows: int, columns: int) -> Optional[Float[Array, "N D"]]:
        """A vector for the class token, if the model has one, and for each patch, row by row; None: no addition."""
        return None


class LearnedGrid(GridPositions):
    """A trained vector for the class token and for each place of a square grid.

    For an image with another grid those of the places are interpolated, see ``bicubic_weights``: in models with
    registers smoothed where they become fewer, as their published code does and that for others does not.

    Reference: Dosovitskiy et al. 2021, sections 3.1 and 3.2 (fine-tuning at higher resolution); Darcet et al. 2023, and
    its code.
    """

    def setup(self) -> None:
        grid, D = self.config.position_grid, self.config.d_model
        if grid is None:
            raise ValueError("learned positions need the size of their table: config.position_grid")
        initializer = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("positions", "embed"))
        self.embedding: Any = self.param(
            "embedding", initializer, (self.config.class_token + grid * grid, D), jnp.float32
        )

    def __call__(self, rows: int, columns: int) -> Optional[Float[Array, "N D"]]:
        grid: Any = self.config.position_grid
        first = int(self.config.class_token)
        if (rows, columns) == (grid, grid):
            return self.embedding
        table_GGD = self.embedding[first:].reshape(grid, grid, -1)
        smoothed = self.config.num_registers > 0
        weights = (bicubic_weights(grid, side, smoothed=smoothed) for side in (rows, columns))
        places = jnp.einsum("rg,ch,ghd->rcd", *weights, table_GGD, precision=jax.lax.Precision.HIGHEST)
        return jnp.concatenate([self.embedding[:first], places.reshape(rows * columns, -1)])


class SinCos2D(GridPositions):
    """Half of the width for the column x, half for the row y: ``[sin(x f), cos(x f), sin(y f), cos(y f)]``.

    The D / 4 frequencies are ``f_i = 10000^(-4 i / D)``, those of the 2017 paper for a width of D / 2. The class token
    has a vector of zeros.

    Reference: He et al., Masked Autoencoders (2022), and its published code, for frequencies and layout; Beyer et al.,
    Better plain ViT baselines (2022), whose frequencies end at exactly 1 / 10000, one part in D / 4 of the exponent
    away.
    """

    def __call__(self, rows: int, columns: int) -> Optional[Float[Array, "N D"]]:
        D = self.config.d_model
        frequencies = 10_000.0 ** (-np.arange(D // 4) / (D // 4))
        y, x = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
        angles = [axis.reshape(-1, 1) * frequencies for axis in (x, y)]
        places_ND = np.concatenate([turn(angle) for angle in angles for turn in (np.sin, np.cos)], axis=1)
        of_class_token = np.zeros((int(self.config.class_token), D))
        return jnp.asarray(np.concatenate([of_class_token, places_ND]), jnp.float32)


GRID_POSITIONS: dict[str, type[GridPositions]] = {
    "none": GridPositions,
    "learned": LearnedGrid,
    "sincos_2d": SinCos2D,
}
"""What ``model.position_encoding`` may be where the inputs are images."""


class VisionEncoder(nn.Module):
    """Images to vectors: of the class token if there is one, of the registers, then of the patches, row by row.

    Reference: Dosovitskiy et al., An Image is Worth 16x16 Words (2021), section 3.1; Darcet et al., Vision Transformers
    Need Registers (2023), section 2.2: registers have no positions and are no output.
    """

    config: ModelConfig

    def setup(self) -> None:
        config, D = self.config, self.config.d_model
        self.patch_embedding = PatchEmbedding(config)
        normal = nn.initializers.normal(0.02)
        if config.class_token:
            boxed = nn.with_logical_partitioning(normal, ("features",))
            self.class_token: Any = self.param("class_token", boxed, (D,), jnp.float32)
        if config.num_registers:
            boxed = nn.with_logical_partitioning(normal, ("positions", "embed"))
            self.registers: Any = self.param("registers", boxed, (config.num_registers, D), jnp.float32)
        scheme = one_of("model.position_encoding", config.position_encoding, GRID_POSITIONS)
        self.position_encoding: GridPositions = scheme(config)
        scales = single_stack_scales(config, config.num_encoder_layers)
        unplaced = dataclasses.replace(config, position_encoding="none")  # patches come to the stack with theirs
        self.stack = Stack(unplaced, config.num_encoder_layers, bidirectional=True, scales=scales)

    def __call__(
        self,
        images_BHWC: Float[Array, "B H W C"],
        present_B: Optional[Bool[Array, "B"]] = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B N D"]:
        """A vector for each of ``num_tokens`` tokens.

        Args:
          images_BHWC: normalised; of any height and width that are multiples of ``config.patch_size``.
          present_B: False for what fills up a batch; None: there is none, or it does not matter.
        """
        config = self.config
        x_BND = self.patch_embedding(images_BHWC)

        def in_each_row(vectors_ND: Any) -> Any:
            return jnp.broadcast_to(vectors_ND.astype(x_BND.dtype), (x_BND.shape[0], *vectors_ND.shape))

        if config.class_token:
            x_BND = jnp.concatenate([in_each_row(self.class_token[None]), x_BND], axis=1)
        positions_ND = self.position_encoding(*patch_grid(config, *images_BHWC.shape[1:3]))
        if positions_ND is not None:
            x_BND += positions_ND.astype(x_BND.dtype)
        if config.num_registers:
            first = int(config.class_token)
            parts = [x_BND[:, :first], in_each_row(self.registers), x_BND[:, first:]]
            x_BND = jnp.concatenate(parts, axis=1)
        mask = AttentionMask()
        if present_B is not None:
            lengths_B = jnp.where(present_B, x_BND.shape[1], 0)
            mask = AttentionMask(query_lengths=lengths_B, key_lengths=lengths_B)
        x_BND, _ = self.stack(x_BND, None, mask, deterministic=deterministic)
        return x_BND


class ImageClassifier(nn.Module):
    """Scores of the classes of an image.

    Pooling ``first``: the class token's vector (Dosovitskiy et al. 2021, equation 4). ``mean``: the mean vector of the
    patches, without class token and registers (Beyer et al. 2022). LayerScale (Touvron et al., CaiT, 2021) and
    stochastic depth (Touvron et al., DeiT, 2021) are keys of the stack.

    num_classes: 0 for a model without a classifier, which gives features only, see ``embed``.
    """

    config: ModelConfig
    num_classes: int

    def setup(self) -> None:
        self.encoder = VisionEncoder(self.config)
        if self.num_classes:
            self.classifier = Classifier(self.config, self.num_classes)

    def embed(
        self,
        images_BHWC: Float[Array, "B H W C"],
        present_B: Optional[Bool[Array, "B"]] = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B D"]:
        """The pooled vector of each image, in float32: what the classifier is given."""
        x_BND = self.encoder(images_BHWC, present_B, deterministic=deterministic).astype(jnp.float32)
        if self.config.pooling == "first":
            return x_BND[:, 0]
        return jnp.mean(x_BND[:, self.config.class_token + self.config.num_registers :], axis=1)

    def __call__(
        self,
        images_BHWC: Float[Array, "B H W C"],
        present_B: Optional[Bool[Array, "B"]] = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B V"]:
        """Logits of all classes, in float32; ``present_B`` as for ``VisionEncoder``."""
        pooled_BD = self.embed(images_BHWC, present_B, deterministic=deterministic)
        return self.classifier(pooled_BD, deterministic) if self.num_classes else pooled_BD[:, :0]


def patch_grid(config: ModelConfig, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of patches of an image.

    Raises:
      UserError: if it cannot be cut into whole patches, with the nearest sizes that can.
    """
    P = config.patch_size
    for side, size in (("height", height), ("width", width)):
        if size % P:
            nearest = [str(multiple) for multiple in (size // P * P, (size // P + 1) * P) if multiple]
            raise UserError(
                f"images of {height} x {width} pixels are no whole patches of model.patch_size={P}: their {side} could "
                f"be {' or '.join(nearest)}; set data.image_size or another patch size"
            )
    return height // P, width // P


def num_tokens(config: ModelConfig, height: int, width: int) -> int:
    """What the encoder makes of an image: its patches, the registers, and the class token if there is one."""
    rows, columns = patch_grid(config, height, width)
    return config.class_token + config.num_registers + rows * columns


def bicubic_weights(size: int, new_size: int, *, smoothed: bool = False) -> np.ndarray:
    """Weights [new_size, size], float32, that interpolate ``size`` values in a row to ``new_size`` of them.

    Cubic convolution with a = -0.75 over the four nearest values, places being the middles of pixels, the values at the
    ends repeated beyond them, and no smoothing where there become fewer. This is ``interpolate(mode="bicubic",
    align_corners=False, antialias=False)`` of PyTorch. With a size that stays it is the identity.

    Args:
      smoothed: as with ``antialias=True`` there: a = -0.5, the kernel as many times as wide as values become fewer, and
        nothing beyond the ends.

    Reference: Keys, Cubic convolution interpolation (1981).
    """
    places = (np.arange(new_size) + 0.5) * size / new_size - 0.5
    if smoothed:
        distances = (places[:, None] - np.arange(size)) / max(size / new_size, 1)
        weights = cubic_kernel(distances, SMOOTHING_CUBIC_A)
        return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    below = np.floor(places).astype(int)
    weights = np.zeros((new_size, size))
    for tap in (-1, 0, 1, 2):
        columns = np.clip(below + tap, 0, size - 1)
        np.add.at(weights, (np.arange(new_size), columns), cubic_kernel(places - (below + tap), CUBIC_A))
    return weights.astype(np.float32)


def cubic_kernel(distances: np.ndarray, a: float) -> np.ndarray:
    """The weight of a value at a distance, in steps from value to value: 1 at 0, 0 at 1 and from 2 on."""
    x = np.abs(distances)
    near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def check_vision(config: ModelConfig) -> None:
    """See that all names are known and that the keys go together, before data is read or anything compiled.

    Raises:
      UserError: where they do not.
    """
    one_of("model.position_encoding", config.position_encoding, GRID_POSITIONS)
    check_names(dataclasses.replace(config, position_encoding="none"))
    if config.position_encoding == "sincos_2d" and config.d_model % 4:
        raise UserError(
            f"model.position_encoding=sincos_2d needs a model.d_model that 4 divides, not {config.d_model}; use "
            f"{config.d_model // 4 * 4 or 4} or {(config.d_model // 4 + 1) * 4}"
        )
    if config.pooling == "first" and not config.class_token:
        raise UserError("model.pooling=first is the class token's vector; set model.class_token=True or pooling=mean")
    for key in ("pooler", "token_types"):
        if getattr(config, key):
            raise UserError(f"model.{key}={getattr(config, key)} is for text; images have no use for it")
