"""From prompts to continuations: the prompts in one pass, then a search that goes on from them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from transformer.config import DecodingConfig
from transformer.data.tokenizer import Tokenizer
from transformer.decoding.hypotheses import Hypotheses
from transformer.models.cache import Cache, init_cache
from transformer.models.causal_lm import CausalLM
from transformer.models.masks import AttentionMask
from transformer.tasks.searching import DecodingState, LineSearch, find_outputs, make_step, num_hypotheses
from transformer.types import Params


class TextGenerator(LineSearch):
    """Lines to what comes after them, without the lines themselves; see :class:`LineSearch`.

    A prompt is the start of a document, so before it stands what the tokenizer's documents begin after (``start_id``),
    if anything; a prompt without a single token then begins after EOS. A document that ends gives a short continuation,
    or an empty one; a line of nothing but white space gives an empty one too.

    With ``decoding.stop`` the text ends before the first of these strings in the continuation. The search does not see
    them: it goes on to its end, and the score is that of all it has found.
    """

    label = "continuing"
    kept = "last decoding.max_source_length=%d are continued"
    lines_at_a_time = 1_024
    pads_left = True

    def __init__(self, model: CausalLM, tokenizer: Tokenizer, decoding: DecodingConfig):
        super().__init__(model, tokenizer, decoding)

    def _close(self, ids: list[int]) -> list[int]:
        start_id = self._tokenizer.start_id
        if start_id is None:
            return ids or [self._tokenizer.eos_id]
        return [start_id, *ids]

    def _shorten(self, ids: list[int]) -> list[int]:
        return ids[-self._decoding.max_source_length :]

    def _program(self, num_best: int) -> tuple[Callable[..., Hypotheses], dict[str, Any]]:
        tokenizer = self._tokenizer
        options = {
            "decoding": dataclasses.replace(self._decoding, stop=()),  # other strings are no reason to compile anew
            "num_best": num_best,
            "special_ids": (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id),
            "num_pieces": tokenizer.vocab_size,
        }
        return continue_prompts, options

    def _text(self, inputs: list[int], ids: list[int]) -> str:
        """The text that the ids add: a piece's text may depend on the piece before it, as a space does."""
        decode = self._tokenizer.decode
        text = decode([*inputs, *ids])[len(decode(inputs)) :]
        return text[: min((place for stop in self._decoding.stop if (place := text.find(stop)) >= 0), default=None)]


@functools.partial(jax.jit, static_argnames=("model", "decoding", "num_best", "special_ids", "num_pieces"))
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
    num_pieces: int,
) -> Hypotheses:
    """Continuations of a batch of prompts, by the method that ``decoding`` names. Compiled once for each shape.

    All tokens of the prompts but the last go through the model together; the search starts with the last. The W
    hypotheses of a prompt share its keys and values. With ``prefix_lm`` a prompt's tokens see also those after them,
    the last one too: it then goes through the model twice, and in its second pass takes the place of its first.

    Args:
      model: static, as all but the arrays.
      params: of the model.
      tokens_BT: prompts of one token and more, each behind its padding, so that all end together.
      lengths_B: of the prompts; 0 is a padding row.
      line_numbers_B: in the whole text; sampling depends on nothing else but ``decoding.seed``.
      decoding: method and settings.
      num_best: outputs for each prompt.
      special_ids: padding, BOS and EOS; see :func:`transformer.tasks.searching.make_step`.
      num_pieces: of the tokenizer, likewise.
    """
    _, bos_id, eos_id = special_ids
    batch_size, prompt_length = tokens_BT.shape
    width, max_steps, before = num_hypotheses(decoding, num_best), decoding.max_extra_tokens, prompt_length - 1
    apply: Any = functools.partial(model.apply, {"params": params}, deterministic=True)
    positions_BT = jnp.maximum(jnp.arange(prompt_length) - (prompt_length - lengths_B[:, None]), -1)
    max_length = max_steps + -(-before // width)
    cache = init_cache(model.config, batch_size, max_length, tokens_per_position=width)
    prefix, mask = slice(before), AttentionMask(causal=True)
    if model.config.prefix_lm:
        prefix, mask = slice(None), AttentionMask(causal=True, prefix_lengths=lengths_B)
    _, cache = apply(tokens_BT[:, prefix], mask, positions_BT=positions_BT[:, prefix], cache=cache)
    cache = cache._replace(index=jnp.full_like(cache.index, before))

    def decode(cache: Cache, tokens_BW: Any, mask: AttentionMask) -> tuple[Any, Cache]:
        num_steps = (cache.index - before) // width
        positions_BW = jnp.broadcast_to(positions_BT[:, -1:] + num_steps, tokens_BW.shape)
        return apply(tokens_BW, mask, positions_BT=positions_BW, cache=cache)

    next_step = make_step(
        decode,
        (batch_size, width),
        model.vocab_size,
        special_ids,
        num_pieces=num_pieces,
        repetition_penalty=decoding.repetition_penalty,
    )

    def step(state: DecodingState, parents_BW: Any, tokens_BW: Any) -> tuple[Any, DecodingState]:
        is_first = state.cache.index == before
        return next_step(state, parents_BW, jnp.where(is_first, tokens_BT[:, -1:], tokens_BW))

    num_tokens = width * max_length
    prompt_N = jnp.arange(num_tokens) < before
    occurred = None
    if decoding.repetition_penalty != 1:
        occurred = pieces_of(tokens_BT, positions_BT >= 0, model.vocab_size, special_ids)
        occurred = jnp.repeat(occurred[:, None], width, axis=1)
    return find_outputs(
        step,
        DecodingState(cache, jnp.broadcast_to(prompt_N, (batch_size, width, num_tokens)), occurred),
        decoding=decoding,
        num_best=num_best,
        line_numbers_B=line_numbers_B,
        batch_size=batch_size,
        bos_id=bos_id,
        eos_id=eos_id,
        max_steps=max_steps,
        limits_B=jnp.where(lengths_B > 0, max_steps, 0),
    )


def pieces_of(tokens_BT: Any, is_real_BT: Any, vocab_size: int, special_ids: tuple[int, ...]) -> Any:
    """Which pieces [B, V] stand in each row, special ones apart."""
    rows_B1 = jnp.arange(len(tokens_BT))[:, None]
    is_text_BT = is_real_BT & ~jnp.isin(tokens_BT, jnp.array(special_ids))
    found_BV = jnp.zeros((len(tokens_BT), vocab_size), bool)
    return found_BV.at[rows_B1, jnp.where(is_text_BT, tokens_BT, vocab_size)].set(True, mode="drop")
