"""The runs of a report, each with a letter and a name that tell it from the others."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transformer.config import Config
from transformer.paths import is_remote
from transformer.report.run_curves import Curves, read_curves
from transformer.training.workdir import local_workdir, read_config
from transformer.types import UserError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Run(NamedTuple):
    """A run on the page; ``letter`` stands for it in charts and tables."""

    letter: str
    name: str
    workdir: Path
    config: Config
    curves: Curves


def read_runs(workdirs: Sequence[str | Path]) -> list[Run]:
    """The runs of workdirs, on disk or in buckets.

    Raises:
      UserError: for a workdir without config or curves, one that is given twice, or more than there are letters for.
    """
    if len(workdirs) > len(LETTERS):
        raise UserError(f"--workdir is given {len(workdirs)} times; a report has room for {len(LETTERS)} runs")
    paths = [local_workdir(workdir) for workdir in workdirs]
    for i, path in enumerate(paths):
        if path.resolve() in [each.resolve() for each in paths[:i]]:
            raise UserError(f"--workdir={workdirs[i]} is given twice")
    return [
        Run(letter, name, path, _config(path), read_curves(path))
        for letter, name, path in zip(LETTERS, names_of(workdirs), paths, strict=False)
    ]


def _config(path: Path) -> Config:
    """The config; what is wrong with it is said with the workdir, since there may be several."""
    try:
        return read_config(path)
    except UserError as error:
        raise UserError(f"--workdir={path}: {error}") from None


def names_of(workdirs: Sequence[str | Path]) -> list[str]:
    """Each one's last parts, so many that they differ."""
    texts = [os.fspath(each) if is_remote(each) else os.path.abspath(each) for each in workdirs]
    every = [text.strip("/").split("/") for text in texts]
    for number in range(1, max(map(len, every)) + 1):
        names = ["/".join(each[-number:]) for each in every]
        if len(set(names)) == len(names):
            break
    return names
