"""Lines of text files: plain, compressed, in archives, or test sets of WMT. Text is handed on as it stands."""

import contextlib
import difflib
import gzip
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transformer.config import DataConfig
from transformer.data import archives
from transformer.types import UserError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SEGMENT = re.compile(r"<seg\b[^>]*>(.*)</seg>", re.IGNORECASE)


def text_folder(config: DataConfig) -> Path:
    """``data.directory``.

    Raises:
      UserError: if it is not set, or is no folder.
    """
    if config.directory is None:
        raise UserError("data.directory is not set; give the folder of the text: --config.data.directory=DIR")
    folder = Path(config.directory).expanduser()
    if not folder.is_dir():
        raise UserError(f"data.directory={config.directory} is not a folder{names_near(folder)}")
    return folder


def read_pairs(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """The lines of two files side by side.

    Raises:
      UserError: as :func:`read_lines`; at the end, if the files have no lines or not the same number of them.
    """
    counts = [0, 0]
    for lines in zip_longest(read_lines(source), read_lines(target)):
        for side in (0, 1):
            counts[side] += lines[side] is not None
        if lines[0] is not None and lines[1] is not None:
            yield lines
    if counts[0] != counts[1]:
        raise UserError(
            f"{source} has {counts[0]} lines and {target} has {counts[1]}; line n of one must be the translation of "
            "line n of the other"
        )
    if not counts[0]:
        raise UserError(f"{source} and {target} are empty")


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """The lines of a UTF-8 text file, or of ``path.gz`` where there is no ``path``: see :func:`decode_lines`.

    The path may lead through a tar archive. Of ``.sgm`` files, in which test sets of WMT come, the lines are the
    segments as sacreBLEU reads them: white space becomes one space, entities stay as they are.

    Raises:
      UserError: at the call, if there is no such file; while reading, if it cannot be read or is not UTF-8.
    """
    found = existing_file(Path(path))
    if found is None:
        raise UserError(f"there is no file {path} (nor {os.path.basename(path)}.gz){names_near(Path(path))}")
    return _read(found)


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    r"""The lines of a binary stream, such as ``sys.stdin.buffer``, that splits at ``b"\n"``.

    Only "\n" ends a line, and a "\r" directly before it is dropped; U+0085, U+2028, form feeds and the like stay
    within their line. A byte order mark at the start of the stream is dropped. The last line needs no newline.

    Args:
      stream: the lines as bytes, with their newline.
      name: what the stream is called in messages.

    Raises:
      UserError: for bytes that are not UTF-8, with the number of the line.
    """
    for number, line in enumerate(stream, start=1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
            if not line:  # a file of nothing but the mark has no line
                return
        if line.endswith(b"\n"):
            line = line[:-1].removesuffix(b"\r")
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            column = len(line[: error.start].decode()) + 1
            raise UserError(
                f"{name}:{number}: not UTF-8 (byte 0x{line[error.start]:02x} at column {column}); "
                "convert the text, for example with iconv -f latin1 -t utf-8"
            ) from None
        yield text


def escape_newlines(text: str) -> str:
    """The text as one line: a newline in it is written backslash n."""
    return text.replace("\n", "\\n")


def _read(path: Path) -> Iterator[str]:
    with reading(path), contextlib.ExitStack() as stack:
        member = archives.split_path(path)
        stream: Any = stack.enter_context(archives.open_member(*member) if member else path.open("rb"))
        if path.suffix == ".gz":
            stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
        lines = decode_lines(stream, str(path))
        yield from _segments(lines, path) if path.name.removesuffix(".gz").endswith(".sgm") else lines


def _segments(lines: Iterable[str], path: Path) -> Iterator[str]:
    """What stands between ``<seg id="1">`` and ``</seg>``, of which each line has at most one."""
    for number, line in enumerate(lines, start=1):
        found = SEGMENT.search(line)
        if found:
            yield " ".join(found[1].split())
        elif "<seg" in line.lower():
            raise UserError(f"{path}:{number}: a segment does not end in its line")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a file, a compressed file or an archive into a ``UserError`` with its name."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise UserError(f"{path}: not a whole compressed file ({error})") from error
    except tarfile.TarError as error:
        raise UserError(f"{path}: not a whole tar archive ({error})") from error
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror or error}") from error


def existing_file(path: Path) -> Path | None:
    """The file itself, or its gzipped form; the path may lead through a tar archive."""
    both = (path, path.with_name(path.name + ".gz"))
    with reading(path):
        return next((found for found in both if found.exists() or archives.is_member(found)), None)


def names_near(path: Path) -> str:
    """``; there are ...``: the names near a missing one in its folder, or nothing."""
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    return f"; {path.parent} has {', '.join(near)}" if near else ""
