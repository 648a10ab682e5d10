"""From lines to candidates: encode, group by length, search, detokenise."""

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import DecodingConfig
from transformer.data.tokenizer import Tokenizer
from transformer.decoding.hypotheses import Hypotheses
from transformer.models.cache import init_cache
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2Seq
from transformer.progress import progress
from transformer.tasks.searching import DecodingState, check_num_best, find_outputs, group_by_length, num_hypotheses
from transformer.types import Candidate, Params

logger = logging.getLogger(__name__)

LINES_AT_A_TIME = 4_096  # among which similar lengths are sought


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
        check_num_best(decoding, num_best)
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
    width = num_hypotheses(decoding, num_best)
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
        init_cache(model.config, batch_size, max_steps, tokens_per_position=width),
        jnp.zeros((batch_size, width, num_slots), bool),
    )
    return find_outputs(
        step,
        state,
        decoding=decoding,
        num_best=num_best,
        line_numbers_B=line_numbers_B,
        batch_size=batch_size,
        bos_id=bos_id,
        eos_id=eos_id,
        max_steps=max_steps,
        limits_B=jnp.where(lengths_B > 0, lengths_B + decoding.max_extra_tokens, 0),
    )
