"""BERT: an encoder, with the head that guesses masked tokens, a classifier, or none."""

from collections.abc import Sequence
from typing import Any

from transformer.config import Config
from transformer.interop.family import Changes, Family, Row, linear_rows, norm_rows
from transformer.interop.layouts import as_is, linear
from transformer.interop.settings import Settings

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
ARCHITECTURES = {
    "masked_lm": "BertForMaskedLM",
    "sentence_embedding": "BertModel",
    "text_classification": "BertForSequenceClassification",
    "token_classification": "BertForTokenClassification",
}


def read_config(settings: Settings, names: frozenset[str]) -> Changes:
    """A model without a head becomes one of sentence embeddings, by the mean of the last layer unless the folder is
    one of sentence-transformers that says otherwise."""
    for name in settings.get("architectures", None) or []:
        if name not in (*ARCHITECTURES.values(), "BertForPreTraining"):
            raise settings.refusal("architectures", name, f"{', '.join(ARCHITECTURES.values())}, BertForPreTraining")
    if "cls.predictions.bias" in names:
        task = "masked_lm"
    elif "classifier.weight" in names:
        pooled = "bert.pooler.dense.weight" in names
        task = "text_classification" if pooled else "token_classification"
        settings.require("problem_type", None, "single_label_classification")
    else:
        task = "sentence_embedding"
    settings.require("position_embedding_type", "absolute")
    settings.harmless(
        "classifier_dropout",
        "directionality",
        *(f"pooler_{key}" for key in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")),
    )
    pooling = settings.choose("pooling_mode", {"mean": "mean", "cls": "first"}, "mean")
    tied = settings.get("tie_word_embeddings", True)
    positions = settings.get("max_position_embeddings", 512)
    return {
        "task": task,
        "data.max_source_length": positions,
        "data.max_target_length": positions,
        "decoding.max_source_length": positions,
        "model.variant": "encoder_only",
        "model.vocab_size": settings.get("vocab_size"),
        "model.d_model": settings.get("hidden_size"),
        "model.d_ff": settings.get("intermediate_size"),
        "model.num_heads": settings.get("num_attention_heads"),
        "model.num_encoder_layers": settings.get("num_hidden_layers"),
        "model.norm": "layer_norm",
        "model.norm_placement": "post",
        "model.norm_epsilon": settings.get("layer_norm_eps", 1e-12),
        "model.embedding_norm": True,
        "model.position_encoding": "learned",
        "model.max_positions": positions,
        "model.activation": settings.choose("hidden_act", ACTIVATIONS, "gelu"),
        "model.shared_embeddings": "all" if tied or task != "masked_lm" else "none",
        "model.scale_embeddings": False,
        "model.output_bias": task == "masked_lm",
        "model.token_types": settings.get("type_vocab_size", 2),
        "model.pooling": pooling if task == "sentence_embedding" else "first",
        "model.pooler": task == "text_classification",
        "model.dropout_rate": settings.get("hidden_dropout_prob", 0.1),
        "model.attention_dropout_rate": settings.get("attention_probs_dropout_prob", 0.1),
    }


def write_config(config: Config) -> dict[str, Any]:
    model = config.model
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return {
        "architectures": [ARCHITECTURES[config.task]],
        "model_type": "bert",
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_attention_heads": model.num_heads,
        "num_hidden_layers": model.num_encoder_layers,
        "layer_norm_eps": model.norm_epsilon,
        "max_position_embeddings": model.max_positions,
        "position_embedding_type": "absolute",
        "hidden_act": activations.get(model.activation, "gelu"),
        "type_vocab_size": model.token_types,
        "tie_word_embeddings": model.shared_embeddings != "none",
        "hidden_dropout_prob": model.dropout_rate,
        "attention_probs_dropout_prob": model.attention_dropout_rate,
    }


def rows(config: Config) -> Sequence[Row]:
    layers, theirs = "encoder/stack/layers", "bert.encoder.layer.{layer}"
    table = [
        Row(("encoder/embedding/embedding",), "bert.embeddings.word_embeddings.weight", as_is),
        Row(("encoder/type_embedding/embedding",), "bert.embeddings.token_type_embeddings.weight", as_is),
        Row(("encoder/stack/position_encoding/embedding",), "bert.embeddings.position_embeddings.weight", as_is),
        *norm_rows("encoder/stack/embedding_norm", "bert.embeddings.LayerNorm"),
        *linear_rows(f"{layers}/self_attention/query", f"{theirs}.attention.self.query"),
        *linear_rows(f"{layers}/self_attention/key", f"{theirs}.attention.self.key"),
        *linear_rows(f"{layers}/self_attention/value", f"{theirs}.attention.self.value"),
        *linear_rows(f"{layers}/self_attention/output", f"{theirs}.attention.output.dense", num_inputs=2),
        *norm_rows(f"{layers}/self_attention_norm", f"{theirs}.attention.output.LayerNorm"),
        *linear_rows(f"{layers}/feed_forward/up", f"{theirs}.intermediate.dense"),
        *linear_rows(f"{layers}/feed_forward/down", f"{theirs}.output.dense"),
        *norm_rows(f"{layers}/feed_forward_norm", f"{theirs}.output.LayerNorm"),
    ]
    if config.task == "masked_lm":
        table += linear_rows("transform", "cls.predictions.transform.dense")
        table += norm_rows("transform_norm", "cls.predictions.transform.LayerNorm")
        table.append(Row(("output/bias",), "cls.predictions.bias", as_is))
        if config.model.shared_embeddings == "none":
            table.append(Row(("output/kernel",), "cls.predictions.decoder.weight", linear()))
    if config.model.pooler:
        table += linear_rows("pooler/linear", "bert.pooler.dense")
    if config.task in ("text_classification", "token_classification"):
        table += linear_rows("classifier/linear", "classifier")
    return table


def unused(config: Config) -> tuple[str, ...]:
    """The map over the class token that was trained to tell whether two texts follow each other, and that head."""
    pooler = () if config.model.pooler else (r"bert\.pooler\.dense\.(weight|bias)",)
    return (*pooler, r"cls\.seq_relationship\.(weight|bias)")


BERT = Family(
    name="bert",
    model_types=("bert",),
    tasks=tuple(ARCHITECTURES),
    read_config=read_config,
    write_config=write_config,
    rows=rows,
    prefix="bert.",
    base_tasks=("sentence_embedding",),
    endings={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    buffers=(r"bert\.embeddings\.(position_ids|token_type_ids)",),
    unused=unused,
)
