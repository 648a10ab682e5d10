"""GPT-2: pre-norm decoder, learned positions, queries, keys and values in one tensor."""

from collections.abc import Sequence
from typing import Any

from transformer.config import Config
from transformer.interop.family import Changes, Family, Row, norm_rows
from transformer.interop.layouts import as_is, conv1d, flat, fused, linear
from transformer.interop.settings import Settings

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}


def read_config(settings: Settings, names: frozenset[str]) -> Changes:
    settings.require("architectures", None, ["GPT2LMHeadModel"], ["GPT2Model"])
    settings.require("scale_attn_by_inverse_layer_idx", False)
    settings.harmless(
        "reorder_and_upcast_attn",  # attention's logits are in float32 here
        "n_ctx",
        *(f"summary_{key}" for key in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")),
    )
    settings.harmless("embd_pdrop")
    positions, d_model = settings.get("n_positions", 1024), settings.get("n_embd")
    extra = min(50, positions // 2)
    return {
        "task": "language_modeling",
        "data.max_target_length": positions,
        "decoding.max_source_length": positions - extra,
        "decoding.max_extra_tokens": extra,
        "model.variant": "decoder_only",
        "model.vocab_size": settings.get("vocab_size"),
        "model.d_model": d_model,
        "model.d_ff": settings.get("n_inner", None) or 4 * d_model,
        "model.num_heads": settings.get("n_head"),
        "model.num_decoder_layers": settings.get("n_layer"),
        "model.norm": "layer_norm",
        "model.norm_placement": "pre",
        "model.norm_epsilon": settings.get("layer_norm_epsilon", 1e-5),
        "model.position_encoding": "learned",
        "model.max_positions": positions,
        "model.activation": settings.choose("activation_function", ACTIVATIONS, "gelu_new"),
        "model.scale_attention": settings.get("scale_attn_weights", True),
        "model.shared_embeddings": "all" if settings.get("tie_word_embeddings", True) else "none",
        "model.scale_embeddings": False,
        "model.dropout_rate": settings.get("resid_pdrop", 0.1),
        "model.attention_dropout_rate": settings.get("attn_pdrop", 0.1),
    }


def write_config(config: Config) -> dict[str, Any]:
    model = config.model
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocab_size,
        "n_embd": model.d_model,
        "n_inner": model.d_ff,
        "n_head": model.num_heads,
        "n_layer": model.num_decoder_layers,
        "n_positions": model.max_positions,
        "layer_norm_epsilon": model.norm_epsilon,
        "activation_function": activations.get(model.activation, "gelu_new"),
        "scale_attn_weights": model.scale_attention,
        "tie_word_embeddings": model.shared_embeddings != "none",
        "resid_pdrop": model.dropout_rate,
        "embd_pdrop": model.dropout_rate,
        "attn_pdrop": model.attention_dropout_rate,
    }


def rows(config: Config) -> Sequence[Row]:
    layers, theirs = "decoder/layers", "transformer.h.{layer}"
    attention, feed_forward = f"{layers}/self_attention", f"{layers}/feed_forward"
    projections = [f"{attention}/{name}" for name in ("query", "key", "value")]
    table = [
        Row(("embedding/embedding",), "transformer.wte.weight", as_is),
        Row(("decoder/position_encoding/embedding",), "transformer.wpe.weight", as_is),
        Row(tuple(f"{path}/kernel" for path in projections), f"{theirs}.attn.c_attn.weight", fused(conv1d(), axis=1)),
        Row(tuple(f"{path}/bias" for path in projections), f"{theirs}.attn.c_attn.bias", fused(flat, axis=0)),
        Row((f"{attention}/output/kernel",), f"{theirs}.attn.c_proj.weight", conv1d(num_inputs=2)),
        Row((f"{attention}/output/bias",), f"{theirs}.attn.c_proj.bias", as_is),
        *norm_rows(f"{layers}/self_attention_norm", f"{theirs}.ln_1"),
        Row((f"{feed_forward}/up/kernel",), f"{theirs}.mlp.c_fc.weight", conv1d()),
        Row((f"{feed_forward}/up/bias",), f"{theirs}.mlp.c_fc.bias", as_is),
        Row((f"{feed_forward}/down/kernel",), f"{theirs}.mlp.c_proj.weight", conv1d()),
        Row((f"{feed_forward}/down/bias",), f"{theirs}.mlp.c_proj.bias", as_is),
        *norm_rows(f"{layers}/feed_forward_norm", f"{theirs}.ln_2"),
        *norm_rows("decoder/final_norm", "transformer.ln_f"),
    ]
    if config.model.shared_embeddings == "none":
        table.append(Row(("output/kernel",), "lm_head.weight", linear()))
    return table


GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    tasks=("language_modeling",),
    read_config=read_config,
    write_config=write_config,
    rows=rows,
    prefix="transformer.",
    copies={"lm_head.weight": "transformer.wte.weight"},
    buffers=(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",),
)
