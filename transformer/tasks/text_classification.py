"""Text classification: labelled texts or pairs of texts, an encoder with a classifier on top, accuracy and F1."""

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import Config
from transformer.data.documents import DocumentList
from transformer.data.labeled_text import (
    LabeledSource,
    LabeledText,
    LabeledTextPipeline,
    LabelSet,
    TokenRows,
    encode_rows,
    inference_batches,
    make_labeled_texts,
    only_row,
    read_labeled,
)
from transformer.data.text_files import escape_newlines
from transformer.data.vocabularies import load_tokenizers, make_tokenizer
from transformer.evaluation.classification_scores import confusion_counts, score
from transformer.looks import Look
from transformer.models.embeddings import embedding_rows
from transformer.models.encoder_only import TextClassifier
from transformer.models.flops import TRAINING_FACTOR, encoder_forward_flops
from transformer.models.masks import AttentionMask
from transformer.progress import progress
from transformer.tasks.base import BaseTask, best_labels, require_roles, run_model, segments_of
from transformer.tasks.by_rows import by_rows
from transformer.tasks.looking import (
    pieces_of_tokens,
    predictions,
    require_no_target,
    require_text,
    run_and_look,
)
from transformer.types import BatchView, Candidate, LabeledTextBatch, Params, Sums, TokenView, UserError

logger = logging.getLogger(__name__)


