"""Attention with its projections."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config import ModelConfig
from transformer.models.attention import attend, attention_weights
from transformer.models.linear import Linear
from transformer.models.masks import AttentionMask


class MultiHeadAttention(nn.Module):
    """H attentions side by side, each over its own projection of queries, keys and values.

    Keys and values are made by ``key_value`` and given back to ``__call__``: between the two the caller may put them
    into a cache, or keep those of an encoder's output for a whole decoding.

    Reference: Vaswani et al. 2017, section 3.2.2.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        width, heads = (config.d_model,), (config.num_heads, config.head_dim or config.d_model // config.num_heads)
        inward = (width, heads, ("embed", "heads", "head_dim"), config.attention_bias, jnp.dtype(config.dtype))
        outward = (heads, width, ("heads", "head_dim", "embed"), config.attention_bias, jnp.dtype(config.dtype))
        self.query = Linear(*inward)
        self.key = Linear(*inward)
        self.value = Linear(*inward)
        self.output = Linear(*outward)

    def key_value(self, x_BSD: Float[Array, "B S D"]) -> tuple[Float[Array, "B S G K"], Float[Array, "B S G K"]]:
        return self.key(x_BSD), self.value(x_BSD)

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        key_BSGK: Float[Array, "B S G K"],
        value_BSGK: Float[Array, "B S G K"],
        mask: AttentionMask,
        deterministic: bool,
    ) -> Float[Array, "B T D"]:
        config = self.config
        query_BTHK = self.query(x_BTD)
        if self.is_mutable_collection("intermediates") and not self.is_initializing():
            self.sow("intermediates", "attention_weights", attention_weights(query_BTHK, key_BSGK, mask))
        output_BTHK = attend(
            query_BTHK,
            key_BSGK,
            value_BSGK,
            mask,
            dropout_rate=config.attention_dropout_rate,
            dropout_rng=_dropout_rng(self, config.attention_dropout_rate, deterministic),
            implementation=config.attention_implementation,
        )
        return self.output(output_BTHK)


def _dropout_rng(module: nn.Module, rate: float, deterministic: bool) -> Any:
    return module.make_rng("dropout") if rate and not deterministic else None
