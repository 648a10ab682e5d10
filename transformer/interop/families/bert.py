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
POOLING = {"mean": "mean", "cls": "first"}  # sentence-transformers' names and ours


def read_config(settings: Settings, names: frozenset[str]) -> Changes:
    """A model without a head becomes one of sentence embeddings, by the mean of the last layer unless the folder is
    one of sentence-transformers that says otherwise."""
    task = _task(settings, names)
    if task in ("text_classification", "token_classification"):
        settings.require("problem_type", None, "single_label_classification")
    settings.require("position_embedding_type", "absolute")
    settings.harmless(
        "classifier_dropout",
        "directionality",
        *(f"pooler_{key}" for key in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")),
    )
    pooling = settings.choose("pooling_mode", POOLING, "mean")
    tied = settings.get("tie_word_embeddings", True)
    positions = settings.get("max_position_embeddings", 512)
    limits = settings.file("sentence_bert_config")
    longest = min(limits.get("max_seq_length", positions), positions)
    limits.harmless("do_lower_case")  # it is the tokenizer's to do, and checked there
    limits.finish()
    return {
        "task": task,
        "data.max_source_length": longest,
        "data.max_target_length": longest,
        "decoding.max_source_length": longest,
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


def _task(settings: Settings, names: frozenset[str]) -> str:
    """By ``architectures``; in older files, which have none, by the tensors: there only whole texts need a pooler."""
    tasks = {architecture: task for task, architecture in ARCHITECTURES.items()} | {"BertForPreTraining": "masked_lm"}
    stated = settings.get("architectures", None) or []
    for name in stated:
        if name not in tasks:
            raise settings.refusal("architectures", name, ", ".join(tasks))
    if stated:
        return tasks[stated[0]]
    if "cls.predictions.bias" in names:
        return "masked_lm"
    if "classifier.weight" in names:
        return "text_classification" if "bert.pooler.dense.weight" in names else "token_classification"
    return "sentence_embedding"


def write_config(config: Config) -> dict[str, Any]:
    model = config.model
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    written = {
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
    if config.task != "sentence_embedding":
        return written
    limits = {"max_seq_length": config.data.max_source_length, "do_lower_case": False}
    modes = {ours: theirs for theirs, ours in POOLING.items()}
    return written | {"pooling_mode": modes[model.pooling], "sentence_bert_config": limits}


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
