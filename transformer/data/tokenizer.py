"""From text to ids and back: SentencePiece, characters or bytes behind one small interface, with the special ids in
one place. Vocabularies that other projects made are read by :mod:`transformer.data.pretrained_tokenizers`."""

import base64
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Optional, Protocol, runtime_checkable

import numpy as np
import sentencepiece

from transformer.data.processes import cores
from transformer.paths import write_bytes
from transformer.types import UserError

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
"""The special ids of the vocabularies that are made here; given ones state their own."""
NUM_SPECIAL = 4


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
        return cls(read_content(path), str(path))

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


def digest(content: bytes) -> str:
    """What tells contents apart."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def read_content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file of a tokenizer.

    Raises:
      UserError: if it cannot be read.
    """
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the tokenizer {path}: {error.strerror}") from error
