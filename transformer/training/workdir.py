"""The folder of a run: the config it was started with, its log, and who may continue it.

A workdir in a bucket (``gs://``) has its checkpoints there, written and read by Orbax. All else is small and often
appended to, which buckets cannot do: it lies in folders on local disk that stand for the workdir.

Training has one to itself, filled when it is opened and copied to the bucket with each checkpoint, all but the outputs.
Whoever reads the run has another, filled each time, and copies only what it wrote itself to the bucket. The lock by
which one process trains at a time is one of this machine: others do not see it.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from transformer.config import HARMLESS_KEYS, Config, differences, from_json, to_json
from transformer.paths import AnyPath, as_path, copy_file, files_below, is_remote, reaching, user_cache, write_text
from transformer.training import hosts
from transformer.types import UserError

logger = logging.getLogger(__name__)

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
LOG = "log.txt"
OUTPUTS = "outputs"
LOCK = ".lock"  # held by the process that trains
BUCKET = "bucket.txt"  # in a folder on local disk: the workdir that it stands for
AGREE_SECONDS = 300.0  # in which all processes have opened a workdir
LOWER_IS_BETTER = ("loss", "nll", "nll_per_token", "perplexity", "bits_per_byte")


def local_workdir(workdir: str | os.PathLike[str]) -> Path:
    """The workdir on local disk, to read it: itself, or a folder with what the one in a bucket holds.

    Raises:
      UserError: the bucket cannot be reached.
    """
    local = _local_folder(workdir, "reading")
    if is_remote(workdir):  # or the caller has fetched it
        _fetch(local, keep_grown=False)
    return local


def training_workdir(workdir: str | os.PathLike[str]) -> Path:
    """The workdir on local disk, to train in it: itself, or a folder that :func:`opened` fills from the bucket."""
    return _local_folder(workdir, "training")


def _local_folder(workdir: str | os.PathLike[str], use: str) -> Path:
    given = as_path(workdir)
    if not is_remote(given):
        return Path(given)
    address = os.fspath(given)
    local = user_cache() / "workdirs" / hashlib.blake2b(address.encode(), digest_size=8).hexdigest() / use
    with _writing(local):
        local.mkdir(parents=True, exist_ok=True)
        write_text(local / BUCKET, address)
    return local


def _fetch(workdir: Path, *, keep_grown: bool) -> None:
    """Make a workdir on local disk what the bucket that it stands for holds, if it does; outputs are not removed.

    Args:
      keep_grown: a file that begins with what the bucket holds stays: a log that went on after it was copied there.
    """
    bucket = checkpoints_folder(workdir).parent
    if not is_remote(bucket):
        return
    with _writing(workdir), reaching(bucket):
        found = [path for path in bucket.iterdir() if path.name != CHECKPOINTS] if bucket.exists() else []
        files = [file for path in found for file in (files_below(path) if path.is_dir() else (path,))]
        there = {file.relative_to(bucket).as_posix(): file for file in files}
        for name, file in there.items():
            copy = workdir / name
            if not (keep_grown and copy.exists() and copy.read_bytes().startswith(file.read_bytes())):
                copy_file(file, copy)
        for name, file in _own_files(workdir).items():
            if name not in there and not name.startswith(f"{OUTPUTS}/"):
                file.unlink(missing_ok=True)  # another process may have removed it


def _own_files(workdir: Path) -> dict[str, Path]:
    """The files of a run that lie in a folder on local disk, by their names in it."""
    files = {file.relative_to(workdir).as_posix(): file for file in files_below(workdir)}
    return {
        name: file
        for name, file in files.items()
        if name not in (BUCKET, LOCK) and file.suffix not in (".partial", ".tmp")
    }


def checkpoints_folder(workdir: Path) -> AnyPath:
    """Where the checkpoints of a workdir on local disk are: in it, or in the bucket that it stands for."""
    marker = workdir / BUCKET
    return (as_path(marker.read_text()) if marker.exists() else workdir) / CHECKPOINTS


def copy_to_bucket(workdir: Path, *names: str) -> None:
    """Copy what training writes to the bucket that a workdir on local disk stands for, if it does.

    What goes wrong is a warning: the files stay where they are.

    Args:
      names: of the files and folders to copy instead, relative to the workdir: for all who do not train, since what
        training wrote may be newer in the bucket.
    """
    bucket = checkpoints_folder(workdir).parent
    if not is_remote(bucket):
        return
    try:
        with reaching(bucket):
            for name, file in _own_files(workdir).items():
                asked_for = any(name == given or name.startswith(f"{given}/") for given in names)
                if asked_for if names else not name.startswith(f"{OUTPUTS}/"):
                    copy_file(file, bucket / name)
    except (OSError, UserError) as error:
        logger.warning("files of %s were not copied to the bucket and stay there: %s", workdir, error)


@contextlib.contextmanager
def opened(workdir: Path, config: Config) -> Iterator[None]:
    """While entered, the workdir is this run's alone, and what is logged is written there too.

    Of several processes the first writes there, and the others read what it has opened.

    Raises:
      UserError: if another process trains there, if it holds another experiment (showing how they differ), or if it
        or the bucket cannot be written.
    """
    require_no_file(workdir)
    address = checkpoints_folder(workdir).parent
    hosts.require_same("--workdir", os.fspath(address), AGREE_SECONDS, "start all with the same flags")
    own = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, process=None))
    hosts.require_same("the config", to_json(own), AGREE_SECONDS, "start all with the same flags and files")
    if not is_remote(address):
        hosts.require_shared(workdir, f"--workdir={workdir}", AGREE_SECONDS)
    if not hosts.is_first():
        hosts.barrier("opening the workdir", AGREE_SECONDS)
        _fetch(workdir, keep_grown=True)
        yield
        return
    with contextlib.ExitStack() as stack:
        with _writing(workdir):
            workdir.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(workdir / LOCK, "a"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however it ends
        except BlockingIOError:
            raise UserError(f"another process is training in {workdir}; stop it or use another --workdir") from None
        except OSError as error:  # some network file systems have no locks
            logger.warning("%s cannot be locked (%s): see that no other process trains there", workdir, error.strerror)
        _fetch(workdir, keep_grown=True)
        with _writing(workdir):
            log = stack.enter_context(open(workdir / LOG, "a", encoding="utf-8"))
        _keep_config(workdir, config)
        handler = logging.StreamHandler(log)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        package_logger = logging.getLogger("transformer")
        package_logger.addHandler(handler)
        stack.callback(package_logger.removeHandler, handler)
        hosts.barrier("opening the workdir", AGREE_SECONDS)
        yield


def require_no_file(workdir: Path) -> None:
    """Raise a ``UserError`` if there is something else than a folder."""
    if workdir.exists() and not workdir.is_dir():
        raise UserError(f"--workdir={workdir} is a file; give a folder")


def require_same_experiment(workdir: Path, config: Config) -> None:
    """Raise a ``UserError``, which shows how they differ, if the workdir has checkpoints of another experiment."""
    if not any(checkpoints_folder(workdir).glob("[0-9]*")):
        return
    changed = differences(read_config(workdir), config)
    if changed:
        shown = "\n".join(f"  {key}: {old!r} there, {new!r} now" for key, (old, new) in changed.items())
        raise UserError(
            f"{workdir} holds another experiment:\n{shown}\n"
            f"Use another --workdir. What may change when a run goes on: {', '.join(HARMLESS_KEYS)}, and "
            "training.num_steps where the schedule does not depend on it."
        )


def _keep_config(workdir: Path, config: Config) -> None:
    """Write the config, if the checkpoints that may be there are this experiment's."""
    require_same_experiment(workdir, config)
    path, bucket = workdir / CONFIG, checkpoints_folder(workdir).parent
    with _writing(workdir), reaching(bucket):
        write_text(path, to_json(config))
        if is_remote(bucket):  # at once: that it cannot be written should be seen before anything slow
            copy_file(path, bucket / CONFIG)


@contextlib.contextmanager
def _writing(workdir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"--workdir={workdir} cannot be written: {error.strerror or error}") from None


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
