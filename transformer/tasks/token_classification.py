"""Token classification: words with labels, an encoder with a classifier on each token, F1; capitals and marks
restored."""

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import Config
from transformer.data.labeled_text import (
    NO_LABEL,
    LabeledTextPipeline,
    LabelSet,
    inference_batches,
    only_row,
    padded,
)
from transformer.data.token_labels import LabeledWords, LabeledWordSource, WordEncoder, WordRows, get_labeling
from transformer.data.vocabularies import load_tokenizers, make_tokenizer
from transformer.evaluation.classification_scores import confusion_counts, score
from transformer.looks import Look
from transformer.models.embeddings import embedding_rows
from transformer.models.encoder_only import TokenClassifier
from transformer.models.flops import TRAINING_FACTOR, encoder_forward_flops
from transformer.models.masks import AttentionMask
from transformer.progress import progress
from transformer.tasks.base import BaseTask, require_roles, run_model, segments_of
from transformer.tasks.by_rows import by_rows
from transformer.tasks.looking import (
    pieces_of_tokens,
    predictions,
    require_no_target,
    require_text,
    run_and_look,
)
from transformer.types import BatchView, Candidate, LabeledTextBatch, Params, Sums, TokenView, UserError

LINES_AT_A_TIME = 1_024

logger = logging.getLogger(__name__)


class _Split(NamedTuple):
    """Texts, their rows, and the number of the label of each of their words, int32 [words]."""

    texts: list[LabeledWords]
    rows: WordRows
    labels: np.ndarray


