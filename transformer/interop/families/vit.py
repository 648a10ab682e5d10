"""ViT: a pre-norm encoder of patches, a class token, learned positions; with a classifier of it or without."""

from collections.abc import Sequence
from typing import Any

from transformer.config import IMAGE_RESAMPLINGS, Config, DataConfig
from transformer.interop.family import Changes, Family, Row, linear_rows, norm_rows
from transformer.interop.layouts import as_is, leading, transposed
from transformer.interop.settings import Settings

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
PROJECTIONS = ("query", "key", "value", "output")
BILINEAR, BICUBIC = (IMAGE_RESAMPLINGS.index(name) for name in ("bilinear", "bicubic"))


def read_config(settings: Settings, names: frozenset[str]) -> Changes:
    """A model without a classifier becomes a classifier of no classes, which gives features and can be trained on."""
    settings.require("architectures", None, ["ViTForImageClassification"], ["ViTModel"])
    settings.require("problem_type", None, "single_label_classification")
    settings.harmless("encoder_stride", "pooler_output_size", "pooler_act")
    return {
        **read_images(settings, patch_size=16, resample=BILINEAR, mean=(0.5,), std=(0.5,)),
        **read_encoder(settings),
        "model.d_ff": settings.get("intermediate_size"),
        "model.norm_epsilon": settings.get("layer_norm_eps", 1e-12),
    }


