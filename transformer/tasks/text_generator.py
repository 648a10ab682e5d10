"""From prompts to continuations: encode, group by length, read the prompts in one pass, search, detokenise."""

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
from transformer.models.causal_lm import CausalLM
from transformer.models.masks import AttentionMask
from transformer.progress import progress
from transformer.tasks.searching import DecodingState, check_num_best, find_outputs, group_by_length, num_hypotheses
from transformer.types import Candidate, Params

logger = logging.getLogger(__name__)

LINES_AT_A_TIME = 1_024  # among which similar lengths are sought


class TextGenerator:
    """Lines to candidates, in order: what comes after the line, without the line itself.

    A prompt is the start of a document, so EOS stands before it. A document that ends gives a short continuation, or an
    empty one; a line of nothing but white space gives an empty one too.

    num_truncated: prompts that were longer than ``decoding.max_source_length``, so far.
    """

    def __init__(self, model: CausalLM, tokenizer: Tokenizer, decoding: DecodingConfig):
        self._model = model
        self._tokenizer = tokenizer
        self._decoding = decoding
        self.num_truncated = 0

    def __call__(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        check_num_best(self._decoding, num_best)
        counted = progress(range(len(lines)), "continuing", len(lines))
        for start in range(0, len(lines), LINES_AT_A_TIME):
            for found in self._continue(params, lines[start : start + LINES_AT_A_TIME], start, num_best):
                next(counted)
                yield found

    def _continue(self, params: Params, lines: Sequence[str], start: int, num_best: int) -> list[list[Candidate]]:
        """All candidates for some lines; the first has number ``start`` in the whole text."""
        decoding, tokenizer = self._decoding, self._tokenizer
        prompts = [[tokenizer.eos_id, *ids] for ids in tokenizer.encode_batch(list(lines))]
        for number, ids in enumerate(prompts):
            if len(ids) > decoding.max_source_length:
                logger.warning(
                    "line %d has %d tokens; only the last decoding.max_source_length=%d are continued",
                    start + number + 1,
                    len(ids),
                    decoding.max_source_length,
                )
                prompts[number] = ids[-decoding.max_source_length :]
                self.num_truncated += 1
        results = [[Candidate("", 0.0)] * num_best for _ in lines]
        for numbers, length, rows in group_by_length(lines, prompts, decoding.tokens_per_batch):
            tokens = np.full((rows, length), tokenizer.pad_id, np.int32)
            lengths = np.zeros(rows, np.int32)
            for row, number in enumerate(numbers):
                lengths[row] = len(prompts[number])
                tokens[row, length - lengths[row] :] = prompts[number]
            line_numbers = np.zeros(rows, np.int32)
            line_numbers[: len(numbers)] = numbers
            found = jax.device_get(
                continue_prompts(
                    self._model,
                    params,
                    tokens,
                    lengths,
                    start + line_numbers,
                    decoding=decoding,
                    num_best=num_best,
                    special_ids=(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id),
                )
            )
            for row, number in enumerate(numbers):
                results[number] = [
                    Candidate(self._text_after(prompts[number], ids[:size].tolist()), float(value))
                    for ids, size, value in zip(found.tokens[row], found.lengths[row], found.scores[row], strict=True)
                ]
        return results

    def _text_after(self, prompt: list[int], ids: list[int]) -> str:
        """The text that the ids add: a piece's text may depend on the piece before it, as a space does."""
        decode = self._tokenizer.decode
        return decode([*prompt, *ids])[len(decode(prompt)) :]


@functools.partial(jax.jit, static_argnames=("model", "decoding", "num_best", "special_ids"))
def continue_prompts(
    model: CausalLM,
    params: Params,
    tokens_BT: Any,
    lengths_B: Any,
    line_numbers_B: Any,
    *,
    decoding: DecodingConfig,
    num_best: int,
    special_ids: tuple[int, int, int],
) -> Hypotheses:
    """Continuations of a batch of prompts, by the method that ``decoding`` names. Compiled once for each shape.

    All tokens of the prompts but the last go through the model together; the search starts with the last. The W
    hypotheses of a prompt share its keys and values.

    Args:
      model: static, as all but the arrays.
      params: of the model.
      tokens_BT: prompts of one token and more, each behind its padding, so that all end together.
      lengths_B: of the prompts; 0 is a padding row.
      line_numbers_B: in the whole text; sampling depends on nothing else but ``decoding.seed``.
      decoding: method and settings.
      num_best: outputs for each prompt.
      special_ids: padding, BOS and EOS; the first two are never produced.
    """
    pad_id, bos_id, eos_id = special_ids
    batch_size, prompt_length = tokens_BT.shape
    width, max_steps, before = num_hypotheses(decoding, num_best), decoding.max_extra_tokens, prompt_length - 1
    apply: Any = functools.partial(model.apply, {"params": params}, deterministic=True)
    positions_BT = jnp.maximum(jnp.arange(prompt_length) - (prompt_length - lengths_B[:, None]), -1)
    cache = init_cache(model.config, batch_size, max_steps + -(-before // width), tokens_per_position=width)
    _, cache = apply(tokens_BT[:, :-1], AttentionMask(causal=True), positions_BT=positions_BT[:, :-1], cache=cache)
    pieces_V = np.arange(model.vocab_size)
    allowed_V = (pieces_V != pad_id) & (pieces_V != bos_id)
    own_slots_BWW = jnp.broadcast_to(jnp.eye(width, dtype=bool), (batch_size, width, width))

    def step(state: DecodingState, parents_BW: Any, tokens_BW: Any) -> tuple[Any, DecodingState]:
        num_steps = (state.cache.index - before) // width
        tokens_BW = jnp.where(num_steps == 0, tokens_BT[:, -1:], tokens_BW)
        visible = jnp.take_along_axis(state.visible, parents_BW[..., None], axis=1)
        visible = jax.lax.dynamic_update_slice(visible, own_slots_BWW, (0, 0, state.cache.index))
        logits_BWV, cache = apply(
            tokens_BW,
            AttentionMask(matrix=visible),
            positions_BT=jnp.broadcast_to(positions_BT[:, -1:] + num_steps, tokens_BW.shape),
            cache=state.cache,
        )
        log_probs_BWV = jnp.where(allowed_V, jax.nn.log_softmax(logits_BWV), -jnp.inf)
        return log_probs_BWV, DecodingState(cache, visible)

    num_tokens = width * (max_steps + -(-before // width))
    prompt_N = jnp.arange(num_tokens) < before
    return find_outputs(
        step,
        DecodingState(cache, jnp.broadcast_to(prompt_N, (batch_size, width, num_tokens))),
        decoding=decoding,
        num_best=num_best,
        line_numbers_B=line_numbers_B,
        batch_size=batch_size,
        bos_id=bos_id,
        eos_id=eos_id,
        max_steps=max_steps,
        limits_B=jnp.where(lengths_B > 0, max_steps, 0),
    )
