"""Folders on disk and in buckets (``gs://``) behind the methods of pathlib, and what the two do differently.

Buckets are reached through etils.epath and gcsfs (requirements-gcs.txt), never through TensorFlow.
"""

import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from transformer.types import UserError

AnyPath: TypeAlias = Any
"""A ``pathlib.Path``, or for buckets an ``etils.epath.Path``, which has its methods."""

BYTES_PER_COPY = 2**20
CLIENTS = {"aiohttp", "gcsfs", "google", "requests"}  # packages of which each error tells of a bucket or the way there
STATUS = re.compile(r"[A-Z]+(_[A-Z]+)*: |Bad Request: ")  # of TensorStore, through which Orbax goes, and gcsfs


def as_path(path: str | os.PathLike[str]) -> AnyPath:
    """The path that a user gave.

    Raises:
      UserError: it is neither on disk nor in a bucket that can be reached.
    """
    text = os.fspath(path)
    if not is_remote(text):
        return Path(text).expanduser()
    if not text.startswith("gs://"):
        raise UserError(f"{text} is neither a path on disk nor in a bucket, gs://BUCKET/...")
    os.environ.setdefault("EPATH_USE_TF", "false")
    import fsspec
    from etils import epath

    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it prints a traceback of what it then raises
    # What Orbax writes by another way must be seen.
    fsspec.config.conf.setdefault("gs", {})["use_listings_cache"] = False
    try:
        fsspec.get_filesystem_class("gcs")
    except ImportError as error:
        raise UserError(f"{text} needs gcsfs: pip install -r requirements-gcs.txt") from error
    return epath.Path(text)


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is in a bucket."""
    return "://" in os.fspath(path)


@contextlib.contextmanager
def reaching(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what goes wrong with a bucket, or on the way there, into a ``UserError``; of a disk nothing is turned."""
    try:
        yield
    except Exception as error:
        if not is_remote(path) or not _is_of_bucket(error):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{path} cannot be reached: {reason}; see that this machine is online, that the bucket is there, and that "
            "you may read and write it (gcloud auth application-default login)"
        ) from error


def _is_of_bucket(error: Exception) -> bool:
    """Of a disk an ``OSError`` has a number."""
    if not CLIENTS.isdisjoint(base.__module__.partition(".")[0] for base in type(error).__mro__):
        return True
    if isinstance(error, ValueError):
        return STATUS.match(str(error)) is not None
    return isinstance(error, (ConnectionError, TimeoutError)) or (isinstance(error, OSError) and error.errno is None)


def user_cache() -> Path:
    """The folder of what can be made again: ``transformer`` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transformer"


def file_size(path: AnyPath) -> int:
    """In bytes."""
    facts = path.stat()
    size: int = facts.length if is_remote(path) else facts.st_size
    return size


def files_below(folder: AnyPath) -> Iterator[AnyPath]:
    """All files in a folder and its folders, by name."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from files_below(path)
        else:
            yield path


def remove_tree(folder: AnyPath) -> None:
    """Remove a folder with all that is in it; that it is not there is no error."""
    with contextlib.suppress(FileNotFoundError):
        if is_remote(folder):
            folder.rmtree()
        else:
            shutil.rmtree(folder)


def copy_file(source: AnyPath, target: AnyPath) -> None:
    """Copy a file, whole or not at all, into a folder that is made if it is not there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    written = target if is_remote(target) else target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with source.open("rb") as reader, written.open("wb") as writer:  # in a bucket a file is there once it is closed
            shutil.copyfileobj(reader, writer, BYTES_PER_COPY)
        if written != target:
            written.replace(target)
    except BaseException:
        if written != target:
            written.unlink(missing_ok=True)
        raise


def modified(path: AnyPath) -> float:
    """When a file was written last, in seconds; of a bucket whole ones."""
    facts = path.stat()
    return float(facts.mtime if is_remote(path) else facts.st_mtime)


def write_text(path: AnyPath, text: str) -> None:
    """Write a file of UTF-8, whole or not at all, and bring it to the disk."""
    write_bytes(path, text.encode())


def write_bytes(path: AnyPath, content: bytes) -> None:
    """Write a file, whole or not at all, and bring it to the disk."""
    if is_remote(path):
        path.write_bytes(content)
        return
    # Others may write the same, on hosts where they have the same process id.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync(path.parent)


def sync(path: AnyPath) -> None:
    """Bring a file, or the names in a folder, to the disk; what is in a bucket is there already."""
    if is_remote(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: AnyPath) -> None:
    """Bring a folder, all that is in it, and its name to the disk."""
    if not is_remote(folder):
        for path in (*folder.rglob("*"), folder, folder.parent):
            sync(path)
