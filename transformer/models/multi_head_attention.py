"""Attention with its projections."""

from typing import Any, Optional

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config import ModelConfig
from transformer.models.attention import attend, attention_weights, look_inside
from transformer.models.attention.biases import Bias
from transformer.models.intermediates import keep
from transformer.models.linear import Linear
from transformer.models.masks import AttentionMask
from transformer.models.norms import rms_norm
from transformer.models.positions import Rotation, rotate


class MultiHeadAttention(nn.Module):
    """H attentions side by side, each over its own projection of queries, and one of G projections of keys and values.

    Keys and values are made by ``key_value`` and given back to ``__call__``: between the two the caller may put them
    into a cache, or keep those of an encoder's output for a whole decoding.

    Queries and keys that are smaller than values (``qk_head_dim``) are filled up with zeros to the size of values, so
    that K is one size for every kernel and cache: that changes no dot product.

    The paper is silent on the initial weights. The code of 2017 (Tensor2Tensor) made queries, keys and values of
    self-attention with one matrix [D, 3 D], whose Glorot weights have 2**-0.5 of the standard deviation of three
    [D, D]. Fairseq has that factor for every attention, and so has post-norm here (``qkv_init_scale``): without it a
    small model did not learn to look at the source (docs/reproduction.md, section 11).

    init_scale: factor on the standard deviation of the initial weights of values and output.

    Reference: Vaswani et al. 2017, section 3.2.2; Shazeer 2019 (G = 1); Ainslie et al. 2023 (1 < G < H). Queries and
    keys normalised: Henry et al. 2020, here by RMS and a trained scale for each component, as in Gemma 3 and Qwen 3.
    """

    config: ModelConfig
    init_scale: float = 1.0

    def setup(self) -> None:
        config = self.config
        width = (config.d_model,)

        def linear(name: str, inputs: Any, outputs: Any, axes: Any, init_scale: float) -> Linear:
            biased = name in config.attention_biases
            return Linear(inputs, outputs, axes, biased, jnp.dtype(config.dtype), init_scale)

        queries, outputs = ((config.num_heads, size) for size in (config.qk_head_size, config.head_size))
        keys, values = ((config.kv_heads, size) for size in (config.qk_head_size, config.head_size))
        scale = config.qkv_scale
        self.query = linear("query", width, queries, ("embed", "heads", "head_dim"), scale)
        self.key = linear("key", width, keys, ("embed", "kv_heads", "head_dim"), scale)
        self.value = linear("value", width, values, ("embed", "kv_heads", "head_dim"), scale * self.init_scale)
        self.output = linear("output", outputs, width, ("heads", "head_dim", "embed"), self.init_scale)
        if config.qk_norm:
            self.query_norm = rms_norm(config, "head_dim")
            self.key_norm = rms_norm(config, "head_dim")

    def key_value(
        self, x_BSD: Float[Array, "B S D"], rotation: Optional[Rotation] = None
    ) -> tuple[Float[Array, "B S G K"], Float[Array, "B S G K"]]:
        """Keys, turned by their positions, and values."""
        key_BSGK = self.key(x_BSD)
        if self.config.qk_norm:
            key_BSGK = self.key_norm(key_BSGK)
        return self._filled_up(rotate(key_BSGK, rotation)), self.value(x_BSD)

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        key_BSGK: Float[Array, "B S G K"],
        value_BSGK: Float[Array, "B S G K"],
        mask: AttentionMask,
        *,
        rotation: Optional[Rotation] = None,
        bias: Optional[Bias] = None,
        implementation: str,
        deterministic: bool,
    ) -> Float[Array, "B T D"]:
        config = self.config
        query_BTHK = self.query(x_BTD)
        if config.qk_norm:
            query_BTHK = self.query_norm(query_BTHK)
        query_BTHK = self._filled_up(rotate(query_BTHK, rotation))
        scores: Any = {
            "bias": bias,
            "scale": config.qk_head_size**-0.5 if config.scale_attention else 1.0,
            "softcap": config.attention_logit_softcap,
        }
        keep(self, "attention_weights", lambda: attention_weights(query_BTHK, key_BSGK, mask, **scores))
        keep(self, "inside", lambda: look_inside(query_BTHK, key_BSGK, value_BSGK, mask, **scores))
        if self.is_initializing():
            implementation = "dense"  # parameters are made from one token, which not every kernel serves
        drops = config.attention_dropout_rate > 0 and not deterministic
        output_BTHK = attend(
            query_BTHK,
            key_BSGK,
            value_BSGK,
            mask,
            **scores,
            dropout_rate=config.attention_dropout_rate,
            dropout_rng=self.make_rng("dropout") if drops else None,
            implementation=implementation,
        )
        return self.output(output_BTHK)

    def _filled_up(self, x_BTHK: Float[Array, "B T H _"]) -> Float[Array, "B T H K"]:
        """Zeros behind queries or keys up to the size of values."""
        missing = self.config.head_size - self.config.qk_head_size
        return jnp.pad(x_BTHK, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x_BTHK
