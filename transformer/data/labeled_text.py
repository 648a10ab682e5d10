"""Labelled texts and pairs of texts: where they come from, the rows that an encoder reads, and batches of these.

A labelled split is small beside what a language model learns from: it is held in memory.
"""

import functools
import hashlib
import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Protocol, runtime_checkable

import numpy as np

from transformer.config import DataConfig
from transformer.data.batching import ALL_ROWS, BucketPlan
from transformer.data.pairs import PhraseSource
from transformer.data.pipeline import SHORTEST_ROW
from transformer.data.store import Tokens
from transformer.data.text_files import existing_file, read_lines
from transformer.data.text_splits import TextFiles
from transformer.data.tokenizer import Tokenizer
from transformer.progress import progress
from transformer.types import LabeledTextBatch, UserError, one_of

LABELS_NAME = "labels.json"
NO_LABEL = -1  # in place of a label's number: it does not count
TEXTS_PER_CHUNK = 8_192  # tokenised at a time
FEWEST_ROWS = 4  # batches for inference have so many rows, or a power of two above
MOST_SHOWN = 60  # characters of a line in a message

logger = logging.getLogger(__name__)


class LabeledText(NamedTuple):
    """An example.

    label  its name
    texts  one text, or the two of a pair
    place  where it stands, for messages: ``path:line``
    """

    label: str
    texts: tuple[str, ...]
    place: str


# It has methods only: isinstance, by which tests check annotations, would compute a property.
@runtime_checkable
class LabeledSource(Protocol):
    """Labelled texts, by split: "train", "validation", "test", or another name that the source knows."""

    def fingerprint_of(self, split: str) -> str:
        """A digest, in hex, of the texts and labels of a split, wherever they lie."""
        ...

    def examples(self, split: str) -> list[LabeledText]:
        """All of them in order, at least one."""
        ...

    def repeats(self, split: str) -> np.ndarray | None:
        """How many times each example is read in an epoch, int32; None: once each."""
        ...


def make_labeled_texts(config: DataConfig, seed: int) -> LabeledSource:
    """The source that ``data.source`` names. ``seed`` draws what is drawn: generated texts, ``data.split=random``.

    Raises:
      UserError: for what cannot be found.
    """
    return one_of("data.source", config.source, LABELED_SOURCES)(config, seed)


class LabeledFiles(TextFiles):
    """Files ``DIRECTORY/STEM.jsonl``, ``.tsv`` or ``.txt``, plain or gzipped (``.gz``); see :func:`read_labeled`."""

    def __init__(self, config: DataConfig, seed: int):
        super().__init__(config, seed)
        self._lists: dict[str, list[LabeledText]] = {}

    def examples(self, split: str) -> list[LabeledText]:
        if split not in self._lists:
            self._lists[split] = list(self._examples(split))
        return self._lists[split]

    def _read(self, files: tuple[Path, ...]) -> Iterator[LabeledText]:
        return read_labeled(files[0])

    def _text(self, example: LabeledText) -> str:
        return "\n".join(example.texts)

    def _digest(self, examples: Iterable[LabeledText]) -> str:
        return _digest(examples)

    def _files(self, stem: str) -> tuple[Path, ...]:
        found = [path for ending in FORMATS if (path := existing_file(self._directory / (stem + ending)))]
        if len(found) > 1:
            raise UserError(f"{' and '.join(map(str, found))} are both there; keep the one that is meant")
        if not found:
            names = [entry.name.removesuffix(".gz") for entry in self._directory.iterdir()]
            stems = sorted({name.removesuffix(ending) for name in names for ending in FORMATS if name.endswith(ending)})
            raise UserError(
                f"there is no {self._directory / stem} with one of the endings {', '.join(FORMATS)} (nor these with "
                f".gz); stems with one in {self._directory}: {', '.join(stems) or 'none'}"
            )
        return tuple(found)


