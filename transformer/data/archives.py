"""Text in tar archives, as corpora are handed out: a path may lead through an archive to one of its members.

``DIR/training-parallel-europarl-v7.tgz/training/europarl-v7.de-en.de`` is read from the start of the archive to the
member's end; nothing is unpacked.
"""

import contextlib
import functools
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

BYTES_PER_READ = 2**20
ENDINGS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")


def split_path(path: Path) -> tuple[Path, str] | None:
    """The archive on a path and the member that the rest of it names; None if no archive is on it."""
    for parent in path.parents:
        if parent.name.endswith(ENDINGS) and parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    return None


def is_member(path: Path) -> bool:
    """Whether a path leads through an archive to a file in it."""
    found = split_path(path)
    return found is not None and found[1] in members(found[0])


def in_folder(folder: Path) -> list[Path]:
    """The archives that lie in a folder."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(ENDINGS) and path.is_file())


def members(archive: Path) -> tuple[str, ...]:
    """The names of the files in an archive, which is read to its end once, checksums of compressed ones included.

    Raises:
      OSError, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError: it cannot be read, or is not whole.
    """
    facts = archive.stat()
    return _members(archive, facts.st_size, facts.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _members(archive: Path, size: int, changed: int) -> tuple[str, ...]:
    with tarfile.open(archive) as tar:
        names = tuple(member.name.removeprefix("./") for member in tar if member.isfile())
        # The archive ends before what it was compressed to, whose checksum is at the very end.
        while tar.fileobj is not None and tar.fileobj.read(BYTES_PER_READ):
            pass
    return names


@contextlib.contextmanager
def open_member(archive: Path, member: str) -> Iterator[IO[bytes]]:
    """A member's bytes; that they are whole is what :func:`members` makes sure of.

    Raises:
      FileNotFoundError: it is not in the archive.
      As :func:`members`: the archive cannot be read.
    """
    with tarfile.open(archive) as tar:
        for found in tar:
            if found.name.removeprefix("./") == member:
                stream = tar.extractfile(found)
                if stream is not None:
                    yield stream
                    return
    raise FileNotFoundError(2, "no such file in the archive", str(archive / member))
