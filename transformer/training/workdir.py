"""The folder of a run: the config it was started with, its log, and who may continue it."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from transformer.config import HARMLESS_KEYS, Config, differences, from_json, to_json
from transformer.types import UserError

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
LOG = "log.txt"
LOWER_IS_BETTER = ("loss", "nll_per_token", "perplexity")


def prepare(workdir: Path, config: Config) -> None:
    """Make the workdir, or see that its checkpoints are this experiment's, and keep the config there.

    Raises:
      UserError: if it belongs to another experiment (showing how they differ) or cannot be written.
    """
    path = workdir / CONFIG
    if workdir.exists() and not workdir.is_dir():
        raise UserError(f"--workdir={workdir} is a file; give a folder")
    if any((workdir / CHECKPOINTS).glob("[0-9]*")):
        changed = differences(read_config(workdir), config)
        if changed:
            shown = "\n".join(f"  {key}: {old!r} there, {new!r} now" for key, (old, new) in changed.items())
            raise UserError(
                f"{workdir} holds another experiment:\n{shown}\n"
                f"Use another --workdir. What may change when a run goes on: {', '.join(HARMLESS_KEYS)}, and "
                "training.num_steps where the schedule does not depend on it."
            )
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(to_json(config))
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"--workdir={workdir} cannot be written: {error.strerror}") from None


def read_config(workdir: Path) -> Config:
    """The config that a run was started with.

    Raises:
      UserError: if there is none, or it cannot be read.
    """
    path = workdir / CONFIG
    try:
        return from_json(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; --workdir must be the folder of a run that train.py started") from None
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}") from None


@contextlib.contextmanager
def log_to(workdir: Path) -> Iterator[None]:
    """While entered, everything that is logged is written into the workdir too."""
    handler = logging.FileHandler(workdir / LOG, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("transformer")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
