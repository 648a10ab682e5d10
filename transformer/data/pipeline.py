"""From a store and a plan to batch number n, built ahead of the step that needs it."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import grain
import numpy as np

from transformer.data.batching import Plan
from transformer.data.store import Store
from transformer.data.tokenizer import Tokenizer
from transformer.types import Seq2SeqBatch

Batch = TypeVar("Batch")
MAX_THREADS = 4  # that build batches; more would only wait for the interpreter


class Pipeline:
    """Batches of pairs as arrays: ``batch(n)`` depends on nothing but the store, the plan and ``n``.

    Attributes:
      num_batches: per epoch.
    """

    def __init__(self, store: Store, plan: Plan, tokenizers: tuple[Tokenizer, Tokenizer]):
        self._store = store
        self._plan = plan
        self._pad_ids = [tokenizer.pad_id for tokenizer in tokenizers]
        self._bos_id = tokenizers[1].bos_id
        self.num_batches = plan.num_batches

    def batch(self, step: int) -> Seq2SeqBatch:
        """Batch number ``step``, counted from 0 across epochs."""
        layout = self._plan.batch(step)
        num_rows, source_length, target_length = layout.shape
        source_lengths, target_lengths = (side.lengths[layout.examples] for side in self._store.sides)
        source_tokens, target_tokens = (side.gather(layout.examples) for side in self._store.sides)

        source = _Segments(num_rows, source_length, layout.rows, layout.source_offsets, source_lengths)
        target = _Segments(num_rows, target_length, layout.rows, layout.target_offsets, target_lengths)
        shifted_tokens = np.empty_like(target_tokens)
        shifted_tokens[1:] = target_tokens[:-1]
        shifted_tokens[target.positions == 0] = self._bos_id
        return Seq2SeqBatch(
            encoder_input_tokens=source.place(source_tokens, self._pad_ids[0]),
            encoder_segment_ids=source.place(source.each_token(layout.segments)),
            encoder_positions=source.place(source.positions),
            decoder_input_tokens=target.place(shifted_tokens, self._pad_ids[1]),
            decoder_target_tokens=target.place(target_tokens, self._pad_ids[1]),
            decoder_loss_weights=target.place(np.ones(len(target_tokens))).astype(np.float32),
            decoder_segment_ids=target.place(target.each_token(layout.segments)),
            decoder_positions=target.place(target.positions),
        )


class _Segments:
    """Where the tokens of one side, one line after the other, stand in its padded rows."""

    def __init__(self, num_rows: int, row_length: int, rows: np.ndarray, offsets: np.ndarray, lengths: np.ndarray):
        self._shape = (num_rows, row_length)
        self._lengths = lengths
        starts = np.cumsum(lengths) - lengths
        self.positions = np.arange(lengths.sum()) - self.each_token(starts)
        self._places = self.each_token(rows * row_length + offsets) + self.positions

    def each_token(self, values: np.ndarray) -> np.ndarray:
        """The value of each line, once for each of its tokens."""
        return np.repeat(values, self._lengths)

    def place(self, values: np.ndarray, padding: int = 0) -> np.ndarray:
        """int32 rows that hold ``values``, one for each token, and ``padding`` elsewhere."""
        rows = np.full(self._shape, padding, np.int32)
        rows.ravel()[self._places] = values
        return rows


def real_tokens(batch: Seq2SeqBatch) -> tuple[int, int]:
    """How many source and target tokens of a batch are not padding."""
    return int(np.count_nonzero(batch.encoder_segment_ids)), int(np.count_nonzero(batch.decoder_segment_ids))


def prefetch(make_batch: Callable[[int], Batch], start: int, stop: int, size: int) -> Iterator[Batch]:
    """``make_batch(start)`` to ``make_batch(stop - 1)`` in order, up to ``size`` of them built ahead by threads.

    What ``make_batch`` raises is raised here, at the step where it happened. ``size`` 0 builds each when asked for.
    """
    options = grain.ReadOptions(num_threads=min(size, MAX_THREADS), prefetch_buffer_size=size)
    iterator = iter(grain.MapDataset.range(start, stop).map(make_batch).to_iter_dataset(options))
    try:
        yield from iterator
    finally:
        iterator.close()
