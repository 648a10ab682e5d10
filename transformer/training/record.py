"""What a run has been through, beside its checkpoints: ``run.json``, from which the experiment card is written.

A checkpoint knows what made its parameters: its metadata has the tokens seen and the operations done up to its step.
This file knows what a checkpoint cannot: on what and for how long each process trained, and how it ended.
"""

import datetime
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from transformer.data.processes import cores
from transformer.training.devices import processor

RECORD = "run.json"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece", "tokenizers")
GIT_SECONDS = 10.0  # to answer in
SHOWN_CHARACTERS = 200  # of the error that ended a session

logger = logging.getLogger(__name__)


class Session:
    """The part of a run that one process does, noted while it lasts: what a kill leaves behind is the last note.

    As a context it notes how it ended, if that was by an exception. A note that cannot be written is a warning.
    """

    def __init__(
        self,
        workdir: Path,
        run: Mapping[str, Any],
        session: Mapping[str, Any],
        *,
        step: int,
        training_seconds: float,
        since: float,
    ):
        """
        Args:
          workdir: of the run.
          run: facts of the whole run, which replace those of earlier sessions.
          session: facts of this one.
          step: that it goes on from.
          training_seconds: that the run has taken up to there; see :meth:`note`.
          since: ``time.monotonic()`` when it began.
        """
        self._path = workdir / RECORD
        self._since, self._seconds_before = since, training_seconds
        started = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=time.monotonic() - since)
        self._session: dict[str, Any] = {
            "started": started.isoformat(timespec="seconds"),
            "from_step": step,
            "to_step": step,
            "training_seconds": 0.0,
            "ended": None,
            "non_finite_step": None,
            **session,
        }
        earlier = read_record(workdir)
        self._record = {**earlier, **run, "sessions": [*earlier.get("sessions", []), self._session]}
        self._write()

    def note(self, step: int, training_seconds: float) -> None:
        """How far training has come.

        Args:
          step: updates done.
          training_seconds: of the whole run, without evaluations and without steps that were made again.
        """
        self._session |= {"to_step": step, "training_seconds": training_seconds - self._seconds_before}
        self._write()

    def note_non_finite(self, step: int) -> None:
        """The update after ``step`` others had a loss or gradient that is not finite."""
        self._session["non_finite_step"] = step

    def end(self, how: str) -> None:
        """Say in a few words how it ended; what comes later changes nothing."""
        if self._session["ended"] is None:
            self._session["ended"] = how
            self._write()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            self.end(textwrap.shorten(f"{kind.__name__}: {error}", SHOWN_CHARACTERS, placeholder=" ..."))

    def _write(self) -> None:
        self._session["seconds"] = time.monotonic() - self._since
        if jax.process_index() != 0:
            return
        partial = self._path.with_suffix(".partial")
        try:
            partial.write_text(json.dumps(self._record, indent=1) + "\n", encoding="utf-8")
            os.replace(partial, self._path)
        except (OSError, TypeError, ValueError) as error:
            logger.warning("%s could not be written: %s", self._path, error)


def read_record(workdir: Path) -> dict[str, Any]:
    """What ``run.json`` holds; nothing, with a warning, if it cannot be read."""
    path = workdir / RECORD
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        record["sessions"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read (%r): what earlier processes did is not known", path, error)
        return {}
    return record


def environment(mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """What a process trains on and with."""
    device = mesh.devices.flat[0]
    return {
        "devices": mesh.size,
        "device_kind": device.device_kind,
        "platform": device.platform,
        "runtime": device.client.platform_version,
        "jax_processes": jax.process_count(),
        "processor": processor()[0],
        "cores": cores(),
        "matmul_precision": jax.config.jax_default_matmul_precision or "JAX's default",  # type: ignore[attr-defined]
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "code": code_version(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def code_version() -> dict[str, Any]:
    """The git commit of this code and whether files of it were changed since; or why that is not known."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), "--no-optional-locks", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_SECONDS)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "transformer/config.py")  # or it is the repository of something else
        commit = git("rev-parse", "HEAD")
        return {"commit": commit, "uncommitted_changes": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except subprocess.CalledProcessError:
        return {"unknown": "the code does not lie in a git repository of its own"}
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"unknown": f"git could not be asked: {error}"}