class LabeledPhrases:
    """The generated phrases, in the source language, each with the name of its kind as its label."""

    def __init__(self, config: DataConfig, seed: int):
        self._phrases = PhraseSource(config, seed)

    def fingerprint_of(self, split: str) -> str:
        return _digest(self.examples(split))

    def examples(self, split: str) -> list[LabeledText]:
        return [
            LabeledText(kind, (source,), f"{split} phrase {number}")
            for number, (kind, (source, _)) in enumerate(
                zip(self._phrases.kinds(split), self._phrases.pairs(split), strict=True), start=1
            )
        ]

    def repeats(self, split: str) -> np.ndarray | None:
        return None


class LabeledList:
    """Examples at hand, as if they were every split of a source."""

    def __init__(self, examples: Sequence[LabeledText]):
        self._list = list(examples)

    def fingerprint_of(self, split: str) -> str:
        return _digest(self._list)

    def examples(self, split: str) -> list[LabeledText]:
        return self._list

    def repeats(self, split: str) -> np.ndarray | None:
        return None


LABELED_SOURCES: dict[str, Callable[[DataConfig, int], LabeledSource]] = {
    "files": LabeledFiles,
    "phrases": LabeledPhrases,
}
"""The names that ``data.source`` may have."""


# Files


def read_labeled(path: Path) -> Iterator[LabeledText]:
    """The labelled texts of a file, of which the ending says how a line holds one.

    ``.jsonl``  ``{"text": "...", "label": "..."}``, for pairs with ``"text_pair"``; a label may be an integer; other
                keys are passed over
    ``.tsv``    ``label TAB text``, for pairs ``label TAB text TAB text``; no header, no quoting
    ``.txt``    ``label SPACE text``

    Args:
      path: plain, or gzipped (``.gz``).

    Raises:
      UserError: as :func:`read_lines`; for another ending, a line that is not as it should be, and no lines.
    """
    parse = one_of(f"the ending of {path}", Path(path.name.removesuffix(".gz")).suffix, FORMATS)
    empty = True
    for number, line in enumerate(read_lines(path), start=1):
        empty = False
        label, *texts = parse(line, f"{path}:{number}")
        yield LabeledText(label, tuple(texts), f"{path}:{number}")
    if empty:
        raise UserError(f"{path} is empty")


def _parse_json(line: str, place: str) -> tuple[str, ...]:
    expected = 'an object with "text" (a string), "label" (a string or an integer) and for pairs "text_pair" (a string)'
    try:
        found = json.loads(line)
        label, texts = found["label"], [found["text"]]
        if found.get("text_pair") is not None:
            texts.append(found["text_pair"])
    except (ValueError, KeyError, TypeError):
        raise _unexpected(place, line, expected) from None
    if isinstance(label, int) and not isinstance(label, bool):
        label = str(label)
    if not label or not all(isinstance(value, str) for value in (label, *texts)):
        raise _unexpected(place, line, expected)
    return (label, *texts)


def _parse_tabs(line: str, place: str) -> tuple[str, ...]:
    columns = tuple(line.split("\t"))
    if len(columns) not in (2, 3) or not columns[0]:
        raise _unexpected(place, line, "a label, a tab and a text, and for pairs another tab and text")
    return columns


def _parse_space(line: str, place: str) -> tuple[str, ...]:
    label, space, text = line.partition(" ")
    if not label or not space:
        raise _unexpected(place, line, "a label, a space and a text")
    return label, text


def _unexpected(place: str, line: str, expected: str) -> UserError:
    shown = repr(line[:MOST_SHOWN]) + ("..." if len(line) > MOST_SHOWN else "")
    return UserError(f"{place}: expected {expected}, found {shown}")


FORMATS: dict[str, Callable[[str, str], tuple[str, ...]]] = {
    ".jsonl": _parse_json,
    ".tsv": _parse_tabs,
    ".txt": _parse_space,
}
"""How a line is read, ``(line, its place) -> (label, text, ...)``, by the ending of the file's name."""


