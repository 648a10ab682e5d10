"""Vocabularies that other projects made, as they lie in Hugging Face model folders.

They are read through the packages ``tokenizers`` and ``sentencepiece``, and behave as :class:`Tokenizer` says: what
looks like a special piece in a text is text, and lines are neither cut nor padded, whatever their files ask for.
"""

import base64
import functools
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import sentencepiece
import tokenizers

from transformer.data.processes import cores
from transformer.data.tokenizer import ExtraIdsTokenizer, SavedTokenizer, SentencePieceTokenizer, digest, read_content
from transformer.types import UserError

NEVER_IN_UTF8 = (0xFF, 0xFE, 0xFD, 0xFC, 0xFB, 0xFA, 0xF9, 0xF8, 0xF7, 0xF6, 0xF5, 0xC1, 0xC0)
"""Bytes that no text has."""

USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "bos": ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>"),
    "eos": ("</s>", "[SEP]", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>"),
    "mask": ("[MASK]", "<mask>"),
}
"""What special pieces are called where no file says which they are."""

T5_EXTRA_IDS = 100
SENTINEL = re.compile(r"<extra_id_(\d+)>")
LANGUAGE_CODE = re.compile(r">>[^<>\s]+<<")
EOS, UNK, PAD = "</s>", "<unk>", "<pad>"  # of Marian

logger = logging.getLogger(__name__)


