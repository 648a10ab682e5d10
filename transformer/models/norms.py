"""Normalisation of vectors: one line in ``NORMS`` for each kind."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from transformer.config import ModelConfig
from transformer.types import one_of


def layer_norm(config: ModelConfig, axis: str = "features") -> nn.Module:
    """Less the mean, by the standard deviation, with trained scale and bias. Reference: Ba et al. 2016."""
    bias_init = nn.with_logical_partitioning(nn.initializers.zeros_init(), (axis,))
    return nn.LayerNorm(bias_init=bias_init, **_options(config, axis))


def rms_norm(config: ModelConfig, axis: str = "features") -> nn.Module:
    """By the root of the mean square, with a trained scale. Reference: Zhang & Sennrich 2019."""
    return nn.RMSNorm(**_options(config, axis))


def _options(config: ModelConfig, axis: str) -> dict[str, Any]:
    return {
        "epsilon": config.norm_epsilon,
        "dtype": jnp.dtype(config.dtype),
        "use_fast_variance": False,
        "scale_init": nn.with_logical_partitioning(nn.initializers.ones_init(), (axis,)),
    }


NORMS: dict[str, Callable[[ModelConfig], nn.Module]] = {"layer_norm": layer_norm, "rms_norm": rms_norm}


def norm(config: ModelConfig) -> nn.Module:
    """The config's norm, over the last axis, its statistics in float32."""
    make: Callable[[ModelConfig], nn.Module] = one_of("model.norm", config.norm, NORMS)
    return make(config)