def _digest(examples: Iterable[LabeledText]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for label, texts, _ in examples:
        digest.update(json.dumps([label, *texts]).encode() + b"\n")
    return digest.hexdigest()


# Labels


def save_labels(folder: Path, labels: dict[str, Any]) -> None:
    """Write what a task knows of its labels, ``names`` among it, as ``folder/labels.json``, whole or not at all."""
    partial = folder / (LABELS_NAME + ".partial")
    partial.write_text(json.dumps(labels, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(folder / LABELS_NAME)


class LabelSet(NamedTuple):
    """The labels that a model tells apart, those of its training split.

    names          sorted; a label's number is its place here
    most_frequent  the one that the training split has most often; None if it is not known
    pairs          whether the labels are of pairs of texts
    """

    names: tuple[str, ...]
    most_frequent: Optional[str]
    pairs: bool = False

    @classmethod
    def of(cls, labels: Iterable[str], pairs: bool = False) -> "LabelSet":
        """Those of a training split, at least one; of equally frequent ones the first is the most frequent."""
        counts = Counter(labels)
        names = tuple(sorted(counts))
        return cls(names, max(names, key=counts.__getitem__), pairs)

    @classmethod
    def load(cls, folder: Path) -> "LabelSet | None":
        """What :meth:`save` wrote; None where it is not.

        Raises:
          UserError: if the file holds something else.
        """
        path = folder / LABELS_NAME
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            return cls(tuple(saved["names"]), saved["most_frequent"], saved["pairs"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} does not hold the labels of a run ({error}); put the file back") from None

    def save(self, folder: Path) -> None:
        """Write ``folder/labels.json``, whole or not at all."""
        save_labels(folder, self._asdict())

    def numbers(self, labels: Iterable[str], places: Iterable[str]) -> np.ndarray:
        """The number of each label, int32.

        Args:
          places: of each, for the message.

        Raises:
          UserError: for a label that is not among the names.
        """
        table = {name: number for number, name in enumerate(self.names)}
        numbers = []
        for label, place in zip(labels, places, strict=True):
            if label not in table:
                raise UserError(
                    f"{place}: the training split has no label {label!r}; it has {', '.join(self.names[:20])}"
                    + (", ..." if len(self.names) > 20 else "")
                )
            numbers.append(table[label])
        return np.array(numbers, np.int32)


# Rows


class TokenRows(NamedTuple):
    """Texts, or pairs of texts, as the rows that an encoder reads.

    tokens       of each row ``bos tokens eos``, of a pair ``bos first eos second eos``
    token_types  of each token 0, or 1 after the first eos of a pair
    truncated    bool [rows], whether tokens were left out because there were too many
    """

    tokens: Tokens
    token_types: Tokens
    truncated: np.ndarray

    def first(self, number: int | None) -> "TokenRows":
        """The first so many; None: all."""
        return TokenRows(self.tokens.first(number), self.token_types.first(number), self.truncated[:number])


def encode_rows(tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]], most: int) -> TokenRows:
    """The rows of texts, or of pairs of texts; see :func:`make_rows`."""
    texts_of_side = zip(*texts, strict=True)
    return make_rows(tokenizer, list(zip(*(_encode(tokenizer, side) for side in texts_of_side), strict=True)), most)


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    starts = range(0, len(texts), TEXTS_PER_CHUNK)
    chunks = (tokenizer.encode_batch(list(texts[start : start + TEXTS_PER_CHUNK])) for start in starts)
    return list(itertools.chain.from_iterable(progress(chunks, "tokenising", len(starts), "chunk")))


def make_rows(tokenizer: Tokenizer, encoded: Sequence[tuple[list[int], ...]], most: int) -> TokenRows:
    """The rows of tokens of texts, or of pairs; what is cut is counted in one warning.

    Args:
      tokenizer: that gives bos and eos.
      encoded: of each row the tokens of one text, or of two.
      most: ``data.max_source_length``, tokens of a row; a longer one loses tokens as :func:`fitting` says.

    Raises:
      UserError: if there is no room for a token of each text, or a token is outside the vocabulary.

    Reference: Devlin et al., BERT (2019), section 3, for the form of the rows.
    """
    rows, types, truncated = [], [], np.zeros(len(encoded), bool)
    for number, texts in enumerate(encoded):
        if most < 2 * len(texts) + 1:
            raise UserError(f"data.max_source_length={most} has no room for {len(texts)} text(s) with bos and eos")
        lengths = [len(text) for text in texts]
        kept = fitting(lengths, most - len(texts) - 1)
        truncated[number] = sum(kept) < sum(lengths)
        row, kinds = [tokenizer.bos_id], [0]
        for kind, (text, size) in enumerate(zip(texts, kept, strict=True)):
            row += [*text[:size], tokenizer.eos_id]
            kinds += [kind] * (size + 1)
        rows.append(row)
        types.append(kinds)
    if truncated.any():
        logger.warning(
            "%d of %d rows have more than data.max_source_length=%d tokens; the ends of their texts are left out",
            truncated.sum(),
            len(truncated),
            most,
        )
    largest = max((max(row) for row in rows), default=0)
    if largest >= tokenizer.vocab_size:
        raise UserError(
            f"the tokenizer gives id {largest}, but its vocabulary has {tokenizer.vocab_size} pieces; give "
            "data.tokenizer a model that is whole"
        )
    return TokenRows(flat(rows), flat(types), truncated)


def fitting(lengths: Sequence[int], room: int) -> tuple[int, ...]:
    """How many tokens of each of one or two texts are kept so that all fit: the longer text loses them first.

    Where both are as long, the second is next to lose one.
    """
    if len(lengths) == 1:
        return (min(lengths[0], room),)
    first, second = lengths
    of_first = min(first, max(room - second, -(-room // 2)))
    return of_first, min(second, room - of_first)


def flat(lists: Sequence[Sequence[int]]) -> Tokens:
    """Numbers of each row, one row after the other."""
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return Tokens(np.fromiter(itertools.chain.from_iterable(lists), np.int32, offsets[-1]), offsets)


# Batches


class LabeledTextPipeline:
    """Training batches of rows: ``batch(n)`` depends on nothing but the arguments and n.

    Attributes:
      num_batches: per epoch.
      shapes: every (B, T) that a batch can have.
      padding_share: of all positions of an epoch.
    """

    def __init__(
        self,
        rows: TokenRows,
        labels: np.ndarray | Tokens,
        config: DataConfig,
        *,
        seed: int,
        pad_id: int,
        repeats: np.ndarray | None = None,
    ):
        """
        Args:
          rows: none longer than ``data.max_source_length``.
          labels: as for :func:`labeled_batch`.
          config: the size of a batch and the number of its shapes.
          seed: of the order of each epoch.
          pad_id: of the tokenizer.
          repeats: int32 [rows], how many times an epoch reads each; None: once.
        """
        examples, lengths = np.arange(len(rows.truncated), dtype=np.int32), rows.tokens.lengths
        self._rows, self._labels, self._pad_id = rows, labels, pad_id
        self._plan = BucketPlan(  # of pairs of which one side is empty
            examples if repeats is None else np.repeat(examples, repeats),
            lengths,
            np.zeros_like(lengths),
            tokens_per_batch=config.tokens_per_batch,
            count_padding=config.count_padding,
            max_lengths=(config.max_source_length, 0),
            num_buckets=config.num_buckets,
            seed=seed,
        )
        self.num_batches = self._plan.num_batches
        self.shapes = tuple((num_rows, length) for num_rows, length, _ in self._plan.shapes)
        self.padding_share = self._plan.padding_share()

    def steps_of_shapes(self) -> tuple[int, ...]:
        """Of each shape that a batch can have the first step with it, ascending."""
        return self._plan.steps_of_shapes()

    def size(self, step: int) -> tuple[int, int]:
        """Rows of batch number ``step``, and positions of the longer side."""
        return self._plan.batch(step).size

    def batch(self, step: int, rows: slice = ALL_ROWS) -> LabeledTextBatch:
        """Batch number ``step``, counted from 0 across epochs, or some rows of it."""
        layout = self._plan.batch(step).of_rows(rows)
        return labeled_batch(self._rows, self._labels, layout.examples, layout.shape[:2], self._pad_id)


def inference_batches(
    rows: TokenRows, *, tokens_per_batch: int, longest: int, pad_id: int
) -> list[tuple[np.ndarray, Callable[[], LabeledTextBatch]]]:
    """Every row once, similar lengths together, in few shapes: the numbers of a batch's rows, and what builds it.

    Lengths and numbers of rows are powers of two, so that other texts seldom have other shapes.

    Args:
      tokens_per_batch: positions of a batch; a longer row has a batch of its own.
      longest: positions that no batch exceeds; no row has more.
      pad_id: of the tokenizer.
    """
    lengths = rows.tokens.lengths
    widths = np.minimum(_power_of_two(np.maximum(lengths, SHORTEST_ROW)), longest)
    none = np.full(len(lengths), NO_LABEL, np.int32)
    batches: list[tuple[np.ndarray, Callable[[], LabeledTextBatch]]] = []
    for width in np.unique(widths).tolist():
        members = np.flatnonzero(widths == width)
        most = max(tokens_per_batch // width, 1)
        for start in range(0, len(members), most):
            numbers = members[start : start + most]
            shape = (min(most, int(_power_of_two(max(len(numbers), FEWEST_ROWS)))), width)
            batches.append((numbers, functools.partial(labeled_batch, rows, none, numbers, shape, pad_id)))
    return batches


def only_row(rows: TokenRows, pad_id: int) -> LabeledTextBatch:
    """The first row as a batch of its own, without padding."""
    none = np.full(len(rows.truncated), NO_LABEL, np.int32)
    return labeled_batch(rows, none, np.array([0]), (1, int(rows.tokens.lengths[0])), pad_id)


def _power_of_two(numbers: Any) -> Any:
    """The least one that is not below a number, or below each of an array."""
    return 2 ** np.ceil(np.log2(numbers)).astype(int)


def labeled_batch(
    rows: TokenRows, labels: np.ndarray | Tokens, examples: np.ndarray, shape: tuple[int, int], pad_id: int
) -> LabeledTextBatch:
    """A batch [B, T] of some rows, in their order; what fills it up has length and weight 0.

    Args:
      rows: of a whole split.
      labels: int32 [rows], of each row; or of each token, in rows as long as the tokens'. Where one is ``NO_LABEL``,
        the weight is 0.
      examples: the numbers of at most B rows, none longer than T.
      shape: B and T.
      pad_id: of the tokenizer.
    """
    if isinstance(labels, Tokens):
        placed = padded(labels, examples, shape, NO_LABEL)
    else:
        placed = np.full(shape[0], NO_LABEL, np.int32)
        placed[: len(examples)] = labels[examples]
    lengths = np.zeros(shape[0], np.int32)
    lengths[: len(examples)] = rows.tokens.lengths[examples]
    return LabeledTextBatch(
        input_tokens=padded(rows.tokens, examples, shape, pad_id),
        token_types=padded(rows.token_types, examples, shape, 0),
        lengths=lengths,
        labels=np.maximum(placed, 0),
        loss_weights=(placed != NO_LABEL).astype(np.float32),
    )


def padded(values: Tokens, examples: np.ndarray, shape: tuple[int, int], padding: int) -> np.ndarray:
    """int32 [B, T]: the values of some rows, each from the start of its own row on, and ``padding`` elsewhere."""
    result = np.full(shape, padding, np.int32)
    real = np.arange(shape[1]) < values.lengths[examples][:, None]
    result[: len(examples)][real] = values.gather(examples)
    return result
