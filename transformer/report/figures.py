"""Attention as figures for a paper, by matplotlib: one head, or all heads of a layer, also over an image."""

from pathlib import Path
from typing import Any, Optional

from transformer.looks import Look
from transformer.report.attention_measures import key_side, query_side
from transformer.types import UserError, one_of

SUFFIXES = (".svg", ".png", ".pdf")
COLOURS = "Blues"  # one hue, so that print and colour-blind readers lose nothing
LABELLED = 60  # with more queries or keys there is no room for their texts


def write_figure(path: Path, look: Look, stack: Optional[str], layer: Optional[int], head: Optional[int]) -> None:
    """A figure of a look, as the suffix says.

    Args:
      stack: None: the last that the model has.
      layer: from 1; None: the last.
      head: from 1; None: all heads of the layer.

    Raises:
      UserError: for a stack, layer or head that is not there; if there is no matplotlib, or no such folder.
    """
    stack = stack or list(look.attention)[-1]
    layers = one_of("--stack", stack, look.attention)
    layer = len(layers) if layer is None else layer
    if layer > len(layers):
        raise UserError(f"--layer={layer}: {stack} has {len(layers)} layers")
    if head is not None and head > len(layers[layer - 1].weights):
        raise UserError(f"--head={head}: there are {len(layers[layer - 1].weights)} heads")
    save(path, all_heads(look, stack, layer - 1) if head is None else one_head(look, stack, layer - 1, head - 1))


def one_head(look: Look, stack: str, layer: int, head: int) -> Any:
    """A heat map of the weights of one head, counted from 0, as a matplotlib figure."""
    weights_TS = look.weights[stack][layer][head]
    T, S = weights_TS.shape
    width, height = (max(2.2, min(7.0, 1.2 + 0.26 * size)) for size in (S, T))
    figure = empty_figure(width, height)
    axes = figure.subplots()
    shown = axes.imshow(weights_TS, cmap=COLOURS, vmin=0, aspect="auto" if T != S else "equal", interpolation="nearest")
    queries, keys = labels(look, stack)
    if T <= LABELLED:
        axes.set_yticks(range(T), queries)
    if S <= LABELLED:
        axes.set_xticks(range(S), keys, rotation=60, ha="left", rotation_mode="anchor")
    axes.tick_params(length=0, labelsize=8, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.set_xlabel("keys", fontsize=8)
    axes.set_ylabel("queries" if stack != "cross" else "queries: the token that is written", fontsize=8)
    figure.colorbar(shown, ax=axes, shrink=0.7).ax.tick_params(labelsize=7)
    return figure


def all_heads(look: Look, stack: str, layer: int) -> Any:
    """Small heat maps of all heads of a layer, counted from 0; over an image what its patches look at, on average."""
    weights_HTS = look.weights[stack][layer]
    columns = min(4, len(weights_HTS))
    rows = -(-len(weights_HTS) // columns)
    figure = empty_figure(1.6 * columns, 1.75 * rows)
    every = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for head, (axes, weights_TS) in enumerate(zip(every, weights_HTS, strict=False)):
        values = weights_TS if look.image is None else over_patches(look, weights_TS)
        axes.imshow(values, cmap=COLOURS, vmin=0, aspect="auto", interpolation="nearest")
        axes.set_title(f"head {head + 1}", fontsize=8)
    for axes in every:
        axes.set_xticks([])
        axes.set_yticks([])
    for axes in every[len(weights_HTS) :]:
        axes.remove()
    return figure


def over_patches(look: Look, weights_TS: Any) -> Any:
    """[rows, columns]: what the class token looks at, or without one all patches on average."""
    image: Any = look.image
    of_patches = weights_TS[: 1 if image.first_patch else None, image.first_patch :].mean(axis=0)
    return of_patches.reshape(image.rows, image.columns)


def labels(look: Look, stack: str) -> tuple[list[str], list[str]]:
    """Texts of queries and keys; the queries of cross-attention are called by the token that is written there."""
    queries = [piece.text for piece in look.pieces[query_side(stack)]]
    if stack == "cross":
        queries = [look.predictions["decoder"][place].text for place in range(len(queries))]
    keys = [piece.text for piece in look.pieces[key_side(stack)]]
    # A dollar sign would begin a formula.
    return ([text.replace("$", r"\$") for text in queries], [text.replace("$", r"\$") for text in keys])


def save(path: Path, figure: Any, dpi: int = 200) -> None:
    """Write a figure, as the suffix says.

    Raises:
      UserError: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, bbox_inches="tight", dpi=dpi)
    except OSError as error:
        raise UserError(f"--output={path} cannot be written: {error.strerror}") from None


def empty_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches, that belongs to no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("figures need matplotlib: pip install -r requirements-figures.txt") from None
    return Figure(figsize=(width, height), layout="constrained")
