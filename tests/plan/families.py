"""A tiny config of every family, which learns no vocabulary."""

import dataclasses
import pathlib

from transformer.config import Config, DataConfig, MeshConfig, ModelConfig, TrainingConfig, from_config_dict

SMALL = {"d_model": 14, "d_ff": 17, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
PAIRS = {"source": "phrases", "num_phrases": 23, "tokenizer_model": "byte", "num_buckets": 1}
TEXT = {"source": "files", "documents": "blank_line", "tokenizer_model": "byte", "num_buckets": 1}
SENTENCE = "The {0} saw Anna, and then it left. Did the {0} see NATO?"

SECTIONS = {
    "translation": ({**PAIRS, "batching": "pack", "max_source_length": 101, "max_target_length": 103}, {}, "bleu"),
    "span_corruption": ({**TEXT, "extra_ids": 9, "max_source_length": 47, "max_target_length": 23}, {}, "accuracy"),
    "language_modeling": (
        {**TEXT, "batching": "pack", "max_target_length": 89},
        {"variant": "decoder_only", "attention_window": 13},
        "bits_per_byte",
    ),
    "masked_lm": ({**TEXT, "extra_ids": 1, "max_source_length": 53}, {"variant": "encoder_only"}, "accuracy"),
    "text_classification": ({**PAIRS, "max_source_length": 103}, {"variant": "encoder_only"}, "f1"),
    "token_classification": (
        {**TEXT, "token_labels": "case_and_punctuation", "max_source_length": 97},
        {"variant": "encoder_only"},
        "f1",
    ),
    "sentence_embedding": (
        {**PAIRS, "max_source_length": 101, "max_target_length": 103},
        {"variant": "encoder_only", "pooling": "mean"},
        "accuracy",
    ),
    "image_classification": (
        {"source": "digits", "split": "random", "examples_per_batch": 12},
        {"variant": "encoder_only", "position_encoding": "sincos_2d", "patch_size": 2, "d_model": 16},
        "accuracy",
    ),
}
"""Of each task the keys of ``data`` and of ``model``, and its score."""


def family(task: str, folder: str, **training) -> Config:
    """The config of a task, with its text and its cache in a folder."""
    animals = ("cat", "dog", "bird", "fish", "mouse", "lion", "horse")
    text = "\n\n".join(" ".join([SENTENCE.format(animal)] * (1 + n % 3)) for n, animal in enumerate(animals))
    for stem in ("train", "val", "test"):
        (pathlib.Path(folder) / f"{stem}.txt").write_text(text, encoding="utf-8")
    data, model, score = SECTIONS[task]
    smoothing = 0.0 if task == "sentence_embedding" else 0.1
    config = Config(
        task=task,
        data=DataConfig(**{"tokens_per_batch": 4 * 103, "cache_directory": folder, "directory": folder, **data}),
        model=ModelConfig(**{**SMALL, **model}),
        mesh=MeshConfig(data=1),
        training=TrainingConfig(num_steps=10, warmup_steps=4, label_smoothing=smoothing, best_metric=score, **training),
    )
    return from_config_dict(dataclasses.asdict(config))  # checked, as every config is