class HuggingFaceTokenizer(SavedTokenizer):
    """A tokenizer of the ``tokenizers`` package: any ``tokenizer.json``, be it BPE, WordPiece or Unigram.

    Where no padding piece is given, or it has another use already (EOS, often), padding is a byte that is no UTF-8, if
    the vocabulary has bytes: the model has a vector for it, and loses nothing. Else it is the last special piece
    without another use; else one more id at the end, for which the model must be given a vector. Decoders start from
    padding where there is no BOS, or BOS is EOS.

    Decoding leaves out all special pieces but the mask, the sentinels and the unknown piece.

    Args:
      tokenizer: the tokenizer, or the text of its ``tokenizer.json``.
      eos_id: the piece that ends a text; BERT's [SEP].
      bos_id: the piece that a decoder starts from, or that stands before an encoder's input; BERT's [CLS].
      pad_id: the padding piece.
      mask_id: the mask; None: the last sentinel, if there are ``<extra_id_N>``.
      start_id: what a document begins after, if the model was trained so.
      name: what the tokenizer is called in messages.

    Raises:
      UserError: if the text is no tokenizer.json, or it has no such pieces.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer | str,
        *,
        eos_id: int,
        bos_id: Optional[int] = None,
        pad_id: Optional[int] = None,
        mask_id: Optional[int] = None,
        start_id: Optional[int] = None,
        name: str = "the tokenizer",
    ):
        given = tokenizer if isinstance(tokenizer, str) else tokenizer.to_str()
        roles = {"eos_id": eos_id, "bos_id": bos_id, "pad_id": pad_id, "mask_id": mask_id, "start_id": start_id}
        super().__init__(json.dumps({"kind": "huggingface", "tokenizer": given, **roles}).encode())
        self._tokenizer = _parse(given, name)
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(ids.values()) + 1
        for role, i in roles.items():
            if i is not None and not 0 <= i < self.vocab_size:
                raise UserError(f"{name} has {self.vocab_size} pieces, so {role}={i} is none of them")

        sentinels = {int(found[1]): i for piece, i in ids.items() if (found := SENTINEL.fullmatch(piece))}
        self.sentinel_ids = tuple(sentinels[number] for number in sorted(sentinels))
        self.mask_id = self.sentinel_ids[-1] if mask_id is None and self.sentinel_ids else mask_id
        self.eos_id, self.start_id = eos_id, start_id
        self.unk_id = _unknown_id(json.loads(given)["model"], ids)
        if self.unk_id == eos_id:  # as GPT-2 has it; with all bytes nothing is unknown
            self.unk_id = -1

        special = {i for i, piece in self._tokenizer.get_added_tokens_decoder().items() if piece.special}
        special |= {i for i in (*roles.values(), *self.sentinel_ids) if i is not None}
        if pad_id is None or pad_id in (eos_id, self.unk_id, self.mask_id):
            used = {eos_id, bos_id, start_id, self.mask_id, self.unk_id, *self.sentinel_ids}
            pad_id = self._spare_id(special - used)
        self.pad_id = pad_id
        self.vocab_size = max(self.vocab_size, pad_id + 1)
        self.bos_id = pad_id if bos_id is None or bos_id == eos_id else bos_id

        self._special = frozenset(special - {self.unk_id})
        self._silent = self._special - {self.mask_id, *self.sentinel_ids} | {pad_id}
        # The package then leaves them alone in texts; it would look for pieces that its file does not call special.
        pieces = (self._tokenizer.id_to_token(i) for i in self._special)
        self._tokenizer.add_special_tokens([piece for piece in pieces if piece is not None])
        self._tokenizer.encode_special_tokens = True

    @classmethod
    def from_saved(cls, saved: dict[str, Any], name: str) -> "HuggingFaceTokenizer":
        return cls(saved.pop("tokenizer"), name=name, **saved)

    def _spare_id(self, unused: set[int]) -> int:
        """A piece to pad with that neither texts nor models need."""
        for byte in NEVER_IN_UTF8:
            for piece in (f"<0x{byte:02X}>", chr(byte)):  # SentencePiece's name of a byte, and GPT-2's of these
                found = self._tokenizer.token_to_id(piece)
                if found is not None and self._tokenizer.decode([found]) == "\ufffd":
                    return found
        return max(unused, default=self.vocab_size)

    def encode(self, line: str) -> list[int]:
        return self._as_text(self._tokenizer.encode(line, add_special_tokens=False).ids)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)
        return [self._as_text(encoding.ids) for encoding in encodings]

    def _as_text(self, ids: list[int]) -> list[int]:
        """The ids with special pieces, which some models find in texts by themselves, cut up."""
        if self._special.isdisjoint(ids):
            return ids
        return [part for i in ids for part in (self._parts(i) if i in self._special else (i,))]

    def _parts(self, special_id: int) -> list[int]:
        piece = self._tokenizer.id_to_token(special_id) or ""
        return self._spell(piece[:1]) + self._spell(piece[1:])

    def _spell(self, text: str) -> list[int]:
        """The pieces of a text that is part of a special piece, and as such needs no normalisation."""
        if not text:
            return []
        ids = [token.id for token in self._tokenizer.model.tokenize(text)]
        if self._special.isdisjoint(ids):
            return ids
        if len(text) == 1:
            return [self.unk_id] if self.unk_id >= 0 else []
        return self._spell(text[:1]) + self._spell(text[1:])

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids if i not in self._silent], skip_special_tokens=False)


class MarianTokenizer(SavedTokenizer):
    """One side of a Marian model: a SentencePiece model for each, and one vocabulary in which pieces have their ids.

    Decoders start from padding. A line may begin with a language code that the vocabulary has, as ``>>fra<<``. The two
    sides have one fingerprint if they have one vocabulary. No punctuation is normalised, which ``transformers`` does
    where ``sacremoses`` is installed.

    Args:
      models: the bytes of ``source.spm`` and ``target.spm``.
      vocabulary: the id of each piece.
      side: 0 for the source, 1 for the target.
      name: what the tokenizer is called in messages.

    Raises:
      UserError: if a model cannot be read, or the vocabulary lacks one of </s>, <unk> and <pad>.

    Reference: Junczys-Dowmunt et al., Marian (2018); Tiedemann & Thottingal, OPUS-MT (2020).
    """

    def __init__(self, models: tuple[bytes, bytes], vocabulary: Mapping[str, int], side: int, name: str = "the models"):
        pair = {
            "kind": "marian",
            "models": [base64.b64encode(model).decode() for model in models],
            "vocabulary": dict(vocabulary),
        }
        super().__init__(json.dumps({**pair, "side": side}).encode())
        self.fingerprint = digest(json.dumps(pair).encode())
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(models[side])
        except RuntimeError as error:
            file = ("source.spm", "target.spm")[side]
            raise UserError(f"{name}: {file} is not a whole SentencePiece model") from error
        if missing := {EOS, UNK, PAD} - vocabulary.keys():
            raise UserError(f"{name}: the vocabulary has no {' and no '.join(sorted(missing))}")
        self.eos_id, self.unk_id, self.pad_id = vocabulary[EOS], vocabulary[UNK], vocabulary[PAD]
        self.bos_id, self.start_id = self.pad_id, self.eos_id
        self.vocab_size = max(vocabulary.values()) + 1
        self._pieces = {i: piece for piece, i in vocabulary.items()}
        self._ids = {piece: i for piece, i in vocabulary.items() if piece not in (EOS, UNK, PAD)}

    @classmethod
    def from_saved(cls, saved: dict[str, Any], name: str) -> "MarianTokenizer":
        source, target = (base64.b64decode(model) for model in saved["models"])
        return cls((source, target), saved["vocabulary"], saved["side"], name)

    def encode(self, line: str) -> list[int]:
        return self.encode_batch([line])[0]

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        codes = [self._language_code(line) for line in lines]
        texts = [line.removeprefix(code) for line, code in zip(lines, codes, strict=True)]
        pieces = self._processor.encode(texts, out_type=str, num_threads=self.threads or cores())
        starts = [[self._ids[code]] if code else [] for code in codes]
        return [
            start + [self._ids.get(piece, self.unk_id) for piece in found]
            for start, found in zip(starts, pieces, strict=True)
        ]

    def _language_code(self, line: str) -> str:
        found = LANGUAGE_CODE.match(line)
        return found[0] if found and found[0] in self._ids else ""

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode([self._pieces[i] for i in ids if i not in (self.pad_id, self.eos_id)])


KINDS: Mapping[str, Any] = {"huggingface": HuggingFaceTokenizer, "marian": MarianTokenizer}
"""What a saved file calls them."""


def load_pretrained(folder: str | os.PathLike[str]) -> tuple[SavedTokenizer, SavedTokenizer]:
    """The tokenizers of a Hugging Face model folder, of the source and the target side: mostly one object.

    Read are, whichever is there first: Marian's ``source.spm``, ``target.spm`` and ``vocab.json``; ``tokenizer.json``;
    T5's ``spiece.model``; BERT's ``vocab.txt``. Special pieces are those that ``tokenizer_config.json``,
    ``special_tokens_map.json``, ``generation_config.json`` and ``config.json`` name, in this order; of several
    ``eos_token_id`` one, and a warning names the others. A model with a ``decoder_start_token_id`` has it as BOS.

    Raises:
      UserError: if the folder holds none of them, or one that cannot be used.
    """
    path = Path(folder).expanduser()
    if (path / "source.spm").exists():
        return _load_marian(path)
    loaders = {"tokenizer.json": load_tokenizer_json, "spiece.model": _load_t5, "vocab.txt": load_word_pieces}
    for name, load in loaders.items():
        if (path / name).exists():
            tokenizer = load(read_content(path / name), path / name)
            return tokenizer, tokenizer
    raise UserError(
        f"{folder} holds no tokenizer: none of {', '.join(loaders)}, or source.spm with target.spm and vocab.json"
    )


def load_tokenizer_json(content: bytes, path: str | os.PathLike[str]) -> HuggingFaceTokenizer:
    """The tokenizer in a ``tokenizer.json``, with the special pieces that the files beside it name."""
    text, names = content.decode(), _Names(path)
    ids = names.ids(_parse(text, str(path)))
    return HuggingFaceTokenizer(text, name=str(path), **ids)


def load_word_pieces(content: bytes, path: str | os.PathLike[str]) -> HuggingFaceTokenizer:
    """BERT's tokenizer with the WordPiece vocabulary in a ``vocab.txt``, one piece a line.

    Texts are made lower-case if the ``tokenizer_config.json`` beside it says so or, where there is none, if no piece
    has an upper-case letter.

    Reference: Devlin et al., BERT (2019), and its published code.
    """
    try:
        pieces = content.decode().removesuffix("\n").replace("\r", "").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text in UTF-8") from error
    vocabulary: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        if vocabulary.setdefault(piece, i) != i:
            raise UserError(f"{path}:{i + 1}: the piece {piece!r} stands in line {vocabulary[piece] + 1} too")
    if "[UNK]" not in vocabulary:
        raise UserError(f"{path} has no line [UNK], as vocabularies of WordPiece have")
    names = _Names(path)
    lower_case = all(piece == piece.lower() for piece in pieces if not re.fullmatch(r"\[.+\]", piece))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=names.setting("do_lower_case", lower_case),
        handle_chinese_chars=names.setting("tokenize_chinese_chars", True),
        strip_accents=names.setting("strip_accents", None),
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    return HuggingFaceTokenizer(tokenizer, name=str(path), **names.ids(tokenizer))


def _load_t5(content: bytes, path: Path) -> SavedTokenizer:
    tokenizer = SentencePieceTokenizer(content, str(path))
    extra_ids = _Names(path).setting("extra_ids", T5_EXTRA_IDS)
    return ExtraIdsTokenizer(tokenizer, extra_ids) if extra_ids else tokenizer


def _load_marian(folder: Path) -> tuple[SavedTokenizer, SavedTokenizer]:
    if _Names(folder / "vocab.json").setting("separate_vocabs", False):
        raise UserError(f"{folder / 'tokenizer_config.json'}: separate_vocabs=true cannot be read; one vocabulary can")
    models = (read_content(folder / "source.spm"), read_content(folder / "target.spm"))
    vocabulary = _read_json(folder / "vocab.json")
    return MarianTokenizer(models, vocabulary, 0, str(folder)), MarianTokenizer(models, vocabulary, 1, str(folder))


class _Names:
    """What the files beside a vocabulary say of its special pieces; one that is not there says nothing."""

    def __init__(self, path: str | os.PathLike[str]):
        self._path = Path(path).expanduser()
        self._files = {
            name: _read_json(self._path.parent / name) if (self._path.parent / name).exists() else {}
            for name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")
        }

    def setting(self, key: str, default: Any) -> Any:
        """Of ``tokenizer_config.json``; null is as good as nothing."""
        named = self._files["tokenizer_config.json"]
        return named[key] if key in named and named[key] is not None else default

    def ids(self, tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
        """What :class:`HuggingFaceTokenizer` wants to know."""
        find = functools.partial(self._find, tokenizer)
        eos_id = find("eos", ("eos_token", "sep_token"))
        if eos_id is None:
            raise UserError(
                f"{self._path}: no piece is known to end a text; name it as eos_token in tokenizer_config.json beside "
                "it, or as eos_token_id in config.json"
            )
        others = [tokenizer.id_to_token(i) for i in self._numbers("eos_token_id", tokenizer) if i != eos_id]
        if others:
            logger.warning(
                "of several pieces that end a text only %r is heeded here: outputs will go on after %s",
                tokenizer.id_to_token(eos_id),
                ", ".join(map(repr, others)),
            )
        bos_id = find("bos", ("bos_token", "cls_token"))
        before = tokenizer.encode("").ids[:1]  # an empty text, but for what its post-processor puts around texts
        start_id = bos_id if before == [bos_id] else None
        decoder_start_id = self._number("decoder_start_token_id", tokenizer)
        if decoder_start_id == eos_id:
            raise UserError(f"{self._path}: decoders that start from EOS, here {eos_id}, cannot be used")
        return {
            "eos_id": eos_id,
            "bos_id": bos_id if decoder_start_id is None else decoder_start_id,
            "pad_id": find("pad", ("pad_token",)),
            "mask_id": find("mask", ("mask_token",)),
            "start_id": start_id,
        }

    def _find(self, tokenizer: tokenizers.Tokenizer, role: str, keys: Iterable[str]) -> Optional[int]:
        named = (self._piece(key) for key in keys)
        ids = (tokenizer.token_to_id(piece) for piece in named if piece is not None)
        usual = (tokenizer.token_to_id(piece) for piece in USUAL_NAMES[role])
        for found in (*ids, self._number(f"{role}_token_id", tokenizer), *usual):
            if found is not None:
                return found
        return None

    def _piece(self, key: str) -> Optional[str]:
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            piece = self._files[name].get(key)
            if piece is not None:
                return piece["content"] if isinstance(piece, dict) else piece
        return None

    def _number(self, key: str, tokenizer: tokenizers.Tokenizer) -> Optional[int]:
        return next(iter(self._numbers(key, tokenizer)), None)

    def _numbers(self, key: str, tokenizer: tokenizers.Tokenizer) -> list[int]:
        """One or, in a list, several, of the first file that has any."""
        for name in ("generation_config.json", "config.json"):
            stated = self._files[name].get(key)
            numbers = stated if isinstance(stated, list) else [stated]
            # config.json may hold the family's defaults, which are those of a larger vocabulary, or -1
            known = [i for i in numbers if i is not None and i >= 0 and tokenizer.id_to_token(i) is not None]
            if known:
                return known
        return []


def _parse(text: str, name: str) -> tokenizers.Tokenizer:
    """The tokenizer in a ``tokenizer.json``, without what would cut texts, pad them, or cut them up at random."""
    try:
        parts = json.loads(text)
        parts["truncation"] = parts["padding"] = None
        if "dropout" in parts["model"]:
            parts["model"]["dropout"] = None
        return tokenizers.Tokenizer.from_str(json.dumps(parts))
    except Exception as error:  # the package raises no class of its own
        raise UserError(f"{name} is no tokenizer.json that the tokenizers package can read: {error}") from error


def _unknown_id(model: Mapping[str, Any], ids: Mapping[str, int]) -> int:
    """The id that a model, as it stands in a ``tokenizer.json``, gives to what it does not know, or -1."""
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    piece = model.get("unk_token")
    return ids.get(piece, -1) if piece else -1


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_content(path))
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object")
    return found
