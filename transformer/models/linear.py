"""The one linear map that all projections use."""

import math
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.models.sharding import shared_over


class Linear(nn.Module):
    """y = x W + b over the last ``len(inputs)`` axes of x, which become the axes ``outputs``.

    All leading axes are merged into rows first: XLA's CPU backend is slow at a weight gradient that contracts two
    axes, and no backend loses by it. Weights are uniform as in Glorot & Bengio 2010, biases zero.

    inputs, outputs: sizes of the axes.
    axes: the logical names of the kernel's axes, inputs before outputs.
    init_scale: factor on the standard deviation of the initial weights.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    axes: tuple[str, ...]
    use_bias: bool
    dtype: Any
    init_scale: float = 1.0

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        num_inputs = len(self.inputs)
        shape = (*self.inputs, *self.outputs)
        initializer = nn.with_logical_partitioning(glorot(num_inputs, len(shape), self.init_scale), self.axes)
        kernel: Any = self.param("kernel", initializer, shape, jnp.float32)
        x = x.astype(self.dtype).reshape(*x.shape[: x.ndim - num_inputs], math.prod(self.inputs))
        result = product_of_rows(x, kernel.astype(self.dtype).reshape(math.prod(self.inputs), math.prod(self.outputs)))
        if self.use_bias:
            # A vector is too small to be shared out: it would be gathered more often than it is worth.
            axes = tuple("features" if axis == "embed" else axis for axis in self.axes[num_inputs:])
            zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), axes)
            bias: Any = self.param("bias", zeros, self.outputs, jnp.float32)
            result = result + bias.astype(self.dtype).reshape(-1)
        return result.reshape(*x.shape[:-1], *self.outputs)


def product_of_rows(
    x: Float[Array, "*rows I"], weights_IO: Float[Array | np.ndarray, "I O"], **options: Any
) -> Float[Array, "*rows O"]:
    """A matrix product with all leading axes merged, unless devices share two of these: one could not be shared so.

    Weights may be NumPy's, as those of a checkpoint are for who reads them.
    """
    if shared_over("length"):
        return jnp.dot(x, weights_IO, **options)
    return jnp.dot(x.reshape(-1, x.shape[-1]), weights_IO, **options).reshape(*x.shape[:-1], weights_IO.shape[1])


def glorot(num_inputs: int, rank: int, scale: float = 1.0) -> Any:
    """The initialiser of a kernel with so many axes, of which the first so many are inputs."""
    return nn.initializers.variance_scaling(scale**2, "fan_avg", "uniform", range(num_inputs), range(num_inputs, rank))
