"""Which model a config is: those of its keys on which outputs depend, in a form that can be compared."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from transformer.config import VARIANTS, Config, flatten

TRAINING_ONLY = (
    "dropout_rate",
    "attention_dropout_rate",
    "activation_dropout_rate",
    "stochastic_depth_rate",
    "load_balancing_weight",
    "router_z_weight",
    "attention_implementation",
    "dtype",
    "scan_unroll",
)
"""Keys of the model that change how it is trained or computed, not what it is."""

POOLED = ("text_classification", "sentence_embedding", "image_classification")
"""Tasks with one vector for a whole input."""

SCORING_TOKENS = ("translation", "language_modeling", "masked_lm", "span_corruption")
"""Tasks with logits of tokens."""


def computation(config: Config) -> dict[str, Any]:
    """The keys of the model by their dotted names; those without effect under the others are left out."""
    model, task = config.model, config.task
    values = {key: value for key, value in flatten(model) if key not in TRAINING_ONLY}
    values |= {"head_dim": model.head_size, "qk_head_dim": model.qk_head_size, "num_kv_heads": model.kv_heads}
    values |= {"layer_scale": model.layer_scale is not None, "attention_biases": frozenset(model.attention_biases)}
    if model.variant != "encoder_decoder":
        values["shared_embeddings"] = "none" if model.shared_embeddings == "none" else "all"
    stacks = VARIANTS[model.variant][1]
    images = task.startswith("image")
    scaled = model.position_encoding == "rotary" and model.rotary_scaling != "none"
    has_effect = {
        "num_encoder_layers": "encoder" in stacks,
        "num_decoder_layers": "decoder" in stacks,
        "attention_pattern": model.attention_window is not None,
        "max_positions": model.position_encoding == "learned" and not images,
        "rotary_theta": model.position_encoding == "rotary",
        "rotary_fraction": model.position_encoding == "rotary",
        "rotary_scaling": model.position_encoding == "rotary",
        "rotary_scaling_factor": scaled,
        "rotary_original_length": scaled and model.rotary_scaling in ("llama3", "yarn"),
        "relative_num_buckets": model.position_encoding == "relative_bias",
        "relative_max_distance": model.position_encoding == "relative_bias",
        "token_types": model.variant == "encoder_only" and not images,
        "pooling": task in POOLED,
        "pooler": task in POOLED,
        **dict.fromkeys(("shared_embeddings", "scale_logits", "output_bias"), task in SCORING_TOKENS),
        **dict.fromkeys(("vocab_size", "scale_embeddings"), not images),
        **dict.fromkeys(("patch_size", "class_token", "num_registers", "position_grid"), images),
        **dict.fromkeys(
            (
                "experts_every",
                "experts_per_token",
                "expert_dispatch",
                "expert_capacity_factor",
                "expert_router",
                "d_ff_shared",
            ),
            model.num_experts > 0,
        ),
    }
    return {f"model.{key}": value for key, value in values.items() if has_effect.get(key, True)}


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """A config with other values for some dotted keys, unchecked; whole numbers may stand for others, as in JSON."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        section, _, field = key.rpartition(".")
        kind = typing.get_type_hints(type(getattr(config, section) if section else config))[field]
        if isinstance(value, int) and float in (kind, *typing.get_args(kind)):
            value = float(value)
        sections.setdefault(section, {})[field] = value
    top = sections.pop("", {})
    parts = {name: dataclasses.replace(getattr(config, name), **values) for name, values in sections.items()}
    return dataclasses.replace(config, **top, **parts)
