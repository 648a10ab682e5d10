"""What devices send each other in a compiled program: read from its text, each loop as often as it runs."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

BITS = re.compile(r"(?:s|u|f|bf|c)(\d+)")  # in the name of a dtype

SENT = {
    "all-gather": lambda size, n: size * (n - 1) / n,
    "all-reduce": lambda size, n: 2 * size * (n - 1) / n,
    "reduce-scatter": lambda size, n: size * (n - 1),
    "all-to-all": lambda size, n: size * (n - 1) / n,
    "collective-permute": lambda size, n: size,
    "collective-broadcast": lambda size, n: size,
}
"""Bytes that a device sends, from those of its result and the devices of a group, if they pass them on in a ring."""

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(rf" = (.*?) ({'|'.join(SENT)}|while)(-start)?\(")
CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
BODY = re.compile(r"\bbody=%?([\w.\-]+)")
CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
LIMIT = re.compile(r" = s32\[\]\S* constant\((\d+)\)")
BELOW = re.compile(r"ROOT .* compare\(.*direction=LT")
SHAPE = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
CHAIN = re.compile(r"channel_id=(\d+).*\bchain_id=")
BETWEEN_SLICES = re.compile(r" = \((.*?), .* send\(.*_xla_megascale_transfer_type=\"(\w+)\"")
SCATTERED = "all-reduce-scatter"  # in the names of computations in which the TPU's compiler sums, and keeps a part
OP_NAME = re.compile(r'op_name="([^"]*)"')

IOTA = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
IOTA_GROUPS = re.compile(rf"replica_groups=\[([\d,]+)\]<={IOTA}")
LISTED_GROUPS = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}")
NAMED_GROUPS = re.compile(rf"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({IOTA}\))? \{{([^}}]*)\}}")
NAMED_AXIS = re.compile(r"'([^']+)'(?:=(\d+)|:\((\d+)\)(\d+))?")


class Shape(NamedTuple):
    """Of an array: the name of its dtype in XLA, and its dimensions on one device."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def bytes(self) -> float:
        bits = BITS.match(self.dtype)
        return math.prod(self.dims) * (int(bits[1]) / 8 if bits else 1.0)  # a truth value has a byte


class Collective(NamedTuple):
    """One instruction of a program.

    kind    a name in ``SENT``
    axes    of the mesh, along which it goes
    group   how many devices take part in each
    shapes  of its results, on one device
    sent    bytes that a device sends each time
    times   how often it runs in one run of the program
    exact   whether that is known; otherwise loops that do not say how often they run are counted once
    name    of the operation that it comes from
    """

    kind: str
    axes: tuple[str, ...]
    group: int
    shapes: tuple[Shape, ...]
    sent: float
    times: int
    exact: bool
    name: str


def collectives(program: str, mesh_shape: Mapping[str, int]) -> list[Collective]:
    """All of a program that has been partitioned over a mesh.

    Args:
      program: the text of a compiled module, ``compiled.as_text()``.
      mesh_shape: the sizes of the mesh's axes, in their order; of several slices the first is ``slice``.

    Raises:
      ValueError: for groups of devices, or something that is sent to other slices, in a form that is not known.
    """
    bodies = dict(_computations(program))
    runs = _runs(bodies)
    found, chains = [], set[str]()
    for name, lines in bodies.items():
        for line in lines:
            instruction = INSTRUCTION.search(line)
            if between := BETWEEN_SLICES.search(line):
                found.append(_between_slices(between, mesh_shape["slice"], *runs[name]))
            if not instruction or instruction[2] == "while" or name not in runs:
                continue
            if chain := CHAIN.search(line):  # of one that goes on beside several computations, each has a piece
                if chain[1] in chains:
                    continue
                chains.add(chain[1])
            kind, shapes = instruction[2], _results(instruction)
            groups = _groups(line)
            axes = _axes(groups, mesh_shape)
            if not axes:  # each device with itself
                continue
            size = sum(shape.bytes for shape in shapes)
            if kind == "all-reduce" and SCATTERED in name:
                kind, size = "reduce-scatter", size / groups.shape[1]
            operation = OP_NAME.search(line)
            found.append(
                Collective(
                    kind,
                    axes,
                    groups.shape[1],
                    shapes,
                    SENT[kind](size, groups.shape[1]),
                    *runs[name],
                    operation[1] if operation else "",
                )
            )
    return found


def bytes_by_axes(found: Sequence[Collective]) -> dict[str, float]:
    """Bytes that a device sends in one run of the program, by the axes along which it does: ``data``, ``data+fsdp``."""
    totals: dict[str, float] = {}
    for each in found:
        axes = "+".join(each.axes)
        totals[axes] = totals.get(axes, 0.0) + each.sent * each.times
    return totals


def _computations(program: str) -> Iterator[tuple[str, list[str]]]:
    """The name and the lines of each; that of the entry is ``ENTRY``."""
    name, lines = "", list[str]()
    for line in program.splitlines():
        start = COMPUTATION.match(line)
        if start:
            name, lines = "ENTRY" if start[1] else start[2], []
        elif line.startswith("}"):
            yield name, lines
        else:
            lines.append(line)


