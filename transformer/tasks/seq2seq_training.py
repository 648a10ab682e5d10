"""How an encoder-decoder model is run over a batch and trained, whatever its pairs are."""

from collections.abc import Mapping
from typing import Any, Optional

import jax.numpy as jnp

from transformer.config import DecodingConfig
from transformer.data.pipeline import real_tokens
from transformer.looks import Look
from transformer.models.flops import TRAINING_FACTOR, seq2seq_forward_flops
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2Seq, Seq2SeqMasks
from transformer.tasks.base import BaseTask, run_model, visible_in_row
from transformer.tasks.looking import as_inputs, pieces_of_tokens, predictions, require_text, run_and_look
from transformer.tasks.translator import Translator
from transformer.types import BatchView, Params, Seq2SeqBatch, Sums, TokenView


class Seq2SeqTraining(BaseTask):
    """The parts of :class:`transformer.types.Task` that follow from the model and ``Seq2SeqBatch``."""

    model: Seq2Seq

    def init(self, rng: Any) -> Params:
        tokens = jnp.zeros((1, 1), jnp.int32)
        masks = Seq2SeqMasks(AttentionMask(), AttentionMask(), AttentionMask())
        return self.model.init(rng, tokens, tokens, masks, deterministic=True)["params"]

    def loss(self, params: Params, batch: Seq2SeqBatch, rng: Any) -> Sums:
        packed = self.config.data.batching == "pack"
        logits_BTV, collected = logits_and_sums(self.model, params, batch, rng, packed=packed)
        return self._sums(logits_BTV, batch.decoder_target_tokens, batch.decoder_loss_weights, collected)

    def work(self, batch: Seq2SeqBatch) -> dict[str, float]:
        source_tokens, target_tokens = real_tokens(batch)
        rows, source_length = batch.encoder_input_tokens.shape
        target_length = batch.decoder_input_tokens.shape[1]
        forward = seq2seq_forward_flops(
            self.config.model, self.model.target_vocab_size, rows, source_length, target_length
        )
        return {
            "source_tokens": float(source_tokens),
            "target_tokens": float(target_tokens),
            "positions": float(rows * (source_length + target_length)),
            "flops": TRAINING_FACTOR * forward,
        }

    def view(self, batch: Seq2SeqBatch) -> BatchView:
        source, target = self._side_tokenizers()[0], self.tokenizer
        encoder = TokenView(
            "encoder input",
            batch.encoder_input_tokens,
            batch.encoder_segment_ids,
            self.model.source_vocab_size,
            source,
            positions=batch.encoder_positions,
            last=source.eos_id,
        )
        decoder = TokenView(
            "decoder input",
            batch.decoder_input_tokens,
            batch.decoder_segment_ids,
            self.model.target_vocab_size,
            target,
            positions=batch.decoder_positions,
            first=target.bos_id,
        )
        targets = decoder._replace(
            name="decoder target",
            tokens=batch.decoder_target_tokens,
            loss_weights=batch.decoder_loss_weights,
            first=None,
            last=target.eos_id,
        )
        masks = make_masks(batch, packed=self.config.data.batching == "pack")
        S, T = batch.encoder_input_tokens.shape[1], batch.decoder_input_tokens.shape[1]
        attention = {
            **self._attention("encoder", masks.encoder, S),
            **self._attention("decoder", masks.decoder, T),
            "cross": visible_in_row(masks.cross, T, S),
        }
        return BatchView((encoder, decoder, targets), attention, self.model.target_vocab_size)

    def _translator(self, decoding: DecodingConfig) -> Translator:
        """What writes outputs for lines."""
        raise NotImplementedError

    def _target_ids(self, target: str) -> list[int]:
        """The tokens of an output that someone typed."""
        return self.tokenizer.encode(target)

    def look(self, params: Params, line: str, target: Optional[str] = None) -> Look:
        """See :class:`transformer.looks.CanBeLookedInto`. What the decoder is given is the best output, or the target,
        behind BOS; at each place it predicts what follows."""
        require_text(line)
        translator, tokenizer = self._translator(self.config.decoding), self.tokenizer
        if target is None:
            source, written, target = translator.best(params, line)
        else:
            (source,), written = translator.inputs([line]), [*self._target_ids(target), tokenizer.eos_id]
        given = [tokenizer.bos_id, *written[:-1]]
        masks = Seq2SeqMasks(AttentionMask(), AttentionMask(causal=True), AttentionMask())
        logits_BTV, attention, experts = run_and_look(self.model, params, *as_inputs(source, given), masks)
        found = predictions(logits_BTV[0, :, : tokenizer.vocab_size], written, tokenizer)
        return Look(
            line,
            target,
            {
                "encoder": pieces_of_tokens(self._side_tokenizers()[0], source),
                "decoder": pieces_of_tokens(tokenizer, given),
            },
            attention,
            experts,
            {"decoder": dict(enumerate(found))},
        )


def logits(model: Seq2Seq, params: Params, batch: Seq2SeqBatch, *, packed: bool) -> Any:
    """Scores [B, T, V] of all target tokens at every position of a batch."""
    return logits_and_sums(model, params, batch, None, packed=packed)[0]


def logits_and_sums(
    model: Seq2Seq, params: Params, batch: Seq2SeqBatch, rng: Any, *, packed: bool
) -> tuple[Any, Mapping[str, Any]]:
    """The same with dropout, unless ``rng`` is None, and the sums that layers collect; see ``run_model``."""
    return run_model(
        model,
        params,
        rng,
        batch.encoder_input_tokens,
        batch.decoder_input_tokens,
        make_masks(batch, packed),
        encoder_positions_BS=batch.encoder_positions if packed else None,
        decoder_positions_BT=batch.decoder_positions if packed else None,
    )


def make_masks(batch: Seq2SeqBatch, packed: bool) -> Seq2SeqMasks:
    """Who sees whom in a batch: by segments where rows are packed, else by lengths, which more kernels understand."""
    if packed:  # a segment's tokens are neighbours: what comes later in the row comes later in the text
        encoder, decoder = batch.encoder_segment_ids, batch.decoder_segment_ids
        return Seq2SeqMasks(
            AttentionMask(query_segment_ids=encoder, key_segment_ids=encoder),
            AttentionMask(causal=True, query_segment_ids=decoder, key_segment_ids=decoder),
            AttentionMask(query_segment_ids=decoder, key_segment_ids=encoder),
        )
    encoder, decoder = (jnp.sum(ids != 0, axis=1) for ids in (batch.encoder_segment_ids, batch.decoder_segment_ids))
    return Seq2SeqMasks(
        AttentionMask(query_lengths=encoder, key_lengths=encoder),
        AttentionMask(causal=True, query_lengths=decoder, key_lengths=decoder),
        AttentionMask(query_lengths=decoder, key_lengths=encoder),
    )