def read_images(
    settings: Settings, *, patch_size: int, resample: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> Changes:
    """The sizes of patches and of the table of positions, and how images are prepared: scaled, cut, normalised.

    The last stands in ``preprocessor_config.json``.

    Args:
      patch_size, resample, mean, std: if no file says.
    """
    size, patch = (_side(settings, key, usual) for key, usual in (("image_size", 224), ("patch_size", patch_size)))
    if size % patch:
        raise settings.refusal("image_size", size, f"multiples of patch_size={patch}")
    settings.require("num_channels", 1, 3)
    prepared = settings.file("preprocessor_config")
    for key in ("do_resize", "do_rescale"):
        prepared.require(key, True)
    for key in ("do_pad", "do_flip_channel_order", "offset"):
        prepared.require(key, False)
    prepared.harmless("image_processor_type", "feature_extractor_type", "processor_class", "do_convert_rgb")
    prepared.harmless("data_format", "default_to_square", "_valid_processor_keys")
    scale = prepared.get("rescale_factor", 1 / 255)
    if abs(255 * scale - 1) > 1e-6:
        raise prepared.refusal("rescale_factor", scale, "only 1/255")
    mean, std = (_tuple(prepared.get(key, usual)) for key, usual in (("image_mean", mean), ("image_std", std)))
    if not prepared.get("do_normalize", True):
        mean, std = (0.0,), (1.0,)
    seen = _read_size(prepared, size)
    if seen["data.image_size"] % patch:
        raise prepared.refusal("size", seen["data.image_size"], f"multiples of patch_size={patch}")
    changes = {
        **seen,
        "data.image_resampling": prepared.choose("resample", dict(enumerate(IMAGE_RESAMPLINGS)), resample),
        "data.image_mean": mean,
        "data.image_std": std,
        "model.patch_size": patch,
        "model.position_grid": size // patch,
    }
    prepared.finish()
    return changes


def _read_size(prepared: Settings, usual: int) -> Changes:
    """How large images are made: squares at once, or by their shorter side, and then a square is cut out."""
    if not prepared.get("do_center_crop", False):
        prepared.harmless("crop_size")
        return {"data.image_size": _side(prepared, "size", usual)}
    size = prepared.get("size")
    shorter = size.get("shortest_edge") if isinstance(size, dict) and len(size) == 1 else size
    square = _side(prepared, "crop_size")
    if not isinstance(shorter, int) or shorter < square:
        raise prepared.refusal("size", size, f"with do_center_crop only a shortest_edge of at least {square}")
    return {"data.image_size": square, "data.image_crop": square / shorter}


def read_encoder(settings: Settings) -> Changes:
    """What ViT and DINOv2 write by the same keys."""
    return {
        "task": "image_classification",
        "model.variant": "encoder_only",
        "model.d_model": settings.get("hidden_size"),
        "model.num_heads": settings.get("num_attention_heads"),
        "model.num_encoder_layers": settings.get("num_hidden_layers"),
        "model.norm": "layer_norm",
        "model.norm_placement": "pre",
        "model.attention_biases": PROJECTIONS if settings.get("qkv_bias", True) else ("output",),
        "model.position_encoding": "learned",
        "model.activation": settings.choose("hidden_act", ACTIVATIONS, "gelu"),
        "model.class_token": True,
        "model.pooling": "first",
        "model.dropout_rate": settings.get("hidden_dropout_prob", 0.0),
        "model.attention_dropout_rate": settings.get("attention_probs_dropout_prob", 0.0),
    }


def _side(settings: Settings, key: str, *default: int) -> int:
    """Of a square, given by its side or by both."""
    value = settings.get(key, *default)
    sides = value if isinstance(value, (list, tuple)) else [value]
    if isinstance(value, dict):
        sides = [value.get("height"), value.get("width")]
    if len(set(sides)) != 1 or not isinstance(sides[0], int):
        raise settings.refusal(key, value, "only squares")
    side: int = sides[0]
    return side


def _tuple(values: Any) -> tuple[float, ...]:
    """Of one number for all channels, or one for each."""
    return tuple(map(float, values)) if isinstance(values, (list, tuple)) else (float(values),)


def write_config(config: Config) -> dict[str, Any]:
    return {
        **write_encoder(config),
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "intermediate_size": config.model.d_ff,
    }


def write_encoder(config: Config) -> dict[str, Any]:
    """What ViT and DINOv2 write by the same keys."""
    model = config.model
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    image_size = (model.position_grid or 1) * model.patch_size
    return {
        "preprocessor_config": _preprocessor_config(config.data, config.data.image_size or image_size),
        "hidden_size": model.d_model,
        "num_attention_heads": model.num_heads,
        "num_hidden_layers": model.num_encoder_layers,
        "layer_norm_eps": model.norm_epsilon,
        "image_size": image_size,
        "patch_size": model.patch_size,
        "qkv_bias": "query" in model.attention_biases,
        "hidden_act": activations.get(model.activation, "gelu"),
        "hidden_dropout_prob": model.dropout_rate,
        "attention_probs_dropout_prob": model.attention_dropout_rate,
    }


def _preprocessor_config(data: DataConfig, size: int) -> dict[str, Any]:
    mean, std = (values[0] if len(values) == 1 else list(values) for values in (data.image_mean, data.image_std))
    square = {"height": size, "width": size}
    sizes: dict[str, Any] = {"image_processor_type": "ViTImageProcessor", "size": square}
    if data.image_crop is not None:
        shorter = {"shortest_edge": round(size / data.image_crop)}
        sizes = {"image_processor_type": "BitImageProcessor", "size": shorter}
        sizes |= {"do_center_crop": True, "crop_size": square}
    return {
        **sizes,
        "do_resize": True,
        "resample": IMAGE_RESAMPLINGS.index(data.image_resampling),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }


def rows(config: Config) -> Sequence[Row]:
    layers, theirs = "encoder/stack/layers", "vit.encoder.layer.{layer}"
    return [
        *embedding_rows("vit.embeddings"),
        *attention_rows(config, f"{layers}/self_attention", f"{theirs}.attention"),
        *norm_rows(f"{layers}/self_attention_norm", f"{theirs}.layernorm_before"),
        *linear_rows(f"{layers}/feed_forward/up", f"{theirs}.intermediate.dense"),
        *linear_rows(f"{layers}/feed_forward/down", f"{theirs}.output.dense"),
        *norm_rows(f"{layers}/feed_forward_norm", f"{theirs}.layernorm_after"),
        *norm_rows("encoder/stack/final_norm", "vit.layernorm"),
        *linear_rows("classifier/linear", "classifier"),
    ]


def embedding_rows(theirs: str) -> list[Row]:
    """Patches, class token and positions. A kernel of patches is [P, P, C, D] here, [D, C, P, P] in a convolution."""
    return [
        Row(("encoder/class_token",), f"{theirs}.cls_token", leading(2)),
        Row(("encoder/position_encoding/embedding",), f"{theirs}.position_embeddings", leading(1)),
        Row(
            ("encoder/patch_embedding/kernel",), f"{theirs}.patch_embeddings.projection.weight", transposed(3, 2, 0, 1)
        ),
        Row(("encoder/patch_embedding/bias",), f"{theirs}.patch_embeddings.projection.bias", as_is),
    ]


def attention_rows(config: Config, ours: str, theirs: str) -> list[Row]:
    """Four projections, those of queries, keys and values with biases or without."""
    table = []
    for name in PROJECTIONS[:3]:
        bias = name in config.model.attention_biases
        table += linear_rows(f"{ours}/{name}", f"{theirs}.attention.{name}", bias=bias)
    return [*table, *linear_rows(f"{ours}/output", f"{theirs}.output.dense", num_inputs=2)]


VIT = Family(
    name="vit",
    model_types=("vit",),
    tasks=("image_classification",),
    read_config=read_config,
    write_config=write_config,
    rows=rows,
    prefix="vit.",
    head="classifier",
    unused=lambda config: (r"vit\.pooler\.dense\.(weight|bias)", r"vit\.embeddings\.mask_token"),
    images=True,
)
