"""Translation: pairs of lines, the encoder-decoder model, label-smoothed cross-entropy, BLEU, beam search."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import Config, DecodingConfig
from transformer.data.batching import evaluation_plan, training_plan
from transformer.data.pipeline import Pipeline, real_tokens
from transformer.data.sources import (
    PairList,
    ParallelSource,
    PhraseSource,
    cache_folder,
    escape_newlines,
    make_source,
    read_pairs,
)
from transformer.data.store import Store, open_store
from transformer.data.tokenizer import load_tokenizers, make_tokenizers, save_tokenizers
from transformer.decoding.beam_search import beam_search
from transformer.decoding.hypotheses import Hypotheses
from transformer.decoding.sampling import greedy, sample
from transformer.evaluation.text_scores import score
from transformer.models.cache import Cache, init_cache
from transformer.models.flops import TRAINING_FACTOR, seq2seq_forward_flops
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2Seq, Seq2SeqMasks
from transformer.progress import progress
from transformer.tasks.losses import cross_entropy
from transformer.types import Candidate, Params, Seq2SeqBatch, Sums, UserError

logger = logging.getLogger(__name__)

SHORTEST_SOURCE = 16  # inputs are padded to this length or a power of two above it, so that few shapes are compiled
MAX_ROWS = 64  # sentences decoded together
LINES_AT_A_TIME = 4_096  # among which similar lengths are sought
FEW_ROWS = 4  # the other number of rows that is compiled, for what is left over and for single lines


class TranslationTask:
    """See :class:`transformer.types.Task`. Data is read when first asked for: translating needs none."""

    def __init__(self, config: Config, assets: Optional[Path] = None):
        self.config = config
        self._tokenizers = make_tokenizers(config.data, self._source) if assets is None else load_tokenizers(assets)
        if config.data.joint_vocabulary != (self._tokenizers[0].fingerprint == self._tokenizers[1].fingerprint):
            raise UserError(
                f"data.joint_vocabulary={config.data.joint_vocabulary}, but the tokenizers of the two sides are "
                f"{'different' if config.data.joint_vocabulary else 'the same'}"
            )
        self.source_tokenizer, self.tokenizer = self._tokenizers
        self.model = Seq2Seq(config.model, *(tokenizer.vocab_size for tokenizer in self._tokenizers))
        self._stores: dict[str, Store] = {}

    # Data

    @functools.cached_property
    def _source(self) -> ParallelSource:
        return make_source(self.config.data, self.config.seed)

    def data_fingerprint(self) -> str:
        return self._source.fingerprint

    def assets_fingerprint(self) -> str:
        return " ".join(tokenizer.fingerprint for tokenizer in self._tokenizers)

    @functools.cached_property
    def _training(self) -> Pipeline:
        store = self._store("train")
        plan = training_plan(
            self.config.data,
            store.source_lengths,
            store.target_lengths,
            self.config.seed,
            self._source.repeats("train"),
        )
        logger.info(
            "training on %d pairs an epoch in %d batches of %s; %.1f%% of the positions are padding",
            plan.num_examples,
            plan.num_batches,
            ", ".join(f"{rows} x ({source} + {target})" for rows, source, target in plan.shapes),
            100 * plan.padding_share(),
        )
        return Pipeline(store, plan, self._tokenizers)

    def steps_per_epoch(self) -> int:
        return self._training.num_batches

    def batch(self, step: int) -> Seq2SeqBatch:
        return self._training.batch(step)

    def _store(self, split: str) -> Store:
        if split not in self._stores:
            folder = cache_folder(self.config.data)
            self._stores[split] = open_store(self._source, split, self._tokenizers, folder)
        return self._stores[split]

    # Training

    def init(self, rng: Any) -> Params:
        tokens = jnp.zeros((1, 1), jnp.int32)
        masks = Seq2SeqMasks(AttentionMask(), AttentionMask(), AttentionMask())
        return self.model.init(rng, tokens, tokens, masks, deterministic=True)["params"]

    def loss(self, params: Params, batch: Seq2SeqBatch, rng: Any) -> Sums:
        training = self.config.training
        return cross_entropy(
            self._logits(params, batch, rng, packed=self.config.data.batching == "pack"),
            batch.decoder_target_tokens,
            batch.decoder_loss_weights,
            label_smoothing=training.label_smoothing,
            form=training.label_smoothing_form,
            padding_id=self.tokenizer.pad_id,
        )

    def _logits(self, params: Params, batch: Seq2SeqBatch, rng: Any, *, packed: bool) -> Any:
        return self.model.apply(
            {"params": params},
            batch.encoder_input_tokens,
            batch.decoder_input_tokens,
            make_masks(batch, packed),
            encoder_positions_BS=batch.encoder_positions if packed else None,
            decoder_positions_BT=batch.decoder_positions if packed else None,
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
        )

    def work(self, batch: Seq2SeqBatch) -> dict[str, float]:
        source_tokens, target_tokens = real_tokens(batch)
        rows, source_length = batch.encoder_input_tokens.shape
        target_length = batch.decoder_input_tokens.shape[1]
        forward = seq2seq_forward_flops(
            self.config.model, self.tokenizer.vocab_size, rows, source_length, target_length
        )
        return {
            "source_tokens": source_tokens,
            "target_tokens": target_tokens,
            "positions": rows * (source_length + target_length),
            "flops": TRAINING_FACTOR * forward,
        }

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
            source, split = (
                PairList(list(read_pairs(data["source"], data.get("reference") or data["hypothesis"]))),
                "given",
            )
        sources, references = (list(side) for side in zip(*source.pairs(split), strict=True))
        log_probs, counts = self._log_probs(params, source, split)
        nll = float(-log_probs.sum() / counts.sum())
        scores = {"num_examples": len(counts), "nll_per_token": nll, "perplexity": float(np.exp(nll))}
        if not isinstance(data, str) and "hypothesis" in data:
            return {**scores, "log_probs": log_probs.tolist()}

        decoding = self.config.decoding
        if during_training:
            limit = self.config.evaluation.max_examples
            sources, references = sources[:limit], references[:limit]
            decoding = dataclasses.replace(decoding, method="beam", beam_size=self.config.evaluation.beam_size)
        translator = Translator(self, decoding)
        translations = [found[0].text for found in translator(params, sources, 1)]
        if outputs is not None:
            outputs.write_text("".join(escape_newlines(line) + "\n" for line in translations), encoding="utf-8")
        scores.update(score(translations, [references]))
        scores["num_truncated"] = translator.num_truncated
        if isinstance(source, PhraseSource):
            hits: dict[str, list[bool]] = {}
            for kind, got, wanted in zip(source.kinds(split), translations, references, strict=False):
                hits.setdefault(kind, []).append(got == wanted)
            scores["exact_match_by_kind"] = {kind: sum(found) / len(found) for kind, found in sorted(hits.items())}
        return scores

    def _log_probs(self, params: Params, source: ParallelSource, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Log-probability of each target, EOS included, in nats, and the number of its tokens."""
        store = (
            self._store(split)
            if source is self._source
            else open_store(source, split, self._tokenizers, cache_folder(self.config.data))
        )
        lengths = store.source_lengths, store.target_lengths
        plan = evaluation_plan(*lengths, self.config.decoding.tokens_per_batch)
        pipeline = Pipeline(store, plan, self._tokenizers)
        log_probs = np.zeros(len(store))
        for number in progress(range(plan.num_batches), "teacher forcing", plan.num_batches, "batch"):
            layout = plan.batch(number)
            log_probs[layout.examples] = np.asarray(self._row_log_probs(params, pipeline.batch(number)))[layout.rows]
        return log_probs, np.asarray(store.target_lengths, np.float64)

    @functools.cached_property
    def _row_log_probs(self) -> Any:
        def row_log_probs(params: Params, batch: Seq2SeqBatch) -> Any:
            logits_BTV = self._logits(params, batch, None, packed=False)
            log_probs_BTV = jax.nn.log_softmax(logits_BTV)
            log_probs_BT = jnp.take_along_axis(log_probs_BTV, batch.decoder_target_tokens[..., None], axis=-1)[..., 0]
            return jnp.where(batch.decoder_loss_weights > 0, log_probs_BT, 0).sum(axis=1)

        return jax.jit(row_log_probs)

    # Inference

    @functools.cached_property
    def search(self) -> Any:
        """``(params, tokens_BS, lengths_B, line_numbers_B, *, decoding, num_best) -> Hypotheses``, compiled by shape."""
        return jax.jit(self._search, static_argnames=("decoding", "num_best"))

    def _search(
        self,
        params: Params,
        tokens_BS: Any,
        lengths_B: Any,
        line_numbers_B: Any,
        *,
        decoding: DecodingConfig,
        num_best: int,
    ) -> Hypotheses:
        batch_size, source_length = tokens_BS.shape
        max_steps = source_length + decoding.max_extra_tokens
        width = {"beam": decoding.beam_size, "greedy": 1, "sample": num_best}[decoding.method]
        variables = {"params": params}
        own = AttentionMask(query_lengths=lengths_B, key_lengths=lengths_B)
        source = self.model.apply(variables, tokens_BS, own, method="encode")
        own_slots_WW = jnp.eye(width, dtype=bool)
        pieces_V = np.arange(self.tokenizer.vocab_size)
        allowed_V = (pieces_V != self.tokenizer.pad_id) & (pieces_V != self.tokenizer.bos_id)

        def step(state: DecodingState, parents_BW: Any, tokens_BW: Any) -> tuple[Any, DecodingState]:
            visible = jnp.take_along_axis(state.visible, parents_BW[..., None], axis=1)
            own_slots = jnp.broadcast_to(own_slots_WW, (batch_size, width, width))
            visible = jax.lax.dynamic_update_slice(visible, own_slots, (0, 0, state.cache.index))
            logits_BWV, cache = self.model.apply(
                variables,
                tokens_BW,
                source,
                AttentionMask(matrix=visible),
                AttentionMask(key_lengths=lengths_B),
                positions_BT=jnp.broadcast_to(state.cache.index // width, tokens_BW.shape),
                cache=state.cache,
                method="decode",
            )
            log_probs_BWV = jnp.where(allowed_V, jax.nn.log_softmax(logits_BWV), -jnp.inf)
            return log_probs_BWV, DecodingState(cache, visible)

        num_slots = max_steps * width
        options = {
            "batch_size": batch_size,
            "bos_id": self.tokenizer.bos_id,
            "eos_id": self.tokenizer.eos_id,
            "max_steps": max_steps,
            "limits_B": jnp.where(lengths_B > 0, lengths_B + decoding.max_extra_tokens, 0),
        }
        state = DecodingState(
            init_cache(self.config.model, batch_size, num_slots), jnp.zeros((batch_size, width, num_slots), bool)
        )
        if decoding.method == "greedy":
            return greedy(step, state, **options)
        if decoding.method == "beam":
            return beam_search(
                step,
                state,
                beam_size=width,
                length_penalty=decoding.length_penalty,
                alpha=decoding.alpha,
                num_best=num_best,
                **options,
            )
        fold_in = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        return sample(
            step,
            state,
            num_samples=width,
            keys_B=fold_in(jax.random.key(self.config.seed), line_numbers_B),
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
            **options,
        )

    def candidates(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        return Translator(self, self.config.decoding)(params, lines, num_best)

    def predict(self, params: Params, lines: Sequence[str]) -> list[str]:
        return [found[0].text for found in self.candidates(params, lines, 1)]

    def save_assets(self, workdir: Path) -> None:
        save_tokenizers(workdir, self._tokenizers)


def make_masks(batch: Seq2SeqBatch, packed: bool) -> Seq2SeqMasks:
    """Who sees whom in a batch: by segments where rows are packed, else by lengths, which more kernels understand."""
    if packed:
        encoder, decoder = batch.encoder_segment_ids, batch.decoder_segment_ids
        positions = batch.decoder_positions
        return Seq2SeqMasks(
            AttentionMask(query_segment_ids=encoder, key_segment_ids=encoder),
            AttentionMask(
                causal=True,
                query_segment_ids=decoder,
                key_segment_ids=decoder,
                query_positions=positions,
                key_positions=positions,
            ),
            AttentionMask(query_segment_ids=decoder, key_segment_ids=encoder),
        )
    encoder, decoder = (jnp.sum(ids != 0, axis=1) for ids in (batch.encoder_segment_ids, batch.decoder_segment_ids))
    return Seq2SeqMasks(
        AttentionMask(query_lengths=encoder, key_lengths=encoder),
        AttentionMask(causal=True, query_lengths=decoder, key_lengths=decoder),
        AttentionMask(query_lengths=decoder, key_lengths=encoder),
    )


class DecodingState(NamedTuple):
    """Between two steps of a search over W hypotheses of each of B sentences.

    cache     the W tokens of step n stand in slots n W to n W + W - 1 of their sentence's one row
    visible   [B, W, N W] bool: which slots hold the tokens that each hypothesis is made of

    A hypothesis that continues another takes over what that one sees, and the keys and values stay where they are:
    nothing is copied when hypotheses change places.
    """

    cache: Cache
    visible: Any


class Translator:
    """Lines to candidates, in order: encode, group by length, search, detokenise.

    num_truncated: inputs that were longer than ``decoding.max_source_length``, so far.
    """

    def __init__(self, task: TranslationTask, decoding: DecodingConfig):
        self._task = task
        self._decoding = decoding
        self.num_truncated = 0

    def __call__(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        decoding = self._decoding
        if num_best > decoding.beam_size and decoding.method == "beam":
            raise UserError(f"num_best={num_best} needs --config.decoding.beam_size of at least as many")
        if num_best > 1 and decoding.method == "greedy":
            raise UserError(f"num_best={num_best}: decoding.method=greedy finds one output; use beam or sample")
        counted = progress(range(len(lines)), "translating", len(lines))
        for start in range(0, len(lines), LINES_AT_A_TIME):
            for found in self._translate(params, lines[start : start + LINES_AT_A_TIME], start, num_best):
                next(counted)
                yield found

    def _translate(self, params: Params, lines: Sequence[str], start: int, num_best: int) -> list[list[Candidate]]:
        """All candidates for a few thousand lines; the first has number ``start`` in the whole text."""
        decoding, tokenizer = self._decoding, self._task.source_tokenizer
        inputs = [ids + [tokenizer.eos_id] for ids in tokenizer.encode_batch(list(lines))]
        for number, ids in enumerate(inputs):
            if len(ids) > decoding.max_source_length:
                logger.warning(
                    "line %d has %d tokens; only the first decoding.max_source_length=%d are translated",
                    start + number + 1,
                    len(ids),
                    decoding.max_source_length,
                )
                inputs[number] = [*ids[: decoding.max_source_length - 1], tokenizer.eos_id]
                self.num_truncated += 1
        results = [[Candidate("", 0.0)] * num_best for _ in lines]  # what a line of nothing but white space gives
        for numbers, length, rows in group_by_length(lines, inputs, decoding.tokens_per_batch):
            tokens = np.full((rows, length), tokenizer.pad_id, np.int32)
            lengths = np.zeros(rows, np.int32)
            for row, number in enumerate(numbers):
                lengths[row] = len(inputs[number])
                tokens[row, : lengths[row]] = inputs[number]
            line_numbers = np.zeros(rows, np.int32)
            line_numbers[: len(numbers)] = numbers
            found = jax.device_get(
                self._task.search(params, tokens, lengths, start + line_numbers, decoding=decoding, num_best=num_best)
            )
            for row, number in enumerate(numbers):
                results[number] = [
                    Candidate(self._task.tokenizer.decode(ids[:size].tolist()), float(value))
                    for ids, size, value in zip(found.tokens[row], found.lengths[row], found.scores[row], strict=True)
                ]
        return results


def group_by_length(
    lines: Sequence[str], inputs: Sequence[Sequence[int]], tokens_per_batch: int
) -> Iterator[tuple[list[int], int, int]]:
    """``(numbers of lines, padded length, padded number of rows)``: similar lengths together, few shapes in all."""
    groups: dict[int, list[int]] = {}
    for number, (line, ids) in enumerate(zip(lines, inputs, strict=True)):
        if line.strip():
            length = max(SHORTEST_SOURCE, 1 << (len(ids) - 1).bit_length())
            groups.setdefault(length, []).append(number)
    for length, numbers in sorted(groups.items()):
        numbers.sort(key=lambda number: len(inputs[number]))
        rows = min(MAX_ROWS, max(1, tokens_per_batch // length))
        for start in range(0, len(numbers), rows):
            chunk = numbers[start : start + rows]
            yield chunk, length, min(rows, FEW_ROWS) if len(chunk) <= FEW_ROWS else rows
