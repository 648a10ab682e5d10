"""DINOv2: a ViT with LayerScale, trained without labels: it gives features and has no classifier."""

from collections.abc import Sequence
from typing import Any

from transformer.config import Config
from transformer.interop.families.vit import (
    BICUBIC,
    attention_rows,
    embedding_rows,
    read_encoder,
    read_images,
    write_encoder,
)
from transformer.interop.family import Changes, Family, Row, linear_rows, norm_rows
from transformer.interop.layouts import as_is, flat, fused, leading, linear
from transformer.interop.settings import Settings

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ARCHITECTURES = {"dinov2": "Dinov2Model", "dinov2_with_registers": "Dinov2WithRegistersModel"}


def read_config(settings: Settings, names: frozenset[str]) -> Changes:
    """Images mostly are of another size than the table of positions was trained for, to which it is interpolated."""
    kind, d_model, ratio = settings.get("model_type"), settings.get("hidden_size"), settings.get("mlp_ratio", 4)
    settings.require("architectures", None, [ARCHITECTURES[kind]])
    settings.harmless("apply_layernorm", "out_features", "out_indices", "reshape_hidden_states", "stage_names")
    settings.harmless("use_mask_token")
    gated = settings.get("use_swiglu_ffn", False)
    changes = {
        **read_images(settings, patch_size=14, resample=BICUBIC, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        **read_encoder(settings),
        "model.d_ff": gated_width(d_model, float(ratio)) if gated else int(d_model * ratio),
        "model.norm_epsilon": settings.get("layer_norm_eps", 1e-6),
        "model.layer_scale": float(settings.get("layerscale_value", 1.0)),
        "model.num_registers": settings.get("num_register_tokens", 4) if kind == "dinov2_with_registers" else 0,
        "model.stochastic_depth_rate": settings.get("drop_path_rate", 0.0),
    }
    return changes | {"model.activation": "swiglu"} if gated else changes


def gated_width(d_model: int, ratio: float) -> int:
    """Two thirds of the width, rounded up to a multiple of 8."""
    return (int(int(d_model * ratio) * 2 / 3) + 7) // 8 * 8


def write_config(config: Config) -> dict[str, Any]:
    model = config.model
    kind = "dinov2_with_registers" if model.num_registers else "dinov2"
    gated = model.activation == "swiglu"
    written = {
        **write_encoder(config),
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "mlp_ratio": round(model.d_ff * (1.5 if gated else 1) / model.d_model),
        "use_swiglu_ffn": gated,
        "layerscale_value": 1.0 if model.layer_scale is None else model.layer_scale,
        "drop_path_rate": model.stochastic_depth_rate,
    }
    return written | {"num_register_tokens": model.num_registers} if model.num_registers else written


def rows(config: Config) -> Sequence[Row]:
    layers, theirs = "encoder/stack/layers", "encoder.layer.{layer}"
    table = [
        *embedding_rows("embeddings"),
        *attention_rows(config, f"{layers}/self_attention", f"{theirs}.attention"),
        *norm_rows(f"{layers}/self_attention_norm", f"{theirs}.norm1"),
        Row((f"{layers}/self_attention_scale",), f"{theirs}.layer_scale1.lambda1", as_is),
        *_feed_forward_rows(f"{layers}/feed_forward", f"{theirs}.mlp", config.model.activation == "swiglu"),
        *norm_rows(f"{layers}/feed_forward_norm", f"{theirs}.norm2"),
        Row((f"{layers}/feed_forward_scale",), f"{theirs}.layer_scale2.lambda1", as_is),
        *norm_rows("encoder/stack/final_norm", "layernorm"),
    ]
    if config.model.num_registers:
        table.append(Row(("encoder/registers",), "embeddings.register_tokens", leading(1)))
    return table


def _feed_forward_rows(ours: str, theirs: str, gated: bool) -> list[Row]:
    if not gated:
        return linear_rows(f"{ours}/up", f"{theirs}.fc1") + linear_rows(f"{ours}/down", f"{theirs}.fc2")
    return [
        Row((f"{ours}/gate/kernel", f"{ours}/up/kernel"), f"{theirs}.weights_in.weight", fused(linear(), axis=0)),
        Row((f"{ours}/gate/bias", f"{ours}/up/bias"), f"{theirs}.weights_in.bias", fused(flat, axis=0)),
        *linear_rows(f"{ours}/down", f"{theirs}.weights_out"),
    ]


DINOV2 = Family(
    name="dinov2",
    model_types=tuple(ARCHITECTURES),
    tasks=("image_classification",),
    read_config=read_config,
    write_config=write_config,
    rows=rows,
    unused=lambda config: (r"embeddings\.mask_token",),
    images=True,
)
