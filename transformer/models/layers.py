"""One layer, and where norms stand around its parts."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config import ModelConfig
from transformer.models import cache as caches
from transformer.models.attention.biases import Bias
from transformer.models.dropout import dropout
from transformer.models.feed_forward import FeedForward
from transformer.models.intermediates import keep
from transformer.models.kernels import kernel_name
from transformer.models.masks import AttentionMask, query_present
from transformer.models.mixture_of_experts import MixtureOfExperts
from transformer.models.multi_head_attention import MultiHeadAttention
from transformer.models.norms import norm
from transformer.models.positions import Rotation
from transformer.models.sharding import constrain


class NormPlacement(NamedTuple):
    """Where x + f(x) is normalised: f's input, f's output, the sum; and whether the stack's output is once more."""

    input: bool = False
    output: bool = False
    sum: bool = False
    final: bool = False


NORM_PLACEMENTS: dict[str, NormPlacement] = {
    "post": NormPlacement(sum=True),
    "pre": NormPlacement(input=True, final=True),
    "sandwich": NormPlacement(input=True, output=True, final=True),
    "deep_norm": NormPlacement(sum=True),
}
"""``post``: Vaswani et al. 2017, section 3.1. ``pre``: Xiong et al. 2020. ``sandwich``: Ding et al., CogView (2021).
``deep_norm``: post-norm with the scales of Wang et al., DeepNet (2022)."""


class BranchScales(NamedTuple):
    """``skip`` multiplies x in x + f(x); ``init`` the standard deviation of the initial weights within f."""

    skip: float = 1.0
    init: float = 1.0


def single_stack_scales(config: ModelConfig, num_layers: int) -> BranchScales:
    """1, or DeepNorm's alpha and beta for a model of one stack. Reference: Wang et al. 2022, figure 2."""
    if config.norm_placement != "deep_norm":
        return BranchScales()
    return BranchScales(skip=(2 * num_layers) ** (1 / 4), init=(8 * num_layers) ** (-1 / 4))


class Shared(NamedTuple):
    """What all layers of a stack are given.

    mask        of self-attention, without the window, which is each layer's own
    rotation    how queries and keys of self-attention are turned, or None
    bias        on the logits of self-attention, or None
    cross_mask  of the attention over an encoder's output, or None
    slots       with a cache, one for each layer of the pattern: where tokens go, and a mask in place of ``mask``
    """

    mask: AttentionMask
    rotation: Optional[Rotation] = None
    bias: Optional[Bias] = None
    cross_mask: Optional[AttentionMask] = None
    slots: Optional[tuple[caches.Slots, ...]] = None


class Turn(NamedTuple):
    """What the layers of one turn of the pattern are given of their own.

    number      []   of the turn, which is that of a layer among those at its place
    drop_rates  [P]  float32, of each layer: how often a row goes around its parts in training
    """

    number: Any
    drop_rates: Any


