"""The tokenizer that belongs to weights: where it is found, and the files that other codebases read."""

import base64
import json
import logging
from pathlib import Path
from typing import Any

import tokenizers

from transformer.data.pretrained_tokenizers import HuggingFaceTokenizer, MarianTokenizer, load_pretrained
from transformer.data.tokenizer import ExtraIdsTokenizer, Tokenizer
from transformer.data.vocabularies import load_tokenizer, load_tokenizers
from transformer.training.workdir import CHECKPOINTS
from transformer.types import UserError

PROBE = "The Answer, and ÄÖÜ"

logger = logging.getLogger(__name__)


def read_tokenizers(place: Path) -> tuple[Tokenizer, Tokenizer]:
    """Of the source and the target side, mostly one object: those of a workdir, of a model's folder, or in a file.

    Raises:
      UserError: if there is none that can be used.
    """
    if (place / CHECKPOINTS).is_dir():
        return load_tokenizers(place)
    if place.is_file():
        tokenizer = load_tokenizer(place)
        return tokenizer, tokenizer
    return load_pretrained(place)


def check_tokenizer(tokenizer: Tokenizer, settings: dict[str, Any], origin: Path) -> None:
    """Raise a ``UserError`` where a model's files ask of its tokenizer, of the target side, what it does not do."""
    start_id = settings.get("decoder_start_token_id")
    if start_id is not None and start_id != tokenizer.bos_id:
        raise UserError(
            f"{origin}: decoder_start_token_id={start_id}, but the tokenizer has {tokenizer.bos_id} for decoders to "
            "start from"
        )
    sentences = settings.get("sentence_bert_config", {})
    if sentences.get("do_lower_case") and tokenizer.encode(PROBE) != tokenizer.encode(PROBE.lower()):
        raise UserError(
            f"{origin.with_name('sentence_bert_config.json')}: do_lower_case=true, but the tokenizer tells capitals "
            "apart; give one that does not: --tokenizer=FOLDER"
        )


def special_ids(tokenizer: Any) -> dict[str, int]:
    """Those that a config.json names, without padding and the like that was chosen here for want of one."""
    ids = {"eos": tokenizer.eos_id, "pad": tokenizer.pad_id, "bos": tokenizer.bos_id, "mask": tokenizer.mask_id}
    if isinstance(tokenizer, HuggingFaceTokenizer):
        given = json.loads(tokenizer.content)
        ids = {name: given[f"{name}_id"] for name in ids}
    if tokenizer.bos_id == tokenizer.pad_id:
        ids["bos"] = None
    return {f"{name}_token_id": number for name, number in ids.items() if number is not None}


def export_tokenizer(tokenizer: Any, folder: Path, workdir: Path) -> None:
    """Write a tokenizer as the files that ``load_pretrained`` finds again: those that it was read from, or
    SentencePiece's model as ``spiece.model``. One of characters or bytes has no such form, which is logged.

    Args:
      workdir: where it is in our own form.
    """
    content, extra_ids = tokenizer.content, 0
    if isinstance(tokenizer, ExtraIdsTokenizer):
        saved = json.loads(content)
        content, extra_ids = base64.b64decode(saved["base"]), saved["number"]
    if isinstance(tokenizer, HuggingFaceTokenizer):
        _export_tokenizer_json(tokenizer, folder)
    elif isinstance(tokenizer, MarianTokenizer):
        saved = json.loads(content)
        for name, model in zip(("source.spm", "target.spm"), saved["models"], strict=True):
            (folder / name).write_bytes(base64.b64decode(model))
        _write_json(folder / "vocab.json", saved["vocabulary"])
    elif content.startswith(b"{"):
        logger.warning("the tokenizer has no form that others read; here it is found with --tokenizer=%s", workdir)
    else:
        (folder / "spiece.model").write_bytes(content)
        _write_json(folder / "tokenizer_config.json", {"extra_ids": extra_ids})


def _export_tokenizer_json(tokenizer: HuggingFaceTokenizer, folder: Path) -> None:
    """With which pieces are special."""
    content = json.loads(tokenizer.content)["tokenizer"]
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    vocabulary = tokenizers.Tokenizer.from_str(content)
    pieces = {key.removesuffix("_id"): vocabulary.id_to_token(i) for key, i in special_ids(tokenizer).items()}
    named = {key: piece for key, piece in pieces.items() if piece is not None}
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **named})


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
