"""Llama, Mistral and Qwen 2: pre-norm decoders with RMSNorm, rotary positions, gated feed-forward, grouped heads."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformer.config import Config, ModelConfig
from transformer.interop.family import Changes, Family, Row, linear_rows, norm_rows
from transformer.interop.layouts import as_is, linear
from transformer.interop.settings import Settings

ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu_new": "geglu", "relu": "reglu"}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
LONGEST_ROW = 1_024  # tokens that are scored at a time after import; evaluation.window may be made longer

ROPE_CONSTANTS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "linear": {},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {
        "attention_factor": None,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": None,
        "mscale_all_dim": None,
        "truncate": True,
    },
}
"""Of each way to stretch the angles, the settings that are constants in ``models/positions.py``."""


def read_config(settings: Settings, names: frozenset[str]) -> Changes:
    kind, num_heads = settings.get("model_type"), settings.get("num_attention_heads")
    architecture = ARCHITECTURES[kind]
    settings.require("architectures", None, [architecture], [architecture.replace("ForCausalLM", "Model")])
    settings.require("rope_interleaved", False)
    settings.require("use_mrope", False)
    settings.harmless("pretraining_tp", "is_llama_config")
    positions = settings.get("max_position_embeddings", 2048)
    length = min(positions, LONGEST_ROW)
    return {
        "task": "language_modeling",
        "data.max_target_length": length,
        "decoding.max_source_length": max(2, length - 50),
        "decoding.max_extra_tokens": 50,
        "model.variant": "decoder_only",
        "model.vocab_size": settings.get("vocab_size"),
        "model.d_model": settings.get("hidden_size"),
        "model.d_ff": settings.get("intermediate_size"),
        "model.num_heads": num_heads,
        "model.num_kv_heads": settings.get("num_key_value_heads", None) or num_heads,
        "model.head_dim": settings.get("head_dim", None),
        "model.num_decoder_layers": settings.get("num_hidden_layers"),
        "model.norm": "rms_norm",
        "model.norm_placement": "pre",
        "model.norm_epsilon": settings.get("rms_norm_eps", 1e-6),
        "model.attention_window": _window(settings, kind),
        "model.attention_biases": _attention_biases(settings, kind),
        "model.position_encoding": "rotary",
        "model.max_positions": positions,
        **_rotary(settings, positions),
        "model.activation": settings.choose("hidden_act", ACTIVATIONS, "silu"),
        "model.feed_forward_bias": kind == "llama" and settings.get("mlp_bias", False),
        "model.shared_embeddings": "all" if settings.get("tie_word_embeddings", False) else "none",
        "model.scale_embeddings": False,
        "model.dropout_rate": 0.0,
        "model.attention_dropout_rate": settings.get("attention_dropout", 0.0),
    }


def _attention_biases(settings: Settings, kind: str) -> tuple[str, ...]:
    if kind == "qwen2":
        return ("query", "key", "value")
    return ("query", "key", "value", "output") if kind == "llama" and settings.get("attention_bias", False) else ()


def _window(settings: Settings, kind: str) -> int | None:
    """Of all layers alike: none that differ can be translated."""
    kinds = settings.get("layer_types", None) or ["full_attention"]
    if kind == "llama":
        settings.require("sliding_window", None)
        settings.require("layer_types", None, ["full_attention"] * len(kinds))
        return None
    window: int | None = settings.get("sliding_window", 4096)
    if kind == "mistral":
        settings.require("layer_types", None, ["sliding_attention" if window else "full_attention"] * len(kinds))
        return window
    settings.harmless("max_window_layers")
    if not settings.get("use_sliding_window", False):
        settings.require("layer_types", None, ["full_attention"] * len(kinds))
        return None
    settings.require("layer_types", None, ["sliding_attention"] * len(kinds))
    if settings.get("layer_types", None) is None:
        settings.require("max_window_layers", 0)
    return window


def _rotary(settings: Settings, positions: int) -> Changes:
    """The angles, in either of the forms in which they are written: ``rope_parameters``, or ``rope_scaling`` beside
    ``rope_theta``."""
    key = "rope_parameters" if settings.get("rope_parameters", None) else "rope_scaling"
    rope = dict(settings.get("rope_scaling", None) or {}) | dict(settings.get("rope_parameters", None) or {})
    theta = rope.pop("rope_theta", None) or settings.get("rope_theta", 10_000.0)
    settings.harmless("rope_theta")
    kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    rope.pop("type", None)
    if kind not in ROPE_CONSTANTS:
        raise settings.refusal(f"{key}.rope_type", kind, ", ".join(ROPE_CONSTANTS))
    factor = rope.pop("factor", None) if kind != "default" else None
    original = rope.pop("original_max_position_embeddings", None) or settings.get(
        "original_max_position_embeddings", positions
    )
    for name, value in {**ROPE_CONSTANTS[kind], "partial_rotary_factor": 1.0}.items():
        found = rope.pop(name, None)
        if found is not None and found != value:
            raise settings.refusal(f"{key}.{name}", found, f"only {value}")
    for name, value in rope.items():
        raise settings.refusal(f"{key}.{name}", value, f"with rope_type={kind} no such key")
    settings.require("partial_rotary_factor", None, 1.0)
    if kind != "default" and factor is None:
        raise settings.refusal(f"{key}.factor", None, f"with rope_type={kind} only a number")
    if factor == 1:  # which stretches nothing
        kind, original = "default", positions
    return {
        "model.rotary_theta": theta,
        "model.rotary_scaling": "none" if kind == "default" else kind,
        "model.rotary_scaling_factor": factor or 1.0,
        "model.rotary_original_length": original,
    }


def write_config(config: Config) -> dict[str, Any]:
    model = config.model
    kind = _model_type(model)
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    written = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "num_hidden_layers": model.num_decoder_layers,
        "rms_norm_eps": model.norm_epsilon,
        "max_position_embeddings": max(model.max_positions, config.data.max_target_length),
        "rope_theta": model.rotary_theta,
        "rope_scaling": _rope_scaling(model),
        "hidden_act": activations.get(model.activation, "silu"),
        "tie_word_embeddings": model.shared_embeddings != "none",
        "attention_dropout": model.attention_dropout_rate,
    }
    if kind == "llama":
        return written | {"attention_bias": bool(model.attention_biases), "mlp_bias": model.feed_forward_bias}
    if kind == "qwen2":
        written |= {"use_sliding_window": model.attention_window is not None, "max_window_layers": 0}
    return written | {"sliding_window": model.attention_window}


def _model_type(model: ModelConfig) -> str:
    """The one of the three whose biases and window are the model's."""
    if "query" in model.attention_biases and "output" not in model.attention_biases:
        return "qwen2"
    return "mistral" if model.attention_window is not None else "llama"


