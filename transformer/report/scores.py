"""What was scored in a workdir: a record of each evaluation beside its outputs, for the card and for checks."""

import dataclasses
import datetime
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.config import Config, flatten
from transformer.paths import write_text
from transformer.training.workdir import OUTPUTS

SUFFIX = ".scores.json"

logger = logging.getLogger(__name__)


def save(outputs: Path, scores: Mapping[str, Any], of_run: Config, used: Config) -> Path:
    """Write the record of an evaluation beside its outputs, ``NAME.txt``: ``NAME.scores.json``.

    Args:
      outputs: the file of outputs.
      scores: what ``eval.py`` prints. Scores of single lines are left out, as they are in the outputs; numbers that are
        not finite are null.
      of_run: the config of the run.
      used: with what the evaluation changed in it.
    """
    from transformer.training.record import code_version

    before = dict(flatten(of_run))
    record = {
        "scored": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "code": code_version(),
        "changed": {key: value for key, value in flatten(used) if value != before[key]},
        "decoding": dataclasses.asdict(used.decoding),
        "scores": {name: _as_json(value) for name, value in scores.items() if not _of_lines(value)},
    }
    path = outputs.with_suffix(SUFFIX)
    write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def read(workdir: Path) -> list[dict[str, Any]]:
    """The records of a workdir, the oldest first, each with ``name``, that of its outputs.

    Damaged ones are left out, with a warning.
    """
    records = []
    for path in sorted((workdir / OUTPUTS).glob(f"*{SUFFIX}")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            record["name"] = path.name.removesuffix(SUFFIX)
            record["scored"], record["scores"]["steps"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s is left out: %r", path, error)
            continue
        records.append(record)
    return sorted(records, key=lambda record: record["scored"])


def _of_lines(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and isinstance(value[0], float)


def _as_json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
