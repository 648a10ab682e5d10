"""Where documents come from: text files, or the topics of Python's own help, behind one small interface.

A document is a text of any number of lines, of which a language model sees the beginning and the end.
"""

import hashlib
import itertools
import logging
import os
import pydoc_data.topics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from transformer.config import DataConfig
from transformer.data.text_files import existing_file, read_lines
from transformer.data.text_splits import SPLITS, TextFiles, check_own_splits
from transformer.types import UserError, one_of

HELD_OUT_SHARE = 0.1  # topics: at most so much of the text is the validation split, and as much the test split
HEADING = "### "  # what a line begins with that starts a document, where data.documents=heading
LEAST_SHARED = 100  # topics: so many characters of a paragraph that two of them share make them one family

logger = logging.getLogger(__name__)


# It has methods only: isinstance, by which tests check annotations, would compute a property.
@runtime_checkable
class DocumentSource(Protocol):
    """Documents, by split: "train", "validation", "test", or another name that the source knows."""

    def fingerprint_of(self, split: str) -> str:
        """A digest, in hex, of the documents of a split, wherever they lie."""
        ...

    def size(self, split: str) -> int:
        """The number of documents."""
        ...

    def documents(self, split: str) -> Iterator[str]:
        """The documents in order; none is blank."""
        ...

    def repeats(self, split: str) -> np.ndarray | None:
        """How many times each document is read in an epoch, int32; None: once each."""
        ...


def make_documents(config: DataConfig, seed: int) -> DocumentSource:
    """The source that ``data.source`` names. ``seed`` draws the splits of sources that have none.

    Raises:
      UserError: for what cannot be found.
    """
    return one_of("data.source", config.source, DOCUMENT_SOURCES)(config, seed)


class DocumentFiles(TextFiles):
    """Text files ``DIRECTORY/STEM.txt``, plain or gzipped (``.gz``), cut into documents as ``data.documents`` says.

    With ``data.split`` other than ``files`` whole documents of the training files are held out: the last ones
    (``end``), or such as the seed and their text draw (``random``; documents with the same text stay together). The
    shares are of all characters. A single document is cut where its shares end.
    """

    def documents(self, split: str) -> Iterator[str]:
        return self._examples(split)

    def _part(self, split: str) -> Iterator[tuple[int, str]]:
        if self._config.split != "end" or len(self._part_of_each) > 1:
            yield from super()._part(split)
            return
        [(stem, text)] = self._of_stems(self._config.train)
        test = int(len(text) * (1 - self._config.test_share))
        validation = int(len(text) * (1 - self._config.test_share - self._config.validation_share))
        bounds = [0, validation, test, len(text)]
        place = SPLITS.index(split)
        text = text[bounds[place] : bounds[place + 1]]
        if not text or text.isspace():
            raise UserError(
                f"data.split=end with data.validation_share={self._config.validation_share} and data.test_share="
                f"{self._config.test_share} leaves no text for the {split} split; change the shares"
            )
        yield stem, text

    def _read(self, files: tuple[Path, ...]) -> Iterator[str]:
        return read_documents(files[0], self._config.documents)

    def _text(self, example: str) -> str:
        return example

    def _digest(self, examples: Iterable[str]) -> str:
        return _digest(examples)

    def _files(self, stem: str) -> tuple[Path, ...]:
        path = self._directory / f"{stem}.txt"
        found = existing_file(path)
        if found is None:
            names = {entry.name.removesuffix(".gz") for entry in self._directory.iterdir()}
            stems = sorted(name.removesuffix(".txt") for name in names if name.endswith(".txt"))
            raise UserError(
                f"there is no {path} (nor {path.name}.gz); stems with txt in {self._directory}: "
                f"{', '.join(stems) or 'none'}"
            )
        return (found,)


class TopicSource:
    """The topics of Python's ``help()``: its language reference as about 80 texts, which come with every Python.

    Whole topics are held out. Some contain others, so topics that share a paragraph are a family and stay together.
    Which families are held out follows from the seed and their names. The text is that of the Python that runs, and
    another version has another text and another fingerprint.
    """

    def __init__(self, config: DataConfig, seed: int):
        check_own_splits(config)
        self._splits = split_topics(pydoc_data.topics.topics, seed)

    def fingerprint_of(self, split: str) -> str:
        return _digest(self.documents(split))

    def size(self, split: str) -> int:
        return len(self._names(split))

    def documents(self, split: str) -> Iterator[str]:
        return (pydoc_data.topics.topics[name] for name in self._names(split))

    def repeats(self, split: str) -> np.ndarray | None:
        return None

    def _names(self, split: str) -> list[str]:
        names: list[str] = one_of("split", split, self._splits)
        return names


