"""The tokenised corpus: token ids of pairs or of documents on disk, memory-mapped, with the lengths as an index.

A store is a folder of flat arrays, ``source.tokens``, ``source.offsets`` and the same for the target, or for documents
``text.tokens`` and ``text.offsets``, with a manifest written last. Its name holds a fingerprint of the text and of the
tokenizers, so that it is made once and then reused.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from transformer.data.documents import DocumentSource
from transformer.data.encoding import Encoded, dtype_of, encode_all
from transformer.data.locks import locked
from transformer.data.pairs import ParallelSource
from transformer.data.processes import chunks_of, processes_for
from transformer.data.tokenizer import Tokenizer
from transformer.progress import progress
from transformer.types import UserError

FORMAT_VERSION = 1
SIDES = {2: ("source", "target"), 1: ("text",)}
"""The names of a store's sides, by their number."""

logger = logging.getLogger(__name__)


class Tokens:
    """One side of a store: the token ids of all its lines, or documents, each with EOS at its end.

    Attributes:
      offsets: int64, where each line starts among all tokens, and their number.
      lengths: int32, of each line.
    """

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray):
        self._tokens = tokens
        self.offsets = offsets
        self.lengths = np.diff(offsets).astype(np.int32)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._tokens[self.offsets[index] : self.offsets[index + 1]].astype(np.int32)

    def at(self, places: np.ndarray) -> np.ndarray:
        """The tokens at places among all tokens, in their shape, int32; at -1 stands the last one, an EOS."""
        return self._tokens[places].astype(np.int32)

    def first(self, number: int | None) -> "Tokens":
        """The first so many lines; None: all."""
        return self if number is None else Tokens(self._tokens, self.offsets[: number + 1])

    def count(self, token: int) -> int:
        """How often a token stands in the lines."""
        return int(np.count_nonzero(self._tokens[: self.offsets[-1]] == token))

    def pieces(self, most: int) -> tuple["Tokens", np.ndarray]:
        """The same tokens in lines of at most ``most``, each line cut from its start; and how many each came to."""
        counts = -(-self.lengths // most)
        firsts = np.cumsum(counts) - counts
        within = np.arange(counts.sum()) - np.repeat(firsts, counts)
        starts = np.repeat(self.offsets[:-1], counts) + within * most
        return Tokens(self._tokens, np.append(starts, self.offsets[-1])), counts

    def gather(self, examples: np.ndarray) -> np.ndarray:
        """The tokens of many lines, one line after the other, as one flat int32 array."""
        lengths = self.lengths[examples]
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        return self.at(np.repeat(self.offsets[examples] - (ends - lengths), lengths) + np.arange(total))


class Store:
    """Pairs of tokenised lines, or tokenised documents, EOS included, numbered from 0 in the order of the text.

    Attributes:
      fingerprint: names the text of the split and the tokenizers.
      sides: the source and the target lines, or the documents, as :class:`Tokens`.
    """

    def __init__(self, folder: pathlib.Path):
        """Open a store that is on disk.

        Raises:
          OSError, ValueError, KeyError: it is not there, or it is not whole.
        """
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.fingerprint: str = manifest["fingerprint"]
        names = SIDES[1] if SIDES[1][0] in manifest else SIDES[2]
        self.sides = tuple(_open_side(folder, name, manifest["pairs"], **manifest[name]) for name in names)

    @property
    def source_lengths(self) -> np.ndarray:
        """int32 [pairs], EOS included."""
        return self.sides[0].lengths

    @property
    def target_lengths(self) -> np.ndarray:
        """int32 [pairs], EOS included."""
        return self.sides[1].lengths

    def source(self, index: int) -> np.ndarray:
        """The source tokens of a pair, EOS last, int32."""
        return self.sides[0][index]

    def target(self, index: int) -> np.ndarray:
        """The target tokens of a pair, EOS last, int32."""
        return self.sides[1][index]

    def __len__(self) -> int:
        return len(self.source_lengths)


def open_store(
    source: ParallelSource | DocumentSource,
    split: str,
    tokenizers: tuple[Tokenizer, ...],
    folder: pathlib.Path,
    processes: int | None = None,
) -> Store:
    """The tokenised split: opened where ``folder`` has it, else made there first.

    Several processes may ask at once: one makes it, the others wait. A damaged store is made again.

    Args:
      source: where the pairs, or the documents, come from.
      split: the name of the split.
      tokenizers: of the source side and of the target side, or of the documents.
      folder: the cache, on local disk.
      processes: that tokenise, where there is work for several; None: one for each core. What comes out is the same.

    Raises:
      UserError: the split is empty, a tokenizer gives ids outside its vocabulary, or the cache cannot be written.
    """
    fingerprint = _fingerprint(source.fingerprint_of(split), tokenizers)
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', split)}-{fingerprint}"
    store = _open_whole(path)
    if store is not None:
        return store
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        with _writing(folder):
            stack.enter_context(locked(path.with_name(path.name + ".lock"), f"tokenising the {split} split"))
        store = _open_whole(path)  # the process that we waited for has made it
        if store is not None:
            return store
        if path.exists():
            logger.warning("the tokenised corpus in %s is damaged; it is made again", path)
        partial = path.with_name(path.name + ".partial")
        with _writing(folder):
            shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
            partial.mkdir()
        try:
            _build(source, split, tokenizers, fingerprint, partial, processes)
            with _writing(folder):
                shutil.rmtree(path, ignore_errors=True)
                partial.rename(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Store(path)


def _fingerprint(text: str, tokenizers: tuple[Tokenizer, ...]) -> str:
    parts = [FORMAT_VERSION, text, *([tokenizer.fingerprint, tokenizer.eos_id] for tokenizer in tokenizers)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _open_whole(path: pathlib.Path) -> Store | None:
    """The store, or None where there is none or its sizes are not what its manifest says."""
    try:
        return Store(path)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _open_side(folder: pathlib.Path, name: str, pairs: int, tokens: int, dtype: str) -> Tokens:
    arrays = []
    for part, size, kind in (("tokens", tokens, np.dtype(dtype)), ("offsets", pairs + 1, np.dtype(np.int64))):
        path = folder / f"{name}.{part}"
        if path.stat().st_size != size * kind.itemsize:
            raise ValueError(f"{path} has {path.stat().st_size} bytes, not {size * kind.itemsize}")
        arrays.append(np.asarray(np.memmap(path, kind, mode="r")))  # a plain view: memmap's own indexing is slow
    if arrays[1][-1] != tokens:
        raise ValueError(f"{folder / name}.offsets does not fit {name}.tokens")
    return Tokens(*arrays)


def _build(
    source: ParallelSource | DocumentSource,
    split: str,
    tokenizers: tuple[Tokenizer, ...],
    fingerprint: str,
    folder: pathlib.Path,
    processes: int | None,
) -> None:
    """Tokenise the split, a chunk at a time, into ``folder``."""
    examples: Iterator[tuple[str, ...]]
    if isinstance(source, ParallelSource):
        unit, examples = "pair", source.pairs(split)
    else:
        unit, examples = "document", zip(source.documents(split), strict=True)
    size = source.size(split)
    processes = processes_for(size, processes)
    examples = progress(examples, f"tokenising {split} ({processes} process(es))", total=size, unit=unit)
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(_SideWriter(folder, name, tokenizer, unit))
            for name, tokenizer in zip(SIDES[len(tokenizers)], tokenizers, strict=True)
        ]
        for encoded in encode_all(chunks_of(examples), tokenizers, processes):
            for writer, side in zip(writers, encoded, strict=True):
                writer.write(side)
        count = writers[0].lines
        if not count:
            raise UserError(f"the {split} split has no {unit}s")
        manifest: dict[str, Any] = {"fingerprint": fingerprint, "pairs": count}
        manifest |= {writer.name: {"tokens": writer.tokens, "dtype": writer.dtype.name} for writer in writers}
    with _writing(folder), open(folder / "manifest.json", "w", encoding="utf-8") as file:
        json.dump(manifest, file)
        _sync(file)


class _SideWriter:
    """Appends tokenised lines to the two files of one side; ``unit`` is what a line is called in messages."""

    def __init__(self, folder: pathlib.Path, name: str, tokenizer: Tokenizer, unit: str):
        self.name = name
        self._unit = unit
        self.dtype = dtype_of(tokenizer)
        self.lines = 0
        self.tokens = 0
        self._folder = folder
        self._tokenizer = tokenizer
        self._open_files = contextlib.ExitStack()

    def __enter__(self) -> "_SideWriter":
        with _writing(self._folder):
            self._files = [
                self._open_files.enter_context(open(self._folder / f"{self.name}.{part}", "wb"))  # noqa: SIM115
                for part in ("tokens", "offsets")
            ]
            self._files[1].write(np.zeros(1, np.int64).tobytes())
        return self

    def __exit__(self, *exception: object) -> None:
        with _writing(self._folder), self._open_files:
            if exception[0] is None:
                for file in self._files:
                    _sync(file)

    def write(self, encoded: Encoded) -> None:
        if encoded.outside is not None:
            line, token = encoded.outside
            raise UserError(
                f"the tokenizer of the {self.name} side gives id {token} in {self._unit} {self.lines + line + 1}, but "
                f"its vocabulary has {self._tokenizer.vocab_size} pieces; give data.tokenizer a model that is whole"
            )
        with _writing(self._folder):
            self._files[0].write(encoded.tokens.tobytes())
            self._files[1].write((self.tokens + encoded.ends).tobytes())
        self.lines += len(encoded.ends)
        self.tokens += len(encoded.tokens)


def _sync(file: IO[Any]) -> None:
    """Bring the file to the disk, so that the rename that follows never makes an empty file look whole."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def _writing(folder: pathlib.Path) -> Iterator[None]:
    """Say which key to change when the cache cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write the tokenised corpus to {folder}: {os.strerror(error.errno or errno.EIO)}; "
            "set data.cache_directory to a folder on a disk with room"
        ) from error
