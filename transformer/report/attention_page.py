"""The attention page: what a model attended to, to be looked at head by head and number by number."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from PIL import Image

from transformer.config import VARIANTS
from transformer.looks import AttentionOfLayer, Look, LookedAtImage
from transformer.report.attention_measures import key_side, measures, query_side, word_starts
from transformer.report.page import assemble, packed
from transformer.training.loading import Loaded
from transformer.types import UserError

SCRIPTS = ("numbers.js", "query.js", "canvas.js", "heads.js", "sections.js", "attention.js")
TOLERANCE = 1e-3
"""By how much weights that are made of float16 queries and keys may differ from the model's, or float32 is stored."""

MOST_PLACES = 1_536
"""Of a side. The page of a model of 6 layers of 8 heads of size 64 then has 38 MB, and still answers at once."""

TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}


def page(look: Look, facts: Mapping[str, str]) -> str:
    """The page as HTML that needs nothing from elsewhere.

    Args:
      facts: what is said of the model and its run at the top, by name.

    Raises:
      UserError: if the model gave weights that are no numbers, or for more than ``MOST_PLACES``.
    """
    most = max(len(pieces) for pieces in look.pieces.values())
    if most > MOST_PLACES:
        raise UserError(
            f"the input has {most:,} places, and a page is made for at most {MOST_PLACES:,}; give a shorter one"
        )
    for stack, layers in look.weights.items():
        for number, weights in enumerate(layers, start=1):
            if not np.isfinite(weights).all():
                raise UserError(
                    f"{stack}, layer {number}: weights are not finite; eval.py --doctor looks for the cause"
                )
    return assemble("attention", f"Attention: {look.input}", SCRIPTS, page_data(look, facts))


def page_data(look: Look, facts: Mapping[str, str]) -> dict[str, Any]:
    """What the page is made of; it computes weights itself, from queries and keys."""
    tables = _Tables()
    stacks = [_stack(look, stack, tables) for stack in TITLES if stack in look.attention]
    return {
        "input": look.input,
        "output": look.output,
        "facts": dict(facts),
        "stacks": stacks,
        "masks": tables.masks,
        "biases": tables.biases,
        "sides": {side: _side(look, side) for side in look.pieces},
        "outcomes": [[text, round(probability, 6)] for text, probability in look.outcomes],
        "image": None if look.image is None else _image(look.image),
        "difference": max(layer["difference"] for stack in stacks for layer in stack["layers"]),
    }


def facts_of(run: Loaded) -> dict[str, str]:
    """What the page says of a run at its top."""
    model, steps = run.config.model, run.checkpoint["steps"]
    layers = {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers}
    parts = [f"{number} {name}" for name, number in layers.items() if name in VARIANTS[model.variant][1]]
    heads = f"{model.num_heads}"
    if model.kv_heads != model.num_heads:
        heads += f", {model.kv_heads} for keys and values"
    return {
        "task": run.config.task.replace("_", " "),
        "layers": " + ".join(parts),
        "heads": f"{heads}, of size {model.head_size}",
        "positions": model.position_encoding.replace("_", " "),
        "steps of training": " and ".join(f"{step:,}" for step in steps),
        "trained with attention": model.attention_implementation,
    }


class _Tables:
    """Masks and biases, each stored once: layers mostly share them."""

    def __init__(self) -> None:
        self.masks: list[str] = []
        self.biases: list[dict[str, Any]] = []

    def mask(self, visible_TS: np.ndarray) -> int:
        return _place(self.masks, packed(np.packbits(visible_TS.astype(bool), axis=None)))

    def bias(self, bias_HTS: Optional[np.ndarray]) -> Optional[int]:
        """Mostly a bias depends on the distance alone: then it is stored for each, from 1 - T to S - 1."""
        if bias_HTS is None:
            return None
        _, T, S = bias_HTS.shape
        by_distance = np.concatenate([bias_HTS[:, ::-1, 0][:, :-1], bias_HTS[:, 0]], axis=1)
        whole = by_distance[:, np.arange(S)[None] - np.arange(T)[:, None] + T - 1]
        found: dict[str, Any] = {"byDistance": bool(np.array_equal(whole, bias_HTS))}
        found["values"] = packed((by_distance if found["byDistance"] else bias_HTS).astype(np.float32))
        return _place(self.biases, found)


def _place(known: list[Any], value: Any) -> int:
    if value not in known:
        known.append(value)
    return known.index(value)


