"""What the curves of a run are drawn from: ``metrics.jsonl``, its restarts, and the tokens that it had seen by then."""

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer.training.checkpoints import Checkpoints
from transformer.training.record import read_record
from transformer.training.workdir import checkpoints_folder
from transformer.types import UserError

METRICS = "metrics.jsonl"
VALIDATION = "validation_"
AXES = ("steps", "minutes", "tokens")

logger = logging.getLogger(__name__)


class Rows(NamedTuple):
    """Lines of one kind, by rising step.

    axes      {name of AXES: [N]}, without those that are not known; steps are always there
    columns   {name: [N]}, NaN where a line has no such number, or one that was not finite
    """

    axes: dict[str, np.ndarray]
    columns: dict[str, np.ndarray]


class Restart(NamedTuple):
    """A process that went on with a run.

    step    of the checkpoint that it went on from
    ended   how the process before it ended
    again   updates that it made again at least; of them ``metrics.jsonl`` has the later line only
    """

    step: int
    ended: str
    again: int


class Curves(NamedTuple):
    """Of one run.

    training     means of the steps since the line before
    validation   scores of the validation split, named without ``validation_``
    restarts     None: run.json does not say
    """

    training: Rows
    validation: Rows
    restarts: list[Restart] | None


def read_curves(workdir: Path) -> Curves:
    """The curves of a workdir on local disk.

    Raises:
      UserError: if there is no ``metrics.jsonl``, or no whole line in it.
    """
    training, validation = _lines(workdir / METRICS)
    if not training and not validation:
        raise UserError(
            f"{workdir / METRICS} has no whole line yet; train.py writes one every training.log_every steps"
        )
    known = _known_axes(training, tokens_by_step(workdir))
    sessions = read_record(workdir).get("sessions")
    return Curves(_rows(training, known), _rows(validation, known), None if sessions is None else restarts(sessions))


def _lines(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Those of training and those of validation by rising step, of each step the last.

    Damaged ones are left out, with a warning.
    """
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist; --workdir must be the folder of a run that train.py trained: one that was "
            "imported has no curves"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    training: dict[int, dict[str, Any]] = {}
    validation: dict[int, dict[str, Any]] = {}
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            step = int(line["step"])
        except (ValueError, KeyError, TypeError):
            logger.warning("%s:%d is left out: it is no whole line (written when a process was killed?)", path, number)
            continue
        if any(name.startswith(VALIDATION) for name in line):
            validation[step] = {name.removeprefix(VALIDATION): value for name, value in line.items()}
        else:
            training[step] = line
    return [training[step] for step in sorted(training)], [validation[step] for step in sorted(validation)]


def tokens_by_step(workdir: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Steps and the real tokens of all sides up to there, as the checkpoints count them; None: there is none that does.

    A checkpoint that cannot be read is left out, with a warning.
    """
    steps, tokens = [0.0], [0.0]
    checkpoints = Checkpoints(checkpoints_folder(workdir))
    for step in checkpoints.steps():
        try:
            work = checkpoints.metadata(step).get("work", {})
        except UserError as error:
            logger.warning("%s", error)
            continue
        if work:
            steps.append(step)
            tokens.append(sum(value for name, value in work.items() if name.endswith("_tokens")))
    return (np.array(steps), np.array(tokens)) if tokens[-1] else None


def _known_axes(
    training: Sequence[Mapping[str, Any]], tokens: tuple[np.ndarray, np.ndarray] | None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Points (steps, values), from step 0 on, between which an axis is straight."""
    timed = [(line["step"], line["minutes"]) for line in training if "minutes" in line]
    known = {}
    if timed:
        steps, minutes = np.array([(0, 0), *timed], float).T
        known["minutes"] = steps, minutes
    if tokens is not None:
        known["tokens"] = tokens
    return known


def _rows(lines: Sequence[Mapping[str, Any]], known: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Rows:
    steps = np.array([line["step"] for line in lines], float)
    axes = {"steps": steps, **{name: _continued(steps, *points) for name, points in known.items()}}
    numbers = (name for line in lines for name, value in line.items() if isinstance(value, int | float | None))
    names = [name for name in dict.fromkeys(numbers) if name not in ("step", "minutes")]
    columns = {name: np.array([line.get(name) for line in lines], float) for name in names}  # None becomes NaN
    return Rows(axes, columns)


def _continued(at: np.ndarray, steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Interpolated, and beyond the last point in proportion to it."""
    return np.where(at > steps[-1], values[-1] * at / max(steps[-1], 1), np.interp(at, steps, values))


def place_at(rows: Rows, step: int, axis: str) -> float:
    """The place of a step on an axis, between those of the rows."""
    return float(np.interp(step, [0, *rows.axes["steps"]], [0, *rows.axes[axis]]))


def restarts(sessions: Sequence[Mapping[str, Any]]) -> list[Restart]:
    """Of the sessions of ``run.json``, those that went on with training; one that found it finished is none."""
    return [
        Restart(after["from_step"], before["ended"] or "a kill", max(before["to_step"] - after["from_step"], 0))
        for before, after in pairwise(sessions)
        if after["to_step"] > after["from_step"] or after["ended"] != "finished"
    ]
