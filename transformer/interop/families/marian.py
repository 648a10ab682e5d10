"""Marian (OPUS-MT): the post-norm encoder-decoder, sinusoids in two halves, a bias on each token's logit."""

from collections.abc import Sequence
from typing import Any

from transformer.config import Config
from transformer.interop.family import Changes, Family, Row, linear_rows, norm_rows
from transformer.interop.layouts import as_is, leading
from transformer.interop.settings import Settings

ACTIVATIONS = {"swish": "silu", "silu": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}


def read_config(settings: Settings, names: frozenset[str]) -> Changes:
    """The penalty of a length is a power of it there, of alpha 1 if nothing is said, and beams are kept as there."""
    settings.require("architectures", None, ["MarianMTModel"])
    settings.require("is_encoder_decoder", True)
    for key in ("share_encoder_decoder_embeddings", "tie_word_embeddings"):
        settings.require(key, True)
    settings.require("static_position_embeddings", True)
    for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        settings.require(key, False)
    for key in ("encoder_layerdrop", "decoder_layerdrop"):
        settings.require(key, 0)
    vocab_size, num_heads, d_ff = (
        settings.get(key) for key in ("vocab_size", "encoder_attention_heads", "encoder_ffn_dim")
    )
    settings.require("decoder_vocab_size", None, vocab_size)
    settings.require("decoder_attention_heads", num_heads)
    settings.require("decoder_ffn_dim", d_ff)
    settings.require("num_hidden_layers", settings.get("encoder_layers"))
    settings.harmless(
        "decoder_start_token_id",  # the tokenizer's bos_id
        "add_bias_logits",  # the bias is there, whatever this says
        "extra_pos_embeddings",
        "force_bos_token_to_be_generated",
        "output_past",
        "init_std",
        "classif_dropout",
        "classifier_dropout",
    )
    positions = settings.get("max_position_embeddings", 1024)
    length = min(256, positions)
    return {
        "task": "translation",
        "data.max_source_length": length,
        "data.max_target_length": length,
        "decoding.max_source_length": positions,
        "decoding.method": "beam",
        "decoding.beam_size": settings.get("num_beams", 4),
        "decoding.length_penalty": "power",
        "decoding.alpha": settings.get("length_penalty", 1.0),
        "model.variant": "encoder_decoder",
        "model.vocab_size": vocab_size,
        "model.d_model": settings.get("d_model"),
        "model.d_ff": d_ff,
        "model.num_heads": num_heads,
        "model.num_encoder_layers": settings.get("encoder_layers"),
        "model.num_decoder_layers": settings.get("decoder_layers"),
        "model.norm": "layer_norm",
        "model.norm_placement": "post",
        "model.norm_epsilon": 1e-5,
        "model.position_encoding": "sinusoidal_half_split",
        "model.activation": settings.choose("activation_function", ACTIVATIONS, "gelu"),
        "model.shared_embeddings": "all",
        "model.scale_embeddings": settings.get("scale_embedding", False),
        "model.output_bias": "final_logits_bias" in names,
        "model.dropout_rate": settings.get("dropout", 0.1),
        "model.attention_dropout_rate": settings.get("attention_dropout", 0.0),
        "model.activation_dropout_rate": settings.get("activation_dropout", 0.0),
    }


def write_config(config: Config) -> dict[str, Any]:
    model, decoding = config.model, config.decoding
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    written = {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size,
        "decoder_vocab_size": model.vocab_size,
        "d_model": model.d_model,
        "encoder_ffn_dim": model.d_ff,
        "decoder_ffn_dim": model.d_ff,
        "encoder_attention_heads": model.num_heads,
        "decoder_attention_heads": model.num_heads,
        "encoder_layers": model.num_encoder_layers,
        "decoder_layers": model.num_decoder_layers,
        "max_position_embeddings": config.decoding.max_source_length,
        "static_position_embeddings": True,
        "activation_function": activations.get(model.activation, "swish"),
        "scale_embedding": model.scale_embeddings,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "dropout": model.dropout_rate,
        "attention_dropout": model.attention_dropout_rate,
        "activation_dropout": model.activation_dropout_rate,
    }
    if decoding.method == "beam" and decoding.length_penalty == "power":
        written |= {"num_beams": decoding.beam_size, "length_penalty": decoding.alpha}
    return written


def rows(config: Config) -> Sequence[Row]:
    table = [
        Row(("shared_embedding/embedding",), "model.shared.weight", as_is),
        *_layer_rows("encoder", {"self_attention": "self_attn"}),
        *_layer_rows("decoder", {"self_attention": "self_attn", "cross_attention": "encoder_attn"}),
    ]
    if config.model.output_bias:
        table.append(Row(("output/bias",), "final_logits_bias", leading(1)))
    return table


def _layer_rows(stack: str, attentions: dict[str, str]) -> list[Row]:
    layers, theirs = f"{stack}/layers", f"model.{stack}.layers.{{layer}}"
    table = []
    for ours, their_name in attentions.items():
        for name, letter in {"query": "q", "key": "k", "value": "v"}.items():
            table += linear_rows(f"{layers}/{ours}/{name}", f"{theirs}.{their_name}.{letter}_proj")
        table += linear_rows(f"{layers}/{ours}/output", f"{theirs}.{their_name}.out_proj", num_inputs=2)
        table += norm_rows(f"{layers}/{ours}_norm", f"{theirs}.{their_name}_layer_norm")
    table += linear_rows(f"{layers}/feed_forward/up", f"{theirs}.fc1")
    table += linear_rows(f"{layers}/feed_forward/down", f"{theirs}.fc2")
    return [*table, *norm_rows(f"{layers}/feed_forward_norm", f"{theirs}.final_layer_norm")]


MARIAN = Family(
    name="marian",
    model_types=("marian",),
    tasks=("translation",),
    read_config=read_config,
    write_config=write_config,
    rows=rows,
    copies=dict.fromkeys(
        ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
        "model.shared.weight",
    ),
    buffers=(r"model\.(encoder|decoder)\.embed_positions\.weight",),
)
