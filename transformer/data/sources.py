"""Where pairs of lines come from: parallel text files, TFDS or generated phrases, behind one small interface.

Text is handed on as it stands: nothing here normalises it.
"""

import contextlib
import difflib
import functools
import gzip
import hashlib
import logging
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from transformer.config import DataConfig
from transformer.data import archives
from transformer.paths import user_cache
from transformer.progress import progress
from transformer.types import UserError, one_of

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SPLITS = ("train", "validation", "test")
SEGMENT = re.compile(r"<seg\b[^>]*>(.*)</seg>", re.IGNORECASE)

logger = logging.getLogger(__name__)


# It has methods only: isinstance, by which tests check annotations, would compute a property.
@runtime_checkable
class ParallelSource(Protocol):
    """Pairs of a source line and a target line, by split.

    A split is "train", "validation", "test", or another name that the source knows.
    """

    def fingerprint_of(self, split: str) -> str:
        """A digest, in hex, of the pairs of a split, wherever they lie."""
        ...

    def size(self, split: str) -> int:
        """The number of pairs."""
        ...

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The pairs in order, without the newline at the end of the lines."""
        ...

    def repeats(self, split: str) -> np.ndarray | None:
        """How many times each pair is read in an epoch, int32; None: once each."""
        ...


def make_source(config: DataConfig, seed: int) -> ParallelSource:
    """The source that ``data.source`` names, cleaned if that is asked for.

    Args:
      seed: draws the pairs of generated sources.

    Raises:
      UserError: for what cannot be found or generated.
    """
    from transformer.data.cleaning import CleanedSource, rules_of  # which is built on this module

    source = one_of("data.source", config.source, SOURCES)(config, seed)
    return CleanedSource(source, config) if rules_of(config) else source


class TextFiles:
    """Examples in the files of a folder: what pairs and documents have in common.

    The splits "train" (one stem or several, one after the other), "validation" and "test" are named by the config, or
    with ``data.split`` other than ``files`` all three are parts of the training files; any other split is the stem of
    files in the directory. Files are looked for when they are first needed. A subclass says which files belong to a
    stem, what examples they hold, and how a digest is made of examples.
    """

    _unit = "document"  # what an example is

    def __init__(self, config: DataConfig, seed: int):
        self._config = config
        self._seed = seed
        self._directory = text_folder(config)
        self._scans: dict[str, tuple[str, np.ndarray]] = {}

    def _files(self, stem: str) -> tuple[Path, ...]:
        """The files of a stem, or a ``UserError`` that names those that are there."""
        raise NotImplementedError

    def _read(self, files: tuple[Path, ...]) -> Iterator[Any]:
        """The examples in the files of a stem."""
        raise NotImplementedError

    def _text(self, example: Any) -> str:
        """All the text of an example."""
        raise NotImplementedError

    def _digest(self, examples: Iterable[Any]) -> str:
        """A digest, in hex, that no other examples have."""
        raise NotImplementedError

    def fingerprint_of(self, split: str) -> str:
        return self._scan(split)[0]

    def size(self, split: str) -> int:
        return int(self._scan(split)[1].sum())

    def repeats(self, split: str) -> np.ndarray | None:
        if split != "train" or all(weight == 1 for weight in self._config.train_weights):
            return None
        return np.repeat(np.asarray(self._config.train_weights, np.int32), self._scan(split)[1])

    def _examples(self, split: str) -> Iterator[Any]:
        return (example for _, example in self._numbered(split))

    def _numbered(self, split: str) -> Iterator[tuple[int, Any]]:
        """The examples of a split in the order of the files, each with the number of its stem."""
        return self._part(split) if self._is_part(split) else self._of_stems(self._stems(split))

    def _is_part(self, split: str) -> bool:
        return self._config.split != "files" and split in SPLITS

    def _of_stems(self, stems: Sequence[str]) -> Iterator[tuple[int, Any]]:
        found = [self._files(stem) for stem in stems]
        return ((number, example) for number, files in enumerate(found) for example in self._read(files))

    def _stems(self, split: str) -> tuple[str, ...]:
        config = self._config
        if self._is_part(split):
            return config.train
        named = {"train": config.train, "validation": (config.validation,), "test": (config.test,)}
        return named.get(split, (split,))

    def _part(self, split: str) -> Iterator[tuple[int, Any]]:
        """The examples of the training files that belong to a split."""
        empty = True
        for (stem, example), number in zip(self._of_stems(self._config.train), self._part_of_each, strict=True):
            if SPLITS[number] == split:
                empty = False
                yield stem, example
        if empty:
            config = self._config
            raise UserError(
                f"data.split={config.split} with data.validation_share={config.validation_share} and data.test_share="
                f"{config.test_share} leaves nothing of {len(self._part_of_each)} examples for the {split} split; "
                "change the shares, or give more or smaller examples"
            )

    @functools.cached_property
    def _part_of_each(self) -> np.ndarray:
        """The place in ``SPLITS`` of each example of the training files."""
        logger.info("reading the text of the training files, to split it")
        texts = (self._text(example) for _, example in self._of_stems(self._config.train))
        if self._config.split == "end":
            return parts_of(self._config, np.fromiter(map(len, texts), np.int64))
        drawn = np.fromiter(((len(text), _draw(text, self._seed)) for text in texts), [("size", "i8"), ("key", "u8")])
        keys, place = np.unique(drawn["key"], return_inverse=True)  # in their order, and the same for the same text
        return parts_of(self._config, np.bincount(place, drawn["size"], len(keys)))[place]

    def _scan(self, split: str) -> tuple[str, np.ndarray]:
        """The fingerprint of a split and the number of examples of each stem: the files are read once for both."""
        if split not in self._scans:
            sizes = np.zeros(len(self._stems(split)), np.int64)
            name = f"reading the text of the {split} split"
            logger.info(name)

            def examples() -> Iterator[Any]:
                for stem, example in progress(self._numbered(split), name, None, self._unit):
                    sizes[stem] += 1
                    yield example

            self._scans[split] = (self._digest(examples()), sizes)
        return self._scans[split]


def parts_of(config: DataConfig, sizes: np.ndarray) -> np.ndarray:
    """The place in ``SPLITS`` of each of some examples in a row: the first train, the last test.

    Each goes where its middle lies, so that a share is met to half an example.

    Args:
      config: ``validation_share`` and ``test_share``.
      sizes: of the examples, above 0; the shares are of their sum.
    """
    ends = np.cumsum(sizes)
    bounds = (1 - config.test_share - np.array([config.validation_share, 0.0])) * ends[-1]
    return np.searchsorted(bounds, ends - sizes / 2, side="right")


def _draw(text: str, seed: int) -> int:
    """A random number of 64 bits that belongs to a text."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {text}".encode(), digest_size=8).digest(), "little")


