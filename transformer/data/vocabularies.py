"""The vocabularies of a run: learnt from its training split, loaded from files, and kept in its workdir."""

import base64
import io
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece

from transformer.config import DataConfig
from transformer.data import pretrained_tokenizers, segmented_text
from transformer.data.cache import cache_folder, writing_cache
from transformer.data.documents import DocumentSource
from transformer.data.pairs import ParallelSource
from transformer.data.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    ByteTokenizer,
    CharacterTokenizer,
    ExtraIdsTokenizer,
    SavedTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    digest,
    read_content,
)
from transformer.progress import progress
from transformer.types import UserError

SAMPLE_SEED = 0  # of data.vocabulary_sample: runs with other seeds share the vocabulary, and the tokenised corpus
MOST_LINE_BYTES = 100_000  # longer lines do not take part in the training of the vocabulary
# Unigram training adds floats in an order that depends on the number of threads: a fixed number, not the machine's.
TRAINING_THREADS = 8
JOINT_NAME, SOURCE_NAME, TARGET_NAME = "tokenizer.model", "tokenizer.source.model", "tokenizer.target.model"
Lines = tuple[str, ...]

logger = logging.getLogger(__name__)


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


def load_tokenizer(path: str | os.PathLike[str]) -> SavedTokenizer:
    """The tokenizer in a file: one that was saved here, a SentencePiece model, a ``tokenizer.json`` or a ``vocab.txt``.

    For the last two, files beside it say which special pieces are which, as in a Hugging Face model folder. A list of
    pieces, some of which end in ``@@``, is for text that is split into them already.

    Raises:
      UserError: if the file cannot be read or holds no usable tokenizer.
    """
    return _from_content(read_content(path), path)


def _from_content(content: bytes, path: str | os.PathLike[str]) -> SavedTokenizer:

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
    path = cache_folder(config) / "tokenizers" / f"{digest(settings.encode())}.model"
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
