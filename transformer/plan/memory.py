"""How large a model is, and what of a training step lies on each device."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from transformer.config import ModelConfig
from transformer.training.state import TrainState, count_active_parameters
from transformer.types import Params, Task

QUICK_COMPILATION = {"cpu": {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}}
"""By platform, options that leave the buffers of a program as they are and save a third of the time to compile it."""


class PartSize(NamedTuple):
    """How many parameters a part has, and how many of them one token meets."""

    name: str
    total: int
    active: int


def parts_of(params: Params, config: ModelConfig) -> list[PartSize]:
    """The parts of a model, each followed by its own parts, down to the second name; last the whole.

    Args:
      params: live or abstract.
    """
    sizes = []
    for name, part in params.items():
        sizes.append(_size(name, part, config))
        if len(part) > 1:
            sizes += [_size(f"{name}/{inner}", params[name][inner], config) for inner in part]
    return [*sizes, _size("total", params, config)]


def _size(name: str, params: Params, config: ModelConfig) -> PartSize:
    total = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    return PartSize(name, total, count_active_parameters(params, config))


def bytes_on_a_device(tree: Any) -> int:
    """What the arrays of a tree, live or abstract, come to on the device that holds most of them: exact."""
    return sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)
    )


def state_bytes(state: TrainState) -> dict[str, int]:
    """Bytes on each device of the parameters, the optimizer's state and the moving average: exact."""
    parts = {"parameters": state.params, "optimizer": (state.step, state.optimizer), "ema": state.ema}
    return {name: bytes_on_a_device(part) for name, part in parts.items() if part is not None}


def temporary_bytes(compiled: Any) -> int | None:
    """Bytes on each device that a program needs beside its arguments, by XLA's own count; None if it has none.

    Of a training step they hold the gradients and what the forward pass keeps for the backward pass.
    """
    analysis = compiled.memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)


def kept_bytes(task: Task, params: Params, batch: Any, rows: int) -> int:
    """Bytes that the forward pass of some rows keeps for the backward pass, before XLA makes fewer of them.

    It needs no compilation, and tells which of several batches needs most memory.

    Args:
      params: live or abstract.
      batch: as the task gives it.
      rows: of it.
    """

    def forward_and_backward(params: Params, part: Any) -> Any:
        return jax.vjp(lambda params: task.loss(params, part, jax.random.key(0))["loss"][0], params)[1]

    part = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), batch)
    with nn.logical_axis_rules(()):  # the rows of one device, which are not shared out
        kept = jax.eval_shape(forward_and_backward, params, part)
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))


def device_limit(device: jax.Device) -> int | None:
    """Bytes that a device lends to a program; None where it does not say, as CPUs."""
    statistics = device.memory_stats()
    return statistics["bytes_limit"] if statistics and "bytes_limit" in statistics else None


def host_memory() -> int | None:
    """Bytes of this machine's memory that are free or can be freed; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        return None
    return found[0] if found else None
