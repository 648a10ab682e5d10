"""From text to ids and back: SentencePiece, characters or bytes behind one small interface, with the special ids in
one place. Vocabularies that other projects made are read by :mod:`transformer.data.pretrained_tokenizers`."""

import base64
import hashlib
import io
import itertools
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional, Protocol, runtime_checkable

import numpy as np
import sentencepiece

from transformer.config import DataConfig
from transformer.data.documents import DocumentSource
from transformer.data.processes import cores
from transformer.data.sources import ParallelSource, cache_folder, writing_cache
from transformer.paths import write_bytes
from transformer.progress import progress
from transformer.types import UserError

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
"""The special ids of the vocabularies that are made here; given ones state their own."""
NUM_SPECIAL = 4

SAMPLE_SEED = 0  # of data.vocabulary_sample: runs with other seeds share the vocabulary, and the tokenised corpus
MOST_LINE_BYTES = 100_000  # longer lines do not take part in the training of the vocabulary
# Unigram training adds floats in an order that depends on the number of threads: a fixed number, not the machine's.
TRAINING_THREADS = 8
JOINT_NAME, SOURCE_NAME, TARGET_NAME = "tokenizer.model", "tokenizer.source.model", "tokenizer.target.model"

Lines = tuple[str, ...]

logger = logging.getLogger(__name__)


@runtime_checkable
class Tokenizer(Protocol):
    """Turns a line, or a document of many, into ids in [0, vocab_size) and back.

    The special ids are never the result of encoding, whatever the text looks like, except ``unk_id`` in vocabularies
    without bytes.

    pad_id        fills rows up; never to be produced, as ``bos_id``, so both are others than ``eos_id``
    bos_id        what a decoder starts from, and an encoder-only model's input
    eos_id        ends every text
    unk_id        what stands for text that the vocabulary has no pieces for; -1 if it has pieces for all
    mask_id       stands for a token that is to be guessed, if there is such a piece
    sentinel_ids  stand for spans that are to be guessed, in the order of use
    start_id      what a document begins after in language modelling; None where models were trained with nothing there
    fingerprint   a digest, in hex, of all that decides the ids
    """

    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    unk_id: int
    mask_id: Optional[int]
    sentinel_ids: tuple[int, ...]
    start_id: Optional[int]
    fingerprint: str

    def encode(self, line: str) -> list[int]:
        """The ids of a line, without BOS and EOS."""
        ...

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, on all processor cores."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; padding, BOS and EOS are left out wherever they stand, and nothing is cut."""
        ...

    def save(self, folder: str | os.PathLike[str], name: str) -> None:
        """Write the file ``folder/name``, from which the tokenizer can be loaded again."""
        ...


class SavedTokenizer(Tokenizer):
    """What all tokenizers here have in common: ``content``, the bytes of their file, decides everything."""

    mask_id: Optional[int] = None
    sentinel_ids: tuple[int, ...] = ()
    threads: Optional[int] = None  # of `encode_batch`; None: one for each core

    def __init__(self, content: bytes):
        self.content = content
        self.fingerprint = digest(content)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.encode(line) for line in lines]

    def save(self, folder: str | os.PathLike[str], name: str) -> None:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, self.content)