def _runs(bodies: Mapping[str, list[str]]) -> dict[str, tuple[int, bool]]:
    """How often each computation runs in one run of the program, and whether that is known; not: those never called."""
    callers: dict[str, list[tuple[str, int, bool]]] = {name: [] for name in bodies}
    for name, lines in bodies.items():
        for line in lines:
            body, trips = BODY.search(line), _trips(line, bodies)
            called = CALLED.findall(line)
            for branches in BRANCHES.findall(line):
                called += [branch.strip(" %") for branch in branches.split(",")]
            for each in called:
                loops = body is not None and each == body[1]
                times = trips if loops and trips is not None else 1
                callers[each].append((name, times, not loops or trips is not None))

    found: dict[str, tuple[int, bool]] = {"ENTRY": (1, True)}

    def run(name: str) -> tuple[int, bool]:
        if name not in found:
            times = [(run(caller), factor, known) for caller, factor, known in callers[name]]
            number = sum(number * factor for (number, _), factor, _ in times)
            found[name] = number, all(exact and known for (_, exact), _, known in times)
        return found[name]

    return {name: run(name) for name in bodies if run(name)[0]}


def _trips(line: str, bodies: Mapping[str, list[str]]) -> int | None:
    """How often a loop runs, if that is known.

    CPUs' compiler states it. That of TPUs leaves it to the condition: a scan's counts from 0 and compares with its
    length; one that asks for more, as that of a search does, says nothing.
    """
    if stated := TRIPS.search(line):
        return int(stated[1])
    condition = CONDITION.search(line)
    lines = bodies[condition[1]] if condition else []
    limits = [limit[1] for each in lines if (limit := LIMIT.search(each))]
    return int(limits[0]) if len(limits) == 1 and any(map(BELOW.search, lines)) else None


def _between_slices(sending: re.Match[str], slices: int, times: int, exact: bool) -> Collective:
    """What TPUs leave to the network: each device sends its part, which its slice has summed before."""
    kind = sending[2].lower().replace("_", "-")
    if kind not in SENT:
        raise ValueError(f"something is sent to other slices in a form that is not known: {sending[2]}")
    shapes = _shapes(sending[1])
    sent = SENT[kind](sum(shape.bytes for shape in shapes), slices)
    return Collective(kind, ("slice",), slices, shapes, sent, times, exact, "between slices")


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(
        Shape(dtype, tuple(int(size) for size in dims.split(",") if size)) for dtype, dims in SHAPE.findall(text)
    )


def _results(instruction: re.Match[str]) -> tuple[Shape, ...]:
    """What an instruction gives; the start of an asynchronous one has its operands and some flags beside that."""
    shapes = _shapes(instruction[1])
    if instruction[3] and instruction[2] == "all-gather":
        return shapes[len(shapes) // 2 :]
    if instruction[3] and instruction[2] == "collective-permute":
        return shapes[1:2]
    return shapes


def _iota(dims: str, order: str | None) -> np.ndarray:
    """The numbers of the devices as XLA abbreviates them: 0, 1, 2, ... in this shape, with its axes in this order."""
    sizes = _integers(dims)
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return numbers if order is None else numbers.transpose(_integers(order))


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _groups(line: str) -> np.ndarray:
    """The devices that exchange something with each other, int [groups, devices of a group]."""
    if iota := IOTA_GROUPS.search(line):
        return _iota(iota[2], iota[3]).reshape(_integers(iota[1]))
    if listed := LISTED_GROUPS.search(line):
        return np.array([_integers(group) for group in re.findall(r"\{([\d, ]+)\}", listed[1])])
    if named := NAMED_GROUPS.search(line):
        return _named_groups(named)
    raise ValueError(f"groups of devices in a form that is not known: {line.strip()}")


def _named_groups(named: re.Match[str]) -> np.ndarray:
    """Of ``mesh['a'=4,'b'=2] {'b'}``; ``'a':(2)2`` is the second of two factors of the axis a, with 2 before it."""
    sizes = {name: int(size) for name, size, _, _ in NAMED_AXIS.findall(named[1])}
    numbers = np.arange(math.prod(sizes.values())) if named[2] is None else _iota(named[2], named[3])
    dims, chosen = list[int](), list[int]()
    wanted = {
        name: (int(before or 1), int(size) if size else sizes[name])
        for name, _, before, size in NAMED_AXIS.findall(named[4])
    }
    for name, size in sizes.items():
        before, middle = wanted.get(name, (size, 1))
        if name in wanted:
            chosen.append(len(dims) + 1)
        dims += [before, middle, size // (before * middle)]
    others = [axis for axis in range(len(dims)) if axis not in chosen]
    devices = math.prod(dims[axis] for axis in chosen)
    return numbers.reshape(dims).transpose(others + chosen).reshape(-1, devices)


def _axes(groups: np.ndarray, mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of the mesh along which the devices of a group differ."""
    places = np.unravel_index(groups, tuple(mesh_shape.values()))
    return tuple(name for name, place in zip(mesh_shape, places, strict=True) if np.ptp(place, axis=1).any())
