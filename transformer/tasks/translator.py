"""From lines to candidates: encode, group by length, search, detokenise."""

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import DecodingConfig
from transformer.data.tokenizer import Tokenizer
from transformer.decoding.beam_search import beam_search
from transformer.decoding.hypotheses import Hypotheses
from transformer.decoding.sampling import greedy, sample
from transformer.models.cache import Cache, init_cache
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2Seq
from transformer.progress import progress
from transformer.types import Candidate, Params, UserError

logger = logging.getLogger(__name__)

SHORTEST_SOURCE = 16  # inputs are padded to this length or a power of two above it, so that few shapes are compiled
MAX_ROWS = 64  # sentences decoded together
LINES_AT_A_TIME = 4_096  # among which similar lengths are sought
FEW_ROWS = 4  # the other number of rows that is compiled, for what is left over and for single lines


class Translator:
    """Lines to candidates, in order: encode, group by length, search, detokenise.

    num_truncated: inputs that were longer than ``decoding.max_source_length``, so far.
    """

    def __init__(self, model: Seq2Seq, tokenizers: tuple[Tokenizer, Tokenizer], decoding: DecodingConfig):
        self._model = model
        self._tokenizers = tokenizers
        self._decoding = decoding
        self.num_truncated = 0

    def __call__(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        decoding = self._decoding
        if num_best > decoding.beam_size and decoding.method == "beam":
            raise UserError(f"num_best={num_best} needs --config.decoding.beam_size of at least as many")
        if num_best > 1 and decoding.method == "greedy":
            raise UserError(f"num_best={num_best}: decoding.method=greedy finds one output; use beam or sample")
        counted = progress(range(len(lines)), "translating", len(lines))
        for start in range(0, len(lines), LINES_AT_A_TIME):
            for found in self._translate(params, lines[start : start + LINES_AT_A_TIME], start, num_best):
                next(counted)
                yield found

    def _translate(self, params: Params, lines: Sequence[str], start: int, num_best: int) -> list[list[Candidate]]:
        """All candidates for a few thousand lines; the first has number ``start`` in the whole text."""
        decoding, (tokenizer, target_tokenizer) = self._decoding, self._tokenizers
        inputs = [[*ids, tokenizer.eos_id] for ids in tokenizer.encode_batch(list(lines))]
        for number, ids in enumerate(inputs):
            if len(ids) > decoding.max_source_length:
                logger.warning(
                    "line %d has %d tokens; only the first decoding.max_source_length=%d are translated",
                    start + number + 1,
                    len(ids),
                    decoding.max_source_length,
                )
                inputs[number] = [*ids[: decoding.max_source_length - 1], tokenizer.eos_id]
                self.num_truncated += 1
        special_ids = (target_tokenizer.pad_id, target_tokenizer.bos_id, target_tokenizer.eos_id)
        results = [[Candidate("", 0.0)] * num_best for _ in lines]  # what a line of nothing but white space gives
        for numbers, length, rows in group_by_length(lines, inputs, decoding.tokens_per_batch):
            tokens = np.full((rows, length), tokenizer.pad_id, np.int32)
            lengths = np.zeros(rows, np.int32)
            for row, number in enumerate(numbers):
                lengths[row] = len(inputs[number])
                tokens[row, : lengths[row]] = inputs[number]
            line_numbers = np.zeros(rows, np.int32)
            line_numbers[: len(numbers)] = numbers
            found = jax.device_get(
                search(
                    self._model,
                    params,
                    tokens,
                    lengths,
                    start + line_numbers,
                    decoding=decoding,
                    num_best=num_best,
                    special_ids=special_ids,
                )
            )
            for row, number in enumerate(numbers):
                results[number] = [
                    Candidate(target_tokenizer.decode(ids[:size].tolist()), float(value))
                    for ids, size, value in zip(found.tokens[row], found.lengths[row], found.scores[row], strict=True)
                ]
        return results


def group_by_length(
    lines: Sequence[str], inputs: Sequence[Sequence[int]], tokens_per_batch: int
) -> Iterator[tuple[list[int], int, int]]:
    """``(numbers of lines, padded length, padded number of rows)``: similar lengths together, few shapes in all."""
    groups: dict[int, list[int]] = {}
    for number, (line, ids) in enumerate(zip(lines, inputs, strict=True)):
        if line.strip():
            length = max(SHORTEST_SOURCE, 1 << (len(ids) - 1).bit_length())
            groups.setdefault(length, []).append(number)
    for length, numbers in sorted(groups.items()):
        numbers.sort(key=lambda number: len(inputs[number]))
        rows = min(MAX_ROWS, max(1, tokens_per_batch // length))
        for start in range(0, len(numbers), rows):
            chunk = numbers[start : start + rows]
            yield chunk, length, min(rows, FEW_ROWS) if len(chunk) <= FEW_ROWS else rows


class DecodingState(NamedTuple):
    """Between two steps of a search over W hypotheses of each of B sentences.

    cache     the W tokens of step n stand in slots n W to n W + W - 1 of their sentence's one row
    visible   [B, W, N W] bool: which slots hold the tokens that each hypothesis is made of

    A hypothesis that continues another takes over what that one sees, and the keys and values stay where they are:
    nothing is copied when hypotheses change places.
    """

    cache: Cache
    visible: Any


@functools.partial(jax.jit, static_argnames=("model", "decoding", "num_best", "special_ids"))
def search(
    model: Seq2Seq,
    params: Params,
    tokens_BS: Any,
    lengths_B: Any,
    line_numbers_B: Any,
    *,
    decoding: DecodingConfig,
    num_best: int,
    special_ids: tuple[int, int, int],
) -> Hypotheses:
    """Outputs for a batch of sources, by the method that ``decoding`` names. Compiled once for each shape.

    Args:
      model: static, as all but the arrays.
      params: of the model.
      tokens_BS: sources, each closed by EOS, then padding.
      lengths_B: of the sources, EOS included; 0 is a padding row, which costs nothing.
      line_numbers_B: in the whole text; sampling depends on nothing else but ``decoding.seed``.
      decoding: method and settings.
      num_best: outputs for each source.
      special_ids: padding, BOS and EOS of the target side; the first two are never produced.
    """
    pad_id, bos_id, eos_id = special_ids
    batch_size, source_length = tokens_BS.shape
    max_steps = source_length + decoding.max_extra_tokens
    width = {"beam": decoding.beam_size, "greedy": 1, "sample": num_best}[decoding.method]
    num_slots = max_steps * width
    apply: Any = functools.partial(model.apply, {"params": params})
    own = AttentionMask(query_lengths=lengths_B, key_lengths=lengths_B)
    source = apply(tokens_BS, own, method="encode")
    pieces_V = np.arange(model.target_vocab_size)
    allowed_V = (pieces_V != pad_id) & (pieces_V != bos_id)
    own_slots_BWW = jnp.broadcast_to(jnp.eye(width, dtype=bool), (batch_size, width, width))

    def step(state: DecodingState, parents_BW: Any, tokens_BW: Any) -> tuple[Any, DecodingState]:
        visible = jnp.take_along_axis(state.visible, parents_BW[..., None], axis=1)
        visible = jax.lax.dynamic_update_slice(visible, own_slots_BWW, (0, 0, state.cache.index))
        logits_BWV, cache = apply(
            tokens_BW,
            source,
            AttentionMask(matrix=visible),
            AttentionMask(key_lengths=lengths_B),
            positions_BT=jnp.broadcast_to(state.cache.index // width, tokens_BW.shape),
            cache=state.cache,
            method="decode",
        )
        log_probs_BWV = jnp.where(allowed_V, jax.nn.log_softmax(logits_BWV), -jnp.inf)
        return log_probs_BWV, DecodingState(cache, visible)

    state = DecodingState(
        init_cache(model.config, batch_size, num_slots), jnp.zeros((batch_size, width, num_slots), bool)
    )
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "bos_id": bos_id,
        "eos_id": eos_id,
        "max_steps": max_steps,
        "limits_B": jnp.where(lengths_B > 0, lengths_B + decoding.max_extra_tokens, 0),
    }
    if decoding.method == "greedy":
        return greedy(step, state, **options)
    if decoding.method == "beam":
        penalty: dict[str, Any] = {"length_penalty": decoding.length_penalty, "alpha": decoding.alpha}
        return beam_search(step, state, beam_size=width, num_best=num_best, **penalty, **options)
    keys_B = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(decoding.seed), line_numbers_B)
    restrictions: dict[str, Any] = {
        "temperature": decoding.temperature,
        "top_k": decoding.top_k,
        "top_p": decoding.top_p,
    }
    return sample(step, state, num_samples=width, keys_B=keys_B, **restrictions, **options)
