"""The position-wise feed-forward network: one line in ``ACTIVATIONS`` for each non-linearity."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config import ModelConfig, one_of
from transformer.models.dropout import dropout
from transformer.models.linear import Linear

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": jax.nn.relu}


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2. Reference: Vaswani et al. 2017, section 3.3."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: Float[Array, "B T D"], deterministic: bool) -> Float[Array, "B T D"]:
        config = self.config
        dtype = jnp.dtype(config.dtype)
        D, F = (config.d_model,), (config.d_ff,)
        hidden_BTF = Linear(D, F, ("embed", "mlp"), True, dtype, name="up")(x_BTD)
        hidden_BTF = one_of("model.activation", config.activation, ACTIVATIONS)(hidden_BTF)
        if not deterministic and config.activation_dropout_rate:
            hidden_BTF = dropout(hidden_BTF, config.activation_dropout_rate, self.make_rng("dropout"))
        return Linear(F, D, ("mlp", "embed"), True, dtype, name="down")(hidden_BTF)