class DocumentList:
    """Documents at hand, as if they were every split of a source."""

    def __init__(self, documents: Sequence[str]):
        self._documents = documents

    def fingerprint_of(self, split: str) -> str:
        return _digest(self._documents)

    def size(self, split: str) -> int:
        return len(self._documents)

    def documents(self, split: str) -> Iterator[str]:
        return iter(self._documents)

    def repeats(self, split: str) -> np.ndarray | None:
        return None


DOCUMENT_SOURCES: dict[str, Callable[[DataConfig, int], DocumentSource]] = {
    "files": DocumentFiles,
    "topics": TopicSource,
}
"""The names that ``data.source`` may have."""


def read_documents(path: str | os.PathLike[str], documents: str) -> Iterator[str]:
    r"""The documents of a text file. Lines end as :func:`read_lines` says, and are joined by "\n".

    Args:
      path: plain, or gzipped (``.gz``).
      documents: where they end. ``file``: the whole file is one, held in memory; the newline at its end is no part of
        it. ``blank_line``: one or more lines of nothing but white space are between two. ``line``: each line is one,
        lines of nothing but white space are none. ``heading``: a line that begins with "### " is before each, and
        before the first there may be one without. Neither the heading nor blank lines around a document are part of
        it, and a heading without text is none.

    Raises:
      UserError: as :func:`read_lines`; at the end, if there was no document.
    """
    lines = read_lines(path)
    found = False
    for text in _cut(lines, documents):
        if text and not text.isspace():
            found = True
            yield text
    if not found:
        raise UserError(f"{path} holds no text")


def _cut(lines: Iterable[str], documents: str) -> Iterator[str]:
    if documents == "line":
        yield from lines
    elif documents == "blank_line":
        for _, group in itertools.groupby(lines, key=lambda line: bool(line.strip())):
            yield "\n".join(group)
    elif documents == "heading":
        section: list[str] = []
        for line in lines:
            if line.startswith(HEADING):
                yield _join(section)
                section = []
            else:
                section.append(line)
        yield _join(section)
    else:
        yield "\n".join(lines)


def _join(lines: Sequence[str]) -> str:
    """Lines as one text, without those at both ends that hold nothing but white space."""
    filled = [number for number, line in enumerate(lines) if line.strip()]
    return "\n".join(lines[filled[0] : filled[-1] + 1]) if filled else ""


def split_topics(topics: dict[str, str], seed: int) -> dict[str, list[str]]:
    """The names of the topics of each split, a pure function of the texts and the seed.

    Families, in an order drawn from the seed and their names, go into the first of validation and test that still has
    room for them, and into the training split if neither has.
    """

    def drawn(family: list[str]) -> bytes:
        return hashlib.blake2b(f"{seed} {family[0]}".encode()).digest()

    limit = HELD_OUT_SHARE * sum(map(len, topics.values()))
    room = {"validation": limit, "test": limit}
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for family in sorted(families(topics), key=drawn):
        size = sum(len(topics[name]) for name in family)
        split = next((name for name in room if size <= room[name]), "train")
        splits[split] += family
        if split in room:
            room[split] -= size
    return {split: sorted(names) for split, names in splits.items()}


def families(topics: dict[str, str]) -> list[list[str]]:
    """Names of topics that share a long paragraph, directly or through others; white space does not count."""
    family = {name: [name] for name in sorted(topics)}
    first: dict[str, str] = {}  # paragraph -> the first topic that has it
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            paragraph = " ".join(paragraph.split())
            if len(paragraph) < LEAST_SHARED:
                continue
            mine, other = family[name], family[first.setdefault(paragraph, name)]
            if mine is not other:
                other += mine
                family.update(dict.fromkeys(mine, other))
    return [sorted(members) for name, members in family.items() if min(members) == name]


def _digest(documents: Iterable[str]) -> str:
    """A digest, in hex, of texts and of where each ends."""
    digest = hashlib.blake2b(digest_size=16)
    for text in documents:
        content = text.encode()
        digest.update(b"%d\n" % len(content) + content)
    return digest.hexdigest()
