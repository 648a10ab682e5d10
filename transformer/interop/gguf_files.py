"""A model in a GGUF file: its weights, its settings and its tokenizer, as a safetensors folder would hold them.

Only the architecture ``llama``, in any quantisation that the package ``gguf`` undoes. Its tensors are given under the
names of the safetensors files, so that the family llama serves both.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from transformer.types import UserError

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""What llama.cpp calls a module, and what the safetensors files do."""

SETTINGS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
"""Keys of the file below ``llama.``, and those of a config.json."""


class GgufFile(Mapping[str, np.ndarray]):
    """The tensors of a file, as float32, under the names of the safetensors files.

    settings: what a config.json would hold.

    Raises:
      UserError: if the file cannot be read, or holds another architecture or a setting that is not translated.
    """

    def __init__(self, path: Path):
        self._path = path
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        self._metadata = {name: field.contents() for name, field in reader.fields.items()}
        architecture = self._metadata.get("general.architecture")
        if architecture != "llama":
            raise UserError(f"{path}: general.architecture={architecture} is not read here, only llama")
        self._tensors = {_their_name(tensor.name): tensor for tensor in reader.tensors}
        self.settings = self._settings()

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"model_type": "llama"}
        for key, value in self._metadata.items():
            name = key.removeprefix("llama.")
            if name == key:
                continue
            if name == "rope.dimension_count" or name == "attention.value_length":
                settings[name] = value
            elif name.startswith("rope.scaling."):
                settings.setdefault("rope_scaling", {})[SCALING.get(name, name)] = value
            else:
                settings[SETTINGS.get(name, key)] = value
        head_size = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
        for name in ("rope.dimension_count", "attention.value_length"):
            if settings.pop(name, head_size) != head_size:
                raise UserError(f"{self._path}: llama.{name} must be the size of a head, {head_size}")
        self._heads = settings["num_attention_heads"]
        self._kv_heads = settings.setdefault("num_key_value_heads", self._heads)
        biased = [kind for kind in "qkvo" if f"model.layers.0.self_attn.{kind}_proj.bias" in self._tensors]
        settings["vocab_size"] = int(self._tensors["model.embed_tokens.weight"].shape[-1])
        return settings | {
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "attention_bias": bool(biased),
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self._tensors,
        }

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise UserError(
                f"{self._path}: {tensor.name} is of type {tensor.tensor_type.name}, which is not read"
            ) from None
        values = np.asarray(values, np.float32).reshape(tuple(int(size) for size in reversed(tensor.shape)))
        for ending, heads in (("q_proj", self._heads), ("k_proj", self._kv_heads)):
            if f".{ending}." in name:
                values = halves_from_neighbours(values, heads)
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def save_tokenizer(self, folder: Path) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json`` with the vocabulary of the file.

        Raises:
          UserError: for a kind of vocabulary that cannot be had exactly.
        """
        ggml = {key.removeprefix("tokenizer.ggml."): value for key, value in self._metadata.items()}
        tokenizer = _byte_level_bpe(ggml, self._path)
        if ggml.get("add_bos_token", ggml["pre"] == "llama-bpe"):
            bos = ggml["bos_token_id"]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{ggml['tokens'][bos]} $A", special_tokens=[(ggml["tokens"][bos], bos)]
            )
        tokenizer.save(str(folder / "tokenizer.json"))
        content: dict[str, Any] = {}
        for kind, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            if f"{key}_token_id" in ggml:
                content[f"{kind}_token"] = ggml["tokens"][ggml[f"{key}_token_id"]]
        (folder / "tokenizer_config.json").write_text(json.dumps(content, ensure_ascii=False, indent=1))


SCALING = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}


def _their_name(name: str) -> str:
    """``blk.3.attn_q.weight`` is ``model.layers.3.self_attn.q_proj.weight``; what is not known keeps its name."""
    found = re.fullmatch(r"(blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if found is None or found[3] not in NAMES:
        return name
    layer = "" if found[2] is None else f"model.layers.{found[2]}."
    return f"{layer}{NAMES[found[3]]}.{found[4]}"


def halves_from_neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a query or key projection, or its bias, in the order in which we turn them.

    llama.cpp turns neighbours, components 2 i and 2 i + 1 of a head; we turn i and i + K / 2, as the safetensors files.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> list[Any]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]


PRE_TOKENIZERS: dict[str, list[Any]] = {
    "gpt-2": [pre_tokenizers.ByteLevel(False)],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)],
    "llama-bpe": _split(_CONTRACTIONS + _WORDS + r"\p{N}{1,3}" + _REST),
    "qwen2": _split(_CONTRACTIONS + _WORDS + r"\p{N}" + _REST),
}
"""How text is cut before merges are made, by the file's ``tokenizer.ggml.pre``."""

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type


def _byte_level_bpe(ggml: Mapping[str, Any], path: Path) -> Tokenizer:
    kind = ggml.get("model")
    if kind != "gpt2":
        raise UserError(
            f"{path}: tokenizer.ggml.model={kind} is not read here, only gpt2: the file does not hold "
            "all of SentencePiece's normalisation. Give the model's own tokenizer: --tokenizer=FOLDER"
        )
    if ggml.get("pre") not in PRE_TOKENIZERS:
        raise UserError(
            f"{path}: tokenizer.ggml.pre={ggml.get('pre')} is not one of {', '.join(PRE_TOKENIZERS)}; give the model's "
            "own tokenizer: --tokenizer=FOLDER"
        )
    vocabulary = {token: number for number, token in enumerate(ggml["tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in ggml["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ggml["pre"] == "llama-bpe"))
    if ggml["pre"] == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(PRE_TOKENIZERS[ggml["pre"]])
    tokenizer.decoder = decoders.ByteLevel()
    for special, kind in ((True, CONTROL), (False, USER_DEFINED)):
        tokenizer.add_tokens(
            [
                AddedToken(token, special=special, normalized=False)
                for token, found in zip(ggml["tokens"], ggml["token_type"], strict=True)
                if found == kind
            ]
        )
    return tokenizer
