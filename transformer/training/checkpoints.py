"""Checkpoints that are whole or not taken.

    FOLDER/STEP/params/, ema/, state/    one Orbax item each: evaluation and averaging read only the weights
    FOLDER/STEP/manifest.json            size and checksum of every file, shape and dtype of every array, metadata
    FOLDER/metrics.json                  scores by name and step, from which the best checkpoint is known

Orbax copies the arrays to the host, writes them while training goes on, gathers the shards of all hosts and renames
the finished folder into place. What it does not notice later is a file that was cut short or a byte that changed. So
the first host writes a manifest, last of all: a folder without a whole manifest is not a checkpoint, whatever else it
holds.
"""

import contextlib
import errno
import functools
import hashlib
import json
import logging
import math
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from transformer.paths import (
    AnyPath,
    as_path,
    file_size,
    files_below,
    is_remote,
    reaching,
    remove_tree,
    sync,
    sync_tree,
    write_text,
)
from transformer.types import Params, UserError

MANIFEST = "manifest.json"
METRICS = "metrics.json"
UNFINISHED = ".orbax-checkpoint-tmp"  # how the name of a folder ends that Orbax has not finished
DAMAGED = ".damaged"  # how it ends after the checkpoint was found damaged and training went on from an earlier one

logger = logging.getLogger(__name__)


class Restored(NamedTuple):
    """What :meth:`Checkpoints.restore` gives: the step, the items by name, and the metadata they were saved with."""

    step: int
    items: dict[str, Any]
    metadata: dict[str, Any]


class Damaged(Exception):
    """Says why a checkpoint is not whole."""