class TokenClassificationTask(BaseTask):
    """See :class:`transformer.types.Task`. Training data is read when first asked for: a trained model needs none.

    A row is ``bos pieces eos`` with words of one text, as many as ``data.max_source_length`` has room for. The first
    piece of a word carries its label. A text that is longer than a row goes on in others, which do not see each other.
    """

    name, variant, batchings, scores = "token_classification", "encoder_only", ("bucket",), ("accuracy", "f1", "nll")
    of_tokens = False

    def __init__(self, config: Config, assets: Optional[Path] = None):
        super().__init__(config)
        self._labeling = get_labeling(config.data)
        if assets is None:
            self.tokenizer = make_tokenizer(config.data, self._source)
        else:
            self.tokenizer = load_tokenizers(assets)[0]
        self.labels = (assets and LabelSet.load(assets)) or self._source.labels()
        self._encode_words = WordEncoder(self.tokenizer, config.data.max_source_length)
        vocab_size = embedding_rows(config.model, self.tokenizer.vocab_size)
        self.model = TokenClassifier(config.model, vocab_size, len(self.labels.names))
        self._splits: dict[str, _Split] = {}

    # Data

    @functools.cached_property
    def _source(self) -> LabeledWordSource:
        return self._labeling.source(self.config.data, self.config.seed)

    def data_facts(self) -> dict[str, Any]:
        texts, _, labels = self._split("train")
        counts = {"texts": len(texts), "words": len(labels), "labels": len(self.labels.names)}
        return {**super().data_facts(), **counts}

    @functools.cached_property
    def _training(self) -> LabeledTextPipeline:
        _, rows, labels = self._split("train")
        repeats = self._source.repeats("train")
        pipeline = LabeledTextPipeline(
            rows.rows,
            rows.labels(labels),
            self.config.data,
            seed=self.config.seed,
            pad_id=self.tokenizer.pad_id,
            repeats=None if repeats is None else repeats[rows.texts],
        )
        logger.info(
            "training on %d words with %d labels, in %d batches an epoch of %s; %.1f%% of the positions are padding",
            len(labels),
            len(self.labels.names),
            pipeline.num_batches,
            ", ".join(f"{rows} x {length}" for rows, length in pipeline.shapes),
            100 * pipeline.padding_share,
        )
        return pipeline

    def _split(self, name: str) -> _Split:
        if name not in self._splits:
            self._splits[name] = self._encode(list(self._source.texts(name)), f"the {name} split")
        return self._splits[name]

    def _encode(self, texts: list[LabeledWords], name: str) -> _Split:
        found = [self.labels.numbers(text.labels, [text.place] * len(text.labels)) for text in texts]
        labels = np.concatenate([np.zeros(0, np.int32), *found])
        if not len(labels):
            raise UserError(f"{name} has no words")
        return _Split(texts, self._encode_words([text.words for text in texts]), labels)

    # Training

    def init(self, rng: Any) -> Params:
        return self.model.init(rng, jnp.zeros((1, 1), jnp.int32), AttentionMask(), deterministic=True)["params"]

    def loss(self, params: Params, batch: LabeledTextBatch, rng: Any) -> Sums:
        logits_BTC, collected = logits_and_sums(self.model, params, batch, rng)
        return self._sums(logits_BTC, batch.labels, batch.loss_weights, collected)

    def work(self, batch: LabeledTextBatch) -> dict[str, float]:
        model = self.config.model
        num_rows, length = batch.input_tokens.shape
        head = 2 * num_rows * length * model.d_model * len(self.labels.names)
        return {
            "words": float(batch.loss_weights.sum()),
            "input_tokens": float(batch.lengths.sum()),
            "positions": float(num_rows * length),
            "flops": TRAINING_FACTOR * (encoder_forward_flops(model, num_rows, length) + head),
        }

    def view(self, batch: LabeledTextBatch) -> BatchView:
        inputs = TokenView(
            "input",
            batch.input_tokens,
            segments_of(batch.lengths, batch.input_tokens.shape[1]),
            self.model.vocab_size,
            self.tokenizer,
            first=self.tokenizer.bos_id,
            last=self.tokenizer.eos_id,
        )
        labels = TokenView(
            "labels of the tokens that begin a word",
            batch.labels,
            (batch.loss_weights > 0).astype(np.int32),
            len(self.labels.names),
            None,
            names=self.labels.names,
            loss_weights=batch.loss_weights,
        )
        attention = self._attention("encoder", make_mask(batch), batch.input_tokens.shape[1])
        return BatchView((inputs, labels), attention, len(self.labels.names))

    # Scores

    def evaluate(
        self,
        params: Params,
        data: str | Mapping[str, Path],
        *,
        during_training: bool = False,
        outputs: Optional[Path] = None,
    ) -> dict[str, Any]:
        """Accuracy, macro-F1, and nats per word, every word once; beside them what always guessing one label would get.

        ``accuracy_of_majority`` and ``f1_of_majority`` are for the label that is most frequent in the training split,
        if that is known. ``outputs``: each text with the likeliest labels, or restored by them, on one line.
        """
        if isinstance(data, str):
            texts, rows, labels = self._split(data)
        else:
            require_roles(self.name, data, ("text",))
            texts = list(self._labeling.read(data["text"], self.config.data))
            texts, rows, labels = self._encode(texts, str(data["text"]))
        if during_training and self.config.evaluation.max_examples is not None:
            texts, rows, labels = self._encode(texts[: self.config.evaluation.max_examples], "what is scored")
        log_probs = self._log_probs(params, rows, len(labels))
        found = log_probs.argmax(axis=1)
        names = self.labels.names
        if outputs is not None:
            lines = self._render([text.words for text in texts], found)
            outputs.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        scores = {
            **score(confusion_counts(labels, found, len(names)), names),
            "nll": float(-np.mean(log_probs[np.arange(len(labels)), labels])),
        }
        if self.labels.most_frequent is not None:
            majority = np.full_like(labels, names.index(self.labels.most_frequent))
            baseline = score(confusion_counts(labels, majority, len(names)), names)
            scores |= {f"{name}_of_majority": baseline[name] for name in ("accuracy", "f1")}
        return scores

    def _log_probs(self, params: Params, rows: WordRows, num_words: int) -> np.ndarray:
        """Log-probability of each label of each word, in nats: float64 [words, labels]."""
        batches = inference_batches(
            rows.rows,
            tokens_per_batch=self.config.decoding.tokens_per_batch,
            longest=self.config.data.max_source_length,
            pad_id=self.tokenizer.pad_id,
        )
        log_probs = np.zeros((num_words, len(self.labels.names)))
        for numbers, build in progress(batches, "labelling", len(batches), "batch"):
            batch = build()
            words = padded(rows.words, numbers, batch.input_tokens.shape, NO_LABEL)
            begins = words != NO_LABEL
            log_probs[words[begins]] = by_rows(label_log_probs, self.model, params, (batch,))[begins]
        return log_probs

    def _render(self, texts: Sequence[Sequence[str]], found: np.ndarray) -> Iterator[str]:
        """A line for each text; ``found`` are the numbers of the labels of the words of all."""
        start = 0
        for words in texts:
            labels = [self.labels.names[number] for number in found[start : start + len(words)]]
            start += len(words)
            yield self._labeling.text(words, labels)

    # Inference

    def candidates(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        """Each line with the likeliest label of each word, or restored by them; the score is their log-probability."""
        if num_best > 1:
            raise UserError(f"num_best={num_best}: task=token_classification gives one output for a line")
        for first in range(0, len(lines), LINES_AT_A_TIME):
            texts = [self._labeling.words(line) for line in lines[first : first + LINES_AT_A_TIME]]
            ends = np.cumsum([0, *map(len, texts)])
            log_probs = self._log_probs(params, self._encode_words(texts), int(ends[-1]))
            outputs = self._render(texts, log_probs.argmax(axis=1))
            best = log_probs.max(axis=1)
            for start, end, text in zip(ends[:-1], ends[1:], outputs, strict=True):
                yield [Candidate(text, float(best[start:end].sum()))]

    def look(self, params: Params, line: str, target: Optional[str] = None) -> Look:
        """See :class:`transformer.looks.CanBeLookedInto`. Predicted are the labels of the pieces that begin words."""
        require_text(line)
        require_no_target(self.name, target)
        rows = self._encode_words([self._labeling.words(line)])
        if len(rows.texts) > 1:
            logger.warning("the line fills %d rows of the model; only the first is looked at", len(rows.texts))
        batch = only_row(rows.rows, self.tokenizer.pad_id)
        inputs = jnp.asarray(batch.input_tokens), AttentionMask()
        logits_BTC, attention, experts = run_and_look(self.model, params, *inputs)
        places = np.flatnonzero(padded(rows.words, np.array([0]), batch.input_tokens.shape, NO_LABEL)[0] != NO_LABEL)
        found = predictions(logits_BTC[0, places], [-1] * len(places), self.labels.names)
        ((output,),) = self.candidates(params, [line], 1)
        pieces = pieces_of_tokens(self.tokenizer, batch.input_tokens[0].tolist())
        by_place = dict(zip(places.tolist(), found, strict=True))
        return Look(line, output.text, {"encoder": pieces}, attention, experts, {"encoder": by_place})

    def save_assets(self, workdir: Path) -> None:
        super().save_assets(workdir)
        self.labels.save(workdir)


def logits_and_sums(
    model: TokenClassifier, params: Params, batch: LabeledTextBatch, rng: Any
) -> tuple[Any, Mapping[str, Any]]:
    """Scores [B, T, C] of all labels at every position, and the sums that layers collect; see ``run_model``."""
    return run_model(model, params, rng, batch.input_tokens, make_mask(batch))


def make_mask(batch: LabeledTextBatch) -> AttentionMask:
    """All tokens of a row see each other."""
    return AttentionMask(query_lengths=batch.lengths, key_lengths=batch.lengths)


@functools.partial(jax.jit, static_argnames="model")
def label_log_probs(model: TokenClassifier, params: Params, batch: LabeledTextBatch) -> Any:
    """Log-probability [B, T, C] of each label at every position of a batch."""
    return jax.nn.log_softmax(logits_and_sums(model, params, batch, None)[0])