class SentencePieceTokenizer(SavedTokenizer):
    """A SentencePiece model.

    A model without a padding piece gets one more id at the end. Without a BOS piece, decoders start from padding.
    The unknown id, in a model without bytes, decodes to SentencePiece's " ⁇ ": a loss is seen, not hidden.

    Args:
      model: the bytes of the model file.
      name: what the model is called in messages.

    Raises:
      UserError: if the bytes are no SentencePiece model, or it has no EOS piece.

    Reference: Kudo and Richardson 2018, SentencePiece.
    """

    def __init__(self, model: bytes, name: str = "the model"):
        super().__init__(model)
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise UserError(f"{name} is not a whole SentencePiece model") from error
        num_pieces = self._processor.get_piece_size()
        pad, bos, eos = self._processor.pad_id(), self._processor.bos_id(), self._processor.eos_id()
        if eos < 0:
            raise UserError(
                f"{name} has no end-of-sentence piece (eos_id=-1), without which no translation ends; "
                "train it with --eos_id, or leave data.tokenizer unset to train one here"
            )
        self.pad_id = pad if pad >= 0 else num_pieces
        self.bos_id = bos if bos >= 0 else self.pad_id
        self.eos_id = eos
        self.unk_id = self._processor.unk_id()
        self.start_id = eos
        self.vocab_size = num_pieces + (pad < 0)
        self._silent = {self.pad_id, self.bos_id, self.eos_id}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SentencePieceTokenizer":
        """The tokenizer in a model file.

        Raises:
          UserError: if the file cannot be read or is no usable model.
        """
        return cls(_read(path), str(path))

    @property
    def pieces(self) -> list[str]:
        """The piece of each id; U+2581 stands for a space, and added padding for itself."""
        pieces = [self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())]
        return pieces + ["<pad>"] * (self.vocab_size - len(pieces))

    def encode(self, line: str) -> list[int]:
        return self._processor.encode(line)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        return self._processor.encode(list(lines), num_threads=self.threads or cores())

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode([int(i) for i in ids if i not in self._silent])


class CharacterTokenizer(SavedTokenizer):
    """Every character of a set is a piece, in the order of their code points; any other becomes the unknown piece.

    Text of known characters comes back exactly. The unknown id decodes to U+FFFD: a loss is seen, not hidden.
    """

    pad_id, bos_id, eos_id, unk_id, start_id = PAD_ID, BOS_ID, EOS_ID, UNK_ID, EOS_ID

    def __init__(self, characters: Iterable[str]):
        known = "".join(sorted(set(characters)))
        super().__init__(json.dumps({"kind": "character", "characters": known}).encode())
        self.vocab_size = NUM_SPECIAL + len(known)
        self._ids = np.full(sys.maxunicode + 1, UNK_ID, np.int32)  # of each code point
        self._ids[_code_points(known)] = np.arange(NUM_SPECIAL, self.vocab_size)
        self._pieces = ["", "", "", "\ufffd", *known]

    def encode(self, line: str) -> list[int]:
        ids: list[int] = self._ids[_code_points(line)].tolist()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces[i] for i in ids)


class ByteTokenizer(SavedTokenizer):
    """Every byte of the text's UTF-8 is a piece: 256 of them after the special ones, the same for every text.

    Ids that are no UTF-8 decode to U+FFFD where they are not.
    """

    pad_id, bos_id, eos_id, unk_id, start_id = PAD_ID, BOS_ID, EOS_ID, UNK_ID, EOS_ID
    vocab_size = NUM_SPECIAL + 256

    def __init__(self) -> None:
        super().__init__(json.dumps({"kind": "byte"}).encode())

    def encode(self, line: str) -> list[int]:
        return [NUM_SPECIAL + byte for byte in line.encode(errors="surrogatepass")]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i - NUM_SPECIAL for i in ids if i >= NUM_SPECIAL).decode(errors="replace")


