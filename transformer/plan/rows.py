"""Rows of batches as text, and who sees whom as pictures in characters."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.data.pieces import names_of_pieces, on_one_line
from transformer.types import BatchView, TokenView

MOST_TEXTS = 2  # of a packed row are shown
MOST_CHARACTERS = 100  # of a text, and of its pieces
MOST_NUMBERS = 12  # of positions that do not follow each other
PICTURE_SIZE = 32  # characters on a side


def show_row(view: BatchView, row: int) -> Iterator[str]:
    """What a row of a batch holds, in lines."""
    for tokens in view.tokens:
        yield from _show_tokens(tokens, row)
    yield from view.notes(row)


def _show_tokens(view: TokenView, row: int) -> Iterator[str]:
    segments = np.asarray(view.segment_ids[row])
    numbers = [int(number) for number in np.unique(segments) if number]
    texts = "1 text" if len(numbers) == 1 else f"{len(numbers)} texts"
    yield f"{view.name}: {texts} in {len(segments)} columns, {np.count_nonzero(segments == 0)} of them empty"
    piece = piece_namer(view)
    for number in numbers[:MOST_TEXTS]:
        columns = np.flatnonzero(segments == number)
        ids = np.asarray(view.tokens[row])[columns]
        positions = columns if view.positions is None else np.asarray(view.positions[row])[columns]
        places = f"  text {number} in columns {_runs(columns)}, positions {_runs(positions)}"
        if view.loss_weights is not None:
            places += f", loss weights {_weights(np.asarray(view.loss_weights[row])[columns])}"
        yield places
        if view.tokenizer is not None:
            known = [i for i in ids.tolist() if 0 <= i < view.tokenizer.vocab_size]
            yield f"    {_cut(on_one_line(view.tokenizer.decode(known)))}"
        yield f"    {_joined([piece(int(i)) for i in ids])}"
    if len(numbers) > MOST_TEXTS:
        yield f"  and {len(numbers) - MOST_TEXTS} more"


def piece_namer(view: TokenView) -> Callable[[int], str]:
    """A function from an id to what it is called here."""
    if view.tokenizer is None:
        return lambda i: view.names[i]
    return names_of_pieces(view.tokenizer)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "..."


def _joined(pieces: Sequence[str]) -> str:
    """As many whole pieces as a line has room for, with their bounds visible."""
    ends = np.cumsum([len(piece) + 1 for piece in pieces])
    shown = max(int(np.searchsorted(ends, MOST_CHARACTERS, side="right")), 1)
    more = f" and {len(pieces) - shown} more" if shown < len(pieces) else ""
    return "|".join(pieces[:shown]) + more


def _runs(numbers: np.ndarray) -> str:
    """``0-9`` where they follow each other."""
    if len(numbers) > 1 and (np.diff(numbers) == 1).all():
        return f"{numbers[0]}-{numbers[-1]}"
    more = ", ..." if len(numbers) > MOST_NUMBERS else ""
    return ", ".join(map(str, numbers[:MOST_NUMBERS].tolist())) + more


def _weights(weights: np.ndarray) -> str:
    """``0 x 3, 1 x 6``: each as often as it follows itself."""
    changes = np.flatnonzero(np.diff(weights)) + 1
    runs = np.split(weights, changes)
    more = ", ..." if len(runs) > MOST_NUMBERS else ""
    return ", ".join(f"{run[0]:g} x {len(run)}" for run in runs[:MOST_NUMBERS]) + more


def show_attention(attention: Mapping[str, Callable[[int], Any]], row: int) -> Iterator[str]:
    """Who sees whom in a row, in pictures side by side: a line for each query, a column for each key; # is seen."""
    pictures = []
    for name, visible_in in attention.items():
        visible = np.asarray(visible_in(row))
        step = -(-max(visible.shape) // PICTURE_SIZE)
        title = f"{name}, {visible.shape[0]} x {visible.shape[1]}" + (f", 1 in {step}" if step > 1 else "")
        lines = ["".join("#" if seen else "." for seen in line) for line in visible[::step, ::step]]
        width = max(len(title), len(lines[0]))
        pictures.append([line.ljust(width) for line in (title, *lines)])
    blanks = [" " * len(picture[0]) for picture in pictures]
    for parts in itertools.zip_longest(*pictures):
        yield "   ".join(part or blank for part, blank in zip(parts, blanks, strict=True)).rstrip()
