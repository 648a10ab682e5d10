"""The position-wise feed-forward network: one line in ``ACTIVATIONS`` for each non-linearity."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config import ModelConfig
from transformer.models.dropout import dropout
from transformer.models.linear import Linear
from transformer.types import one_of


class Activation(NamedTuple):
    """A non-linearity f; ``gated``: f(x W_gate) multiplies x W_up, else f is applied to x W_up."""

    function: Callable[[Any], Any]
    gated: bool


_gelu_tanh = functools.partial(jax.nn.gelu, approximate=True)

ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(jax.nn.relu, False),
    "gelu": Activation(functools.partial(jax.nn.gelu, approximate=False), False),
    "gelu_tanh": Activation(_gelu_tanh, False),
    "silu": Activation(jax.nn.silu, False),
    "swiglu": Activation(jax.nn.silu, True),
    "geglu": Activation(_gelu_tanh, True),
    "reglu": Activation(jax.nn.relu, True),
}
"""``gelu`` is the exact one; ``gelu_tanh`` its approximation by tanh, which GPT-2 and (gated, as ``geglu``) T5 1.1 and
Gemma use. Reference: Hendrycks & Gimpel 2016; Shazeer, GLU Variants Improve Transformer (2020)."""


class FeedForward(nn.Module):
    """activation(x W_up + b_up) W_down + b_down. Reference: Vaswani et al. 2017, section 3.3.

    d_ff: the hidden width; None: the config's.
    init_scale: factor on the standard deviation of the initial weights.
    """

    config: ModelConfig
    d_ff: Optional[int] = None
    init_scale: float = 1.0

    @nn.compact
    def __call__(self, x_BTD: Float[Array, "B T D"], deterministic: bool) -> Float[Array, "B T D"]:
        config = self.config
        activation: Activation = one_of("model.activation", config.activation, ACTIVATIONS)
        D, F = (config.d_model,), (self.d_ff or config.d_ff,)
        options = (config.feed_forward_bias, jnp.dtype(config.dtype), self.init_scale)
        hidden_BTF = Linear(D, F, ("embed", "mlp"), *options, name="up")(x_BTD)
        if activation.gated:
            hidden_BTF *= activation.function(Linear(D, F, ("embed", "mlp"), *options, name="gate")(x_BTD))
        else:
            hidden_BTF = activation.function(hidden_BTF)
        if not deterministic and config.activation_dropout_rate:
            hidden_BTF = dropout(hidden_BTF, config.activation_dropout_rate, self.make_rng("dropout"))
        return Linear(F, D, ("mlp", "embed"), *options, name="down")(hidden_BTF)