class ExtraIdsTokenizer(SavedTokenizer):
    """Another tokenizer with some more ids at its end, which no text has.

    The first of them is the mask, unless the other has one; all are sentinels, the last is used first, as in T5. They
    decode to ``<extra_id_K>``, the K-th sentinel, counted from 0.

    Args:
      base: the tokenizer.
      number: of ids, 1 and more.

    Reference: Raffel et al., T5 (2020), section 3.1.4, and its published code for the order.
    """

    def __init__(self, base: SavedTokenizer, number: int):
        saved = {"kind": "extra_ids", "number": number, "base": base64.b64encode(base.content).decode()}
        super().__init__(json.dumps(saved).encode())
        self._base = base
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = base.pad_id, base.bos_id, base.eos_id, base.unk_id
        self.start_id = base.start_id
        self.vocab_size = base.vocab_size + number
        self.mask_id = base.vocab_size if base.mask_id is None else base.mask_id
        extra_ids = range(base.vocab_size, self.vocab_size)
        self.sentinel_ids = (*base.sentinel_ids, *reversed(extra_ids))
        self._names = {i: f"<extra_id_{self.sentinel_ids.index(i)}>" for i in extra_ids}
        self._before = base.encode("a")

    def encode(self, line: str) -> list[int]:
        return self._base.encode(line)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        return self._base.encode_batch(lines)

    def decode(self, ids: Sequence[int]) -> str:
        text = ""
        for is_extra, group in itertools.groupby(ids, lambda i: i in self._names):
            if is_extra:
                text += "".join(self._names[i] for i in group)
            elif not text:
                text += self._base.decode(list(group))
            else:  # a piece that begins a word has its space only if something stands before it
                text += self._base.decode([*self._before, *group])[len(self._base.decode(self._before)) :]
        return text


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), np.uint32)


def load_tokenizer(path: str | os.PathLike[str]) -> SavedTokenizer:
    """The tokenizer in a file: one that was saved here, a SentencePiece model, a ``tokenizer.json`` or a ``vocab.txt``.

    For the last two, files beside it say which special pieces are which, as in a Hugging Face model folder. A list of
    pieces, some of which end in ``@@``, is for text that is split into them already.

    Raises:
      UserError: if the file cannot be read or holds no usable tokenizer.
    """
    return _from_content(_read(path), path)


def _from_content(content: bytes, path: str | os.PathLike[str]) -> SavedTokenizer:
    from transformer.data import pretrained_tokenizers, segmented_text  # which are built on this module

    if not content.startswith(b"{"):  # as no SentencePiece model does
        if b"[UNK]" in content.replace(b"\r\n", b"\n").split(b"\n"):
            return pretrained_tokenizers.load_word_pieces(content, path)
        return segmented_text.load_piece_list(content) or SentencePieceTokenizer(content, str(path))
    try:
        saved = json.loads(content)
        if "kind" not in saved and "model" in saved:
            return pretrained_tokenizers.load_tokenizer_json(content, path)
        kind = saved.pop("kind")
        if kind == "byte":
            return ByteTokenizer()
        if kind == "character":
            return CharacterTokenizer(saved["characters"])
        if kind == "segmented_text":
            return segmented_text.SegmentedTextTokenizer(saved["pieces"])
        if kind == "extra_ids":
            return ExtraIdsTokenizer(_from_content(base64.b64decode(saved["base"]), path), saved["number"])
        return pretrained_tokenizers.KINDS[kind].from_saved(saved, str(path))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a whole tokenizer") from error


def train_sentencepiece(lines: Iterable[str], model_type: str, vocab_size: int) -> SentencePieceTokenizer:
    """A vocabulary learnt from lines: a pure function of its arguments.

    Any line can be had back exactly from its ids, with all its white space, its rare characters (as bytes) and text
    that looks like a special piece. The one exception is U+2581, SentencePiece's own sign for a space, which comes
    back as a space. No piece crosses a space, and every digit is a piece of its own.

    Args:
      lines: the text; blank lines and lines of more than 100,000 bytes are left out, the latter with a warning.
      model_type: "bpe" or "unigram".
      vocab_size: pieces, among them the 4 special ones and 256 bytes.

    Raises:
      UserError: for no text, or a vocabulary larger than the text allows or too small for its characters.

    Reference: Sennrich et al. 2016, Neural machine translation of rare words with subword units (bpe); Kudo 2018,
      Subword regularization (unigram).
    """
    num_long = num_lines = 0

    def usable() -> Iterator[str]:
        nonlocal num_long, num_lines
        for line in lines:
            if len(line) * 4 > MOST_LINE_BYTES and len(line.encode()) > MOST_LINE_BYTES:
                num_long += 1
            elif line and not line.isspace():
                num_lines += 1
                # The trainer skips lines with its own sign for the unknown, which then is learnt as bytes.
                yield line.replace("\u2585", " ")

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=usable(),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            pad_id=PAD_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            byte_fallback=True,
            split_digits=True,
            max_sentence_length=MOST_LINE_BYTES,
            num_threads=TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _training_error(error, vocab_size, num_lines) from error
    if num_long:
        logger.warning(
            "%d lines longer than %d bytes did not take part in the training of the vocabulary",
            num_long,
            MOST_LINE_BYTES,
        )
    return SentencePieceTokenizer(model.getvalue())


