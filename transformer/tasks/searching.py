"""What all searches for text share: lines grouped by length, what lies between two steps, the method by its name."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from transformer.config import DecodingConfig
from transformer.decoding.beam_search import beam_search
from transformer.decoding.hypotheses import Hypotheses, Step
from transformer.decoding.sampling import greedy, sample
from transformer.models.cache import Cache
from transformer.types import UserError

SHORTEST_INPUT = 16  # inputs are padded to this length or a power of two above it, so that few shapes are compiled
MAX_ROWS = 64  # lines decoded together
FEW_ROWS = 4  # the other number of rows that is compiled, for what is left over and for single lines


def group_by_length(
    lines: Sequence[str], inputs: Sequence[Sequence[int]], tokens_per_batch: int
) -> Iterator[tuple[list[int], int, int]]:
    """``(numbers of lines, padded length, padded number of rows)``: similar lengths together, few shapes in all."""
    groups: dict[int, list[int]] = {}
    for number, (line, ids) in enumerate(zip(lines, inputs, strict=True)):
        if line.strip():
            length = max(SHORTEST_INPUT, 1 << (len(ids) - 1).bit_length())
            groups.setdefault(length, []).append(number)
    for length, numbers in sorted(groups.items()):
        numbers.sort(key=lambda number: len(inputs[number]))
        rows = min(MAX_ROWS, max(1, tokens_per_batch // length))
        for start in range(0, len(numbers), rows):
            chunk = numbers[start : start + rows]
            yield chunk, length, min(rows, FEW_ROWS) if len(chunk) <= FEW_ROWS else rows


class DecodingState(NamedTuple):
    """Between two steps of a search over W hypotheses of each of B lines.

    cache     of each line's one row; each step puts W tokens into it, after those of a prompt if there is one
    visible   [B, W, M] bool: of which of these tokens each hypothesis is made

    A hypothesis that continues another takes over what that one sees, and the keys and values stay where they are:
    nothing is copied when hypotheses change places.
    """

    cache: Cache
    visible: Any


def check_num_best(decoding: DecodingConfig, num_best: int) -> None:
    """Raise a ``UserError`` if the method does not find so many outputs."""
    if num_best > decoding.beam_size and decoding.method == "beam":
        raise UserError(f"num_best={num_best} needs --config.decoding.beam_size of at least as many")
    if num_best > 1 and decoding.method == "greedy":
        raise UserError(f"num_best={num_best}: decoding.method=greedy finds one output; use beam or sample")


def num_hypotheses(decoding: DecodingConfig, num_best: int) -> int:
    """W: how many hypotheses of a line the method follows at a time."""
    return {"beam": decoding.beam_size, "greedy": 1, "sample": num_best}[decoding.method]


def find_outputs(
    step: Step, state: Any, *, decoding: DecodingConfig, num_best: int, line_numbers_B: Any, **options: Any
) -> Hypotheses:
    """``num_best`` outputs for each line of a batch, by the method that ``decoding`` names.

    Args:
      line_numbers_B: in the whole text; sampling depends on nothing else but ``decoding.seed``.
      options: what all methods take, see :func:`transformer.decoding.beam_search.beam_search`.
    """
    if decoding.method == "greedy":
        return greedy(step, state, **options)
    if decoding.method == "beam":
        penalty: dict[str, Any] = {"length_penalty": decoding.length_penalty, "alpha": decoding.alpha}
        return beam_search(step, state, beam_size=decoding.beam_size, num_best=num_best, **penalty, **options)
    keys_B = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(decoding.seed), line_numbers_B)
    restrictions: dict[str, Any] = {
        "temperature": decoding.temperature,
        "top_k": decoding.top_k,
        "top_p": decoding.top_p,
    }
    return sample(step, state, num_samples=num_best, keys_B=keys_B, **restrictions, **options)
