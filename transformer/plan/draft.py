"""A training step on a mesh of devices that are only described: what it is made of, and its compiled program."""

import contextlib
import functools
import logging
import math
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.config import MESH_AXES, Config
from transformer.plan.collectives import Collective, collectives
from transformer.plan.memory import QUICK_COMPILATION, bytes_on_a_device, kept_bytes, state_bytes, temporary_bytes
from transformer.plan.stand_in import stand_in
from transformer.training.loading import open_task
from transformer.training.optimizers import make_optimizer
from transformer.training.partitioning import (
    EVALUATION_AXES,
    LOGICAL_AXES,
    ROW_AXES,
    count_row_shards,
    count_slices,
    make_mesh,
    require_even_shares,
)
from transformer.training.schedules import make_schedule
from transformer.training.state import TrainState, abstract_state
from transformer.training.step import count_parts, jit_train_step
from transformer.types import Task

NUM_BUFFERS = 6  # of the largest that are shown
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # in the compiler's message, as in that of a device
NEEDED = re.compile(r"\(?(\d+(?:\.\d+)?)([KMGT]?)\)? exceeds|Used (\d+(?:\.\d+)?)([KMGT]?)")
BUFFER = re.compile(r"^\s*\S+\(\s*\d+%\);\s*(\S+);\s*\d+;\s*\d+; (.*)$", re.MULTILINE)


class Program(NamedTuple):
    """A program that was compiled, or that could not be.

    bytes            of each device, by what they hold; of one that does not fit, what is known
    sent             what its devices send each other
    seconds          that the compiler took
    needed           bytes of temporaries that do not fit; None: all does
    largest_buffers  of one that does not fit: what they hold, by the compiler's report
    """

    bytes: dict[str, int]
    sent: list[Collective]
    seconds: float
    needed: float | None = None
    largest_buffers: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.needed is None


class Batch(NamedTuple):
    """Of one update, over all devices.

    rows       of it, those included that fill it up
    real_rows  those that hold something
    length     of its longer side
    row        one, as the task gives it
    """

    rows: int
    real_rows: int
    length: int
    row: Any


