"""Translation: pairs of lines, the encoder-decoder model, label-smoothed cross-entropy, BLEU, beam search."""

import dataclasses
import functools
import itertools
import json
import logging
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import Config, DataConfig, DecodingConfig
from transformer.data.batching import describe, evaluation_plan, training_plan
from transformer.data.pairs import PairList, ParallelSource, PhraseSource
from transformer.data.pipeline import Pipeline
from transformer.data.segmented_text import SegmentedTextTokenizer
from transformer.data.sources import make_source
from transformer.data.text_files import escape_newlines, read_pairs
from transformer.data.tokenizer import Tokenizer
from transformer.data.vocabularies import load_tokenizers, make_tokenizers
from transformer.evaluation.moses import detokenizer
from transformer.evaluation.text_scores import full_score, score
from transformer.models.embeddings import embedding_rows
from transformer.models.seq2seq import Seq2Seq
from transformer.progress import progress
from transformer.tasks.base import BaseTask, require_roles
from transformer.tasks.by_rows import by_rows
from transformer.tasks.seq2seq_training import Seq2SeqTraining, logits
from transformer.tasks.translator import Translator
from transformer.types import Candidate, Params, Seq2SeqBatch, UserError

SHOWN_CHARACTERS = 200  # of a line in the log

logger = logging.getLogger(__name__)