class FileSource(TextFiles):
    """Parallel text files ``DIRECTORY/STEM.LANGUAGE``, plain or gzipped (``.gz``), or in tar archives of the directory.

    Where there is no ``STEM.en`` and ``STEM.de``, the names of WMT are tried: ``STEM.en-de.en`` and ``STEM.en-de.de``
    (or ``de-en``), then the test sets ``STEM-ende-src.en.sgm`` and ``STEM-ende-ref.de.sgm`` (or ``deen``, or neither),
    of which source and reference may change places. What lies in archives comes after what lies in the directory.
    """

    _unit = "pair"

    def __init__(self, config: DataConfig, seed: int):
        self._languages = (config.source_language, config.target_language)
        super().__init__(config, seed)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return self._examples(split)

    def _read(self, files: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
        return read_pairs(*files)

    def _text(self, example: tuple[str, str]) -> str:
        return "\n".join(example)

    def _digest(self, examples: Iterable[tuple[str, str]]) -> str:
        return digest_of_pairs(examples)

    @functools.cached_property
    def _endings(self) -> list[tuple[str, str]]:
        """What the names of two files may have after their stem, in the order in which they are looked for."""
        source, target = self._languages
        infixes = ("", f".{source}-{target}", f".{target}-{source}")
        endings = [(f"{infix}.{source}", f"{infix}.{target}") for infix in infixes]
        for first, second in (("src", "ref"), ("ref", "src")):
            for infix in (f"-{source}{target}", f"-{target}{source}", ""):
                endings.append((f"{infix}-{first}.{source}.sgm", f"{infix}-{second}.{target}.sgm"))
        return endings

    def _files(self, stem: str) -> tuple[Path, Path]:
        """The two files of a stem."""
        names = [(stem + source, stem + target) for source, target in self._endings]
        halves = []  # half a pair says best what is wrong
        for find in (self._in_directory, self._in_archives):
            for pair in names:
                source, target = map(find, pair)
                if source and target:
                    return source, target
                halves += [pair[1]] if source else [pair[0]] if target else []
        missing = self._directory / (halves or names[0])[0]
        stems = self._known_stems()
        raise UserError(
            f"there is no {missing} (nor {missing.name}.gz); stems with {' and '.join(self._languages)} in "
            f"{self._directory}: {', '.join(stems) if stems else 'none'}"
        )

    def _in_directory(self, name: str) -> Path | None:
        return existing_file(self._directory / name)

    def _in_archives(self, name: str) -> Path | None:
        found = []
        for archive in archives.in_folder(self._directory):
            with reading(archive):
                members = archives.members(archive)
            for wanted in (name, f"{name}.gz"):
                found += [archive / member for member in members if f"/{member}".endswith(f"/{wanted}")]
        if len(found) > 1:
            raise UserError(
                f"there are several {name}: {', '.join(map(str, found))}; give the stem with its way through the "
                f"archive, {found[0].relative_to(self._directory).parent / 'STEM'}, or put the file beside the archives"
            )
        return found[0] if found else None

    def _known_stems(self) -> list[str]:
        """Those that a message may name: in the directory, and by their plain names in its archives."""
        names = {path.name for path in self._directory.iterdir()}
        for archive in archives.in_folder(self._directory):
            names |= {Path(member).name for member in archives.members(archive)}
        names = {name.removesuffix(".gz") for name in names}
        stems = set()
        # Of names that fit several, the longest ending is taken off.
        for source, target in sorted(self._endings, key=lambda pair: len(pair[0]), reverse=True):
            heads = {name.removesuffix(source) for name in names if name.endswith(source)}
            found = {head for head in heads if head + target in names}
            stems |= found
            names -= {head + ending for head in found for ending in (source, target)}
        return sorted(stems)


class PhraseSource:
    """Phrases that are generated from the seed: see :mod:`transformer.data.phrases`."""

    def __init__(self, config: DataConfig, seed: int):
        from transformer.data import phrases  # what makes them takes long to import

        if config.source_language != phrases.SOURCE_LANGUAGE:
            raise UserError(
                f"data.source_language={config.source_language}: the generated phrases are translations from "
                f"{phrases.SOURCE_LANGUAGE}; bring your own text with data.source=files"
            )
        check_own_splits(config)
        self._config = config
        self._seed = seed
        self._generate = phrases.generate
        self._splits: dict[str, list[Any]] = {}

    def fingerprint_of(self, split: str) -> str:
        return digest_of_pairs(self.pairs(split))

    def size(self, split: str) -> int:
        return len(self._phrases(split))

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return ((phrase.source, phrase.target) for phrase in self._phrases(split))

    def kinds(self, split: str) -> list[str]:
        """The name of the kind of each pair."""
        return [phrase.kind for phrase in self._phrases(split)]

    def repeats(self, split: str) -> np.ndarray | None:
        return None

    def _phrases(self, split: str) -> list[Any]:
        if split not in self._splits:
            config = self._config
            self._splits[split] = self._generate(split, config.target_language, config.num_phrases, self._seed)
        return self._splits[split]


class PairList:
    """Pairs at hand, as if they were every split of a source."""

    def __init__(self, pairs: Sequence[tuple[str, str]]):
        self._pairs = pairs

    def fingerprint_of(self, split: str) -> str:
        return digest_of_pairs(self._pairs)

    def size(self, split: str) -> int:
        return len(self._pairs)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def repeats(self, split: str) -> np.ndarray | None:
        return None


def _open_tfds(config: DataConfig, seed: int) -> ParallelSource:
    from transformer.data.tfds_pairs import TfdsPairs  # which is built on this module

    return TfdsPairs(config)


SOURCES: dict[str, Callable[[DataConfig, int], ParallelSource]] = {
    "files": FileSource,
    "phrases": PhraseSource,
    "tfds": _open_tfds,
}
"""The names that ``data.source`` may have."""


def check_own_splits(config: DataConfig) -> None:
    """Raise a ``UserError`` where the config would split what comes in splits."""
    if config.split != "files":
        raise UserError(
            f"data.split={config.split} is for data.source=files; {config.source} has splits of its own: leave the key "
            "at files"
        )


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


def cache_folder(config: DataConfig) -> Path:
    """The folder of what can be made again: ``data.cache_directory``, or ``transformer`` in the user's cache."""
    if config.cache_directory is not None:
        return Path(config.cache_directory).expanduser()
    return user_cache()


@contextlib.contextmanager
def writing_cache(path: Path) -> Iterator[None]:
    """Say which key to change when a file of the cache cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; set data.cache_directory to a folder on a disk with room"
        ) from error


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


def digest_of_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """A digest of the text of the pairs, in hex; no line holds a newline, so that no two texts look the same."""
    digest = hashlib.blake2b(digest_size=16)
    for source, target in pairs:
        digest.update(f"{source}\n{target}\n".encode())
    return digest.hexdigest()
