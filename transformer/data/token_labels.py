"""Words with a label each: given beside them in a file, or taken from how plain text is written.

Words become rows of tokens, of which the first piece of a word carries its label.
"""

import functools
import hashlib
import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from transformer.config import DataConfig
from transformer.data.documents import DocumentSource, make_documents, read_documents
from transformer.data.labeled_text import NO_LABEL, LabelSet, TokenRows, flat, make_rows
from transformer.data.store import Tokens
from transformer.data.text_files import existing_file, read_lines
from transformer.data.text_splits import TextFiles
from transformer.data.tokenizer import Tokenizer
from transformer.types import UserError, one_of

CASES = ("lower", "Upper", "CAPS")
MARKS = ("", ",", ".", "?")
CASE_AND_MARK_LABELS = tuple(case + mark for case in CASES for mark in MARKS)
"""How a word was written, and which mark followed it."""

MARK_OF = {",": ",", ";": ",", ":": ",", "—": ",", ".": ".", "!": ".", "…": ".", "?": "?"}
"""What a mark counts as: it ends a sentence or it does not."""
ENCLOSING = "\"'`´“”„‚‘’«»‹›()[]{}<>"  # at both ends of a word, left out
FINAL = ENCLOSING + "".join(MARK_OF)
DASH = re.compile(r"--+|[—―]|(?<!\S)[-–](?!\S)")  # hyphens within a word or at its end belong to it

WORDS_PER_LINE = 100  # of the text that a vocabulary is learnt from
NUM_NAMED = 5  # words that were cut are named up to so many

logger = logging.getLogger(__name__)