class TranslationTask(Seq2SeqTraining, BaseTask):
    """See :class:`transformer.types.Task`. Data is read when first asked for: translating needs none."""

    name, variant, batchings, decodes = "translation", "encoder_decoder", ("bucket", "pack"), True
    scores = ("bleu", "chrf", "exact_match", "nll_per_token", "perplexity")

    def __init__(self, config: Config, assets: Optional[Path] = None):
        super().__init__(config)
        self._tokenizers = make_tokenizers(config.data, self._source) if assets is None else load_tokenizers(assets)
        if config.data.joint_vocabulary != (self._tokenizers[0].fingerprint == self._tokenizers[1].fingerprint):
            raise UserError(
                f"data.joint_vocabulary={config.data.joint_vocabulary}, but the tokenizers of the two sides are "
                f"{'different' if config.data.joint_vocabulary else 'the same'}"
            )
        self.source_tokenizer, self.tokenizer = self._tokenizers
        rows = (embedding_rows(config.model, tokenizer.vocab_size) for tokenizer in self._tokenizers)
        self.model = Seq2Seq(config.model, *rows)

    # Data

    @functools.cached_property
    def _source(self) -> ParallelSource:
        return make_source(self.config.data, self.config.seed)

    @functools.cached_property
    def _training(self) -> Pipeline:
        log_direction(self.config.data, self._source)
        store = self._store(self._source, "train")
        plan = self._plan = training_plan(
            self.config.data,
            store.source_lengths,
            store.target_lengths,
            self.config.seed,
            self._source.repeats("train"),
        )
        logger.info("training on %d pairs an epoch in %s", plan.num_examples, describe(plan))
        return Pipeline(store, plan, self._tokenizers)

    def _side_tokenizers(self) -> tuple[Tokenizer, ...]:
        return self._tokenizers

    # Scores

    def evaluate(
        self,
        params: Params,
        data: str | Mapping[str, Path],
        *,
        during_training: bool = False,
        outputs: Optional[Path] = None,
    ) -> dict[str, Any]:
        if isinstance(data, str):
            source, split = self._source, data
        else:
            require_roles(self.name, data, ("source", "reference"), ("source", "hypothesis"))
            source, split = (
                PairList(list(read_pairs(data["source"], data.get("reference") or data["hypothesis"]))),
                "given",
            )
        sources, references = (list(side) for side in zip(*source.pairs(split), strict=True))
        text_form = "raw"
        if isinstance(self.tokenizer, SegmentedTextTokenizer):  # outputs are joined to words too
            references = [self.tokenizer.join(line) for line in references]
            text_form = "raw" if self.config.decoding.detokenize else "tokenised"
        if self.config.decoding.detokenize and isinstance(data, str):  # so are the outputs; files have raw references
            references = list(map(detokenizer(self.config.data.target_language), references))
            text_form = "detokenised"
        log_probs, counts = self._log_probs(params, source, split)
        nll = float(-log_probs.sum() / counts.sum())
        scores: dict[str, Any] = {"num_examples": len(counts), "nll_per_token": nll, "perplexity": float(np.exp(nll))}
        if not isinstance(data, str) and "hypothesis" in data:
            if outputs is not None:
                outputs.write_text("".join(f"{value:.6f}\n" for value in log_probs))
            return {**scores, "log_probs": log_probs.tolist()}

        decoding = self.config.decoding
        if during_training:
            limit = self.config.evaluation.max_examples
            sources, references = sources[:limit], references[:limit]
            decoding = dataclasses.replace(decoding, method="beam", beam_size=self.config.evaluation.beam_size)
        translator = self._translator(decoding)
        found = [best for (best,) in translator(params, sources, 1)]
        translations = [best.text for best in found]
        if outputs is not None:
            outputs.write_text("".join(escape_newlines(line) + "\n" for line in translations), encoding="utf-8")
            sentences = (
                {"source": source, "reference": reference, "output": best.text, "finished": best.finished}
                for source, reference, best in zip(sources, references, found, strict=True)
            )
            lines = (json.dumps(sentence, ensure_ascii=False) + "\n" for sentence in sentences)
            outputs.with_suffix(".jsonl").write_text("".join(lines), encoding="utf-8")
        if during_training:
            scores |= score(translations, [references], text_form)
        else:
            scores |= full_score(translations, [references], self.config.data.target_language, text_form)
        scores["num_examples"] = len(counts)
        scores["num_truncated"] = translator.num_truncated
        scores["num_unfinished"] = sum(not best.finished for best in found)
        if isinstance(source, PhraseSource):
            hits: dict[str, list[bool]] = {}
            for kind, got, wanted in zip(source.kinds(split), translations, references, strict=False):
                hits.setdefault(kind, []).append(got == wanted)
            scores["exact_match_by_kind"] = {kind: sum(found) / len(found) for kind, found in sorted(hits.items())}
        return scores

    def _log_probs(self, params: Params, source: ParallelSource, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Log-probability of each target, EOS included, in nats, and the number of its tokens."""
        store = self._store(source, split)
        lengths = store.source_lengths, store.target_lengths
        plan = evaluation_plan(*lengths, self.config.decoding.tokens_per_batch)
        pipeline = Pipeline(store, plan, self._tokenizers)
        log_probs = np.zeros(len(store))
        for number in progress(range(plan.num_batches), "teacher forcing", plan.num_batches, "batch"):
            layout = plan.batch(number)
            found = by_rows(row_log_probs, self.model, params, (pipeline.batch(number),))
            log_probs[layout.examples] = found[layout.rows]
        return log_probs, np.asarray(store.target_lengths, np.float64)

    # Inference

    def candidates(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        return self._translator(self.config.decoding)(params, lines, num_best)

    def lower_decoding(self, params: Params) -> Any:
        return self._translator(self.config.decoding).lower(params)

    def _translator(self, decoding: DecodingConfig) -> Translator:
        detokenize = detokenizer(self.config.data.target_language) if decoding.detokenize else None
        return Translator(self.model, self._tokenizers, decoding, detokenize)


def log_direction(config: DataConfig, source: ParallelSource) -> None:
    """Say which language is translated into which, with the first two training pairs to see it by."""
    sides = (config.source_language, config.target_language)
    logger.info("translating from %s to %s; the first two training pairs:", *sides)
    for pair in itertools.islice(source.pairs("train"), 2):
        for name, line in zip(sides, pair, strict=True):
            logger.info("  %s: %s", name, textwrap.shorten(line, SHOWN_CHARACTERS, placeholder=" ..."))


@functools.partial(jax.jit, static_argnames="model")
def row_log_probs(model: Seq2Seq, params: Params, batch: Seq2SeqBatch) -> Any:
    """Log-probability [B] of the target of each row of a batch with one pair a row."""
    log_probs_BTV = jax.nn.log_softmax(logits(model, params, batch, packed=False))
    log_probs_BT = jnp.take_along_axis(log_probs_BTV, batch.decoder_target_tokens[..., None], axis=-1)[..., 0]
    return jnp.where(batch.decoder_loss_weights > 0, log_probs_BT, 0).sum(axis=1)