def make_tokenizers(config: DataConfig, source: ParallelSource) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of the source and the target language: the same object if the vocabulary is joint.

    They are loaded from ``data.tokenizer`` (for separate vocabularies "SOURCE_PATH,TARGET_PATH", or one for both) or
    learnt from the training split, each pair once whatever its weight, and kept in the cache.

    Raises:
      UserError: as :func:`train_sentencepiece` and :meth:`SentencePieceTokenizer.load`.
    """
    if config.tokenizer is not None:
        paths = config.tokenizer.split(",")
        if len(paths) > 2 - config.joint_vocabulary:
            raise UserError(
                f"data.tokenizer={config.tokenizer} has {len(paths)} paths; give one for a joint vocabulary, or two "
                "(source,target) with data.joint_vocabulary=False"
            )
        tokenizers = [_with_extra_ids(config, load_tokenizer(path.strip())) for path in paths]
        return tokenizers[0], tokenizers[-1]
    if config.joint_vocabulary:
        joint = _of_pairs(config, source, (0, 1))
        return joint, joint
    return _of_pairs(config, source, (0,)), _of_pairs(config, source, (1,))


def make_tokenizer(config: DataConfig, source: DocumentSource) -> Tokenizer:
    """The tokenizer of documents: loaded from ``data.tokenizer``, or learnt from the training split as for pairs.

    Raises:
      UserError: as :func:`train_sentencepiece` and :func:`load_tokenizer`.
    """
    if config.tokenizer is not None:
        return _with_extra_ids(config, load_tokenizer(config.tokenizer))

    text = _Text(
        name=lambda: f"{source.fingerprint_of('train')} lines",
        size=lambda: sum(document.count("\n") + 1 for document in source.documents("train")),
        groups=lambda: ((line,) for document in source.documents("train") for line in document.split("\n")),
        unit="line",
    )
    return _with_extra_ids(config, _learn_or_reuse(config, text))


def save_tokenizers(folder: str | os.PathLike[str], tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    """Write ``tokenizer.model``, or ``tokenizer.source.model`` and ``tokenizer.target.model`` if there are two."""
    source, target = tokenizers
    if source is target:
        source.save(folder, JOINT_NAME)
    else:
        source.save(folder, SOURCE_NAME)
        target.save(folder, TARGET_NAME)


def load_tokenizers(folder: str | os.PathLike[str]) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers that :func:`save_tokenizers` wrote.

    Raises:
      UserError: if they are not there or cannot be used.
    """
    if (Path(folder) / JOINT_NAME).exists():
        joint = load_tokenizer(Path(folder) / JOINT_NAME)
        return joint, joint
    if not (Path(folder) / SOURCE_NAME).exists():
        raise UserError(f"{folder} holds no {JOINT_NAME}, and no {SOURCE_NAME} and {TARGET_NAME}: is it a workdir?")
    return load_tokenizer(Path(folder) / SOURCE_NAME), load_tokenizer(Path(folder) / TARGET_NAME)