class TextClassificationTask(BaseTask):
    """See :class:`transformer.types.Task`. Training data is read when first asked for: a trained model needs none.

    A text is a row ``bos tokens eos``, a pair ``bos first eos second eos``. The labels are those of the training split.
    """

    name, variant, batchings, scores = "text_classification", "encoder_only", ("bucket",), ("accuracy", "f1", "nll")
    of_tokens = False

    def __init__(self, config: Config, assets: Optional[Path] = None):
        super().__init__(config)
        if assets is None:
            texts = [text for example in self._source.examples("train") for text in example.texts]
            self.tokenizer = make_tokenizer(config.data, DocumentList(texts))
        else:
            self.tokenizer = load_tokenizers(assets)[0]
        saved = None if assets is None else LabelSet.load(assets)
        self.labels = self._labels_of_training() if saved is None else saved
        if self.labels.pairs and config.model.token_types == 1:
            raise UserError(
                "model.token_types=1 has no type for the second text of a pair; use 2, or 0 for a model without types"
            )
        vocab_size = embedding_rows(config.model, self.tokenizer.vocab_size)
        self.model = TextClassifier(config.model, vocab_size, len(self.labels.names))
        self._splits: dict[str, tuple[TokenRows, np.ndarray]] = {}

    # Data

    @functools.cached_property
    def _source(self) -> LabeledSource:
        return make_labeled_texts(self.config.data, self.config.seed)

    def num_examples(self, split: str) -> int:
        return len(self._source.examples(split))

    def _labels_of_training(self) -> LabelSet:
        examples = self._source.examples("train")
        labels = LabelSet.of((example.label for example in examples), pairs=len(examples[0].texts) == 2)
        if len(labels.names) == 1:
            raise UserError(f"the training split has no label but {labels.names[0]}: there is nothing to learn")
        return labels

    def data_facts(self) -> dict[str, Any]:
        unit = "pairs" if self.labels.pairs else "texts"
        return {**super().data_facts(), unit: len(self._split("train")[1]), "labels": len(self.labels.names)}

    @functools.cached_property
    def _training(self) -> LabeledTextPipeline:
        rows, labels = self._split("train")
        pipeline = LabeledTextPipeline(
            rows,
            labels,
            self.config.data,
            seed=self.config.seed,
            pad_id=self.tokenizer.pad_id,
            repeats=self._source.repeats("train"),
        )
        logger.info(
            "training on %d %s with %d labels, in %d batches an epoch of %s; %.1f%% of the positions are padding",
            len(labels),
            "pairs" if self.labels.pairs else "texts",
            len(self.labels.names),
            pipeline.num_batches,
            ", ".join(f"{rows} x {length}" for rows, length in pipeline.shapes),
            100 * pipeline.padding_share,
        )
        return pipeline

    def _split(self, name: str) -> tuple[TokenRows, np.ndarray]:
        if name not in self._splits:
            self._splits[name] = self._encode(self._source.examples(name))
        return self._splits[name]

    def _encode(self, examples: Sequence[LabeledText]) -> tuple[TokenRows, np.ndarray]:
        """Rows, and the numbers of their labels."""
        labels, texts, places = zip(*examples, strict=True)
        for each, place in zip(texts, places, strict=True):
            if len(each) != 1 + self.labels.pairs:
                raise UserError(
                    f"{place}: {'a pair' if len(each) == 2 else 'a single text'}, where the training split "
                    f"{'has pairs' if self.labels.pairs else 'has single texts'}"
                )
        return self._rows(texts), self.labels.numbers(labels, places)

    def _rows(self, texts: Sequence[tuple[str, ...]]) -> TokenRows:
        return encode_rows(self.tokenizer, texts, self.config.data.max_source_length)

    # Training

    def init(self, rng: Any) -> Params:
        return self.model.init(rng, jnp.zeros((1, 1), jnp.int32), AttentionMask(), deterministic=True)["params"]

    def loss(self, params: Params, batch: LabeledTextBatch, rng: Any) -> Sums:
        logits_BC, collected = logits_and_sums(self.model, params, batch, rng)
        return self._sums(logits_BC, batch.labels, batch.loss_weights, collected)

    def work(self, batch: LabeledTextBatch) -> dict[str, float]:
        model = self.config.model
        num_rows, length = batch.input_tokens.shape
        head = 2 * num_rows * model.d_model * (len(self.labels.names) + model.pooler * model.d_model)
        return {
            "examples": float(batch.loss_weights.sum()),
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
            inside=(self.tokenizer.eos_id,) if self.labels.pairs else (),
        )

        def notes(row: int) -> list[str]:
            return [f"label {self.labels.names[batch.labels[row]]}, loss weight {batch.loss_weights[row]:g}"]

        attention = self._attention("encoder", make_mask(batch), batch.input_tokens.shape[1])
        return BatchView((inputs,), attention, len(self.labels.names), notes)

    # Scores

    def evaluate(
        self,
        params: Params,
        data: str | Mapping[str, Path],
        *,
        during_training: bool = False,
        outputs: Optional[Path] = None,
    ) -> dict[str, Any]:
        """Accuracy, macro-F1, and nats per example; beside them what always guessing one label would get.

        ``accuracy_of_majority`` is for the label that is most frequent in the training split, if that is known.
        ``outputs``: the likeliest label of each example.
        """
        if isinstance(data, str):
            rows, labels = self._split(data)
        else:
            require_roles(self.name, data, ("text",))
            rows, labels = self._encode(list(read_labeled(data["text"])))
        if during_training:
            limit = self.config.evaluation.max_examples
            rows, labels = rows.first(limit), labels[:limit]
        log_probs = self._log_probs(params, rows)
        found = log_probs.argmax(axis=1)
        names = self.labels.names
        if outputs is not None:
            lines = (escape_newlines(names[number]) + "\n" for number in found)
            outputs.write_text("".join(lines), encoding="utf-8")
        scores = {
            **score(confusion_counts(labels, found, len(names)), names),
            "nll": float(-np.mean(log_probs[np.arange(len(labels)), labels])),
            "num_truncated": int(rows.truncated.sum()),
        }
        if self.labels.most_frequent is not None:
            scores["accuracy_of_majority"] = float(np.mean(labels == names.index(self.labels.most_frequent)))
        return scores

    def _log_probs(self, params: Params, rows: TokenRows) -> np.ndarray:
        """Log-probability of each label of each row, in nats: float64 [rows, labels]."""
        batches = inference_batches(
            rows,
            tokens_per_batch=self.config.decoding.tokens_per_batch,
            longest=self.config.data.max_source_length,
            pad_id=self.tokenizer.pad_id,
        )
        log_probs = np.zeros((len(rows.truncated), len(self.labels.names)))
        for numbers, build in progress(batches, "classifying", len(batches), "batch"):
            log_probs[numbers] = by_rows(label_log_probs, self.model, params, (build(),))[: len(numbers)]
        return log_probs

    # Inference

    def candidates(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        """The likeliest labels of each line, with their log-probabilities.

        A line is a text. Where the training split had pairs, it is two with a tab between them, and further tabs are
        part of the second. A line of nothing but white space has no label.
        """

        def log_probs_of(numbers: list[int]) -> np.ndarray:
            return self._log_probs(params, self._rows([self._texts(lines, number) for number in numbers]))

        return best_labels(lines, num_best, self.labels.names, "labels", log_probs_of)

    def look(self, params: Params, line: str, target: Optional[str] = None) -> Look:
        """See :class:`transformer.looks.CanBeLookedInto`."""
        require_text(line)
        require_no_target(self.name, target)
        batch = only_row(self._rows([self._texts([line], 0)]), self.tokenizer.pad_id)
        inputs = jnp.asarray(batch.input_tokens), AttentionMask()
        types_BT = jnp.asarray(batch.token_types)
        logits_BC, attention, experts = run_and_look(self.model, params, *inputs, token_types_BT=types_BT)
        (found,) = predictions(logits_BC, [-1], self.labels.names)
        pieces = pieces_of_tokens(self.tokenizer, batch.input_tokens[0].tolist())
        return Look(line, found.text, {"encoder": pieces}, attention, experts, {}, found.alternatives)

    def _texts(self, lines: Sequence[str], number: int) -> tuple[str, ...]:
        """The text of a line, or the two of a pair."""
        if not self.labels.pairs:
            return (lines[number],)
        first, tab, second = lines[number].partition("\t")
        if not tab:
            raise UserError(f"line {number + 1} has no tab: the model was trained on pairs, so give two texts a line")
        return first, second

    def save_assets(self, workdir: Path) -> None:
        super().save_assets(workdir)
        self.labels.save(workdir)


def logits_and_sums(
    model: TextClassifier, params: Params, batch: LabeledTextBatch, rng: Any
) -> tuple[Any, Mapping[str, Any]]:
    """Scores [B, C] of all labels for every row, and the sums that layers collect; see ``run_model``."""
    return run_model(model, params, rng, batch.input_tokens, make_mask(batch), token_types_BT=batch.token_types)


def make_mask(batch: LabeledTextBatch) -> AttentionMask:
    """All tokens of a row see each other."""
    return AttentionMask(query_lengths=batch.lengths, key_lengths=batch.lengths)


@functools.partial(jax.jit, static_argnames="model")
def label_log_probs(model: TextClassifier, params: Params, batch: LabeledTextBatch) -> Any:
    """Log-probability [B, C] of each label for every row of a batch."""
    return jax.nn.log_softmax(logits_and_sums(model, params, batch, None)[0])
