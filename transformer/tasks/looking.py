"""What a model did with one input: a run of it in which its layers keep what they attend to."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.pieces import names_of_pieces
from transformer.data.tokenizer import Tokenizer
from transformer.looks import AttentionOfLayer, ExpertsOfLayer, Piece, Prediction
from transformer.types import Params, UserError

ALTERNATIVES = 8  # are kept of each prediction


def run_and_look(
    model: Any, params: Params, *inputs: Any, row: int = 0, **options: Any
) -> tuple[Any, dict[str, tuple[AttentionOfLayer, ...]], dict[str, tuple[Optional[ExpertsOfLayer], ...]]]:
    """What a model gives for a batch, and for one row of it what each layer attended to and which experts it took.

    It is the model's own code, in float32 and with the attention ``dense``: what a kernel for other hardware, or in
    fewer bits, would have computed is the same up to rounding.

    Args:
      model: a module with ``config`` whose parts ``encoder`` and ``decoder`` are stacks, or have one named ``stack``.
      inputs: of the model, as are the options.

    Returns:
      Outputs; attention by stack, and experts by side, as :class:`transformer.looks.Look` has them.
    """
    config = dataclasses.replace(model.config, attention_implementation="dense", dtype="float32")
    outputs, collected = _apply(model.clone(config=config), params, inputs, options)
    attention: dict[str, tuple[AttentionOfLayer, ...]] = {}
    experts: dict[str, tuple[Optional[ExpertsOfLayer], ...]] = {}
    for side in ("encoder", "decoder"):
        if side in collected:
            layers = _layers(collected[side].get("stack", collected[side])["layers"], row)
            attention[side] = tuple(_attention(layer["self_attention"]) for layer in layers)
            experts[side] = tuple(_experts(layer) for layer in layers)
            if "cross_attention" in layers[0]:
                attention["cross"] = tuple(_attention(layer["cross_attention"]) for layer in layers)
    return outputs, attention, experts


def _apply(model: Any, params: Params, inputs: Any, options: Any) -> tuple[Any, Mapping[str, Any]]:
    """Outputs, and what the layers keep. Options are constants of the program."""

    @jax.jit
    def run(params: Params, inputs: Any) -> Any:
        return model.apply({"params": params}, *inputs, deterministic=True, mutable=("intermediates",), **options)

    outputs, collected = run(params, inputs)
    return outputs, collected["intermediates"]


def _layers(kept: Mapping[str, Any], row: int) -> list[Mapping[str, Any]]:
    """What each layer kept of a row, from first to last: a stack scans over turns of its pattern of layers."""
    # The first axis is that of turns; what has no other is the same for all rows.
    kept = jax.tree.map(lambda leaf: np.asarray(leaf[:, row] if leaf.ndim > 1 else leaf), kept)
    places = sorted((name for name in kept if name.startswith("layer_")), key=lambda name: int(name.split("_")[1]))
    patterns = [kept[name] for name in places] or [kept]
    turns = len(patterns[0]["output"][0])
    return [
        jax.tree.map(lambda leaf, turn=turn: leaf[turn], pattern)  # type: ignore[misc]
        for turn in range(turns)
        for pattern in patterns
    ]


def _attention(kept: Mapping[str, Any]) -> AttentionOfLayer:
    (inside,) = kept["inside"]
    query_HTK, key_GSK, value_GSK = (np.swapaxes(each, 0, 1) for each in (inside.query, inside.key, inside.value))
    return AttentionOfLayer(
        inside.weights,
        query_HTK,
        key_GSK,
        value_GSK,
        inside.visible,
        inside.bias,
        float(inside.scale),
        None if inside.softcap is None else float(inside.softcap),
        None if inside.window is None else int(inside.window),
    )


def _experts(kept: Mapping[str, Any]) -> Optional[ExpertsOfLayer]:
    if "feed_forward" not in kept:  # a plain one keeps nothing
        return None
    ((numbers, weights),) = kept["feed_forward"]["routing"]
    return ExpertsOfLayer(numbers, weights)


def pieces_of_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[Piece, ...]:
    """Tokens as people are shown them."""
    name, special = names_of_pieces(tokenizer), {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}
    return tuple(Piece(name(int(i)), int(i) in special) for i in ids)


def predictions(logits_TV: Any, chosen: Sequence[int], names: Sequence[str] | Tokenizer) -> tuple[Prediction, ...]:
    """Of each row of logits the probability of what was chosen, and the likeliest of all.

    Args:
      chosen: the number of what was chosen; -1: the likeliest.
      names: of the columns, or the tokenizer whose pieces they are.
    """
    name = names.__getitem__ if isinstance(names, list | tuple) else names_of_pieces(names)  # type: ignore[arg-type]
    probabilities_TV = np.asarray(jax.nn.softmax(jnp.asarray(logits_TV, jnp.float32), axis=-1))
    best_TV = np.argsort(-probabilities_TV, axis=-1, kind="stable")[:, :ALTERNATIVES]
    found = []
    for i, of_place, best in zip(chosen, probabilities_TV, best_TV, strict=True):
        taken = int(best[0]) if i < 0 else int(i)
        alternatives = tuple((name(int(one)), float(of_place[one])) for one in best)
        found.append(Prediction(name(taken), float(of_place[taken]), alternatives))
    return tuple(found)


def require_text(line: str) -> None:
    """Raise a ``UserError`` for a line in which there is nothing to look at."""
    if not line.strip():
        raise UserError("the input has no text: there is nothing to look at")


def require_no_target(task: str, target: Optional[str]) -> None:
    """Raise a ``UserError`` if there is one."""
    if target is not None:
        raise UserError(f"task={task} writes no target; give an input only")


def as_inputs(*ids: Sequence[int]) -> tuple[Any, ...]:
    """Batches of one row, int32 [1, T]."""
    return tuple(jnp.asarray([each], jnp.int32) for each in ids)