class _Text(NamedTuple):
    """What a vocabulary is learnt from; nothing is read before it is needed.

    name: what tells this text from any other
    size: how many groups there are
    groups: lines that are taken or left out together
    unit: what a group is
    """

    name: Callable[[], str]
    size: Callable[[], int]
    groups: Callable[[], Iterator[Lines]]
    unit: str


def _of_pairs(config: DataConfig, source: ParallelSource, sides: tuple[int, ...]) -> Tokenizer:
    """The vocabulary of some sides of the training split."""
    text = _Text(
        name=lambda: f"{source.fingerprint_of('train')} {sides}",
        size=lambda: source.size("train"),
        groups=lambda: (tuple(pair[side] for side in sides) for pair in source.pairs("train")),
        unit="pair" if len(sides) == 2 else "line",
    )
    return _with_extra_ids(config, _learn_or_reuse(config, text))


def _with_extra_ids(config: DataConfig, tokenizer: SavedTokenizer) -> SavedTokenizer:
    return ExtraIdsTokenizer(tokenizer, config.extra_ids) if config.extra_ids else tokenizer


def _learn_or_reuse(config: DataConfig, text: _Text) -> SavedTokenizer:
    """A vocabulary of the kind ``data.tokenizer_model``, where learning takes long from the cache if it is there."""
    if config.tokenizer_model == "byte":
        return ByteTokenizer()
    if config.tokenizer_model == "character":
        characters = {"\n"}
        for group in progress(text.groups(), "reading text for the vocabulary", text.size(), text.unit):
            characters.update(*group)
        return CharacterTokenizer(characters)
    settings = (
        f"{text.name()} {config.tokenizer_model} {config.vocab_size} {config.vocabulary_sample} {SAMPLE_SEED} "
        f"{MOST_LINE_BYTES} sentencepiece {sentencepiece.__version__}"
    )
    name = hashlib.blake2b(settings.encode(), digest_size=16).hexdigest() + ".model"
    path = cache_folder(config) / "tokenizers" / name
    if path.exists():
        logger.info("vocabulary from %s", path)
        return SentencePieceTokenizer.load(path)
    logger.info("learning a vocabulary of %d pieces (%s)", config.vocab_size, config.tokenizer_model)
    size = text.size()
    groups = progress(text.groups(), "reading text for the vocabulary", size, text.unit)
    groups = _sample(groups, size, config.vocabulary_sample)
    lines = (line for group in groups for line in group)
    tokenizer = train_sentencepiece(lines, config.tokenizer_model, config.vocab_size)
    with writing_cache(path):
        tokenizer.save(path.parent, path.name)
    return tokenizer


def _sample(groups: Iterator[Lines], size: int, most: int) -> Iterator[Lines]:
    """``most`` of ``size`` groups, drawn without replacement, in their order; or all if they are not more."""
    if size <= most:
        return groups
    logger.info("the vocabulary is learnt from %s of %s lines or pairs", f"{most:,}", f"{size:,}")
    chosen = np.zeros(size, bool)
    chosen[np.random.default_rng(SAMPLE_SEED).choice(size, most, replace=False, shuffle=False)] = True
    return itertools.compress(groups, chosen.tobytes())


def _training_error(error: RuntimeError, vocab_size: int, num_lines: int) -> UserError:
    """What SentencePiece's message means for the user."""
    if not num_lines:
        return UserError("there is no text to learn a vocabulary from: all lines are blank or too long")
    message = str(error)
    if most := re.search(r"too high.* <= (\d+)", message):
        return UserError(
            f"data.vocab_size={vocab_size} is more than the text allows; use at most {most[1]}, or give more text"
        )
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"data.vocab_size={vocab_size} has no room for the characters of the text, 256 bytes and 4 special pieces; "
            f"use at least {least[1]}"
        )
    return UserError(f"data.vocab_size={vocab_size}: SentencePiece could not learn a vocabulary: {message}")


def digest(content: bytes) -> str:
    """What tells contents apart."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the tokenizer {path}: {error.strerror}") from error