class Checkpoints:
    """The checkpoints of one run. Only a process that saves removes anything; readers leave the folder as it is.

    Args:
      folder: where they are, on disk or in a bucket; made when first needed.
      keep: how many of the newest stay. The best stays too.
      best_metric: what is given to :meth:`set_metric`; scores of another name are not compared with it.
      best_mode: ``max`` or ``min``: which score is the best.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int = 5, best_metric: str = "metric", best_mode: str = "max"
    ) -> None:
        if best_mode not in ("max", "min"):
            raise ValueError(f"best_mode={best_mode} is neither max nor min")
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1")
        given = as_path(folder)
        self.folder = given if is_remote(given) else given.absolute()
        self._keep = keep
        self._best_metric = best_metric
        self._best_mode = best_mode
        self._writer: ocp.AsyncCheckpointer | None = None
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._saving = (0, 0)  # the step under way and the bytes of its arrays
        self._damaged: set[int] = set()  # passed over by `restore`; moved aside before the first save

    def save(
        self, step: int, params: Params, state: Any, *, ema: Params | None = None, metadata: Mapping[str, Any]
    ) -> None:
        """Save in the background; return when the arrays are on the host and may be donated.

        Waits for an earlier save first. A step that is already there is left as it is, unless :meth:`restore` passed it
        over as damaged: the same step of the same run holds the same arrays.

        Args:
          step: updates done.
          params: the weights.
          state: whatever else training needs to go on: a pytree of arrays and numbers, at least one.
          ema: the moving average of the weights, if one is kept.
          metadata: what JSON can hold; comes back from :meth:`restore`.

        Raises:
          UserError: if the disk is full or cannot be written, now or in the save before.
        """
        self.wait()
        items = {"params": params, "state": state} | ({} if ema is None else {"ema": ema})
        # Orbax takes NumPy's scalars for Python's, and knows none of bfloat16.
        items = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, np.generic) else leaf, items)
        content = {"step": step, "metadata": metadata, "arrays": {name: _shapes(item) for name, item in items.items()}}
        content = json.loads(json.dumps(content))
        self._saving = (step, sum(np.dtype(leaf.dtype).itemsize * leaf.size for leaf in _arrays(items)))
        try:
            if self._writer is None:
                if _is_first_host():
                    self._prepare_folder()
                _hide_late_failures()
                self._writer = ocp.AsyncCheckpointer(
                    ocp.CompositeCheckpointHandler(
                        **{name: ocp.PyTreeCheckpointHandler() for name in ("params", "state", "ema")}
                    )
                )
            if _of_first_host([step in self.steps()])[0]:
                return
            self._writer.save(
                self.folder / str(step),
                ocp.args.Composite(**{name: ocp.args.PyTreeSave(item) for name, item in items.items()}),
            )
        except Exception as error:
            self._failure = error
            self.wait()
        self._thread = threading.Thread(target=self._finish, args=(self._writer, content), name=f"checkpoint {step}")
        self._thread.start()

    def set_metric(self, step: int, value: float) -> None:
        """Note the score of a step, before or after it is saved. A score that is not finite is never the best."""
        if _is_first_host():
            metrics = self._metrics()
            metrics.setdefault(self._best_metric, {})[str(step)] = float(value)
            try:
                with reaching(self.folder):
                    self.folder.mkdir(parents=True, exist_ok=True)
                    write_text(self.folder / METRICS, json.dumps(metrics, indent=1) + "\n")
            except OSError as error:
                raise UserError(f"{self.folder / METRICS} could not be written: {_file_error(error)}") from error

    def metric(self, step: int) -> float | None:
        """The score of a step, or None if it has none yet."""
        return self._metrics().get(self._best_metric, {}).get(str(step))

    def best(self) -> int | None:
        """The step with the best score of those that are there, the later of two equals; None if none has a score."""
        scores = self._metrics().get(self._best_metric, {})
        sign = 1 if self._best_mode == "max" else -1
        measured = [step for step in self.steps() if math.isfinite(scores.get(str(step), math.nan))]
        return max(measured, key=lambda step: (sign * scores[str(step)], step), default=None)

    def steps(self) -> list[int]:
        """The steps that look whole (they have a manifest), ascending."""
        return sorted(int(path.parent.name) for path in self.folder.glob(f"*/{MANIFEST}") if _is_step(path.parent.name))

    def wait(self) -> None:
        """Return when no save is under way.

        Raises:
          UserError: if the save failed because the disk is full or cannot be written, or the bucket not be reached.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is None:
            return
        error, self._failure = self._failure, None
        self._end_writer()  # Orbax would raise what is left of the failure in the next save
        reason = None if is_remote(self.folder) else _file_error(error)
        if reason is None:
            with reaching(self.folder):
                raise error
        step, size = self._saving
        self._remove_unfinished(step)
        there = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        free = _megabytes(shutil.disk_usage(there).free)
        raise UserError(
            f"checkpoint {step} could not be written to {self.folder}: {reason}. Its arrays have {_megabytes(size)}, "
            f"{free} are free there; make room or lower training.keep_checkpoints={self._keep}. Earlier checkpoints "
            f"are unharmed: {self._there()}"
        ) from error

    def close(self) -> None:
        """Wait for the last save and end Orbax's threads."""
        try:
            self.wait()
        finally:
            self._end_writer()

    def restore(self, target: Mapping[str, Any], step: int | None = None) -> Restored | None:
        """Read the items of ``target`` from one checkpoint, after checking every file of it.

        Args:
          target: pytrees by item, ``{"params": ..., "state": ...}``; leaves are ``jax.ShapeDtypeStruct``, arrays or
            numbers. Each array goes where the sharding of its leaf says, or to the first device.
          step: which checkpoint. None: the newest that is whole; those passed over are logged with the reason.

        Returns:
          None if there is no checkpoint at all.

        Raises:
          UserError: if all are damaged, or ``step`` is damaged or not there, or its arrays have other shapes.
        """
        self.wait()
        if step is None:
            whole = self._newest_whole(1, target, every_file=True)
            if not whole:
                return None
            step = whole[0]
        else:
            self._demand(step, target, every_file=True)
        items = {name: _read(self.folder / str(step) / name, tree) for name, tree in target.items()}
        return Restored(step, items, self._manifest(step)["metadata"])

    def newest(self, target: Mapping[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """The step that :meth:`restore` would read, and its metadata, after the same checks; None if there is none.

        Raises:
          UserError: as :meth:`restore`.
        """
        self.wait()
        whole = self._newest_whole(1, target, every_file=True)
        return (whole[0], self._manifest(whole[0])["metadata"]) if whole else None

    def metadata(self, step: int) -> dict[str, Any]:
        """What a checkpoint was saved with.

        Raises:
          UserError: if its manifest cannot be read.
        """
        try:
            metadata: dict[str, Any] = self._manifest(step)["metadata"]
        except Damaged as damage:
            raise UserError(f"checkpoint {step} in {self.folder} is damaged: {damage}") from damage
        return metadata

    def params_shapes(self) -> Params:
        """Shape and dtype of every parameter of the newest checkpoint.

        Raises:
          UserError: if there is no checkpoint.
        """
        if not self.steps():
            raise UserError(f"there is no checkpoint in {self.folder}")
        params: dict[str, Any] = {}
        for path, (dtype, shape) in self._manifest(self.steps()[-1])["arrays"]["params"].items():
            *parents, name = path.split("/")
            branch = params
            for parent in parents:
                branch = branch.setdefault(parent, {})
            branch[name] = jax.ShapeDtypeStruct(tuple(shape), dtype)
        return params

    def read_params(self, which: str | int, weights: str, target: Params) -> tuple[Params, dict[str, Any]]:
        """Read only the weights: of one checkpoint, or the mean of several.

        Args:
          which: ``latest`` (the newest whole one), ``best``, a step, or ``average:N``: the arithmetic mean of the
            newest N whole ones, summed in float64, with one checkpoint in memory at a time.
          weights: ``raw``, or ``ema`` for their moving average.
          target: pytree of ``jax.ShapeDtypeStruct`` or arrays; see :meth:`restore`.

        Returns:
          The weights, and ``{"steps": [...], "weights": ..., "metadata": that of the newest of them}``.

        Raises:
          UserError: if what was asked for is not there, is damaged or has other shapes.

        Reference: averaging as in section 6.1 of Vaswani et al., 2017, Attention Is All You Need.
        """
        if weights not in ("raw", "ema"):
            raise UserError(f"weights={weights} is not one of raw, ema")
        self.wait()
        item = "ema" if weights == "ema" else "params"
        steps = self._select(str(which), {item: target})
        folders = [self.folder / str(step) / item for step in steps]
        params = _read(folders[0], target) if len(folders) == 1 else _mean(folders, target)
        return params, {"steps": steps, "weights": weights, "metadata": self._manifest(steps[-1])["metadata"]}

    def _select(self, which: str, target: Mapping[str, Any]) -> list[int]:
        """The steps that ``which`` means, ascending, each found whole."""
        if which == "best":
            best = self.best()
            if best is None:
                raise UserError(
                    f"checkpoint=best: no checkpoint in {self.folder} has a {self._best_metric} yet; use latest or one "
                    f"of {self._there()}"
                )
            return [self._demand(best, target)]
        if which.isdecimal():
            return [self._demand(int(which), target)]
        name, _, number = which.partition(":")
        if which != "latest" and not (name == "average" and number.isdecimal() and int(number)):
            raise UserError(f"checkpoint={which} is not one of latest, best, average:N, or a step: {self._there()}")
        count = int(number) if number else 1
        steps = self._newest_whole(count, target)
        if not steps:
            raise UserError(f"there is no checkpoint in {self.folder}")
        if len(steps) < count:
            logger.warning("checkpoint=%s: %s has only %s; their mean is taken", which, self.folder, _listed(steps))
        return steps

    def _newest_whole(self, count: int, target: Mapping[str, Any], *, every_file: bool = False) -> list[int]:
        """The newest ``count`` steps that are whole, ascending; none only if there are no checkpoints at all."""
        whole: list[int] = []
        damaged: dict[int, str] = {}
        # All hosts must take the same ones, and one reading of the files is enough: the first host decides.
        for step in reversed(self.steps()) if _is_first_host() else ():
            try:
                self._verify(step, target, every_file)
            except Damaged as damage:
                damaged[step] = str(damage)
                logger.warning("passing over checkpoint %d in %s: %s", step, self.folder, damage)
                continue
            if damaged and not whole:
                logger.warning("using checkpoint %d, the newest that is whole", step)
            whole.append(step)
            if len(whole) == count:
                break
        if damaged and not whole:
            reasons = "; ".join(f"{step}: {reason}" for step, reason in damaged.items())
            raise UserError(
                f"no checkpoint in {self.folder} is whole ({reasons}); put back a copy of one, or remove the folder to "
                "start anew"
            )
        self._damaged |= set(damaged)
        whole = _of_first_host(whole + [-1] * (count - len(whole)))
        return sorted(step for step in whole if step >= 0)

    def _demand(self, step: int, target: Mapping[str, Any], *, every_file: bool = False) -> int:
        """``step``, if it is there and whole."""
        if step not in self.steps():
            raise UserError(f"there is no checkpoint {step} in {self.folder}, only {self._there()}")
        try:
            self._verify(step, target, every_file)
        except Damaged as damage:
            raise UserError(f"checkpoint {step} in {self.folder} is damaged: {damage}; use another one") from damage
        return step

    def _there(self) -> str:
        return _listed(self.steps())

    def _verify(self, step: int, target: Mapping[str, Any], every_file: bool) -> None:
        """Find a checkpoint whole, and fit for ``target``.

        In the order of what it costs: sizes, shapes, then the checksums, for which the files must be read.

        Raises:
          Damaged: if a file is not as the manifest says.
          UserError: if the arrays are others than in ``target``.
        """
        folder = self.folder / str(step)
        content = self._manifest(step)
        files = {
            name: facts
            for name, facts in content["files"].items()
            if every_file or "/" not in name or name.partition("/")[0] in target
        }
        for name, facts in files.items():
            path = folder / name
            if not path.is_file():
                raise Damaged(f"file {name} is missing")
            if file_size(path) != facts["size"]:
                raise Damaged(f"file {name} has {file_size(path)} bytes instead of {facts['size']}")
        for item, tree in target.items():
            self._compare(step, item, content["arrays"].get(item), _shapes(tree))
        for name, facts in files.items():
            try:
                with reaching(folder):  # or what cannot be reached now would be taken for damaged
                    checksum = _checksum(folder / name)
            except OSError as error:
                raise Damaged(f"file {name} cannot be read: {error.strerror}") from error
            if checksum != facts["sha256"]:
                raise Damaged(f"file {name} has another checksum than when it was written")

    def _compare(self, step: int, item: str, saved: dict[str, Any] | None, wanted: dict[str, Any]) -> None:
        """Raise a ``UserError`` where the arrays of an item are others than those wanted."""
        place = f"checkpoint {step} in {self.folder}"
        if saved is None and item == "ema":
            raise UserError(
                f"{place} has no moving average of the weights, for training.ema_decay was not set when it was made; "
                "use the raw weights"
            )
        if saved is None:
            raise UserError(f"{place} has no {item}")
        differences = [
            f"{item}/{path} is {_described(saved.get(path))} there and {_described(wanted.get(path))} here"
            for path in sorted(saved.keys() | wanted.keys())
            if saved.get(path) != wanted.get(path)
        ]
        if differences:
            more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
            raise UserError(
                f"{place} is of another model or optimizer: {'; '.join(differences[:3])}{more}. Use the config and the "
                "tokenizer it was made with, or another workdir"
            )

    def _manifest(self, step: int) -> dict[str, Any]:
        try:
            with reaching(self.folder):
                manifest = json.loads((self.folder / str(step) / MANIFEST).read_text())
            content, checksum = manifest["content"], manifest["sha256"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{MANIFEST} cannot be read: {error}") from error
        if checksum != _checksum_of_content(content):
            raise Damaged(f"{MANIFEST} has another checksum than when it was written")
        if content["step"] != step:
            raise Damaged(f"{MANIFEST} is that of step {content['step']}")
        return content

    def _metrics(self) -> dict[str, dict[str, float]]:
        path = self.folder / METRICS
        try:
            return json.loads(path.read_text()) if path.exists() else {}
        except ValueError as error:
            logger.warning(
                "%s cannot be read (%s): no checkpoint counts as the best until one is measured", path, error
            )
            return {}

    def _prepare_folder(self) -> None:
        """Move damaged checkpoints aside and remove what killed runs left half written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for step in self._damaged.intersection(self.steps()):
            aside = self.folder / f"{step}{DAMAGED}"
            remove_tree(aside)
            (self.folder / str(step)).rename(aside)
            logger.warning("moved the damaged checkpoint %d to %s", step, aside)
        whole = self.steps()
        for path in self.folder.iterdir() if self.folder.exists() else ():  # in a bucket no folder is there while empty
            name = path.name.partition(UNFINISHED)[0]
            if path.is_dir() and _is_step(name) and (path.name != name or int(name) not in whole):
                logger.info("removing %s, which a save left unfinished", path)
                remove_tree(path)

    def _end_writer(self) -> None:
        """End Orbax's threads; what went wrong in them has been raised before."""
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
            self._writer = None

    def _remove_unfinished(self, step: int) -> None:
        if _is_first_host() and step not in self.steps():
            with contextlib.suppress(OSError):
                remove_tree(self.folder / f"{step}{UNFINISHED}")
                remove_tree(self.folder / str(step))

    def _finish(self, writer: ocp.AsyncCheckpointer, content: dict[str, Any]) -> None:
        """In the background: when all hosts have written, seal the checkpoint and delete old ones."""
        try:
            writer.wait_until_finished()
            if _is_first_host():
                folder = self.folder / str(content["step"])
                content["files"] = _seal_files(folder)
                manifest = {"sha256": _checksum_of_content(content), "content": content}
                write_text(folder / MANIFEST, json.dumps(manifest, indent=1))
                self._delete_old()
        except Exception as error:
            self._failure = error

    def _delete_old(self) -> None:
        for step in set(self.steps()[: -self._keep]) - {self.best()}:
            folder = self.folder / str(step)
            try:
                with reaching(folder):
                    (folder / MANIFEST).unlink()
                    sync(folder)  # from here on it is no checkpoint, however far the deletion of the rest comes
                    remove_tree(folder)
            except (OSError, UserError) as error:
                logger.warning("checkpoint %d in %s could not be deleted: %s", step, self.folder, error)


def _shapes(tree: Any) -> dict[str, Any]:
    """Dtype and shape by path; for a Python number only its type."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (
            type(leaf).__name__ if isinstance(leaf, (bool, int, float)) else [str(leaf.dtype), list(leaf.shape)]
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _described(shape: Any) -> str:
    return "missing" if shape is None else shape if isinstance(shape, str) else f"{shape[0]} {shape[1]}"


def _arrays(tree: Any) -> Iterator[Any]:
    return (leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def _sharding(leaf: Any) -> jax.sharding.Sharding:
    return getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def _read(folder: AnyPath, target: Any) -> Any:
    """One item, with the structure of ``target``: NumPy where that has NumPy, else JAX arrays and numbers."""

    def restore_args(leaf: Any) -> ocp.RestoreArgs:
        if isinstance(leaf, (bool, int, float)):
            return ocp.RestoreArgs(restore_type=type(leaf))
        if isinstance(leaf, (np.ndarray, np.generic)):
            return ocp.RestoreArgs(restore_type=np.ndarray)
        return ocp.ArrayRestoreArgs(sharding=_sharding(leaf), global_shape=leaf.shape, dtype=leaf.dtype)

    arguments = ocp.args.PyTreeRestore(target, restore_args=jax.tree.map(restore_args, target))
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return reader.restore(folder, arguments)


def _mean(folders: list[AnyPath], target: Params) -> Params:
    on_host = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), target)
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), target)
    for folder in folders:
        jax.tree.map(lambda total, value: np.add(total, value, out=total), total, _read(folder, on_host))

    def place(total: np.ndarray, leaf: Any) -> jax.Array:
        mean = (total / len(folders)).astype(leaf.dtype)
        return jax.make_array_from_callback(mean.shape, _sharding(leaf), lambda index: mean[index])

    return jax.tree.map(place, total, target)


def _seal_files(folder: AnyPath) -> dict[str, Any]:
    """Size and checksum of every file under ``folder``, all of it safely on the disk."""
    sync_tree(folder)
    return {
        path.relative_to(folder).as_posix(): {"size": file_size(path), "sha256": _checksum(path)}
        for path in files_below(folder)
    }


def _checksum(path: AnyPath) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum_of_content(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_step(name: str) -> bool:
    return name.isdecimal() and name == str(int(name))


def _is_first_host() -> bool:
    return jax.process_index() == 0


def _of_first_host(values: list[int] | list[bool]) -> list[int]:
    """The numbers that the first host has, on every host."""
    if jax.process_count() == 1:
        return list(values)
    return np.asarray(multihost_utils.broadcast_one_to_all(np.array(values, np.int32))).tolist()


def _file_error(error: Exception) -> str | None:
    """What the operating system said, where the error comes from it; else None."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None:  # TensorStore raises a ValueError with the number in its text
        found = re.search(r"os_error_code='(\d+)'", str(error))
        code = int(found.group(1)) if found else None
    if code is None:
        return None
    return "the disk is full" if code == errno.ENOSPC else os.strerror(code)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) or "none"


@functools.cache
def _hide_late_failures() -> None:
    """When one write of a save fails, each that ends after it would print that Orbax's event loop is closed."""
    show = sys.unraisablehook

    def show_others(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            show(unraisable)

    sys.unraisablehook = show_others


def _not_of_orbax(record: logging.LogRecord) -> bool:
    """Orbax reports every phase of a save, and failures as tracebacks; they reach us as exceptions."""
    return f"{os.sep}orbax{os.sep}" not in record.pathname


logging.getLogger("absl").addFilter(_not_of_orbax)
