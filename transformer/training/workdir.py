"""The folder of a run: the config it was started with, its log, and who may continue it.

A workdir in a bucket (``gs://``) has its checkpoints there, written and read by Orbax. All else is small and often
appended to, which buckets cannot do: it lies in a folder on local disk that is filled from the bucket at the start and
copied there with each checkpoint.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from transformer.config import HARMLESS_KEYS, Config, differences, from_json, to_json
from transformer.paths import AnyPath, as_path, copy_file, files_below, is_remote, user_cache
from transformer.types import UserError

logger = logging.getLogger(__name__)

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
LOG = "log.txt"
OUTPUTS = "outputs"
BUCKET = "bucket.txt"  # in the folder on local disk: the workdir that it stands for
LOWER_IS_BETTER = ("loss", "nll", "nll_per_token", "perplexity", "bits_per_byte")


def local_workdir(workdir: str | os.PathLike[str]) -> Path:
    """The workdir on local disk: itself, or the folder that stands for one in a bucket, with what the bucket holds.

    Raises:
      UserError: the bucket cannot be reached.
    """
    given = as_path(workdir)
    if not is_remote(given):
        return Path(given)
    address = os.fspath(given)
    local = user_cache() / "workdirs" / hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
    local.mkdir(parents=True, exist_ok=True)
    (local / BUCKET).write_text(address)
    if given.exists():
        for path in given.iterdir():
            if path.name != CHECKPOINTS:
                for file in files_below(path) if path.is_dir() else (path,):
                    copy_file(file, local / file.relative_to(given))
    return local


def checkpoints_folder(workdir: Path) -> AnyPath:
    """Where the checkpoints of a workdir on local disk are: in it, or in the bucket that it stands for."""
    marker = workdir / BUCKET
    return (as_path(marker.read_text()) if marker.exists() else workdir) / CHECKPOINTS


def copy_to_bucket(workdir: Path) -> None:
    """Copy what lies in a workdir on local disk to the bucket that it stands for, if it does."""
    bucket = checkpoints_folder(workdir).parent
    if is_remote(bucket):
        for file in files_below(workdir):
            if file.name != BUCKET and file.suffix not in (".partial", ".tmp"):
                copy_file(file, bucket / file.relative_to(workdir).as_posix())


@contextlib.contextmanager
def opened(workdir: Path, config: Config) -> Iterator[None]:
    """While entered, the workdir is this process's alone, and what is logged is written there too.

    Raises:
      UserError: if another process trains there, if it holds another experiment (showing how they differ), or if it
        cannot be written.
    """
    require_no_file(workdir)
    with contextlib.ExitStack() as stack:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            log = stack.enter_context(open(workdir / LOG, "a", encoding="utf-8"))
        except OSError as error:
            raise _unwritable(workdir, error) from None
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however it ends
        except BlockingIOError:
            raise UserError(f"another process is training in {workdir}; stop it or use another --workdir") from None
        except OSError as error:  # some network file systems have no locks
            logger.warning("%s cannot be locked (%s): see that no other process trains there", workdir, error.strerror)
        _keep_config(workdir, config)
        handler = logging.StreamHandler(log)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        package_logger = logging.getLogger("transformer")
        package_logger.addHandler(handler)
        stack.callback(package_logger.removeHandler, handler)
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
    path = workdir / CONFIG
    require_same_experiment(workdir, config)
    try:
        partial = path.with_suffix(".partial")
        partial.write_text(to_json(config))
        os.replace(partial, path)
    except OSError as error:
        raise _unwritable(workdir, error) from None


def _unwritable(workdir: Path, error: OSError) -> UserError:
    return UserError(f"--workdir={workdir} cannot be written: {error.strerror}")


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
