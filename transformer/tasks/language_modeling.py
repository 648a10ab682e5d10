"""Language modelling: documents, the decoder-only model, next-token cross-entropy, bits per byte, continuations."""

import functools
import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import Config, ModelConfig
from transformer.data.batching import Windows, document_plan, make_windows
from transformer.data.pipeline import DocumentPipeline, PrefixPipeline, StreamPipeline, window_batches
from transformer.data.store import Tokens
from transformer.looks import Look
from transformer.models.causal_lm import CausalLM
from transformer.models.embeddings import embedding_rows
from transformer.models.flops import TRAINING_FACTOR, causal_lm_forward_flops
from transformer.models.masks import AttentionMask
from transformer.progress import progress
from transformer.tasks.base import DocumentTask, run_model
from transformer.tasks.by_rows import by_rows
from transformer.tasks.looking import (
    as_inputs,
    pieces_of_tokens,
    predictions,
    require_no_target,
    require_text,
    run_and_look,
)
from transformer.tasks.text_generator import TextGenerator
from transformer.types import BatchView, Candidate, Params, Sums, TokenBatch, TokenView, UserError

logger = logging.getLogger(__name__)


class LanguageModelingTask(DocumentTask):
    """See :class:`transformer.types.Task`. Data is read when first asked for: generating text needs none.

    A document begins after EOS, or after what its tokenizer says (``start_id``), and ends with EOS, whatever
    ``data.batching`` is, so that a model that was trained in one way can be scored and used like any other. Where
    nothing stands before a document (``start_id`` is None) its first token has no probability: it is not scored.
    (In training it then follows the EOS of another document, which costs a model that knows this nothing.)
    """

    name, variant, scores = "language_modeling", "decoder_only", ("nll_per_token", "perplexity", "bits_per_byte")

    def __init__(self, config: Config, assets: Optional[Path] = None):
        super().__init__(config, assets)
        if config.model.position_encoding == "learned" and self._window > config.model.max_positions:
            raise UserError(
                f"evaluation.window={self._window} is more than model.max_positions={config.model.max_positions} can "
                "tell apart"
            )
        self.model = CausalLM(config.model, embedding_rows(config.model, self.tokenizer.vocab_size))

    # Data

    @functools.cached_property
    def _training(self) -> DocumentPipeline | StreamPipeline | PrefixPipeline:
        data, seed = self.config.data, self.config.seed
        documents, repeats = self._store(self._source, "train").sides[0], self._source.repeats("train")
        pipeline: DocumentPipeline | StreamPipeline
        if data.batching == "stream":
            pipeline = StreamPipeline(
                documents,
                tokens_per_batch=data.tokens_per_batch,
                row_length=data.max_target_length,
                seed=seed,
                repeats=repeats,
                start_id=self.tokenizer.start_id,
            )
        else:
            pieces, counts = documents.pieces(data.max_target_length)
            if repeats is not None:
                repeats = np.repeat(repeats, counts)
            plan = document_plan(data, pieces.lengths, seed, repeats)
            pipeline = DocumentPipeline(pieces, plan, self.tokenizer.pad_id, self.tokenizer.start_id)
        logger.info(
            "training on %d tokens of %d documents, in %d batches an epoch of %s; %.1f%% of the positions are padding",
            documents.offsets[-1],
            len(documents.lengths),
            pipeline.num_batches,
            ", ".join(f"{rows} x {length}" for rows, length in pipeline.shapes),
            100 * pipeline.padding_share,
        )
        return PrefixPipeline(pipeline, seed) if self.config.model.prefix_lm else pipeline

    # Training

    def init(self, rng: Any) -> Params:
        tokens = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(rng, tokens, AttentionMask(causal=True), deterministic=True)["params"]

    def loss(self, params: Params, batch: TokenBatch, rng: Any) -> Sums:
        logits_BTV, collected = logits_and_sums(self.model, params, batch, rng, batching=self.config.data.batching)
        return self._sums(logits_BTV, batch.target_tokens, batch.loss_weights, collected)

    def work(self, batch: TokenBatch) -> dict[str, float]:
        rows, length = batch.target_tokens.shape
        forward = causal_lm_forward_flops(self.config.model, self.model.vocab_size, rows, length)
        return {
            "target_tokens": float(batch.loss_weights.sum()),
            "positions": float(rows * length),
            "flops": TRAINING_FACTOR * forward,
        }

    def view(self, batch: TokenBatch) -> BatchView:
        data, eos_id, start_id = self.config.data, self.tokenizer.eos_id, self.tokenizer.start_id
        inputs = TokenView(
            "input",
            batch.input_tokens,
            batch.segment_ids,
            self.model.vocab_size,
            self.tokenizer,
            positions=batch.positions,
            inside=(eos_id,) if start_id is None else (eos_id, start_id),
        )
        targets = inputs._replace(name="target", tokens=batch.target_tokens, loss_weights=batch.loss_weights)
        if data.batching == "stream":  # a row begins and ends anywhere
            targets = targets._replace(inside=(eos_id,))
        else:
            targets = targets._replace(inside=(), last=eos_id, most=data.max_target_length)
        mask = make_mask(batch, data.batching, self.config.model)
        attention = self._attention("decoder", mask, batch.input_tokens.shape[1])
        return BatchView((inputs, targets), attention, self.model.vocab_size)

    # Scores

    def evaluate(
        self,
        params: Params,
        data: str | Mapping[str, Path],
        *,
        during_training: bool = False,
        outputs: Optional[Path] = None,
    ) -> dict[str, Any]:
        """Nats per token (EOS is one), and bits per byte: bits for all tokens over the bytes of the documents in UTF-8.

        Documents longer than ``evaluation.window`` are scored in windows of that length, ``evaluation.stride`` apart;
        tokens that two windows share count in the first (with ``prefix_lm`` they are the prefix of the second). During
        training the stride is the window. ``num_tokens`` are those that are scored; ``num_bytes`` are all, also those
        of a first token that is not (see above).
        ``outputs``: the log-probability of each document, in nats.
        """
        source, split = self._given(data)
        window, stride = self._window, self.config.evaluation.stride
        if stride is None:
            stride = max(window // 2, 1)
        limit = None
        if during_training:
            stride, limit = window, self.config.evaluation.max_examples
        documents = self._store(source, split).sides[0].first(limit)
        windows = make_windows(documents.lengths, window, stride, first=int(self.tokenizer.start_id is None))
        num_tokens = int((windows.lengths - windows.overlaps).sum(dtype=np.int64))
        if not num_tokens:
            name = data if isinstance(data, str) else data["text"]
            raise UserError(f"nothing of {name} can be scored: each document is one token, before which nothing stands")
        log_probs = self._log_probs(params, documents, windows)
        if outputs is not None:
            outputs.write_text("".join(f"{value:.6f}\n" for value in log_probs))
        nats = float(-log_probs.sum())
        num_bytes = sum(len(text.encode()) for text in itertools.islice(source.documents(split), limit))
        return {
            "num_examples": len(log_probs),
            "num_tokens": num_tokens,
            "num_bytes": num_bytes,
            "num_unknown": documents.count(self.tokenizer.unk_id),
            "window": window,
            "stride": stride,
            "nll_per_token": nats / num_tokens,
            "perplexity": float(np.exp(nats / num_tokens)),
            "bits_per_byte": nats / math.log(2) / num_bytes,
        }

    @property
    def _window(self) -> int:
        """How many tokens are scored together."""
        return self.config.evaluation.window or self.config.data.max_target_length

    def _log_probs(self, params: Params, documents: Tokens, windows: Windows) -> np.ndarray:
        """Log-probability of each document, EOS included, in nats."""
        pad_id, start_id = self.tokenizer.pad_id, self.tokenizer.start_id
        batches = window_batches(windows, documents, self.config.decoding.tokens_per_batch, pad_id, start_id)
        log_probs = np.zeros(len(documents.lengths))
        for numbers, build in progress(batches, "scoring", len(batches), "batch"):
            batch = build()
            of_tokens = by_rows(token_log_probs, self.model, params, (batch,)) * batch.loss_weights
            np.add.at(log_probs, windows.documents[numbers], of_tokens.sum(axis=1, dtype=np.float64)[: len(numbers)])
        return log_probs

    # Inference

    def candidates(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        return TextGenerator(self.model, self.tokenizer, self.config.decoding)(params, lines, num_best)

    def lower_decoding(self, params: Params) -> Any:
        return TextGenerator(self.model, self.tokenizer, self.config.decoding).lower(params)

    def look(self, params: Params, line: str, target: Optional[str] = None) -> Look:
        """See :class:`transformer.looks.CanBeLookedInto`. The output is the text itself, with the piece that would go
        on from it as the last prediction."""
        require_text(line)
        require_no_target(self.name, target)
        (ids,) = TextGenerator(self.model, self.tokenizer, self.config.decoding).inputs([line])
        prefix_lengths = jnp.asarray([len(ids)]) if self.config.model.prefix_lm else None
        mask = AttentionMask(causal=True, prefix_lengths=prefix_lengths)
        (logits_BTV, _), attention, experts = run_and_look(self.model, params, *as_inputs(ids), mask)
        logits_TV = logits_BTV[0, :, : self.tokenizer.vocab_size]
        found = dict(enumerate(predictions(logits_TV, [*ids[1:], -1], self.tokenizer)))
        if prefix_lengths is not None:  # the others could be seen
            found = {len(ids) - 1: found[len(ids) - 1]}
        return Look(
            line, line, {"decoder": pieces_of_tokens(self.tokenizer, ids)}, attention, experts, {"decoder": found}
        )


def logits_and_sums(
    model: CausalLM, params: Params, batch: TokenBatch, rng: Any, *, batching: str
) -> tuple[Any, Mapping[str, Any]]:
    """Scores [B, T, V] of all tokens at every position, and the sums that layers collect; see ``run_model``.

    Args:
      batching: how the rows of the batch were made.
    """
    positions_BT = batch.positions if batching == "pack" else None
    (logits_BTV, _), collected = run_model(
        model, params, rng, batch.input_tokens, make_mask(batch, batching, model.config), positions_BT=positions_BT
    )
    return logits_BTV, collected


@functools.partial(jax.jit, static_argnames="model")
def token_log_probs(model: CausalLM, params: Params, batch: TokenBatch) -> Any:
    """Log-probability [B, T] of each target of a batch with one stretch of text a row; 0 for padding."""
    logits_BTV, _ = logits_and_sums(model, params, batch, None, batching="bucket")
    of_targets_BT = jnp.take_along_axis(logits_BTV, batch.target_tokens[..., None], axis=-1)[..., 0]
    log_probs_BT = of_targets_BT - jax.nn.logsumexp(logits_BTV, axis=-1)  # no second array of the size of the logits
    return jnp.where(batch.segment_ids > 0, log_probs_BT, 0)


def make_mask(batch: TokenBatch, batching: str, config: ModelConfig) -> AttentionMask:
    """Who sees whom in a batch: as little is said as is needed, since more kernels understand that.

    The prefix of a prefix language model is what stands before the first target that counts.
    """
    prefix_lengths_B = jnp.argmax(batch.loss_weights > 0, axis=1) + 1 if config.prefix_lm else None
    if batching == "stream" and not config.num_experts:  # experts must know which rows fill up a batch
        return AttentionMask(causal=True, prefix_lengths=prefix_lengths_B)
    if batching == "pack":  # a segment's tokens are neighbours: what comes later in the row comes later in the text
        return AttentionMask(causal=True, query_segment_ids=batch.segment_ids, key_segment_ids=batch.segment_ids)
    lengths_B = jnp.sum(batch.segment_ids != 0, axis=1)
    return AttentionMask(causal=True, query_lengths=lengths_B, key_lengths=lengths_B, prefix_lengths=prefix_lengths_B)
