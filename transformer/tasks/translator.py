"""From lines to translations: the encoder once, then a search over the decoder."""

import functools
from collections.abc import Callable
from typing import Any, Optional

import jax
import jax.numpy as jnp

from transformer.config import DecodingConfig
from transformer.data.tokenizer import Tokenizer
from transformer.decoding.hypotheses import Hypotheses
from transformer.models.cache import Cache, init_cache
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2Seq
from transformer.tasks.searching import DecodingState, LineSearch, find_outputs, make_step, num_hypotheses
from transformer.types import Params, UserError


class Translator(LineSearch):
    """Lines to translations, see :class:`LineSearch`.

    Args:
      model: static.
      tokenizers: of the two sides.
      decoding: method and settings.
      detokenize: from the tokens that the target side's data are made of to text; None: the data are text.
    """

    label = "translating"
    kept = "first decoding.max_source_length=%d are translated"
    lines_at_a_time = 4_096
    pads_left = False

    def __init__(
        self,
        model: Seq2Seq,
        tokenizers: tuple[Tokenizer, Tokenizer],
        decoding: DecodingConfig,
        detokenize: Optional[Callable[[str], str]] = None,
    ):
        if decoding.repetition_penalty != 1 or decoding.stop:
            raise UserError(
                f"decoding.repetition_penalty={decoding.repetition_penalty} and decoding.stop={decoding.stop} are for "
                "continuations of text (model.variant=decoder_only); leave them at 1 and ()"
            )
        super().__init__(model, tokenizers[0], decoding)
        self._target_tokenizer = tokenizers[1]
        self._detokenize = detokenize

    def _close(self, ids: list[int]) -> list[int]:
        return [*ids, self._tokenizer.eos_id]

    def _shorten(self, ids: list[int]) -> list[int]:
        return [*ids[: self._decoding.max_source_length - 1], self._tokenizer.eos_id]

    def _program(self, num_best: int) -> tuple[Callable[..., Hypotheses], dict[str, Any]]:
        target = self._target_tokenizer
        options = {
            "decoding": self._decoding,
            "num_best": num_best,
            "special_ids": (target.pad_id, target.bos_id, target.eos_id),
            "num_pieces": target.vocab_size,
        }
        return search, options

    def _text(self, inputs: list[int], ids: list[int]) -> str:
        text = self._target_tokenizer.decode(ids)
        return text if self._detokenize is None else self._detokenize(text)


@functools.partial(jax.jit, static_argnames=("model", "decoding", "num_best", "special_ids", "num_pieces"))
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
    num_pieces: Optional[int] = None,
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
      special_ids: padding, BOS and EOS of the target side; see :func:`transformer.tasks.searching.make_step`.
      num_pieces: of the target side, likewise.
    """
    _, bos_id, eos_id = special_ids
    batch_size, source_length = tokens_BS.shape
    max_steps = source_length + decoding.max_extra_tokens
    width = num_hypotheses(decoding, num_best)
    num_slots = max_steps * width
    apply: Any = functools.partial(model.apply, {"params": params})
    own = AttentionMask(query_lengths=lengths_B, key_lengths=lengths_B)
    source = apply(tokens_BS, own, method="encode")

    def decode(cache: Cache, tokens_BW: Any, mask: AttentionMask) -> tuple[Any, Cache]:
        return apply(
            tokens_BW,
            source,
            mask,
            AttentionMask(key_lengths=lengths_B),
            positions_BT=jnp.broadcast_to(cache.index // width, tokens_BW.shape),
            cache=cache,
            method="decode",
        )

    state = DecodingState(
        init_cache(model.config, batch_size, max_steps, tokens_per_position=width),
        jnp.zeros((batch_size, width, num_slots), bool),
    )
    return find_outputs(
        make_step(decode, (batch_size, width), model.target_vocab_size, special_ids, num_pieces=num_pieces),
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
