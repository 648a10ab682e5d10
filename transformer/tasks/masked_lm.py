"""Masked language modelling: documents, the encoder-only model, cross-entropy at masked places, filling in."""

import dataclasses
import functools
import heapq
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import Config
from transformer.data.batching import document_plan, evaluation_plan
from transformer.data.corruption import MaskedTokenPipeline, Pieces, TokenMasker, encode_marked
from transformer.data.documents import DocumentSource
from transformer.looks import Look
from transformer.models.embeddings import embedding_rows
from transformer.models.encoder_only import MaskedLM
from transformer.models.flops import TRAINING_FACTOR, encoder_forward_flops
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
from transformer.tasks.searching import group_by_length
from transformer.types import BatchView, Candidate, MaskedTokenBatch, Params, Sums, TokenView, UserError

MARKS = ("<mask>", "[MASK]")  # what a user types where something is to be filled in
LINES_AT_A_TIME = 1_024  # among which similar lengths are sought
TOKENS_AT_A_TIME = 2**20  # counted together

logger = logging.getLogger(__name__)


class MaskedLMTask(DocumentTask):
    """See :class:`transformer.types.Task`. Data is read when first asked for: filling in needs none.

    Documents are cut into texts of at most ``data.max_source_length`` tokens, BOS and EOS included, which stand around
    each text, be it a whole document or not.
    """

    name, variant, batchings = "masked_lm", "encoder_only", ("bucket", "pack")
    scores = ("nll_per_token", "perplexity", "accuracy")

    def __init__(self, config: Config, assets: Optional[Path] = None):
        if config.data.max_source_length < 3:
            raise UserError(
                f"data.max_source_length={config.data.max_source_length} has no room for BOS, a token and EOS"
            )
        super().__init__(config, assets)
        self._masker = TokenMasker(self.tokenizer, rate=config.data.noise_density, whole_words=config.data.whole_words)
        self.model = MaskedLM(config.model, embedding_rows(config.model, self.tokenizer.vocab_size))

    # Data

    @functools.cached_property
    def _training(self) -> MaskedTokenPipeline:
        pieces, repeats = self._pieces(self._source, "train"), self._source.repeats("train")
        if repeats is not None:
            repeats = repeats[pieces.documents]
        data = dataclasses.replace(self.config.data, max_target_length=self.config.data.max_source_length)
        plan = document_plan(data, pieces.lengths + 2, self.config.seed, repeats)
        pipeline = MaskedTokenPipeline(pieces, plan, self.tokenizer, self._masker, seed=self.config.seed)
        logger.info(
            "training on %d tokens in %d texts, in %d batches an epoch of %s; %.1f%% of the positions are padding",
            pieces.lengths.sum(dtype=np.int64),
            len(pieces.lengths),
            pipeline.num_batches,
            ", ".join(f"{rows} x {length}" for rows, length in pipeline.shapes),
            100 * pipeline.padding_share,
        )
        return pipeline

    def _pieces(self, source: DocumentSource, split: str, num_documents: Optional[int] = None) -> Pieces:
        """The texts of a split, or of its first documents."""
        return Pieces(self._store(source, split).sides[0].first(num_documents), self.config.data.max_source_length - 2)

    # Training

    def init(self, rng: Any) -> Params:
        tokens = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(rng, tokens, AttentionMask(), tokens, deterministic=True)["params"]

    def loss(self, params: Params, batch: MaskedTokenBatch, rng: Any) -> Sums:
        packed = self.config.data.batching == "pack"
        logits_BMV, collected = logits_and_sums(self.model, params, batch, rng, packed=packed)
        return self._sums(logits_BMV, batch.target_tokens, batch.loss_weights, collected)

    def work(self, batch: MaskedTokenBatch) -> dict[str, float]:
        rows, length = batch.input_tokens.shape
        d_model, places = self.config.model.d_model, rows * batch.masked_positions.shape[1]
        forward = encoder_forward_flops(self.config.model, rows, length)
        forward += 2.0 * places * d_model * (d_model + self.model.vocab_size)
        return {
            "source_tokens": float(np.count_nonzero(batch.segment_ids)),
            "positions": float(rows * length),
            "flops": TRAINING_FACTOR * forward,
        }

    def view(self, batch: MaskedTokenBatch) -> BatchView:
        inputs = TokenView(
            "input",
            batch.input_tokens,
            batch.segment_ids,
            self.model.vocab_size,
            self.tokenizer,
            positions=batch.positions,
            first=self.tokenizer.bos_id,
            last=self.tokenizer.eos_id,
        )
        targets = TokenView(
            "what stood at the chosen places of the row",
            batch.target_tokens,
            (batch.loss_weights > 0).astype(np.int32),
            self.model.vocab_size,
            self.tokenizer,
            positions=batch.masked_positions,
            loss_weights=batch.loss_weights,
        )
        mask = make_mask(batch, packed=self.config.data.batching == "pack")
        attention = self._attention("encoder", mask, batch.input_tokens.shape[1])
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
        """Nats and accuracy per masked token, of which there are ``num_examples``: the seed draws what is masked.

        ``accuracy_of_most_frequent`` is that of always guessing one piece, the most frequent of the training split, or
        of the text if it is a file. ``outputs``: the log-probability of the masked tokens of each text, in nats.
        """
        source, split = self._given(data)
        limit = self.config.evaluation.max_examples if during_training else None
        pieces = self._pieces(source, split, limit)
        frequent = self._most_frequent_in_training if source is self._source else self._most_frequent(pieces)
        lengths = pieces.lengths + 2
        plan = evaluation_plan(lengths, lengths, self.config.decoding.tokens_per_batch, self.config.data.num_buckets)
        pipeline = MaskedTokenPipeline(pieces, plan, self.tokenizer, self._masker, seed=self.config.seed, fixed=True)
        log_probs = np.zeros(len(lengths))
        count = correct = correct_of_frequent = 0
        for number in progress(range(plan.num_batches), "scoring", plan.num_batches, "batch"):
            layout, batch = pipeline.numbered_batch(number)
            of_tokens, is_best = by_rows(token_scores, self.model, params, (batch,))
            weighted = batch.loss_weights > 0
            log_probs[layout.examples] = np.where(weighted, of_tokens, 0).sum(axis=1, dtype=np.float64)[layout.rows]
            count += int(weighted.sum())
            correct += int((is_best & weighted).sum())
            correct_of_frequent += int(((batch.target_tokens == frequent) & weighted).sum())
        if not count:
            raise UserError(f"{data if isinstance(data, str) else data['text']} has no token that could be masked")
        if outputs is not None:
            outputs.write_text("".join(f"{value:.6f}\n" for value in log_probs))
        nll = float(-log_probs.sum()) / count
        return {
            "num_examples": count,
            "num_texts": len(lengths),
            "nll_per_token": nll,
            "perplexity": float(np.exp(nll)),
            "accuracy": correct / count,
            "accuracy_of_most_frequent": correct_of_frequent / count,
        }

    @functools.cached_property
    def _most_frequent_in_training(self) -> int:
        return self._most_frequent(self._pieces(self._source, "train"))

    def _most_frequent(self, pieces: Pieces) -> int:
        """The ordinary piece that the texts have most often."""
        counts = np.zeros(self.tokenizer.vocab_size, np.int64)
        ends = np.cumsum(pieces.lengths, dtype=np.int64)
        bounds = np.searchsorted(ends, np.arange(0, ends[-1], TOKENS_AT_A_TIME), side="right")
        for numbers in np.split(np.arange(len(ends)), bounds[1:]):
            counts += np.bincount(pieces.gather(numbers), minlength=len(counts))
        return int(np.where(self._masker.ordinary, counts, -1).argmax())

    # Inference

    def candidates(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        """Lines with their masks filled in, best first: one piece for each, which does not know of the others.

        A mask is typed ``<mask>`` or ``[MASK]``. Lines without one come back as they are. The score is the sum of the
        pieces' log-probabilities. A line longer than ``data.max_source_length`` is read in parts, as documents are.
        """
        num_pieces = int(self._masker.ordinary.sum())
        if num_best > num_pieces:
            raise UserError(f"num_best={num_best} is more than the {num_pieces} pieces that may be filled in")
        counted = progress(range(len(lines)), "filling in", len(lines))
        for start in range(0, len(lines), LINES_AT_A_TIME):
            chunk = lines[start : start + LINES_AT_A_TIME]
            for line, choices in zip(chunk, self._fill(params, chunk, num_best), strict=True):
                next(counted)
                yield self._combined(line, choices, num_best)

    def _fill(self, params: Params, lines: Sequence[str], num_best: int) -> list[list["Choices"]]:
        """For each mask of each line the pieces that fit best."""
        tokenizer, most = self.tokenizer, self.config.data.max_source_length - 2
        encoded = encode_marked(tokenizer, lines, dict.fromkeys(MARKS, self._masker.mask_id))
        parts = []
        for number, ids in enumerate(encoded):
            for start in range(0, len(ids), most):
                part = ids[start : start + most]
                if self._masker.mask_id in part:
                    parts.append((number, [tokenizer.bos_id, *part, tokenizer.eos_id]))
        found: list[list[Choices]] = [[] for _ in parts]
        groups = group_by_length(
            [lines[number] for number, _ in parts],
            [ids for _, ids in parts],
            self.config.decoding.tokens_per_batch,
        )
        for members, length, rows in groups:
            tokens = np.full((rows, length), tokenizer.pad_id, np.int32)
            lengths = np.zeros(rows, np.int32)
            for row, member in enumerate(members):
                ids = parts[member][1]
                tokens[row, : len(ids)] = ids
                lengths[row] = len(ids)
            masked = tokens == self._masker.mask_id
            counts = masked.sum(axis=1)
            places = np.zeros((rows, 1 << (int(counts.max()) - 1).bit_length()), np.int32)
            for row in range(len(members)):
                places[row, : counts[row]] = np.flatnonzero(masked[row])
            given = (tokens, lengths, places)
            scores, best = by_rows(best_pieces, self.model, params, given, allowed_V=self._allowed, num_best=num_best)
            for row, member in enumerate(members):
                found[member] = [
                    Choices(best[row, place].tolist(), scores[row, place].tolist()) for place in range(counts[row])
                ]
        choices: list[list[Choices]] = [[] for _ in lines]
        for (number, _), of_part in zip(parts, found, strict=True):
            choices[number] += of_part
        return choices

    def look(self, params: Params, line: str, target: Optional[str] = None) -> Look:
        """See :class:`transformer.looks.CanBeLookedInto`. Predicted are the pieces for the masks that were typed."""
        require_text(line)
        require_no_target(self.name, target)
        tokenizer, most = self.tokenizer, self.config.data.max_source_length - 2
        (ids,) = encode_marked(tokenizer, [line], dict.fromkeys(MARKS, self._masker.mask_id))
        if len(ids) > most:
            logger.warning("the line has %d tokens; only the first %d are looked at", len(ids), most)
        ids = [tokenizer.bos_id, *ids[:most], tokenizer.eos_id]
        places = [place for place, i in enumerate(ids) if i == self._masker.mask_id]
        tokens, places_BM = as_inputs(ids, places or [0])
        logits_BMV, attention, experts = run_and_look(self.model, params, tokens, AttentionMask(), places_BM)
        logits_MV = np.where(self._allowed, logits_BMV[0], -np.inf)[: len(places), : tokenizer.vocab_size]
        found = predictions(logits_MV, [-1] * len(places), tokenizer) if places else ()
        pieces = pieces_of_tokens(tokenizer, ids)
        by_place = dict(zip(places, found, strict=True))
        ((output,),) = self.candidates(params, [line], 1)
        return Look(line, output.text, {"encoder": pieces}, attention, experts, {"encoder": by_place})

    @functools.cached_property
    def _allowed(self) -> np.ndarray:
        """[V] bool: which rows of the embedding may be filled in."""
        return np.append(self._masker.ordinary, np.zeros(self.model.vocab_size - self.tokenizer.vocab_size, bool))

    def _combined(self, line: str, choices: Sequence["Choices"], num_best: int) -> list[Candidate]:
        """The best combinations of the pieces for the masks of a line."""
        best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for pieces, scores in choices:
            longer = (
                (before + score, (*ids, piece))
                for before, ids in best
                for piece, score in zip(pieces, scores, strict=True)
            )
            best = heapq.nlargest(num_best, longer, key=lambda scored: scored[0])
        if not choices:
            best *= num_best
        return [
            Candidate(filled_in(line, [self.tokenizer.decode([piece]) for piece in ids]), score) for score, ids in best
        ]


class Choices(NamedTuple):
    """What may stand in the place of a mask: pieces, best first, and their log-probabilities."""

    pieces: list[int]
    scores: list[float]


def filled_in(line: str, texts: Sequence[str]) -> str:
    """A line with these texts in place of its masks; all else stays as it was typed."""
    for mark in MARKS[1:]:
        line = line.replace(mark, MARKS[0])
    first, *others = line.split(MARKS[0])
    return first + "".join(text + other for text, other in zip(texts, others, strict=True))


def logits_and_sums(
    model: MaskedLM, params: Params, batch: MaskedTokenBatch, rng: Any, *, packed: bool
) -> tuple[Any, Mapping[str, Any]]:
    """Scores [B, M, V] of all tokens at the masked places, and the sums that layers collect; see ``run_model``.

    Args:
      packed: whether rows hold several texts.
    """
    positions_BT, mask = batch.positions if packed else None, make_mask(batch, packed)
    return run_model(model, params, rng, batch.input_tokens, mask, batch.masked_positions, positions_BT=positions_BT)


def make_mask(batch: MaskedTokenBatch, packed: bool) -> AttentionMask:
    """Who sees whom in a batch: as little is said as is needed, since more kernels understand that."""
    if packed:
        return AttentionMask(query_segment_ids=batch.segment_ids, key_segment_ids=batch.segment_ids)
    lengths_B = jnp.sum(batch.segment_ids != 0, axis=1)
    return AttentionMask(query_lengths=lengths_B, key_lengths=lengths_B)


@functools.partial(jax.jit, static_argnames="model")
def token_scores(model: MaskedLM, params: Params, batch: MaskedTokenBatch) -> tuple[Any, Any]:
    """Of each masked token [B, M] its log-probability, and whether it is the best guess; with one text a row."""
    logits_BMV, _ = logits_and_sums(model, params, batch, None, packed=False)
    targets_BM1 = batch.target_tokens[..., None]
    log_probs_BM = jnp.take_along_axis(jax.nn.log_softmax(logits_BMV), targets_BM1, axis=-1)[..., 0]
    return log_probs_BM, jnp.argmax(logits_BMV, axis=-1) == batch.target_tokens


@functools.partial(jax.jit, static_argnames=("model", "num_best"))
def best_pieces(
    model: MaskedLM, params: Params, tokens_BT: Any, lengths_B: Any, places_BM: Any, *, allowed_V: Any, num_best: int
) -> tuple[Any, Any]:
    """Log-probabilities and ids [B, M, num_best] of the best of the allowed pieces at some places, best first."""
    mask = AttentionMask(query_lengths=lengths_B, key_lengths=lengths_B)
    logits_BMV: Any = model.apply({"params": params}, tokens_BT, mask, places_BM, deterministic=True)
    log_probs_BMV = jnp.where(allowed_V, jax.nn.log_softmax(logits_BMV), -jnp.inf)
    scores, pieces = jax.lax.top_k(log_probs_BMV, num_best)
    return scores, pieces
