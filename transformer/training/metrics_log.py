"""Numbers of a run, by step: ``metrics.jsonl`` for people and scripts, TensorBoard events for curves."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter


class MetricsLog:
    """Appends to ``workdir/metrics.jsonl`` and ``workdir/tensorboard``.

    Args:
      workdir: of the run.
      step: what the run goes on from. Lines of later steps, written after the checkpoint that was restored, are
        dropped: those steps are run again.
      writes: False in all processes of a run but one.
    """

    def __init__(self, workdir: Path, step: int, *, writes: bool = True):
        self._writes = writes
        if not writes:
            return
        path = workdir / "metrics.jsonl"
        if path.exists():
            kept = [line for line in path.read_text().splitlines(keepends=True) if _step(line) <= step]
            partial = path.with_suffix(".partial")
            partial.write_text("".join(kept))
            os.replace(partial, path)
        self._file = path.open("a")
        self._events = SummaryWriter(str(workdir / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """One line, one event a number. What is not finite is null: JSON knows no NaN."""
        if not self._writes:
            return
        line = {"step": step} | {name: value if _is_json(value) else None for name, value in values.items()}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        if not self._writes:
            return
        self._file.close()
        self._events.close()


def _is_json(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):
        return math.inf  # cut short when the process was killed
