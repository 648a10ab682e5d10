"""One layer of an encoder and one of a decoder; where the norms stand."""

from collections.abc import Callable
from typing import Any, Optional

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config import ModelConfig
from transformer.models import cache as caches
from transformer.models.dropout import dropout
from transformer.models.feed_forward import FeedForward
from transformer.models.masks import AttentionMask
from transformer.models.multi_head_attention import MultiHeadAttention
from transformer.models.sharding import constrain


def layer_norm(config: ModelConfig) -> nn.LayerNorm:
    """Layer normalisation with its statistics in float32. Reference: Ba et al. 2016."""
    return nn.LayerNorm(
        epsilon=config.norm_epsilon,
        dtype=jnp.dtype(config.dtype),
        scale_init=nn.with_logical_partitioning(nn.initializers.ones_init(), ("embed",)),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros_init(), ("embed",)),
        use_fast_variance=False,
    )


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward. Reference: Vaswani et al. 2017, section 3.1."""

    config: ModelConfig

    def setup(self) -> None:
        self.self_attention = MultiHeadAttention(self.config)
        self.self_attention_norm = layer_norm(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_norm = layer_norm(self.config)

    def __call__(
        self, x_BTD: Float[Array, "B T D"], mask: AttentionMask, deterministic: bool
    ) -> tuple[Float[Array, "B T D"], None]:
        def attend(x: Any) -> Any:
            return self.self_attention(x, *self.self_attention.key_value(x), mask, deterministic)

        def feed(x: Any) -> Any:
            return self.feed_forward(x, deterministic)

        x_BTD = residual(self, self.self_attention_norm, attend, x_BTD, deterministic)
        return residual(self, self.feed_forward_norm, feed, x_BTD, deterministic), None


class DecoderLayer(nn.Module):
    """Self-attention, attention over the encoder's output, then feed-forward.

    Reference: Vaswani et al. 2017, section 3.1.
    """

    config: ModelConfig

    def setup(self) -> None:
        self.self_attention = MultiHeadAttention(self.config)
        self.self_attention_norm = layer_norm(self.config)
        self.cross_attention = MultiHeadAttention(self.config)
        self.cross_attention_norm = layer_norm(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_norm = layer_norm(self.config)

    def project_encoded(self, carry: Any, encoded_BSD: Float[Array, "B S D"]) -> tuple[Any, tuple[Any, Any]]:
        """Keys and values of the encoder's output, made once however many tokens are decoded."""
        return carry, self.cross_attention.key_value(encoded_BSD)

    def __call__(
        self,
        carry: tuple[Any, Any, Any, Any],
        encoded_key_value: tuple[Any, Any],
        slot: Optional[Any],
        self_mask: AttentionMask,
        cross_mask: AttentionMask,
        deterministic: bool,
    ) -> tuple[tuple[Any, Any, Any, Any], None]:
        """``carry``: x [B, T, D], the cache's keys and values of all layers (or None, None), this layer's number."""
        x_BTD, keys_LBNGK, values_LBNGK, layer = carry

        def attend(x: Any) -> Any:
            nonlocal keys_LBNGK, values_LBNGK
            key, value = self.self_attention.key_value(x)
            if keys_LBNGK is not None:
                keys_LBNGK = caches.write(keys_LBNGK, layer, slot, key)
                values_LBNGK = caches.write(values_LBNGK, layer, slot, value)
                key, value = caches.read(keys_LBNGK, layer), caches.read(values_LBNGK, layer)
            return self.self_attention(x, key, value, self_mask, deterministic)

        def cross_attend(x: Any) -> Any:
            return self.cross_attention(x, *encoded_key_value, cross_mask, deterministic)

        def feed(x: Any) -> Any:
            return self.feed_forward(x, deterministic)

        x_BTD = residual(self, self.self_attention_norm, attend, x_BTD, deterministic)
        x_BTD = residual(self, self.cross_attention_norm, cross_attend, x_BTD, deterministic)
        x_BTD = residual(self, self.feed_forward_norm, feed, x_BTD, deterministic)
        return (x_BTD, keys_LBNGK, values_LBNGK, layer + 1), None


def residual(
    layer: nn.Module,
    norm: nn.Module,
    sublayer: Callable[[Any], Any],
    x_BTD: Float[Array, "B T D"],
    deterministic: bool,
) -> Float[Array, "B T D"]:
    """A sub-layer and the way around it: post-norm is norm(x + f(x)), pre-norm is x + f(norm(x)).

    Reference: Vaswani et al. 2017, section 3.1, with dropout on f's output as in section 5.4; Xiong et al. 2020 (pre).
    """
    config = layer.config  # type: ignore[attr-defined]
    pre = config.norm_placement == "pre"
    y_BTD = sublayer(norm(x_BTD) if pre else x_BTD)
    if config.dropout_rate and not deterministic:
        y_BTD = dropout(y_BTD, config.dropout_rate, layer.make_rng("dropout"))
    x_BTD = x_BTD + y_BTD if pre else norm(x_BTD + y_BTD)
    return constrain(x_BTD, "batch", "length", "embed")