def _stack(look: Look, stack: str, tables: _Tables) -> dict[str, Any]:
    layers = look.attention[stack]
    heads, T, S = layers[0].weights.shape
    return {
        "name": stack,
        "title": TITLES[stack],
        "querySide": query_side(stack),
        "keySide": key_side(stack),
        "heads": heads,
        "groups": layers[0].key.shape[0],
        "T": T,
        "S": S,
        "layers": [
            _layer(layer, {name: _rounded(values) for name, values in of_layer.items()}, tables)
            for layer, of_layer in zip(layers, measures(look, stack), strict=True)
        ],
    }


def _layer(layer: AttentionOfLayer, measured: Mapping[str, Any], tables: _Tables) -> dict[str, Any]:
    dtype: Any = np.float16
    if (difference := weights_difference(layer, dtype)) > TOLERANCE:
        dtype = np.float32
        difference = weights_difference(layer, dtype)
    arrays = {name: packed(getattr(layer, name).astype(dtype)) for name in ("query", "key", "value")}
    return {
        **arrays,
        "bits": np.finfo(dtype).bits,
        "size": layer.query.shape[-1],
        "scale": layer.scale,
        "softcap": layer.softcap,
        "window": layer.window,
        "mask": tables.mask(layer.visible),
        "bias": tables.bias(layer.bias),
        "measures": measured,
        "difference": difference,
    }


def recomputed_weights(layer: AttentionOfLayer, dtype: Any = np.float32) -> np.ndarray:
    """Weights [H, T, S] from queries and keys of fewer bits, as the page makes them."""
    heads, groups = layer.query.shape[0], layer.key.shape[0]
    query, key = (np.float64(each.astype(dtype)) for each in (layer.query, layer.key))
    logits = query @ np.repeat(key, heads // groups, axis=0).swapaxes(1, 2) * layer.scale
    if layer.softcap is not None:
        logits = layer.softcap * np.tanh(logits / layer.softcap)
    if layer.bias is not None:
        logits = logits + layer.bias
    logits = np.where(layer.visible, logits, -np.inf)
    highest = np.where(layer.visible.any(axis=-1), logits.max(axis=-1), 0)
    powers = np.exp(logits - highest[..., None])
    return powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300)


def weights_difference(layer: AttentionOfLayer, dtype: Any) -> float:
    """The largest, between recomputed weights and the model's own; infinite where the dtype cannot hold the values."""
    with np.errstate(over="ignore", invalid="ignore"):
        different = float(np.abs(recomputed_weights(layer, dtype) - layer.weights).max())
    return different if np.isfinite(different) else np.inf


def _side(look: Look, side: str) -> dict[str, Any]:
    pieces = look.pieces[side]
    found: dict[str, Any] = {
        "pieces": [piece.text for piece in pieces],
        "special": [int(piece.special) for piece in pieces],
        "words": _words([piece.text for piece in pieces], [piece.special for piece in pieces], look),
        "predictions": {
            str(place): {
                "text": prediction.text,
                "probability": round(prediction.probability, 6),
                "alternatives": [[text, round(probability, 6)] for text, probability in prediction.alternatives],
            }
            for place, prediction in look.predictions.get(side, {}).items()
        },
        "experts": [
            None if experts is None else {"numbers": experts.numbers.tolist(), "weights": _rounded(experts.weights)}
            for experts in look.experts[side]
        ],
    }
    if side == "decoder" and "cross" in look.attention:
        written = [look.predictions[side][place].text for place in range(len(pieces))]
        special = [*(piece.special for piece in pieces[1:]), written[-1] == "<eos>"]
        found["written"] = {"pieces": written, "special": [int(one) for one in special]}
        found["written"]["words"] = _words(written, special, look)
    return found


def _words(texts: Sequence[str], special: Sequence[bool], look: Look) -> list[int]:
    return list(range(len(texts))) if look.image is not None else word_starts(texts, special)


def _image(image: LookedAtImage) -> dict[str, Any]:
    height, width, channels = image.pixels.shape
    buffer = io.BytesIO()
    Image.fromarray(image.pixels[..., 0] if channels == 1 else image.pixels[..., :3]).save(buffer, "PNG")
    return {
        "url": "data:image/png;base64," + packed(np.frombuffer(buffer.getvalue(), np.uint8)),
        "width": width,
        "height": height,
        "rows": image.rows,
        "columns": image.columns,
        "firstPatch": image.first_patch,
    }


def _rounded(values: np.ndarray) -> Any:
    return np.round(values.astype(np.float64), 4).tolist()