def _rope_scaling(model: ModelConfig) -> dict[str, Any] | None:
    kind = model.rotary_scaling
    if kind not in ROPE_CONSTANTS:  # none, or one that reading back will not find
        return None
    scaling = {"rope_type": kind, "factor": model.rotary_scaling_factor}
    if kind != "linear":
        scaling["original_max_position_embeddings"] = model.rotary_original_length
    return scaling | {name: value for name, value in ROPE_CONSTANTS[kind].items() if value is not None}


def rows(config: Config) -> Sequence[Row]:
    model = config.model
    layers, theirs = "decoder/layers", "model.layers.{layer}"

    def attention(name: str, their_name: str, num_inputs: int = 1) -> list[Row]:
        bias = name in model.attention_biases
        return linear_rows(f"{layers}/self_attention/{name}", f"{theirs}.self_attn.{their_name}", num_inputs, bias=bias)

    def feed_forward(name: str) -> list[Row]:
        return linear_rows(f"{layers}/feed_forward/{name}", f"{theirs}.mlp.{name}_proj", bias=model.feed_forward_bias)

    table = [
        Row(("embedding/embedding",), "model.embed_tokens.weight", as_is),
        *attention("query", "q_proj"),
        *attention("key", "k_proj"),
        *attention("value", "v_proj"),
        *attention("output", "o_proj", num_inputs=2),
        *norm_rows(f"{layers}/self_attention_norm", f"{theirs}.input_layernorm", bias=False),
        *feed_forward("gate"),
        *feed_forward("up"),
        *feed_forward("down"),
        *norm_rows(f"{layers}/feed_forward_norm", f"{theirs}.post_attention_layernorm", bias=False),
        *norm_rows("decoder/final_norm", "model.norm", bias=False),
    ]
    if model.shared_embeddings == "none":
        table.append(Row(("output/kernel",), "lm_head.weight", linear()))
    return table


LLAMA = Family(
    name="llama",
    model_types=tuple(ARCHITECTURES),
    tasks=("language_modeling",),
    read_config=read_config,
    write_config=write_config,
    rows=rows,
    prefix="model.",
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    buffers=(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
)
