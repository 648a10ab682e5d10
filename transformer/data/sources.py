"""Where pairs of lines come from: parallel text files or generated phrases, behind one small interface.

Text is handed on as it stands: nothing here normalises it.
"""

import difflib
import functools
import gzip
import hashlib
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from transformer.config import DataConfig
from transformer.data import phrases
from transformer.types import UserError, one_of

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SPLITS = ("train", "validation", "test")

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
    """The source that ``data.source`` names. ``seed`` draws the pairs of generated sources.

    Raises:
      UserError: for what cannot be found or generated.
    """
    return one_of("data.source", config.source, SOURCES)(config, seed)


class TextFiles:
    """Examples in the files of a folder: what pairs and documents have in common.

    The splits "train" (one stem or several, one after the other), "validation" and "test" are named by the config, or
    with ``data.split`` other than ``files`` all three are parts of the training files; any other split is the stem of
    files in the directory. Files are looked for when they are first needed. A subclass says which files belong to a
    stem, what examples they hold, and how a digest is made of examples.
    """

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
            logger.info("reading the text of the %s split", split)
            sizes = np.zeros(len(self._stems(split)), np.int64)

            def examples() -> Iterator[Any]:
                for stem, example in self._numbered(split):
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
    """Parallel text files ``DIRECTORY/STEM.LANGUAGE``, plain or gzipped (``.gz``).

    Where there is no ``STEM.en`` and ``STEM.de``, the names of WMT ``STEM.en-de.en`` and ``STEM.en-de.de`` (or
    ``de-en``) are tried.
    """

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
        return _digest(examples)

    def _names(self, stem: str, source: str, target: str) -> list[tuple[Path, Path]]:
        infixes = ("", f"{source}-{target}.", f"{target}-{source}.")
        return [
            (self._directory / f"{stem}.{infix}{source}", self._directory / f"{stem}.{infix}{target}")
            for infix in infixes
        ]

    def _files(self, stem: str) -> tuple[Path, Path]:
        """The two files of a stem."""
        names = self._names(stem, *self._languages)
        for pair in names:
            found = [existing_file(path) for path in pair]
            if found[0] and found[1]:
                return found[0], found[1]
        missing = next((path for path in names[0] if not existing_file(path)), names[0][0])
        for pair in names:
            if any(existing_file(path) for path in pair):  # half a pair says best what is wrong
                missing = next(path for path in pair if not existing_file(path))
                break
        stems = self._known_stems()
        raise UserError(
            f"there is no {missing} (nor {missing.name}.gz); stems with {' and '.join(self._languages)} in "
            f"{self._directory}: {', '.join(stems) if stems else 'none'}"
        )

    def _known_stems(self) -> list[str]:
        source, target = self._languages
        names = {path.name.removesuffix(".gz") for path in self._directory.iterdir()}
        stems = set()
        for infix in (f".{source}-{target}", f".{target}-{source}", ""):
            heads = {name.removesuffix(f"{infix}.{source}") for name in names if name.endswith(f"{infix}.{source}")}
            stems |= {head for head in heads if f"{head}{infix}.{target}" in names}
        return sorted(stem for stem in stems if not stem.endswith((f".{source}-{target}", f".{target}-{source}")))


class PhraseSource:
    """Phrases that are generated from the seed: see :mod:`transformer.data.phrases`."""

    def __init__(self, config: DataConfig, seed: int):
        if config.source_language != phrases.SOURCE_LANGUAGE:
            raise UserError(
                f"data.source_language={config.source_language}: the generated phrases are translations from "
                f"{phrases.SOURCE_LANGUAGE}; bring your own text with data.source=files"
            )
        check_own_splits(config)
        self._config = config
        self._seed = seed
        self._splits: dict[str, list[phrases.Phrase]] = {}

    def fingerprint_of(self, split: str) -> str:
        return _digest(self.pairs(split))

    def size(self, split: str) -> int:
        return len(self._phrases(split))

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return ((phrase.source, phrase.target) for phrase in self._phrases(split))

    def kinds(self, split: str) -> list[str]:
        """The name of the kind of each pair."""
        return [phrase.kind for phrase in self._phrases(split)]

    def repeats(self, split: str) -> np.ndarray | None:
        return None

    def _phrases(self, split: str) -> list[phrases.Phrase]:
        if split not in self._splits:
            config = self._config
            self._splits[split] = phrases.generate(split, config.target_language, config.num_phrases, self._seed)
        return self._splits[split]


class PairList:
    """Pairs at hand, as if they were every split of a source."""

    def __init__(self, pairs: Sequence[tuple[str, str]]):
        self._pairs = pairs

    def fingerprint_of(self, split: str) -> str:
        return _digest(self._pairs)

    def size(self, split: str) -> int:
        return len(self._pairs)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def repeats(self, split: str) -> np.ndarray | None:
        return None


SOURCES: dict[str, Callable[[DataConfig, int], ParallelSource]] = {
    "files": FileSource,
    "phrases": PhraseSource,
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
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transformer"


def _read(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield from decode_lines(stream, str(path))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def existing_file(path: Path) -> Path | None:
    """The file itself, or its gzipped form."""
    return next((found for found in (path, path.with_name(path.name + ".gz")) if found.exists()), None)


def names_near(path: Path) -> str:
    """``; there are ...``: the names near a missing one in its folder, or nothing."""
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    return f"; {path.parent} has {', '.join(near)}" if near else ""


def _digest(pairs: Iterable[tuple[str, str]]) -> str:
    """A digest of the text of the pairs, in hex; no line holds a newline, so that no two texts look the same."""
    digest = hashlib.blake2b(digest_size=16)
    for source, target in pairs:
        digest.update(f"{source}\n{target}\n".encode())
    return digest.hexdigest()