class LabeledWords(NamedTuple):
    """A sentence or a document: its words, the label of each, and where it stands, for messages."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    place: str = "the text"


# It has methods only: isinstance, by which tests check annotations, would compute a property.
@runtime_checkable
class LabeledWordSource(DocumentSource, Protocol):
    """Texts of labelled words, by split. As documents they are their words alone."""

    def labels(self) -> LabelSet:
        """The labels that a model is to tell apart."""
        ...

    def texts(self, split: str) -> Iterator[LabeledWords]:
        """The texts in order; one may have no words."""
        ...


class Labeling(NamedTuple):
    """What a value of ``data.token_labels`` means.

    source  ``(config, seed)`` -> where labelled words come from
    read    ``(path, config)`` -> the labelled words of a file such as the source's
    words   a line of text -> the words that are to be labelled
    text    the words and their labels -> a line of text
    """

    source: Callable[[DataConfig, int], LabeledWordSource]
    read: Callable[[Path, DataConfig], Iterator[LabeledWords]]
    words: Callable[[str], tuple[str, ...]]
    text: Callable[[Sequence[str], Sequence[str]], str]


# Case and punctuation


def take_apart(text: str) -> LabeledWords:
    """Plain words, in lower case and without marks, and labels from which :func:`restore` writes them again.

    Words stand between white space and dashes. Quotes and brackets around them are lost. Of the marks after a word the
    last counts, and a dash as a comma, where no mark is before it; see ``MARK_OF``. What is left of a word, such as
    apostrophes, points and hyphens within it, stays: "U.S." is the word "u.s" with the label "CAPS.".

    A word is ``CAPS`` if it has two letters or more and all are capitals, else ``Upper`` if its first letter is one,
    else ``lower``, as are words without letters. So capitals further on in a word ("McDonald") are lost. Letters that
    have no capital of their own, or more than one form of it (ß, İ), are let alone.
    """
    words: list[str] = []
    cases: list[str] = []
    marks: list[str] = []
    for token in DASH.sub(" — ", text).split():
        rest = token.lstrip(ENCLOSING)
        word = rest.rstrip(FINAL)
        mark = next((MARK_OF[sign] for sign in reversed(rest[len(word) :]) if sign in MARK_OF), "")
        if word.strip("-–"):
            lower = word.translate(_case_tables()[0])
            words.append(lower)
            cases.append(_case(word, lower))
            marks.append(mark)
        elif marks and not marks[-1]:
            marks[-1] = mark
    return LabeledWords(tuple(words), tuple(map(str.__add__, cases, marks)))


def restore(words: Sequence[str], labels: Sequence[str]) -> str:
    """Text of plain words and their labels, with a space between words.

    It is the text that :func:`take_apart` was given, if that had one space between words, no marks but , . ? and those
    within words, one at most after each, and no word with capitals that its label does not tell of.
    """
    return " ".join(itertools.starmap(_write, zip(words, labels, strict=True)))


@functools.cache
def _case_tables() -> tuple[dict[int, str], dict[int, str]]:
    """Capitals to small letters and back, of letters that have one of each; above U+1FFFF no letter has."""
    pairs = [
        (capital, capital.lower())
        for capital in map(chr, range(0x20000))
        if len(capital.lower()) == 1 and capital.lower() != capital and capital.lower().upper() == capital
    ]
    return {ord(capital): small for capital, small in pairs}, {ord(small): capital for capital, small in pairs}


def _case(word: str, lower: str) -> str:
    if word == lower:
        return "lower"
    upper = word.translate(_case_tables()[1])
    letters = [place for place in range(len(word)) if lower[place] != upper[place]]
    if word == upper and len(letters) > 1:
        return "CAPS"
    return "Upper" if word[letters[0]] == upper[letters[0]] else "lower"


@functools.lru_cache(maxsize=2**16)
def _write(word: str, label: str) -> str:
    """A word as its label says."""
    case = label.rstrip("".join(MARKS))
    mark = label[len(case) :]
    upper = word if case == "lower" else word.translate(_case_tables()[1])
    if case == "Upper":
        first = next((place for place in range(len(word)) if word[place] != upper[place]), len(word))
        upper = word[:first] + upper[first : first + 1] + word[first + 1 :]
    return upper + mark


class WordsOfDocuments:
    """The words of plain documents, labelled by :func:`take_apart`; each document is a text."""

    def __init__(self, documents: DocumentSource):
        self._documents = documents

    def fingerprint_of(self, split: str) -> str:
        return f"case and punctuation of {self._documents.fingerprint_of(split)}"

    def size(self, split: str) -> int:
        return self._documents.size(split)

    def documents(self, split: str) -> Iterator[str]:
        return (_lines_of(text.words) for text in self.texts(split))

    def repeats(self, split: str) -> np.ndarray | None:
        return self._documents.repeats(split)

    def labels(self) -> LabelSet:
        """All that there may be, whether or not the training split has them."""
        counts = Counter(label for text in self.texts("train") for label in text.labels)
        return LabelSet(CASE_AND_MARK_LABELS, max(CASE_AND_MARK_LABELS, key=counts.__getitem__))

    def texts(self, split: str) -> Iterator[LabeledWords]:
        return map(take_apart, self._documents.documents(split))


# Given labels


class LabeledSentences(TextFiles):
    """Sentences in files ``DIRECTORY/STEM.conll`` or ``.txt``, plain or gzipped (``.gz``); see :func:`read_sentences`.

    The labels are those of the training split.
    """

    def documents(self, split: str) -> Iterator[str]:
        return (_lines_of(text.words) for text in self.texts(split))

    def labels(self) -> LabelSet:
        return LabelSet.of(label for text in self.texts("train") for label in text.labels)

    def texts(self, split: str) -> Iterator[LabeledWords]:
        return self._examples(split)

    def _read(self, files: tuple[Path, ...]) -> Iterator[LabeledWords]:
        return read_sentences(files[0])

    def _text(self, example: LabeledWords) -> str:
        return " ".join(example.words)

    def _digest(self, examples: Iterable[LabeledWords]) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for example in examples:  # neither a word nor a label holds a tab or a newline
            pairs = zip(example.words, example.labels, strict=True)
            digest.update("".join(f"{word}\t{label}\n" for word, label in pairs).encode() + b"\n")
        return digest.hexdigest()

    def _files(self, stem: str) -> tuple[Path, ...]:
        names = [self._directory / f"{stem}.{ending}" for ending in ("conll", "txt")]
        found = next(filter(None, map(existing_file, names)), None)
        if found is None:
            present = sorted(entry.name for entry in self._directory.iterdir())
            raise UserError(
                f"there is no {names[0]} (nor .gz, nor .txt); {self._directory} holds {', '.join(present) or 'nothing'}"
            )
        return (found,)


def read_sentences(path: str | os.PathLike[str]) -> Iterator[LabeledWords]:
    """The sentences of a file with a word and its label a line: the first and the last column.

    Columns end at tabs, in lines that have any, else at spaces. Blank lines stand between sentences, and lines that
    begin with ``-DOCSTART-`` are left out.

    Raises:
      UserError: as :func:`transformer.data.text_files.read_lines`; for a line with one column; if there is no sentence.
    """
    empty = True
    words: list[str] = []
    labels: list[str] = []
    for number, line in enumerate(itertools.chain(read_lines(path), [""]), start=1):
        line = line.strip()
        if not line or line.startswith("-DOCSTART-"):
            if words:
                place = f"{path}:{number - len(words)}-{number - 1}"
                yield LabeledWords(tuple(words), tuple(labels), place)
                empty, words, labels = False, [], []
            continue
        columns = line.split("\t" if "\t" in line else " ")
        if len(columns) < 2:
            raise UserError(
                f"{path}:{number}: {line!r} is not a word and its label with a tab or a space between them; sentences "
                "end with a blank line"
            )
        words.append(columns[0].strip())
        labels.append(columns[-1].strip())
    if empty:
        raise UserError(f"{path} holds no words")


def _beside(words: Sequence[str], labels: Sequence[str]) -> str:
    return " ".join(f"{word}/{label}" for word, label in zip(words, labels, strict=True))


def _labeled_sentences(config: DataConfig, seed: int) -> LabeledSentences:
    if config.source != "files":
        raise UserError(
            f"data.source={config.source} has no labels for its words; use data.source=files, or "
            "data.token_labels=case_and_punctuation"
        )
    return LabeledSentences(config, seed)


def _read_plain(path: Path, config: DataConfig) -> Iterator[LabeledWords]:
    return map(take_apart, read_documents(path, config.documents))


LABELINGS: dict[str, Labeling] = {
    "given": Labeling(
        _labeled_sentences, lambda path, config: read_sentences(path), lambda line: tuple(line.split()), _beside
    ),
    "case_and_punctuation": Labeling(
        lambda config, seed: WordsOfDocuments(make_documents(config, seed)),
        _read_plain,
        lambda line: take_apart(line).words,
        restore,
    ),
}
"""The names that ``data.token_labels`` may have."""


def get_labeling(config: DataConfig) -> Labeling:
    """What ``data.token_labels`` names."""
    found: Labeling = one_of("data.token_labels", config.token_labels, LABELINGS)
    return found


def _lines_of(words: Sequence[str]) -> str:
    """Words as text of lines that are not too long to learn a vocabulary from."""
    return "\n".join(" ".join(words[start : start + WORDS_PER_LINE]) for start in range(0, len(words), WORDS_PER_LINE))


# Rows of tokens


class WordRows(NamedTuple):
    """Words as rows that an encoder reads: BOS, the pieces of words of one text, EOS.

    rows   the tokens
    words  of each token the number of the word that begins there, among those of all texts, or ``NO_LABEL``
    texts  int64 [rows], the number of the text that a row is of
    """

    rows: TokenRows
    words: Tokens
    texts: np.ndarray

    def labels(self, of_words: np.ndarray) -> Tokens:
        """Of each token the label of the word that begins there, or ``NO_LABEL``; from int32 [words]."""
        words = self.words.at(np.arange(self.words.offsets[-1]))
        return Tokens(np.where(words == NO_LABEL, NO_LABEL, of_words[words]).astype(np.int32), self.words.offsets)


class WordEncoder:
    """Words to rows of tokens. What a word came to is remembered.

    A word has the pieces that it has after another word, wherever it stands: vocabularies of bytes or of SentencePiece
    have the space before it in its first piece, those of BERT have not. A word that gives no piece, as a control sign
    may, is the unknown one.

    Reference: Devlin et al., BERT (2019), section 5.3, for the first piece.
    """

    def __init__(self, tokenizer: Tokenizer, row_length: int):
        """
        Args:
          tokenizer: of words.
          row_length: tokens of a row at most, BOS and EOS included; at least 3.
        """
        self._tokenizer = tokenizer
        self._row_length = row_length
        self._before = tokenizer.encode("a")
        self._known: dict[str, list[int]] = {}

    def __call__(self, texts: Sequence[Sequence[str]]) -> WordRows:
        """Rows that hold as many words of a text as there is room for, from its first to its last."""
        self._learn(texts)
        rows: list[tuple[list[int], ...]] = []
        words: list[list[int]] = []
        of_rows: list[int] = []
        word_number = 0
        for number, text in enumerate(texts):
            for pieces_of_words in self._cut(text):
                tokens: list[int] = []
                numbers = [NO_LABEL]  # of BOS
                for pieces in pieces_of_words:
                    tokens += pieces
                    numbers += [word_number] + [NO_LABEL] * (len(pieces) - 1)
                    word_number += 1
                rows.append((tokens,))
                words.append([*numbers, NO_LABEL])
                of_rows.append(number)
        return WordRows(make_rows(self._tokenizer, rows, self._row_length), flat(words), np.array(of_rows, np.int64))

    def _cut(self, text: Sequence[str]) -> Iterator[list[list[int]]]:
        """The pieces of the words of each row of a text."""
        row: list[list[int]] = []
        left = room = self._row_length - 2
        for word in text:
            pieces = self._known[word]
            if len(pieces) > left:
                yield row
                row, left = [], room
            row.append(pieces)
            left -= len(pieces)
        if row:
            yield row

    def _learn(self, texts: Sequence[Sequence[str]]) -> None:
        """The pieces of all words that are new."""
        new = [word for word in dict.fromkeys(itertools.chain.from_iterable(texts)) if word not in self._known]
        size, room, cut = len(self._before), self._row_length - 2, []
        for word, ids in zip(new, self._tokenizer.encode_batch([f"a {word}" for word in new]), strict=True):
            pieces = ids[size:] if ids[:size] == self._before else self._tokenizer.encode(word)
            if len(pieces) > room:
                cut.append(word)
            self._known[word] = pieces[:room] or [self._tokenizer.unk_id]
        if cut:
            named = ", ".join(repr(word[:20]) for word in cut[:NUM_NAMED])
            logger.warning("of %d words only the first %d pieces are read: %s ...", len(cut), room, named)
