"""Which mesh, and what to rematerialise: all that there is by estimate, and the best of it compiled."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from transformer.config import MESH_AXES, Config
from transformer.plan.draft import Draft, Program
from transformer.plan.estimates import Sizes, memory, sizes_of, work
from transformer.plan.roofline import Times, times
from transformer.plan.topologies import Chip
from transformer.training.partitioning import ROW_AXES
from transformer.training.step import count_parts
from transformer.types import UserError

NUM_COMPILED = 3
NUM_SHOWN = 10
ROOM = 0.9  # of a device's memory may be full by estimate
WIDEST_TENSOR = 16  # a layer is not worth sharing among more
SHORTEST_SHARED = 2_048  # rows from which on their length is shared out
POLICIES = ("none", "attention", "layer")


class Candidate(NamedTuple):
    """A way to do it.

    sizes          of the mesh's axes
    rematerialize  see ``model.rematerialize``
    seconds        of a step, by estimate
    memory         bytes of a device, by estimate
    fits           whether they are there, by estimate
    """

    sizes: dict[str, int]
    rematerialize: str
    seconds: float
    memory: float
    fits: bool

    @property
    def name(self) -> str:
        return " ".join(f"{axis}={size}" for axis, size in self.sizes.items() if size > 1) or "data=1"


class Best(NamedTuple):
    """What a search found: the best that was compiled, and a table of what was tried."""

    draft: Draft
    sizes: Sizes
    program: Program
    table: list[dict[str, Any]]


def meshes(config: Config, num_devices: int, slices: int, rows: int, length: int) -> Iterator[dict[str, int]]:
    """Sizes of the axes that use all devices and that the model and its batch can share evenly."""
    model = config.model
    vocabulary = model.vocab_size or config.data.vocab_size

    def divides(size: int, *numbers: int) -> bool:
        return all(number % size == 0 for number in numbers)

    for tensor in _divisors(math.gcd(num_devices, WIDEST_TENSOR)):
        if not divides(tensor, model.num_heads, model.kv_heads, model.d_ff, vocabulary):
            continue
        for sequence in _divisors(num_devices // tensor) if length >= SHORTEST_SHARED else [1]:
            if not divides(2 * sequence, length) and sequence > 1:
                continue
            for expert in _divisors(num_devices // (tensor * sequence)) if model.num_experts else [1]:
                if not divides(expert, model.num_experts or 1):
                    continue
                for fsdp in _divisors(num_devices // (tensor * sequence * expert)):
                    data = num_devices // (tensor * sequence * expert * fsdp)
                    sizes = dict(zip(MESH_AXES, (data, fsdp, expert, sequence, tensor), strict=True))
                    if divides(fsdp, model.d_model) and divides(slices, data) and data * fsdp * expert <= rows:
                        yield sizes


def with_candidate(config: Config, sizes: dict[str, int], rematerialize: str) -> Config:
    """The config on another mesh, with other rematerialisation."""
    axes: dict[str, Any] = dict(sizes)
    mesh = dataclasses.replace(config.mesh, **axes)
    model = dataclasses.replace(config.model, rematerialize=rematerialize)
    return dataclasses.replace(config, mesh=mesh, model=model)


def sizes_by_policy(config: Config, devices: Sequence[Any]) -> dict[str, Sizes]:
    """Sizes of model and batch for each way of rematerialisation."""
    found: dict[str, Sizes] = {}
    for policy in POLICIES:  # the first keeps all
        draft = Draft(with_candidate(config, dict.fromkeys(MESH_AXES, 1), policy), devices[:1])
        found[policy] = sizes_of(draft, found[POLICIES[0]].row_bytes if found else None)
    return found


def ranked(
    config: Config, sizes: Mapping[str, Sizes], chip: Chip, num_devices: int, slices: int, flops: float
) -> list[Candidate]:
    """All candidates, those first that fit, then the quickest, by estimate.

    Args:
      config: of the run, with a batch for these devices.
      sizes: see :func:`sizes_by_policy`.
      chip: of which the devices are.
      num_devices: in all.
      slices: of them.
      flops: a second, of a device at its best.

    Raises:
      UserError: if no mesh is possible.
    """
    found = []
    rows, length = sizes[POLICIES[0]].rows, sizes[POLICIES[0]].length
    for mesh in meshes(config, num_devices, slices, rows, length):
        parts = count_parts(config.training, (rows, length), math.prod(mesh[axis] for axis in ROW_AXES))
        for policy in POLICIES:
            tried = with_candidate(config, mesh, policy)
            needed = memory(sizes[policy], tried, mesh, parts)
            done = work(sizes[policy], tried, mesh, parts, slices)
            seconds = times(done, chip, flops).estimate
            found.append(Candidate(mesh, policy, seconds, needed, needed <= ROOM * chip.memory))
    if not found:
        raise UserError(
            f"--search: no mesh of {num_devices} devices shares out {rows} rows and a model of these sizes evenly; "
            "give --tokens_per_device, or a model.vocab_size that more devices divide"
        )
    return sorted(found, key=lambda each: (not each.fits, each.seconds if each.fits else each.memory))


def compile_best(
    candidates: Sequence[Candidate],
    config: Config,
    sizes: Mapping[str, Sizes],
    devices: Sequence[Any],
    estimate: Callable[[Draft, Sizes, Program], Times],
) -> Best:
    """Compile the first of the candidates for which there is a mesh, and choose by what the compiler says.

    Args:
      candidates: see :func:`ranked`.
      config: of the run.
      sizes: see :func:`sizes_by_policy`.
      devices: of the topology.
      estimate: seconds of a step, given its program.
    """
    table = [each._asdict() for each in candidates[:NUM_SHOWN]]
    tried: list[tuple[bool, float, Best]] = []
    for candidate, row in zip(candidates, table, strict=False):
        try:
            draft = Draft(with_candidate(config, candidate.sizes, candidate.rematerialize), devices)
        except (UserError, NotImplementedError) as error:  # a mesh that does not lie on the torus
            row["refused"] = str(error).splitlines()[0]
            continue
        program = draft.compile()
        seconds = estimate(draft, sizes[candidate.rematerialize], program).estimate
        row |= {"compiled_fits": program.fits, "compiled_seconds": seconds if program.fits else None}
        best = Best(draft, sizes[candidate.rematerialize], program, table)
        tried.append((not program.fits, seconds if program.fits else program.needed or 0.0, best))
        if len(tried) == NUM_COMPILED:
            break
    if not tried:
        raise UserError("--search: none of the best meshes lies on this slice; state one by --config.mesh")
    return min(tried, key=lambda each: each[:2])[2]


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
