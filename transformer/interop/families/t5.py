"""T5 and T5 1.1: pre-norm with RMSNorm, no biases, one table of relative positions for each stack, of any head size."""

from collections.abc import Sequence
from typing import Any

from transformer.config import Config
from transformer.interop.family import Changes, Family, Row, linear_rows, norm_rows
from transformer.interop.layouts import as_is, linear
from transformer.interop.settings import Settings
from transformer.models.feed_forward import ACTIVATIONS

FEED_FORWARDS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "gated-gelu": "geglu",  # by the tanh, unlike gelu alone
    "gated-silu": "swiglu",
    "gated-relu": "reglu",
}


def read_config(settings: Settings, names: frozenset[str]) -> Changes:
    """Tied or not, and logits scaled or not, are two things here, and one key in most files: ``tie_word_embeddings``.

    Newer files state the scale by ``scale_decoder_outputs`` and call embeddings tied that are not; their softmax
    weights are then among the tensors.
    """
    settings.require("architectures", None, ["T5ForConditionalGeneration"], ["T5WithLMHeadModel"])
    settings.require("is_encoder_decoder", True)
    feed_forward = settings.get("feed_forward_proj", "relu")
    settings.require("is_gated_act", feed_forward.startswith("gated-"))
    settings.require("dense_act_fn", "gelu_new" if feed_forward == "gated-gelu" else feed_forward.split("-")[-1])
    settings.harmless(
        "decoder_start_token_id",  # the tokenizer's bos_id
        "n_positions",  # the length of inputs in training: relative positions have no end
        "output_past",
        "initializer_factor",
        "classifier_dropout",
    )
    tied = settings.get("tie_word_embeddings", True)
    scaled = settings.get("scale_decoder_outputs", tied)
    untied = not tied or (not scaled and "lm_head.weight" in names)
    dropout_rate = settings.get("dropout_rate", 0.1)
    return {
        "task": "span_corruption",
        "data.max_source_length": 512,
        "model.variant": "encoder_decoder",
        "model.vocab_size": settings.get("vocab_size"),
        "model.d_model": settings.get("d_model"),
        "model.d_ff": settings.get("d_ff"),
        "model.num_heads": settings.get("num_heads"),
        "model.head_dim": settings.get("d_kv"),
        "model.num_encoder_layers": settings.get("num_layers"),
        "model.num_decoder_layers": settings.get("num_decoder_layers", None) or settings.get("num_layers"),
        "model.norm": "rms_norm",
        "model.norm_placement": "pre",
        "model.norm_epsilon": settings.get("layer_norm_epsilon", 1e-6),
        "model.attention_biases": (),
        "model.scale_attention": False,
        "model.position_encoding": "relative_bias",
        "model.relative_num_buckets": settings.get("relative_attention_num_buckets", 32),
        "model.relative_max_distance": settings.get("relative_attention_max_distance", 128),
        "model.activation": settings.choose("feed_forward_proj", FEED_FORWARDS, "relu"),
        "model.feed_forward_bias": False,
        "model.shared_embeddings": "inputs" if untied else "all",
        "model.scale_embeddings": False,
        "model.scale_logits": scaled,
        "model.dropout_rate": dropout_rate,
        "model.attention_dropout_rate": dropout_rate,
        "model.activation_dropout_rate": dropout_rate,
    }


def write_config(config: Config) -> dict[str, Any]:
    model = config.model
    feed_forwards = {ours: theirs for theirs, ours in FEED_FORWARDS.items()}
    tied = model.shared_embeddings != "inputs"
    written = {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size,
        "d_model": model.d_model,
        "d_ff": model.d_ff,
        "d_kv": model.head_size,
        "num_heads": model.num_heads,
        "num_layers": model.num_encoder_layers,
        "num_decoder_layers": model.num_decoder_layers,
        "layer_norm_epsilon": model.norm_epsilon,
        "relative_attention_num_buckets": model.relative_num_buckets,
        "relative_attention_max_distance": model.relative_max_distance,
        "feed_forward_proj": feed_forwards.get(model.activation, "relu"),
        "tie_word_embeddings": tied,
        "dropout_rate": model.dropout_rate,
    }
    return written if model.scale_logits == tied else written | {"scale_decoder_outputs": model.scale_logits}


def rows(config: Config) -> Sequence[Row]:
    table = [
        Row(("shared_embedding/embedding",), "shared.weight", as_is),
        *_stack_rows(config, "encoder", {"self_attention": "SelfAttention"}),
        *_stack_rows(config, "decoder", {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention"}),
    ]
    if config.model.shared_embeddings == "inputs":
        table.append(Row(("output/kernel",), "lm_head.weight", linear()))
    return table


def _stack_rows(config: Config, stack: str, attentions: dict[str, str]) -> list[Row]:
    """The table of positions is in the first layer's self-attention; all layers use it."""
    layers, theirs = f"{stack}/layers", f"{stack}.block.{{layer}}.layer"
    table = [
        Row(
            (f"{stack}/position_encoding/embedding",),
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            as_is,
        ),
        *norm_rows(f"{stack}/final_norm", f"{stack}.final_layer_norm", bias=False),
    ]
    for place, (ours, their_name) in enumerate(attentions.items()):
        for name, letter in {"query": "q", "key": "k", "value": "v", "output": "o"}.items():
            num_inputs = 2 if name == "output" else 1
            their_linear = f"{theirs}.{place}.{their_name}.{letter}"
            table += linear_rows(f"{layers}/{ours}/{name}", their_linear, num_inputs, bias=False)
        table += norm_rows(f"{layers}/{ours}_norm", f"{theirs}.{place}.layer_norm", bias=False)
    gated = ACTIVATIONS[config.model.activation].gated
    linears = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    place = len(attentions)
    for name, their_name in linears.items():
        their_linear = f"{theirs}.{place}.DenseReluDense.{their_name}"
        table += linear_rows(f"{layers}/feed_forward/{name}", their_linear, bias=False)
    return [*table, *norm_rows(f"{layers}/feed_forward_norm", f"{theirs}.{place}.layer_norm", bias=False)]


T5 = Family(
    name="t5",
    model_types=("t5",),
    tasks=("span_corruption", "translation"),
    read_config=read_config,
    write_config=write_config,
    rows=rows,
    copies=dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
    ),
    unused=lambda config: (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
)
