"""What all searches for text share: from lines to candidates, the step of hypotheses in one row, methods by name."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import DecodingConfig
from transformer.data.tokenizer import Tokenizer
from transformer.decoding.beam_search import beam_search
from transformer.decoding.hypotheses import Hypotheses, Step
from transformer.decoding.sampling import greedy, sample
from transformer.models.cache import Cache
from transformer.models.masks import AttentionMask
from transformer.progress import progress
from transformer.tasks.by_rows import by_rows, lower_by_rows
from transformer.types import Candidate, Params, UserError

logger = logging.getLogger(__name__)

SHORTEST_INPUT = 16  # inputs are padded to this length or a power of two above it, so that few shapes are compiled
MAX_ROWS = 64  # lines decoded together
FEW_ROWS = 4  # the other number of rows that is compiled, for what is left over and for single lines


class LineSearch:
    """Lines to candidates, in order: encode, group by length, search, detokenise.

    A subclass says what goes into the model for a line, how it is searched, and which text is found.

    num_truncated: inputs that were longer than ``decoding.max_source_length``, so far.
    """

    label: str  # of the progress
    kept: str  # what is done with a part of a line that is too long, in words
    lines_at_a_time: int  # among which similar lengths are sought
    pads_left: bool  # whether padding stands before an input or after it

    def __init__(self, model: Any, tokenizer: Tokenizer, decoding: DecodingConfig):
        self._model = model
        self._tokenizer = tokenizer
        self._decoding = decoding
        self.num_truncated = 0

    def _close(self, ids: list[int]) -> list[int]:
        """A line's tokens with what the model expects around them."""
        raise NotImplementedError

    def _shorten(self, ids: list[int]) -> list[int]:
        """``decoding.max_source_length`` tokens of an input that has more."""
        raise NotImplementedError

    def _program(self, num_best: int) -> tuple[Callable[..., Hypotheses], dict[str, Any]]:
        """What searches, compiled, and its options.

        It is given the model, its parameters, and a batch of inputs: tokens, lengths and the numbers of their lines.
        """
        raise NotImplementedError

    def _text(self, inputs: list[int], ids: list[int]) -> str:
        """What is given out for the tokens that were found."""
        raise NotImplementedError

    def __call__(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        check_num_best(self._decoding, num_best)
        counted = progress(range(len(lines)), self.label, len(lines))
        for start in range(0, len(lines), self.lines_at_a_time):
            for found in self._find(params, lines[start : start + self.lines_at_a_time], start, num_best):
                next(counted)
                yield found

    def lower(self, params: Params) -> Any:
        """The program for a full batch of the longest inputs, one output each, lowered; see :func:`lower_by_rows`."""
        length = padded_length(self._decoding.max_source_length)
        rows = full_rows(length, self._decoding.tokens_per_batch)
        numbers = np.zeros(rows, np.int32)
        function, options = self._program(1)
        return lower_by_rows(
            function, self._model, params, (np.zeros((rows, length), np.int32), numbers, numbers), **options
        )

    def _find(self, params: Params, lines: Sequence[str], start: int, num_best: int) -> list[list[Candidate]]:
        """All candidates for some lines; the first has number ``start`` in the whole text."""
        inputs = self.inputs(lines, start)
        results = [[Candidate("", 0.0)] * num_best for _ in lines]  # what a line of nothing but white space gives
        for number, outputs in self._outputs(params, lines, inputs, start, num_best):
            results[number] = [
                Candidate(self._text(inputs[number], ids[:size].tolist()), float(value), bool(finished))
                for ids, size, value, finished in outputs
            ]
        return results

    def inputs(self, lines: Sequence[str], start: int = 0) -> list[list[int]]:
        """The tokens of lines as the model is given them; the first has number ``start`` in the whole text."""
        most = self._decoding.max_source_length
        inputs = [self._close(ids) for ids in self._tokenizer.encode_batch(list(lines))]
        for number, ids in enumerate(inputs):
            if len(ids) > most:
                logger.warning("line %d has %d tokens; only the %s", start + number + 1, len(ids), self.kept % most)
                inputs[number] = self._shorten(ids)
                self.num_truncated += 1
        return inputs

    def best(self, params: Params, line: str) -> tuple[list[int], list[int], str]:
        """Tokens of a line as the model is given it, and those and the text of its best output, EOS at its end if the
        output was not cut."""
        inputs = self.inputs([line])
        ((_, outputs),) = self._outputs(params, [line], inputs, 0, 1)
        ((ids, size, _, finished),) = outputs
        found = ids[: size + int(finished)].tolist()
        return inputs[0], found, self._text(inputs[0], found[:size])

    def _outputs(
        self, params: Params, lines: Sequence[str], inputs: Sequence[list[int]], start: int, num_best: int
    ) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
        """Of each line that has text its number and its outputs, best first: tokens, number, score, finished."""
        for numbers, length, rows in group_by_length(lines, inputs, self._decoding.tokens_per_batch):
            tokens = np.full((rows, length), self._tokenizer.pad_id, np.int32)
            lengths, line_numbers = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
            line_numbers[: len(numbers)] = numbers
            for row, number in enumerate(numbers):
                lengths[row] = size = len(inputs[number])
                first = length - size if self.pads_left else 0
                tokens[row, first : first + size] = inputs[number]
            function, options = self._program(num_best)
            found = by_rows(function, self._model, params, (tokens, lengths, start + line_numbers), **options)
            outputs = found.tokens, found.lengths, found.scores, found.finished
            for row, number in enumerate(numbers):
                yield number, list(zip(*(field[row] for field in outputs), strict=True))


def group_by_length(
    lines: Sequence[str], inputs: Sequence[Sequence[int]], tokens_per_batch: int
) -> Iterator[tuple[list[int], int, int]]:
    """``(numbers of lines, padded length, padded number of rows)``: similar lengths together, few shapes in all."""
    groups: dict[int, list[int]] = {}
    for number, (line, ids) in enumerate(zip(lines, inputs, strict=True)):
        if line.strip():
            groups.setdefault(padded_length(len(ids)), []).append(number)
    for length, numbers in sorted(groups.items()):
        numbers.sort(key=lambda number: len(inputs[number]))
        rows = full_rows(length, tokens_per_batch)
        for start in range(0, len(numbers), rows):
            chunk = numbers[start : start + rows]
            yield chunk, length, min(rows, FEW_ROWS) if len(chunk) <= FEW_ROWS else rows


def padded_length(num_tokens: int) -> int:
    """Of a row for an input of so many tokens."""
    return max(SHORTEST_INPUT, 1 << (num_tokens - 1).bit_length())


def full_rows(length: int, tokens_per_batch: int) -> int:
    """How many rows of a length are searched together."""
    return min(MAX_ROWS, max(1, tokens_per_batch // length))


class DecodingState(NamedTuple):
    """Between two steps of a search over W hypotheses of each of B lines.

    cache     of each line's one row; each step puts W tokens into it, after those of a prompt if there is one
    visible   [B, W, M] bool: of which of these tokens each hypothesis is made
    occurred  [B, W, V] bool: the pieces of its prompt and its text so far; None where no score depends on that

    A hypothesis that continues another takes over what that one sees, and the keys and values stay where they are:
    nothing is copied when hypotheses change places.
    """

    cache: Cache
    visible: Any
    occurred: Any = None


def make_step(
    decode: Callable[[Cache, Any, AttentionMask], tuple[Any, Cache]],
    shape: tuple[int, int],
    vocab_size: int,
    special_ids: tuple[int, int, int],
    *,
    num_pieces: Optional[int] = None,
    repetition_penalty: float = 1.0,
) -> Step:
    """The step of a search whose hypotheses share a row of the cache.

    Args:
      decode: ``(cache, tokens_BW, mask) -> (logits_BWV, cache)``: scores of what follows the tokens, which are put into
        the cache; the mask says of which tokens in it each hypothesis is made.
      shape: B and W.
      vocab_size: V.
      special_ids: padding, BOS and EOS; the first two are not produced, unless they are the same piece as EOS.
      num_pieces: nor is what is not below this, rows of the embedding that belong to no piece; None: there are none.
      repetition_penalty: by which the positive logits of pieces that have occurred are divided, and negative ones
        multiplied, whatever the method; special pieces count for nothing. Probabilities, and so the scores, are those
        after the penalty. It is used if the state has ``occurred``. Reference: Keskar et al., CTRL (2019), section 4.1.
        As there, of the logits; ``transformers`` does the same, but in a beam search to log-probabilities.
    """
    batch_size, width = shape
    pieces_V = np.arange(vocab_size)
    is_text_V = ~np.isin(pieces_V, special_ids)
    allowed_V = (is_text_V | (pieces_V == special_ids[2])) & (pieces_V < (num_pieces or vocab_size))
    own_BWW = jnp.broadcast_to(jnp.eye(width, dtype=bool), (batch_size, width, width))

    def step(state: DecodingState, parents_BW: Any, tokens_BW: Any) -> tuple[Any, DecodingState]:
        visible = jnp.take_along_axis(state.visible, parents_BW[..., None], axis=1)
        visible = jax.lax.dynamic_update_slice(visible, own_BWW, (0, 0, state.cache.index))
        logits_BWV, cache = decode(state.cache, tokens_BW, AttentionMask(matrix=visible))
        occurred = state.occurred
        if occurred is not None:
            occurred = jnp.take_along_axis(occurred, parents_BW[..., None], axis=1)
            occurred |= is_text_V & (tokens_BW[..., None] == pieces_V)
            logits_BWV = penalized(logits_BWV, occurred, repetition_penalty)
        log_probs_BWV = jnp.where(allowed_V, jax.nn.log_softmax(logits_BWV), -jnp.inf)
        return log_probs_BWV, DecodingState(cache, visible, occurred)

    return step


def penalized(logits_BWV: Any, occurred_BWV: Any, penalty: float) -> Any:
    """Logits with those of pieces that have occurred made worse; see :func:`make_step`."""
    worse_BWV = jnp.where(logits_BWV > 0, logits_BWV / penalty, logits_BWV * penalty)
    return jnp.where(occurred_BWV, worse_BWV, logits_BWV)


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
        "min_p": decoding.min_p,
    }
    return sample(step, state, num_samples=num_best, keys_B=keys_B, **restrictions, **options)
