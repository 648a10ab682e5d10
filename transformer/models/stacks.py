"""The stacks: one layer, scanned, its parameters stacked along a first axis ``layers``."""

from typing import Any, Optional

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config import ModelConfig
from transformer.models import cache as caches
from transformer.models.layers import DecoderLayer, EncoderLayer, layer_norm
from transformer.models.masks import AttentionMask


class Encoder(nn.Module):
    """``num_encoder_layers`` encoder layers; with pre-norm one more norm at the end."""

    config: ModelConfig

    def setup(self) -> None:
        self.layers = _scanned(
            EncoderLayer, self.config, self.config.num_encoder_layers, {"__call__": (nn.broadcast, nn.broadcast)}
        )
        if self.config.norm_placement == "pre":
            self.final_norm = layer_norm(self.config)

    def __call__(
        self, x_BTD: Float[Array, "B T D"], mask: AttentionMask, *, deterministic: bool
    ) -> Float[Array, "B T D"]:
        x_BTD, _ = self.layers(x_BTD, mask, deterministic)
        return self.final_norm(x_BTD) if self.config.norm_placement == "pre" else x_BTD


class Decoder(nn.Module):
    """``num_decoder_layers`` decoder layers; with pre-norm one more norm at the end."""

    config: ModelConfig

    def setup(self) -> None:
        broadcast = nn.broadcast
        self.layers = _scanned(
            DecoderLayer,
            self.config,
            self.config.num_decoder_layers,
            {"__call__": (0, broadcast, broadcast, broadcast, broadcast), "project_encoded": (broadcast,)},
        )
        if self.config.norm_placement == "pre":
            self.final_norm = layer_norm(self.config)

    def project_encoded(self, encoded_BSD: Float[Array, "B S D"]) -> tuple[Any, Any]:
        """Keys and values [L, B, S, G, K] of the encoder's output for every layer."""
        return self.layers.project_encoded(None, encoded_BSD)[1]

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        encoded_keys_values: tuple[Any, Any],
        self_mask: AttentionMask,
        cross_mask: AttentionMask,
        *,
        cache: Optional[caches.Cache] = None,
        slot: Optional[Any] = None,
        deterministic: bool,
    ) -> tuple[Float[Array, "B T D"], Optional[caches.Cache]]:
        """Decode T tokens a row; with a cache, after those in it, into its slots from ``slot`` on."""
        keys, values = (None, None) if cache is None else (cache.keys, cache.values)
        carry = (x_BTD, keys, values, jnp.zeros((), jnp.int32))
        (x_BTD, keys, values, _), _ = self.layers(
            carry, encoded_keys_values, slot, self_mask, cross_mask, deterministic
        )
        if self.config.norm_placement == "pre":
            x_BTD = self.final_norm(x_BTD)
        return x_BTD, None if cache is None else cache._replace(keys=keys, values=values)


def _scanned(layer: Any, config: ModelConfig, length: int, in_axes: dict[str, Any]) -> Any:
    """The layer repeated ``length`` times under ``jax.lax.scan``: compile time does not grow with depth."""
    options = {
        name: {
            "variable_axes": {"params": 0, "intermediates": 0},
            "split_rngs": {"params": True, "dropout": True},
            "in_axes": axes,
            "length": length,
            "unroll": min(config.scan_unroll, length),
            "metadata_params": {nn.PARTITION_NAME: "layers"},
        }
        for name, axes in in_axes.items()
    }
    return nn.scan(layer, methods=options)(config)
