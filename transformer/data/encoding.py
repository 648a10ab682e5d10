"""Lines to token ids as arrays, on several processes: the same arrays whatever their number."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

import numpy as np

from transformer.data.processes import map_in_order
from transformer.data.tokenizer import SavedTokenizer, Tokenizer

Chunk = Sequence[tuple[str, ...]]


class Encoded(NamedTuple):
    """Lines of one side.

    tokens   uint16 or uint32, the ids of all lines, each with EOS at its end
    ends     int64 [lines], where each line ends among them
    outside  the first line, and the id in it, that the vocabulary does not have; None if it has all
    """

    tokens: np.ndarray
    ends: np.ndarray
    outside: Optional[tuple[int, int]]


def dtype_of(tokenizer: Tokenizer) -> np.dtype:
    """The smallest type that holds all ids."""
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)


def encode(tokenizer: Tokenizer, lines: Sequence[str]) -> Encoded:
    """The ids of lines, one line after the other."""
    encoded = tokenizer.encode_batch(list(lines))
    ends = np.cumsum([len(ids) + 1 for ids in encoded], dtype=np.int64)
    tokens = np.full(ends[-1], tokenizer.eos_id, np.int64)
    is_text = np.ones(len(tokens), bool)
    is_text[ends - 1] = False
    tokens[is_text] = np.fromiter(itertools.chain.from_iterable(encoded), np.int64)
    outside = np.flatnonzero((tokens < 0) | (tokens >= tokenizer.vocab_size))
    first = None
    if len(outside):
        first = int(np.searchsorted(ends, outside[0], side="right")), int(tokens[outside[0]])
    return Encoded(tokens.astype(dtype_of(tokenizer)), ends, first)


def encode_all(
    chunks: Iterable[Chunk], tokenizers: tuple[Tokenizer, ...], processes: int
) -> Iterator[tuple[Encoded, ...]]:
    """Each chunk of examples, in order, as the ids of its sides.

    Args:
      chunks: examples with a line, or document, for each side; they are read in this process, a few ahead.
      tokenizers: of the sides.
      processes: 1: this one alone.

    Raises:
      UserError: a process ended early.
    """
    if processes == 1:
        return (_encode_sides(tokenizers, chunk) for chunk in chunks)
    # The tokenizers travel once, to each process.
    return map_in_order(_encode_in_process, chunks, processes, "tokenise", _set_tokenizers, tokenizers)


def _encode_sides(tokenizers: tuple[Tokenizer, ...], chunk: Chunk) -> tuple[Encoded, ...]:
    sides = zip(*chunk, strict=True)
    return tuple(encode(tokenizer, lines) for tokenizer, lines in zip(tokenizers, sides, strict=True))


# In the processes

_tokenizers: tuple[Tokenizer, ...] = ()


def _set_tokenizers(tokenizers: tuple[Tokenizer, ...]) -> None:
    """Keep them, to be used by one thread."""
    global _tokenizers
    _tokenizers = tokenizers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for tokenizer in tokenizers:
        if isinstance(tokenizer, SavedTokenizer):
            tokenizer.threads = 1


def _encode_in_process(chunk: Chunk) -> tuple[Encoded, ...]:
    return _encode_sides(_tokenizers, chunk)