class Draft:
    """A training step as a run would have it, but that nothing is there: neither data, nor devices, nor arrays.

    Args:
      config: of the run, with a batch for these devices.
      devices: as :func:`transformer.plan.topologies.devices_of` gives them.
    """

    def __init__(self, config: Config, devices: Sequence[Any]):
        self.mesh = make_mesh(config.mesh, devices)
        require_even_shares(config.model, self.mesh)
        self.num_shares = count_row_shards(self.mesh)
        with tempfile.TemporaryDirectory() as folder, _without_log():
            self.config = stand_in(config, Path(folder))
            self.task: Task = open_task(self.config, None)
            real_rows, length = self.task.batch_size(0)
            row = self.task.batch(0, slice(0, 1))
        training = self.config.training
        self.parts = count_parts(training, (real_rows, length), self.num_shares)
        unit = self.num_shares * self.parts
        self.batch = Batch(-(-real_rows // unit) * unit, real_rows, length, row)
        self.work = {name: value * self.batch.rows for name, value in self.task.work(row).items()}
        self.optimizer = make_optimizer(training, make_schedule(training, self.config.model.d_model))

    @functools.cached_property
    def abstract(self) -> TrainState:
        """The state's shapes and places."""
        return abstract_state(self.task, self.optimizer, self.config.training.ema_decay is not None, self.mesh)

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.abstract.params))

    @property
    def mesh_shape(self) -> dict[str, int]:
        """Sizes of the mesh's axes, with slices apart from ``data``, along which they stand."""
        slices = count_slices(self.mesh.devices.ravel().tolist())
        sizes = dict(self.mesh.shape)
        return sizes if slices == 1 else {"slice": slices, **sizes, "data": sizes["data"] // slices}

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The mesh and the table of logical axes, as in training."""
        with jax.set_mesh(self.mesh), nn.logical_axis_rules(LOGICAL_AXES):
            yield

    def placed(self, tree: Any, rows: int) -> Any:
        """Shapes and places of a batch like this one."""
        place = NamedSharding(self.mesh, PartitionSpec(ROW_AXES))
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype, sharding=place), tree
        )

    def lower(self) -> Any:
        """The step that training would compile."""
        whole = NamedSharding(self.mesh, PartitionSpec())
        with self.entered():
            step = jit_train_step(self.task, self.optimizer, self.config, self.abstract, self.parts)
            batch = self.placed(self.batch.row, self.batch.rows)
            return step.lower(self.abstract, batch, jax.ShapeDtypeStruct((), jnp.bool_, sharding=whole))

    def compile(self) -> Program:
        """The step's program; out of memory is a result too."""
        sizes = {**state_bytes(self.abstract), "batch": bytes_on_a_device(self.placed(self.batch.row, self.batch.rows))}
        return compiled(self.lower(), sizes, self.mesh_shape, self.mesh.devices.flat[0].platform)

    def compile_decoding(self) -> Program | None:
        """The program that decodes, for parameters as they lie in training; None for a task that decodes nothing."""
        with jax.set_mesh(self.mesh), nn.logical_axis_rules(EVALUATION_AXES):
            lowered = self.task.lower_decoding(self.abstract.params)
        if lowered is None:
            return None
        sizes = {"state": sum(state_bytes(self.abstract).values())}
        return compiled(lowered, sizes, self.mesh_shape, self.mesh.devices.flat[0].platform)

    def kept_bytes(self, rows: int) -> int:
        """Our own estimate of what the forward pass of some rows keeps for the backward pass, on one device."""
        one = np.array(self.mesh.devices.flat[0]).reshape((1,) * len(MESH_AXES))  # kernels are chosen for it
        with jax.set_mesh(Mesh(one, MESH_AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(MESH_AXES))):
            return kept_bytes(self.task, self.abstract.params, self.batch.row, rows)


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """What is said of text that was made up helps nobody."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def compiled(lowered: Any, sizes: Mapping[str, int], mesh_shape: Mapping[str, int], platform: str) -> Program:
    """Compile a program, and read from it what counts.

    Args:
      lowered: of ``jax.jit``.
      sizes: bytes of its arguments on each device, by what they hold.
      mesh_shape: see :func:`transformer.plan.collectives.collectives`.
      platform: of the devices.
    """
    since = time.monotonic()
    try:
        program = lowered.compile(QUICK_COMPILATION.get(platform))
    except jax.errors.JaxRuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        seconds = time.monotonic() - since
        return Program(dict(sizes), [], seconds, needed_bytes(str(error)), _largest_buffers(lowered))
    seconds = time.monotonic() - since
    temporaries = temporary_bytes(program)
    held = {**sizes, "temporaries": temporaries or 0}
    return Program(held, collectives(program.as_text(), mesh_shape), seconds)


def needed_bytes(message: str) -> float:
    """What the compiler's message says that the temporaries come to; infinite if it says nothing."""
    found = NEEDED.search(message)
    if not found:
        return math.inf
    number, unit = found[1] or found[3], found[2] or found[4]
    return float(number) * 2.0 ** (10 * " KMGT".index(unit or " "))


def _largest_buffers(lowered: Any) -> tuple[str, ...]:
    """Of a program that does not fit: the message has only the total, but the compiler can be asked for a report."""
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            lowered.compile({"xla_dump_to": folder})
        reports = sorted(Path(folder).glob("*memory-usage-report.txt"))
        return largest_buffers(reports[-1].read_text()) if reports else ()


def largest_buffers(report: str) -> tuple[str, ...]:
    """The first lines of a memory-usage report: ``7.03GiB 5xf32[2,25,9,2048,2048]``."""
    found = [f"{size} {shapes.replace('×', ' x ')}" for size, shapes in BUFFER.findall(report)]
    return tuple(found[:NUM_BUFFERS])
