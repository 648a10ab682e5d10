"""Span corruption: documents with spans cut out, the encoder-decoder model that writes them, filling in."""

import functools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import Config, DecodingConfig
from transformer.data.batching import describe, evaluation_plan, training_plan
from transformer.data.corruption import (
    Pieces,
    SpanCorruptionPipeline,
    corrupted_lengths,
    encode_marked,
    span_counts,
)
from transformer.data.documents import DocumentSource
from transformer.data.tokenizer import Tokenizer
from transformer.models.embeddings import embedding_rows
from transformer.models.seq2seq import Seq2Seq
from transformer.progress import progress
from transformer.tasks.base import DocumentTask
from transformer.tasks.by_rows import by_rows
from transformer.tasks.seq2seq_training import Seq2SeqTraining, logits
from transformer.tasks.translator import Translator
from transformer.types import Candidate, Params, Seq2SeqBatch, UserError

logger = logging.getLogger(__name__)


class SpanCorruptionTask(Seq2SeqTraining, DocumentTask):
    """See :class:`transformer.types.Task`. Data is read when first asked for: filling in needs none.

    Documents are cut into texts of at most ``data.max_source_length`` tokens, EOS included, before spans are cut out of
    them; what is left is never longer.

    Reference: Raffel et al., T5 (2020), section 3.1.4. Its code joins documents before it cuts them into texts; here no
    text has parts of two.
    """

    name, variant, batchings, decodes = "span_corruption", "encoder_decoder", ("bucket", "pack"), True
    scores = ("nll_per_token", "perplexity", "accuracy")

    def __init__(self, config: Config, assets: Optional[Path] = None):
        data = config.data
        if not data.joint_vocabulary:
            raise UserError(
                "data.joint_vocabulary=False: task=span_corruption has one vocabulary for texts and targets"
            )
        self._noise = (data.noise_density, data.mean_span_length)
        _, [target_length] = corrupted_lengths(np.array([data.max_source_length - 1]), *self._noise)
        if target_length > data.max_target_length:
            raise UserError(
                f"data.max_target_length={data.max_target_length} has no room for what is cut out of a text of "
                f"data.max_source_length={data.max_source_length}; set it to {target_length} or more"
            )
        super().__init__(config, assets)
        _, [num_spans] = span_counts(np.array([data.max_source_length - 1]), *self._noise)
        known = len(self.tokenizer.sentinel_ids)
        if known < num_spans:
            remedy = f"set data.extra_ids={data.extra_ids + num_spans - known}"
            if assets is not None:
                remedy = (
                    f"it lacks <extra_id_{known}> to <extra_id_{num_spans - 1}>, and is that of the run or of the "
                    "weights to start from; import these with the tokenizer that they were trained with: "
                    "--tokenizer=FOLDER"
                )
            raise UserError(
                f"a text of data.max_source_length={data.max_source_length} loses {num_spans} spans, and the tokenizer "
                f"has {known} sentinels: {remedy}"
            )
        rows = embedding_rows(config.model, self.tokenizer.vocab_size)
        self.model = Seq2Seq(config.model, rows, rows)

    # Data

    @functools.cached_property
    def _training(self) -> SpanCorruptionPipeline:
        pieces, repeats = self._pieces(self._source, "train"), self._source.repeats("train")
        if repeats is not None:
            repeats = repeats[pieces.documents]
        lengths = corrupted_lengths(pieces.lengths, *self._noise)
        plan = self._plan = training_plan(self.config.data, *lengths, self.config.seed, repeats)
        logger.info(
            "training on %d tokens of %d texts an epoch in %s",
            pieces.lengths.sum(dtype=np.int64),
            len(pieces.lengths),
            describe(plan),
        )
        return SpanCorruptionPipeline(pieces, plan, self.tokenizer, *self._noise, seed=self.config.seed)

    def _pieces(self, source: DocumentSource, split: str, num_documents: Optional[int] = None) -> Pieces:
        """The texts of a split, or of its first documents."""
        return Pieces(self._store(source, split).sides[0].first(num_documents), self.config.data.max_source_length - 1)

    # Scores

    def evaluate(
        self,
        params: Params,
        data: str | Mapping[str, Path],
        *,
        during_training: bool = False,
        outputs: Optional[Path] = None,
    ) -> dict[str, Any]:
        """Nats and accuracy per target token, sentinels and EOS among them, by teacher forcing; the seed draws spans.

        ``outputs``: the log-probability of the target of each text, in nats.
        """
        source, split = self._given(data)
        limit = self.config.evaluation.max_examples if during_training else None
        pieces = self._pieces(source, split, limit)
        lengths = corrupted_lengths(pieces.lengths, *self._noise)
        plan = evaluation_plan(*lengths, self.config.decoding.tokens_per_batch, self.config.data.num_buckets)
        pipeline = SpanCorruptionPipeline(pieces, plan, self.tokenizer, *self._noise, seed=self.config.seed, fixed=True)
        log_probs, correct = np.zeros(len(pieces.lengths)), 0
        for number in progress(range(plan.num_batches), "teacher forcing", plan.num_batches, "batch"):
            layout, batch = pipeline.numbered_batch(number)
            of_rows, num_correct = by_rows(row_scores, self.model, params, (batch,))
            log_probs[layout.examples] = of_rows[layout.rows]
            correct += int(num_correct.sum())
        if outputs is not None:
            outputs.write_text("".join(f"{value:.6f}\n" for value in log_probs))
        num_tokens = int(lengths[1].sum(dtype=np.int64))
        nll = float(-log_probs.sum()) / num_tokens
        return {
            "num_examples": len(log_probs),
            "num_tokens": num_tokens,
            "nll_per_token": nll,
            "perplexity": float(np.exp(nll)),
            "accuracy": correct / num_tokens,
        }

    # Inference

    def candidates(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        """What the model writes for lines with ``<extra_id_0>``, ``<extra_id_1>``, ... in them: each, and its span."""
        return self._translator(self.config.decoding)(params, lines, num_best)

    def lower_decoding(self, params: Params) -> Any:
        return self._translator(self.config.decoding).lower(params)

    def _translator(self, decoding: DecodingConfig) -> Translator:
        return Translator(self.model, (TypedSentinels(self.tokenizer), self.tokenizer), decoding)

    def _target_ids(self, target: str) -> list[int]:
        return TypedSentinels(self.tokenizer).encode(target)


class TypedSentinels(Tokenizer):
    """A tokenizer that reads sentinels where ``<extra_id_0>``, ``<extra_id_1>``, ... are typed; in all else another."""

    def __init__(self, tokenizer: Tokenizer):
        self.vocab_size, self.fingerprint = tokenizer.vocab_size, tokenizer.fingerprint
        self.pad_id, self.bos_id, self.eos_id = tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id
        self.unk_id, self.start_id = tokenizer.unk_id, tokenizer.start_id
        self.mask_id, self.sentinel_ids = tokenizer.mask_id, tokenizer.sentinel_ids
        self._tokenizer = tokenizer
        self._marks = {f"<extra_id_{number}>": i for number, i in enumerate(tokenizer.sentinel_ids)}

    def encode(self, line: str) -> list[int]:
        return self.encode_batch([line])[0]

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        return encode_marked(self._tokenizer, lines, self._marks)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def save(self, folder: str | os.PathLike[str], name: str) -> None:
        self._tokenizer.save(folder, name)


@functools.partial(jax.jit, static_argnames="model")
def row_scores(model: Seq2Seq, params: Params, batch: Seq2SeqBatch) -> tuple[Any, Any]:
    """Of each row [B] its target's log-probability, and how many tokens are the best guess; with one text a row."""
    logits_BTV = logits(model, params, batch, packed=False)
    targets_BT, weighted_BT = batch.decoder_target_tokens, batch.decoder_loss_weights > 0
    log_probs_BT = jnp.take_along_axis(jax.nn.log_softmax(logits_BTV), targets_BT[..., None], axis=-1)[..., 0]
    correct_BT = weighted_BT & (jnp.argmax(logits_BTV, axis=-1) == targets_BT)
    return jnp.where(weighted_BT, log_probs_BT, 0).sum(axis=1), correct_BT.sum(axis=1)
