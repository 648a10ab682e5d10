"""A model in a GGUF file: its weights, its settings and its tokenizer, as a safetensors folder would hold them.

Only the architecture ``llama``, in any quantisation that the package ``gguf`` undoes. Its tensors are given under the
names of the safetensors files, so that the family llama serves both.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from transformer.config import ModelConfig
from transformer.models.positions import LLAMA3_HIGH, LLAMA3_LOW, rotary_frequencies
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

STRETCHES = "rope_freqs.weight"
"""By how much each frequency of the rotary positions is divided: how files hold ``rope_type=llama3``."""
LLAMA3_LENGTH = 8_192
"""The original length of Llama 3.1 and those after it, which these files do not say."""
OWN_TOKENIZER = "give the model's own tokenizer: --tokenizer=FOLDER"


class Metadata(dict[str, Any]):
    """What a file says by its keys; one that is asked for and is not there is named in a ``UserError``.

    Args:
      path: of the file.
      values: by the keys.
      prefix: of the keys that are meant, and is left out of them.
      remedy: for the message.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "", remedy: str = "the file is damaged"):
        super().__init__({key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)})
        self._place, self._remedy = f"{path}: {prefix}", remedy

    def __missing__(self, key: str) -> Any:
        raise UserError(f"{self._place}{key} is missing; {self._remedy}")


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
        self._metadata = Metadata(path, {name: field.contents() for name, field in reader.fields.items()})
        architecture = self._metadata["general.architecture"]
        if architecture != "llama":
            raise UserError(f"{path}: general.architecture={architecture} is not read here, only llama")
        self._tensors = {_their_name(tensor.name): tensor for tensor in reader.tensors}
        if "model.embed_tokens.weight" not in self._tensors:
            raise UserError(f"{path}: the tensor token_embd.weight is missing; the file is damaged")
        self.settings = self._settings()

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"model_type": "llama"}
        for name, value in Metadata(self._path, self._metadata, "llama.").items():
            if name == "rope.dimension_count" or name == "attention.value_length":
                settings[name] = value
            elif name.startswith("rope.scaling."):
                settings.setdefault("rope_scaling", {})[SCALING.get(name, name)] = value
            else:
                settings[SETTINGS.get(name, f"llama.{name}")] = value
        self._heads = self._metadata["llama.attention.head_count"]
        head_size = settings.get("head_dim") or self._metadata["llama.embedding_length"] // self._heads
        for name in ("rope.dimension_count", "attention.value_length"):
            if settings.pop(name, head_size) != head_size:
                raise UserError(f"{self._path}: llama.{name} must be the size of a head, {head_size}")
        self._kv_heads = settings.setdefault("num_key_value_heads", self._heads)
        biased = [kind for kind in "qkvo" if f"model.layers.0.self_attn.{kind}_proj.bias" in self._tensors]
        settings["vocab_size"] = int(self._tensors["model.embed_tokens.weight"].shape[-1])
        if settings.get("rope_scaling") == {"rope_type": "none"}:
            del settings["rope_scaling"]
        if STRETCHES in self._tensors:
            settings["rope_scaling"] = self._llama3(settings, head_size)
        return settings | {
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "attention_bias": bool(biased),
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self._tensors,
        }

    def _llama3(self, settings: Mapping[str, Any], head_size: int) -> dict[str, Any]:
        """The setting that a table of divisors was made from; the table is then no tensor of the model any more.

        Its largest divisor is the factor. The rest must follow from that and ``LLAMA3_LENGTH``.
        """
        divisors = self[STRETCHES]
        del self._tensors[STRETCHES]
        factor = float(divisors.max())
        plain = ModelConfig(head_dim=head_size, rotary_theta=settings.get("rope_theta", 10_000.0))
        stretched = dataclasses.replace(
            plain, rotary_scaling="llama3", rotary_scaling_factor=factor, rotary_original_length=LLAMA3_LENGTH
        )
        expected = rotary_frequencies(plain)[0] / rotary_frequencies(stretched)[0]
        if "rope_scaling" in settings or divisors.shape != expected.shape or not np.allclose(divisors, expected, 1e-4):
            raise UserError(
                f"{self._path}: {STRETCHES} stretches positions otherwise than rope_type=llama3 from {LLAMA3_LENGTH} "
                "tokens on; import the model's folder of safetensors, whose config.json says how"
            )
        return {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": LLAMA3_LOW,
            "high_freq_factor": LLAMA3_HIGH,
            "original_max_position_embeddings": LLAMA3_LENGTH,
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
        ggml = Metadata(self._path, self._metadata, "tokenizer.ggml.", OWN_TOKENIZER)
        tokenizer = _byte_level_bpe(ggml, self._path)

        def piece(key: str) -> str:
            number = ggml[f"{key}_token_id"]
            if number >= len(ggml["tokens"]):
                raise UserError(f"{self._path}: tokenizer.ggml.{key}_token_id={number} is no piece; {OWN_TOKENIZER}")
            return str(ggml["tokens"][number])

        if ggml.get("add_bos_token", ggml["pre"] == "llama-bpe"):
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{piece('bos')} $A", special_tokens=[(piece("bos"), ggml["bos_token_id"])]
            )
        tokenizer.save(str(folder / "tokenizer.json"))
        kinds = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        content = {f"{kind}_token": piece(key) for kind, key in kinds.items() if f"{key}_token_id" in ggml}
        (folder / "tokenizer_config.json").write_text(json.dumps(content, ensure_ascii=False, indent=1))
        ends = [ggml[f"{key}_token_id"] for key in ("eos", "eot") if f"{key}_token_id" in ggml]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))


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
            f"all of SentencePiece's normalisation; {OWN_TOKENIZER}"
        )
    if ggml.get("pre") not in PRE_TOKENIZERS:
        raise UserError(
            f"{path}: tokenizer.ggml.pre={ggml.get('pre')} is not one of {', '.join(PRE_TOKENIZERS)}; {OWN_TOKENIZER}"
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
