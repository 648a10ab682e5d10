"""One update's gradient on a mesh beside that on one device, for every family; as a program, a grid on eight devices.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.training.sharded
"""

import dataclasses
import functools
import math
import sys
import tempfile
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from tests.plan.families import SECTIONS, family
from transformer.config import Config, MeshConfig
from transformer.plan.collectives import Collective, collectives
from transformer.tasks import make_task
from transformer.training.partitioning import LOGICAL_AXES, make_mesh, parameter_shardings, place_batch, unbox
from transformer.training.step import gradients

# Sizes that eight devices share evenly; bytes, special pieces and sentinels are up to 269.
EVEN = {"d_model": 16, "d_ff": 24, "num_heads": 8, "vocab_size": 272, "dropout_rate": 0.0, "num_encoder_layers": 2}
EXPERTS: dict[str, dict[str, Any]] = {
    "translation": {"num_experts": 4, "expert_dispatch": "dropless", "activation": "swiglu"},
    "language_modeling": {"num_experts": 4, "expert_dispatch": "capacity", "expert_capacity_factor": 1.0},
}
"""Families that are tried with a mixture of experts too."""

GRID: tuple[tuple[dict[str, int], int], ...] = (
    ({"data": 8}, 1),
    ({"data": 1, "fsdp": 8}, 2),
    ({"data": 2, "fsdp": 2, "tensor": 2}, 4),
    ({"data": 1, "fsdp": 2, "tensor": 4}, 1),
)
"""Meshes of eight devices, with numbers of parts."""

GRID_OF_EXPERTS: tuple[tuple[dict[str, int], int], ...] = (
    ({"data": 2, "expert": 4}, 1),
    ({"data": 1, "fsdp": 2, "expert": 2, "tensor": 2}, 1),
    ({"data": 2, "fsdp": 2, "tensor": 2}, 1),
)
GRID_OF_LENGTHS: tuple[tuple[dict[str, int], int], ...] = (
    ({"data": 2, "sequence": 4}, 1),
    ({"data": 1, "fsdp": 2, "sequence": 2, "tensor": 2}, 2),
)
OF_TEXT = ("translation", "span_corruption", "language_modeling", "masked_lm")
EVEN_LENGTHS: dict[str, Any] = {
    "batching": "pack",
    "max_source_length": 104,
    "max_target_length": 104,
    "tokens_per_batch": 4 * 104,
}
OF_WHOLE_BATCHES = ("loss", "load_balancing", "expert_load_max")  # with experts: they are no sums over tokens


class Outcome(NamedTuple):
    """Of a program: what it gives, what its devices send, and the shapes of the parameters on each."""

    gradient: Any
    sums: Any
    sent: list[Collective]
    shapes: Any


def config_of(task: str, folder: str, even_lengths: bool = False, **model: Any) -> Config:
    """The tiny config of a family with sizes that divide, and no dropout: it draws by device."""
    config = family(task, folder)
    if task == "image_classification":
        model = {**model, "vocab_size": None}
    data = dataclasses.replace(config.data, **EVEN_LENGTHS) if even_lengths else config.data
    return dataclasses.replace(config, data=data, model=dataclasses.replace(config.model, **{**EVEN, **model}))


class Family:
    """A family's task with parameters and a batch of an odd number of rows."""

    def __init__(self, config: Config):
        self.task = make_task(config)
        self.boxed = jax.eval_shape(self.task.init, jax.random.key(0))
        rng = np.random.default_rng(0)
        params = unbox(jax.jit(self.task.init)(jax.random.key(0)))
        # Off their zeros and ones, so that each has an influence that is seen.
        self.params = jax.tree.map(lambda leaf: np.float32(leaf + 0.1 * rng.normal(size=leaf.shape)), params)
        batch = self.task.batch(0)
        rows = len(jax.tree.leaves(batch)[0])
        self.batch = jax.tree.map(lambda leaf: leaf[: rows - (rows % 2 == 0)], batch)

    def on(self, sizes: dict[str, int], parts: int = 1, run: bool = True) -> Outcome:
        """The gradient on a mesh of these sizes, computed in so many parts; or only the program for it."""
        mesh = make_mesh(MeshConfig(**sizes))
        with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXES):
            places = parameter_shardings(mesh, self.boxed)
            params, batch = jax.device_put(self.params, places), place_batch(mesh, self.batch, parts)
            update = functools.partial(gradients, self.task, rng=jax.random.key(0), parts=parts)
            program = jax.jit(lambda params, batch: update(params, batch), out_shardings=(places, None))
            compiled = program.lower(params, batch).compile()
            gradient, sums = compiled(params, batch) if run else (None, None)
        shapes = jax.tree.map(lambda leaf: leaf.sharding.shard_shape(leaf.shape), params)
        return Outcome(gradient, sums, collectives(compiled.as_text(), mesh.shape), shapes)

    @functools.cached_property
    def alone(self) -> Outcome:
        """On one device, at once."""
        return self.on({"data": 1})

    def difference(self, found: Outcome, parts: int) -> float:
        """The largest between an outcome and that of one device, in gradients and sums, relative to the largest there.

        Raises:
          AssertionError: if a sum counts anything else.
        """
        gradient, sums = self.alone.gradient, self.alone.sums
        largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradient))
        each = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), found.gradient, gradient)
        differences = [max(jax.tree.leaves(each)) / largest]
        for name, (total, count) in found.sums.items():
            expected, number = (float(value) for value in sums[name])
            assert count == number, f"{name} counts {count}, not {number}"
            if parts == 1 or name not in OF_WHOLE_BATCHES:
                differences.append(abs(float(total) - expected) / max(abs(expected), 1))
        return max(differences)


def numbers_of_a_parameter(shapes: Any) -> set[int]:
    """How many numbers a parameter may have, of all layers or of one.

    Args:
      shapes: a tree of tuples.
    """
    leaves = jax.tree.leaves(shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    return {math.prod(leaf) for leaf in leaves} | {math.prod(leaf[1:]) for leaf in leaves}


def main() -> None:
    assert len(jax.devices()) == 8, "set XLA_FLAGS as the docstring says"
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        cases: list[Any] = [(task, {}, GRID) for task in SECTIONS]
        cases += [(task, mixture, GRID_OF_EXPERTS) for task, mixture in EXPERTS.items()]
        cases += [(task, {"attention_implementation": "auto"}, GRID_OF_LENGTHS) for task in OF_TEXT]
        for task, model, grid in cases:
            tried = Family(config_of(task, folder, grid is GRID_OF_LENGTHS, **model))
            for sizes, parts in grid:
                parts = 1 if task == "sentence_embedding" else parts  # its loss is of a whole batch
                found = tried.on(sizes, parts)
                difference = tried.difference(found, parts)
                mesh = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
                print(f"{difference:.1e} {task} {model} on {mesh} in {parts} parts", flush=True)
                if not difference < 1e-5:
                    failed.append((task, model, sizes))
    sys.exit(f"differ: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
