"""Sentence embedding: pairs of texts that mean the same, vectors of length 1, contrastive loss, retrieval."""

import functools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.config import Config
from transformer.data.batching import ALL_ROWS, Plan, describe, training_plan
from transformer.data.labeled_text import encode_rows, inference_batches, only_row, padded
from transformer.data.pairs import ParallelSource
from transformer.data.sources import make_source
from transformer.data.store import Store, Tokens
from transformer.data.text_files import escape_newlines, read_pairs
from transformer.data.tokenizer import Tokenizer
from transformer.data.vocabularies import load_tokenizers, make_tokenizers
from transformer.looks import Look
from transformer.models.embeddings import embedding_rows
from transformer.models.encoder_only import TextEmbedder
from transformer.models.flops import TRAINING_FACTOR, encoder_forward_flops
from transformer.models.masks import AttentionMask
from transformer.progress import progress
from transformer.tasks.base import BaseTask, require_roles, run_model, segments_of
from transformer.tasks.by_rows import by_rows
from transformer.tasks.looking import pieces_of_tokens, require_no_target, require_text, run_and_look
from transformer.tasks.losses import add_auxiliary_losses, cross_entropy
from transformer.types import BatchView, Candidate, Params, Sums, TextPairBatch, TokenView, UserError

TEMPERATURE = 0.05  # by which cosines are divided before the softmax
LINES_AT_A_TIME = 1_024
QUERIES_AT_A_TIME = 1_024
DIGITS = 6  # of the numbers of a vector that is written out

logger = logging.getLogger(__name__)