class Layer(nn.Module):
    """Self-attention, attention over an encoder's output if there is one, then feed-forward.

    place: which layer of the stack's pattern it is.

    Reference: Vaswani et al. 2017, section 3.1.
    """

    config: ModelConfig
    place: int
    cross_attends: bool
    scales: BranchScales

    def setup(self) -> None:
        config, init_scale = self.config, self.scales.init
        parts: dict[str, nn.Module] = {"self_attention": MultiHeadAttention(config, init_scale)}
        if self.cross_attends:
            parts["cross_attention"] = MultiHeadAttention(config, init_scale)
        parts["feed_forward"] = (
            MixtureOfExperts(config, init_scale) if config.num_experts else FeedForward(config, init_scale=init_scale)
        )
        placement = NORM_PLACEMENTS[config.norm_placement]
        for name, part in parts.items():
            setattr(self, name, part)
            if placement.input or placement.sum:
                setattr(self, f"{name}_norm", norm(config))
            if placement.output:
                setattr(self, f"{name}_output_norm", norm(config))
            if config.layer_scale is not None:
                initializer = nn.initializers.constant(config.layer_scale)
                boxed = nn.with_logical_partitioning(initializer, ("features",))
                setattr(self, f"{name}_scale", self.param(f"{name}_scale", boxed, (config.d_model,), jnp.float32))

    def project_encoded(self, carry: None, encoded_BSD: Float[Array, "B S D"]) -> tuple[None, tuple[Any, ...]]:
        """Keys and values of the encoder's output, made once however many tokens are decoded."""
        return carry, (self.cross_attention.key_value(encoded_BSD),)

    def __call__(self, carry: Any, encoded: Any, turn: Turn, shared: Shared, deterministic: bool) -> tuple[Any, None]:
        """One layer.

        Args:
          carry: x [B, T, D], and with a cache a tuple of the pattern's keys and values [L, B, N, G, K], else None.
          encoded: what ``project_encoded`` gave for this layer and the others of the pattern, or None.
          turn: see ``Turn``.
        """
        x_BTD, stored = carry
        config, mask = self.config, shared.mask
        implementation, crossing = kernel_name(config), kernel_name(config, crosses=True)
        if shared.slots is not None:
            mask, implementation, crossing = shared.slots[self.place].mask, "dense", "dense"
        mask = dataclasses.replace(mask, window=config.attention_window)

        def attend(x_BTD: Any) -> Any:
            nonlocal stored
            key_value = self.self_attention.key_value(x_BTD, shared.rotation)
            if shared.slots is not None:
                slots = shared.slots[self.place]
                pairs = [
                    caches.extend(old, turn.number, slots, new)
                    for old, new in zip(stored[self.place], key_value, strict=True)
                ]
                kept, key_value = zip(*pairs, strict=True)
                stored = (*stored[: self.place], kept, *stored[self.place + 1 :])
            return self.self_attention(
                x_BTD,
                *key_value,
                mask,
                rotation=shared.rotation,
                bias=shared.bias,
                implementation=implementation,
                deterministic=deterministic,
            )

        def cross_attend(x_BTD: Any) -> Any:
            key, value = encoded[self.place]
            return self.cross_attention(
                x_BTD, key, value, shared.cross_mask, implementation=crossing, deterministic=deterministic
            )

        def feed(x_BTD: Any) -> Any:
            if not config.num_experts:
                return self.feed_forward(x_BTD, deterministic)
            return self.feed_forward(x_BTD, query_present(shared.mask, (0, x_BTD.shape[1])), deterministic)

        drop_rate = turn.drop_rates[self.place] if config.stochastic_depth_rate and not deterministic else None
        x_BTD = self._around("self_attention", attend, x_BTD, drop_rate, deterministic)
        if self.cross_attends:
            x_BTD = self._around("cross_attention", cross_attend, x_BTD, drop_rate, deterministic)
        x_BTD = self._around("feed_forward", feed, x_BTD, drop_rate, deterministic)
        keep(self, "output", lambda: x_BTD)
        return (x_BTD, stored), None

    def _around(
        self, name: str, part: Callable[[Any], Any], x_BTD: Any, drop_rate: Optional[Any], deterministic: bool
    ) -> Any:
        """A part and the way around it.

        On the part's output: dropout as in the paper's section 5.4; a trained scale for each component (Touvron et al.,
        CaiT, 2021); in training, with ``drop_rate``, whole rows left out (Huang et al., Stochastic Depth, 2016).
        """
        config, placement = self.config, NORM_PLACEMENTS[self.config.norm_placement]
        y_BTD = part(getattr(self, f"{name}_norm")(x_BTD) if placement.input else x_BTD)
        if placement.output:
            y_BTD = getattr(self, f"{name}_output_norm")(y_BTD)
        if config.dropout_rate and not deterministic:
            y_BTD = dropout(y_BTD, config.dropout_rate, self.make_rng("dropout"))
        if config.layer_scale is not None:
            y_BTD *= getattr(self, f"{name}_scale").astype(y_BTD.dtype)
        if drop_rate is not None:
            kept_B11 = jax.random.bernoulli(self.make_rng("dropout"), 1 - drop_rate, (x_BTD.shape[0], 1, 1))
            y_BTD *= (kept_B11 / (1 - drop_rate)).astype(y_BTD.dtype)
        x_BTD = (x_BTD if self.scales.skip == 1 else self.scales.skip * x_BTD) + y_BTD
        if placement.sum:
            x_BTD = getattr(self, f"{name}_norm")(x_BTD)
        return constrain(x_BTD, "batch", "length", "features")


class Pattern(nn.Module):
    """One turn of the pattern that a stack repeats: layers that differ, one after the other. Used like one layer."""

    configs: tuple[ModelConfig, ...]
    cross_attends: bool
    scales: BranchScales

    def setup(self) -> None:
        self.layer = [
            Layer(config, place, self.cross_attends, self.scales) for place, config in enumerate(self.configs)
        ]

    def project_encoded(self, carry: None, encoded_BSD: Float[Array, "B S D"]) -> tuple[None, tuple[Any, ...]]:
        return carry, tuple(pair for layer in self.layer for pair in layer.project_encoded(None, encoded_BSD)[1])

    def __call__(self, carry: Any, encoded: Any, turn: Turn, shared: Shared, deterministic: bool) -> tuple[Any, None]:
        for layer in self.layer:
            carry, _ = layer(carry, encoded, turn, shared, deterministic)
        return carry, None