class SentenceEmbeddingTask(BaseTask):
    """See :class:`transformer.types.Task`. Data is read when first asked for: a trained model needs none.

    A text is a row ``bos tokens eos``. In training, of each pair either text is to be told from the other pairs' texts
    in the batch by the cosine of its vector with the other text's: cross-entropy over cosines / 0.05, the mean of both
    directions. A text that equals the right one, or that stands beside one equal to the query, is not held against it.

    With ``training.accumulation_steps`` above 1 a text is compared within its part of the batch: fewer negatives make
    an easier task and another gradient, so there one batch in k parts does not equal the same batch in one.

    Reference: Henderson et al., Efficient Natural Language Response Suggestion (2017), section 4.4, for the other texts
    of the batch as negatives; Reimers & Gurevych, Sentence-BERT (2019); Gao et al., SimCSE (2021), section 3, for the
    temperature.
    """

    name, variant, batchings = "sentence_embedding", "encoder_only", ("bucket",)
    scores = ("accuracy", "mean_reciprocal_rank", "nll")
    of_tokens = False

    def __init__(self, config: Config, assets: Optional[Path] = None):
        super().__init__(config)
        _check(config)
        tokenizers = make_tokenizers(config.data, self._source) if assets is None else load_tokenizers(assets)
        if tokenizers[0].fingerprint != tokenizers[1].fingerprint:
            raise UserError(f"{assets} holds two tokenizers; task=sentence_embedding needs one for both texts")
        self.tokenizer = tokenizers[0]
        self.model = TextEmbedder(config.model, embedding_rows(config.model, self.tokenizer.vocab_size))

    # Data

    @functools.cached_property
    def _source(self) -> ParallelSource:
        return make_source(self.config.data, self.config.seed)

    def _side_tokenizers(self) -> tuple[Tokenizer, ...]:
        return self.tokenizer, self.tokenizer

    @functools.cached_property
    def _training(self) -> "PairPipeline":
        config = self.config
        if config.training.label_smoothing:
            raise UserError(
                f"training.label_smoothing={config.training.label_smoothing}: the texts of a batch are no classes to "
                "share out probability among; task=sentence_embedding is trained with 0"
            )
        store = self._store(self._source, "train")
        first, second = (_with_bos(side.lengths) for side in store.sides)
        plan = self._plan = training_plan(config.data, first, second, config.seed, self._source.repeats("train"))
        logger.info("training on %d pairs an epoch in %s", plan.num_examples, describe(plan))
        return PairPipeline(store, plan, self.tokenizer)

    # Training

    def init(self, rng: Any) -> Params:
        return self.model.init(rng, jnp.zeros((1, 1), jnp.int32), AttentionMask(), deterministic=True)["params"]

    def loss(self, params: Params, batch: TextPairBatch, rng: Any) -> Sums:
        """``accuracy``: how often the right text of the batch is the nearest."""
        rngs = (None, None) if rng is None else jax.random.split(rng)
        first_BD, first_sums = vectors_and_sums(self.model, params, batch.first_tokens, batch.first_lengths, rngs[0])
        second_BD, second_sums = vectors_and_sums(
            self.model, params, batch.second_tokens, batch.second_lengths, rngs[1]
        )
        same_BB = same_rows(batch.first_tokens) | same_rows(batch.second_tokens)
        sums = contrastive_sums(first_BD, second_BD, same_BB, batch.loss_weights)
        return add_auxiliary_losses(sums, {"first": first_sums, "second": second_sums}, self.config.model)

    def work(self, batch: TextPairBatch) -> dict[str, float]:
        model = self.config.model
        num_rows, first = batch.first_tokens.shape
        second = batch.second_tokens.shape[1]
        forward = encoder_forward_flops(model, num_rows, first) + encoder_forward_flops(model, num_rows, second)
        return {
            "pairs": float(batch.loss_weights.sum()),
            "source_tokens": float(batch.first_lengths.sum()),
            "target_tokens": float(batch.second_lengths.sum()),
            "positions": float(num_rows * (first + second)),
            "flops": TRAINING_FACTOR * (forward + 2 * num_rows**2 * model.d_model),
        }

    def view(self, batch: TextPairBatch) -> BatchView:
        views: list[TokenView] = []
        attention: dict[str, Any] = {}
        for name, (tokens, lengths) in (("first text", batch[:2]), ("second text", batch[2:4])):
            length = tokens.shape[1]
            view = TokenView(
                name,
                tokens,
                segments_of(lengths, length),
                self.model.vocab_size,
                self.tokenizer,
                first=self.tokenizer.bos_id,
                last=self.tokenizer.eos_id,
            )
            views.append(view)
            attention |= self._attention(name, make_mask(lengths), length)
        return BatchView(tuple(views), attention, None)  # random vectors of texts that share pieces are alike

    # Scores

    def evaluate(
        self,
        params: Params,
        data: str | Mapping[str, Path],
        *,
        during_training: bool = False,
        outputs: Optional[Path] = None,
    ) -> dict[str, Any]:
        """How well each text finds the other of its pair among those of all pairs: the means of both directions.

        ``accuracy`` is the share that finds it first, ``mean_reciprocal_rank`` the mean of 1 / its place, ``nll`` as in
        training, but among all. Texts that are right too (see the class) neither count as wrong nor take a place; of
        wrong ones as near as the right one all are before it. The time grows with the square of the number of pairs.
        ``outputs``: the second text that is nearest to each first.
        """
        if isinstance(data, str):
            pairs = list(self._source.pairs(data))
        else:
            require_roles(self.name, data, ("source", "reference"))
            pairs = list(read_pairs(data["source"], data["reference"]))
        if during_training:
            pairs = pairs[: self.config.evaluation.max_examples]
        if not pairs:
            raise UserError(f"there are no pairs in {data}")
        texts = list(zip(*pairs, strict=True))
        vectors = [self.embed(params, side) for side in texts]
        numbers = [_numbers_of_texts(side) for side in texts]
        forth, back = (retrieve(*each, *numbers) for each in (vectors, vectors[::-1]))
        if outputs is not None:
            lines = (escape_newlines(texts[1][found]) + "\n" for found in forth.nearest)
            outputs.write_text("".join(lines), encoding="utf-8")
        ranks = np.concatenate([forth.ranks, back.ranks])
        return {
            "num_examples": len(pairs),
            "accuracy": float(np.mean(ranks == 1)),
            "mean_reciprocal_rank": float(np.mean(1 / ranks)),
            "nll": float(np.mean([forth.nlls, back.nlls])),
        }

    # Inference

    def embed(self, params: Params, lines: Sequence[str]) -> np.ndarray:
        """Vectors of length 1, float32 [lines, D]; a blank line has one too.

        Lines of more than ``data.max_source_length`` tokens lose their ends, with a warning.
        """
        most = self.config.data.max_source_length
        rows = encode_rows(self.tokenizer, [(line,) for line in lines], most)
        batches = inference_batches(
            rows,
            tokens_per_batch=self.config.decoding.tokens_per_batch,
            longest=most,
            pad_id=self.tokenizer.pad_id,
        )
        vectors = np.zeros((len(lines), self.config.model.d_model), np.float32)
        for numbers, build in progress(batches, "embedding", len(batches), "batch"):
            batch = build()
            found = by_rows(text_vectors, self.model, params, (batch.input_tokens, batch.lengths))
            vectors[numbers] = found[: len(numbers)]
        return vectors

    def look(self, params: Params, line: str, target: Optional[str] = None) -> Look:
        """See :class:`transformer.looks.CanBeLookedInto`. A vector is no output to show."""
        require_text(line)
        require_no_target(self.name, target)
        rows = encode_rows(self.tokenizer, [(line,)], self.config.data.max_source_length)
        batch = only_row(rows, self.tokenizer.pad_id)
        _, attention, experts = run_and_look(self.model, params, jnp.asarray(batch.input_tokens), AttentionMask())
        pieces = pieces_of_tokens(self.tokenizer, batch.input_tokens[0].tolist())
        return Look(line, "", {"encoder": pieces}, attention, experts, {})

    def candidates(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        """The vector of each line as a JSON list of numbers."""
        if num_best > 1:
            raise UserError(f"num_best={num_best}: task=sentence_embedding gives one vector for a line")
        for start in range(0, len(lines), LINES_AT_A_TIME):
            for vector in self.embed(params, lines[start : start + LINES_AT_A_TIME]):
                yield [Candidate(json.dumps([float(f"{value:.{DIGITS}g}") for value in vector]), 0.0)]


def _check(config: Config) -> None:
    """See that the config goes with the task, before any data is read."""
    data, model = config.data, config.model
    if not data.joint_vocabulary:
        raise UserError(
            "data.joint_vocabulary=False: task=sentence_embedding has one encoder for both texts; use one vocabulary"
        )
    if data.max_target_length > data.tokens_per_batch or (
        model.position_encoding == "learned" and data.max_target_length > model.max_positions
    ):
        raise UserError(
            f"data.max_target_length={data.max_target_length}, which limits the second texts, is more than "
            f"data.tokens_per_batch={data.tokens_per_batch} or model.max_positions={model.max_positions} allows"
        )


class PairPipeline:
    """Batches of pairs, each text in a row: ``batch(n)`` depends on nothing but the store, the plan and n.

    Attributes:
      num_batches: per epoch.
    """

    def __init__(self, store: Store, plan: Plan, tokenizer: Tokenizer):
        """
        Args:
          store: of tokens and EOS.
          plan: of rows with BOS too.
          tokenizer: of both texts.
        """
        self._sides = store.sides
        self._plan = plan
        self._tokenizer = tokenizer
        self.num_batches = plan.num_batches

    def steps_of_shapes(self) -> tuple[int, ...]:
        """Of each shape that a batch can have the first step with it, ascending."""
        return self._plan.steps_of_shapes()

    def size(self, step: int) -> tuple[int, int]:
        """Rows of batch number ``step``, and positions of the longer side."""
        return self._plan.batch(step).size

    def batch(self, step: int, rows: slice = ALL_ROWS) -> TextPairBatch:
        """Batch number ``step``, counted from 0 across epochs, or some rows of it."""
        layout = self._plan.batch(step).of_rows(rows)
        num_rows, *widths = layout.shape
        first, second = (
            self._rows(side, layout.examples, num_rows, width) for side, width in zip(self._sides, widths, strict=True)
        )
        return TextPairBatch(*first, *second, (np.arange(num_rows) < len(layout.examples)).astype(np.float32))

    def _rows(self, side: Tokens, examples: np.ndarray, num_rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Padded tokens, and lengths."""
        tokens = np.full((num_rows, width), self._tokenizer.pad_id, np.int32)
        tokens[: len(examples), 0] = self._tokenizer.bos_id
        tokens[:, 1:] = padded(side, examples, (num_rows, width - 1), self._tokenizer.pad_id)
        lengths = np.zeros(num_rows, np.int32)
        lengths[: len(examples)] = _with_bos(side.lengths[examples])
        return tokens, lengths


def _with_bos(lengths: np.ndarray) -> np.ndarray:
    """Lengths of rows from those of lines with EOS; a line of nothing else stays as it is: plans leave it out."""
    return lengths + (lengths > 1)


def vectors_and_sums(
    model: TextEmbedder, params: Params, tokens_BT: Any, lengths_B: Any, rng: Any
) -> tuple[Any, Mapping[str, Any]]:
    """Vectors [B, D] of length 1 of the rows, and the sums that layers collect; see ``run_model``."""
    return run_model(model, params, rng, tokens_BT, make_mask(lengths_B))


def make_mask(lengths_B: Any) -> AttentionMask:
    """All tokens of a row see each other."""
    return AttentionMask(query_lengths=lengths_B, key_lengths=lengths_B)


@functools.partial(jax.jit, static_argnames="model")
def text_vectors(model: TextEmbedder, params: Params, tokens_BT: Any, lengths_B: Any) -> Any:
    """Vectors [B, D] of length 1 of the rows."""
    return vectors_and_sums(model, params, tokens_BT, lengths_B, None)[0]


def same_rows(tokens_BT: Int[Array, "B T"]) -> Bool[Array, "B B"]:
    """Which rows have the same tokens."""
    return jnp.all(tokens_BT[:, None] == tokens_BT[None], axis=-1)


def contrastive_sums(
    first_BD: Float[Array, "B D"],
    second_BD: Float[Array, "B D"],
    same_BB: Bool[Array, "B B"],
    weights_B: Float[Array, "B"],
) -> dict[str, tuple[Any, Any]]:
    """Sums over pairs of the cross-entropy in both directions, each with half its weight.

    Args:
      first_BD: of length 1.
      second_BD: of length 1.
      same_BB: pairs that are no negatives of each other.
      weights_B: 0 for pairs that are only there to fill up the batch: no one's negatives either.
    """
    cosines_BB = jnp.matmul(first_BD, second_BD.T, precision=jax.lax.Precision.HIGHEST)
    size = len(weights_B)
    compared_BB = (~same_BB & (weights_B > 0)[:, None] & (weights_B > 0)) | jnp.eye(size, dtype=bool)
    logits_BB = jnp.where(compared_BB, cosines_BB / TEMPERATURE, -jnp.inf)
    forth, back = (cross_entropy(logits, jnp.arange(size), weights_B) for logits in (logits_BB, logits_BB.T))
    return {name: ((forth[name][0] + back[name][0]) / 2, forth[name][1]) for name in forth}


def _numbers_of_texts(texts: Sequence[str]) -> np.ndarray:
    """A number for each, the same for equal ones."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(text, len(known)) for text in texts])


class Retrieved(NamedTuple):
    """What n queries found among the answers of n pairs.

    ranks    int64 [n]    the place of the right answer, from 1
    nlls     float64 [n]  its negative log-probability
    nearest  int64 [n]    the number of the answer that is nearest
    """

    ranks: np.ndarray
    nlls: np.ndarray
    nearest: np.ndarray


def retrieve(queries: np.ndarray, answers: np.ndarray, first: np.ndarray, second: np.ndarray) -> Retrieved:
    """Look for the answer of each pair; pairs with the same first or the same second text are right for each other.

    Args:
      queries: float32 [n, D], of length 1.
      answers: float32 [n, D], of length 1.
      first: int [n], a number for each different text.
      second: int [n], likewise.
    """
    found = []
    for start in range(0, len(queries), QUERIES_AT_A_TIME):
        chunk = np.arange(start, min(start + QUERIES_AT_A_TIME, len(queries)))
        cosines = (queries[chunk] @ answers.T).astype(np.float64)
        right = (first[chunk, None] == first) | (second[chunk, None] == second)
        best = np.where(right, cosines, -np.inf).max(axis=1, keepdims=True)
        own = np.zeros_like(right)
        own[np.arange(len(chunk)), chunk] = True
        logits = np.where(right & ~own, -np.inf, cosines / TEMPERATURE)
        highest = logits.max(axis=1, keepdims=True)
        normalizers = highest[:, 0] + np.log(np.exp(logits - highest).sum(axis=1))
        found.append(
            Retrieved(1 + np.sum(~right & (cosines >= best), axis=1), normalizers - logits[own], cosines.argmax(axis=1))
        )
    return Retrieved(*map(np.concatenate, zip(*found, strict=True)))
