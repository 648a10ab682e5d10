"""From a store and a plan to batch number n, built ahead of the step that needs it."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Optional, TypeVar

import numpy as np

from transformer.data.batching import ALL_ROWS, Layout, PerEpoch, Plan, Windows
from transformer.data.store import Store, Tokens
from transformer.data.tokenizer import Tokenizer
from transformer.types import Seq2SeqBatch, TokenBatch

Batch = TypeVar("Batch")
SHORTEST_ROW = 16  # windows are padded to this length or a power of two above it
PREFIX = 3  # the last number in the key of a generator; masks have others, plans none
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

    def steps_of_shapes(self) -> tuple[int, ...]:
        """Of each shape that a batch can have the first step with it, ascending."""
        return self._plan.steps_of_shapes()

    def size(self, step: int) -> tuple[int, int]:
        """Rows of batch number ``step``, and positions of the longer side."""
        return self._plan.batch(step).size

    def batch(self, step: int, rows: slice = ALL_ROWS) -> Seq2SeqBatch:
        """Batch number ``step``, counted from 0 across epochs, or some rows of it."""
        layout = self._plan.batch(step).of_rows(rows)
        source, target = ((side.gather(layout.examples), side.lengths[layout.examples]) for side in self._store.sides)
        return seq2seq_batch(layout, source, target, self._pad_ids, self._bos_id)


def seq2seq_batch(
    layout: Layout,
    source: tuple[np.ndarray, np.ndarray],
    target: tuple[np.ndarray, np.ndarray],
    pad_ids: Sequence[int],
    bos_id: int,
) -> Seq2SeqBatch:
    """Tokens put in their places.

    Args:
      source: the tokens of all examples of the layout, one after the other, and how many each has; EOS included.
      target: likewise.
      pad_ids: of source and target.
    """
    num_rows, source_length, target_length = layout.shape
    encoder = Segments(num_rows, source_length, layout.rows, layout.source_offsets, source[1])
    decoder = Segments(num_rows, target_length, layout.rows, layout.target_offsets, target[1])
    shifted_tokens = np.empty_like(target[0])
    shifted_tokens[1:] = target[0][:-1]
    shifted_tokens[decoder.positions == 0] = bos_id
    return Seq2SeqBatch(
        encoder_input_tokens=encoder.place(source[0], pad_ids[0]),
        encoder_segment_ids=encoder.place(encoder.each_token(layout.segments)),
        encoder_positions=encoder.place(encoder.positions),
        decoder_input_tokens=decoder.place(shifted_tokens, pad_ids[1]),
        decoder_target_tokens=decoder.place(target[0], pad_ids[1]),
        decoder_loss_weights=decoder.place(np.ones(len(target[0]))).astype(np.float32),
        decoder_segment_ids=decoder.place(decoder.each_token(layout.segments)),
        decoder_positions=decoder.place(decoder.positions),
    )


class DocumentPipeline:
    """Batches of documents, each a segment of its own: ``batch(n)`` depends on nothing but the tokens, the plan and n.

    Attributes:
      num_batches: per epoch.
      shapes: every (B, T) that a batch can have.
      padding_share: of all positions of an epoch.
    """

    def __init__(self, documents: Tokens, plan: Plan, pad_id: int, start_id: Optional[int] = None):
        """
        Args:
          documents: or pieces of documents; a piece's first token is predicted from the last of the piece before.
          plan: of pairs of which both sides are the document.
          pad_id: of the tokenizer.
          start_id: what a document's first token is predicted from; None: EOS, which ends the document before it.
        """
        self._documents = documents
        self._plan = plan
        self._pad_id = pad_id
        self._start_id = start_id
        self.num_batches = plan.num_batches
        self.shapes = tuple((rows, length) for rows, _, length in plan.shapes)
        self.padding_share = plan.padding_share()

    def steps_of_shapes(self) -> tuple[int, ...]:
        """Of each shape that a batch can have the first step with it, ascending."""
        return self._plan.steps_of_shapes()

    def size(self, step: int) -> tuple[int, int]:
        """Rows of batch number ``step``, and positions of the longer side."""
        return self._plan.batch(step).size

    def batch(self, step: int, rows: slice = ALL_ROWS) -> TokenBatch:
        """Batch number ``step``, counted from 0 across epochs, or some rows of it."""
        layout = self._plan.batch(step).of_rows(rows)
        num_rows, _, length = layout.shape
        segments = Segments(
            num_rows, length, layout.rows, layout.target_offsets, self._documents.lengths[layout.examples]
        )
        starts = self._documents.offsets[layout.examples]
        return _token_batch(self._documents, segments, starts, layout.segments, self._pad_id, self._start_id)


class StreamPipeline:
    """Rows cut from one stream, the documents one after the other and after the last the first again.

    ``batch(n)`` depends on nothing but the tokens, the arguments and n. Every epoch starts to cut at another token and
    has the rows in another order. It has each token as a target once: what the last row has too many, and the rows that
    fill up the last batch, are text of weight 0.

    Attributes: as of :class:`DocumentPipeline`.
    """

    padding_share = 0.0

    def __init__(
        self,
        documents: Tokens,
        *,
        tokens_per_batch: int,
        row_length: int,
        seed: int,
        repeats: np.ndarray | None = None,
        start_id: Optional[int] = None,
    ):
        """
        Args:
          documents: the whole corpus.
          tokens_per_batch: positions of a batch.
          row_length: of them in a row.
          seed: of the cuts and the order of each epoch.
          repeats: int32 [documents], how many times the stream has each, one after the other; None: once.
          start_id: as of :class:`DocumentPipeline`.
        """
        examples = np.arange(len(documents.lengths))
        if repeats is not None:
            examples = np.repeat(examples, repeats)
        lengths = documents.lengths[examples]
        self._documents = documents
        self._start_id = start_id
        self._ends = np.cumsum(lengths, dtype=np.int64)  # in the stream
        self._shifts = documents.offsets[examples] - (self._ends - lengths)  # from the stream to the corpus
        self._num_tokens = int(self._ends[-1])
        self._num_rows = -(-self._num_tokens // row_length)
        rows = min(max(tokens_per_batch // row_length, 1), self._num_rows)
        self.shapes = ((rows, row_length),)
        self.num_batches = -(-self._num_rows // rows)
        self._order = PerEpoch(lambda epoch: self._draw(seed, epoch))

    def _draw(self, seed: int, epoch: int) -> tuple[int, np.ndarray]:
        """The token at which the epoch starts, and the order of its rows."""
        rng = np.random.default_rng([seed, epoch])
        return int(rng.integers(self._num_tokens)), rng.permutation(self._num_rows)

    def steps_of_shapes(self) -> tuple[int, ...]:
        """Of each shape that a batch can have the first step with it, ascending."""
        return (0,)

    def size(self, step: int) -> tuple[int, int]:
        """Rows of batch number ``step``, and their length."""
        return self.shapes[0]

    def batch(self, step: int, rows: slice = ALL_ROWS) -> TokenBatch:
        """Batch number ``step``, counted from 0 across epochs, or some rows of it."""
        epoch, place = divmod(step, self.num_batches)
        first, order = self._order(epoch)
        num_rows, length = self.shapes[0]
        numbers = place * num_rows + np.arange(num_rows)[rows]
        within = order[numbers % self._num_rows, None] * length + np.arange(length)  # the epoch's tokens
        counts = (numbers < self._num_rows)[:, None] & (within < self._num_tokens)
        in_stream = (first + within) % self._num_tokens
        places = in_stream + self._shifts[np.searchsorted(self._ends, in_stream, side="right")]
        return TokenBatch(
            input_tokens=_tokens_before(self._documents, places, self._start_id),
            target_tokens=self._documents.at(places),
            loss_weights=counts.astype(np.float32),
            segment_ids=np.ones((len(numbers), length), np.int32),
            positions=np.tile(np.arange(length, dtype=np.int32), (len(numbers), 1)),
        )


class PrefixPipeline:
    """Batches of another pipeline, with the start of each row given: its targets have weight 0.

    Of n tokens 0 to n - 1 are given, drawn uniformly by (seed, step). Rows must be of one text each.

    Reference: Raffel et al., T5 (2020), section 3.2.3.
    """

    def __init__(self, pipeline: DocumentPipeline | StreamPipeline, seed: int):
        self._pipeline = pipeline
        self._seed = seed
        self.num_batches = pipeline.num_batches

    def steps_of_shapes(self) -> tuple[int, ...]:
        """Of each shape that a batch can have the first step with it, ascending."""
        return self._pipeline.steps_of_shapes()

    def size(self, step: int) -> tuple[int, int]:
        """Rows of batch number ``step``, and positions of the longer side."""
        return self._pipeline.size(step)

    def batch(self, step: int, rows: slice = ALL_ROWS) -> TokenBatch:
        """Batch number ``step``, counted from 0 across epochs, or some rows of it."""
        batch = self._pipeline.batch(step, rows)
        lengths = np.count_nonzero(batch.segment_ids, axis=1)
        shares = np.random.default_rng([self._seed, step, PREFIX]).random(self.size(step)[0])[rows]
        given = (shares * lengths).astype(int)
        weights = np.where(batch.positions < given[:, None], np.float32(0), batch.loss_weights)
        return batch._replace(loss_weights=weights)


def window_batches(
    windows: Windows, documents: Tokens, tokens_per_batch: int, pad_id: int, start_id: Optional[int] = None
) -> list[tuple[np.ndarray, Callable[[], TokenBatch]]]:
    """Batches of a window a row, in few shapes: the numbers of their windows, and what builds them.

    A target that the window before has scored has weight 0. Rows that fill up a batch are padding. ``start_id`` is as
    of :class:`DocumentPipeline`.
    """
    longest = int(windows.lengths.max())
    widths = np.minimum(2 ** np.ceil(np.log2(np.maximum(windows.lengths, SHORTEST_ROW))).astype(int), longest)

    def build(numbers: np.ndarray, rows: int, width: int) -> TokenBatch:
        lengths = windows.lengths[numbers]
        segments = Segments(rows, width, np.arange(len(numbers)), np.zeros(len(numbers), int), lengths)
        starts = documents.offsets[windows.documents[numbers]] + windows.starts[numbers]
        batch = _token_batch(documents, segments, starts, np.ones(len(numbers), int), pad_id, start_id)
        scored = segments.positions >= segments.each_token(windows.overlaps[numbers])
        return batch._replace(loss_weights=segments.place(scored).astype(np.float32))

    batches: list[tuple[np.ndarray, Callable[[], TokenBatch]]] = []
    for width in np.unique(widths).tolist():
        members = np.flatnonzero(widths == width)
        rows = min(max(tokens_per_batch // width, 1), len(members))
        for start in range(0, len(members), rows):
            numbers = members[start : start + rows]
            batches.append((numbers, functools.partial(build, numbers, rows, width)))
    return batches


def _token_batch(
    documents: Tokens,
    segments: "Segments",
    starts: np.ndarray,
    segment_ids: np.ndarray,
    pad_id: int,
    start_id: Optional[int],
) -> TokenBatch:
    """Rows of stretches of text that start at these places among all tokens."""
    places = segments.each_token(starts) + segments.positions
    return TokenBatch(
        input_tokens=segments.place(_tokens_before(documents, places, start_id), pad_id),
        target_tokens=segments.place(documents.at(places), pad_id),
        loss_weights=segments.place(np.ones(len(places))).astype(np.float32),
        segment_ids=segments.place(segments.each_token(segment_ids)),
        positions=segments.place(segments.positions),
    )


def _tokens_before(documents: Tokens, places: np.ndarray, start_id: Optional[int]) -> np.ndarray:
    """Of the tokens at these places those before them, and ``start_id``, unless it is None, for the EOS of others."""
    tokens = documents.at(places - 1)
    return tokens if start_id is None else np.where(tokens == documents.at(np.array([-1])), np.int32(start_id), tokens)


class Segments:
    """Where the tokens of one side or of documents, one line after the other, stand in its padded rows."""

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
    import grain  # takes a second, and only training needs it

    options = grain.ReadOptions(num_threads=min(size, MAX_THREADS), prefetch_buffer_size=size)
    iterator = iter(grain.MapDataset.range(start, stop).map(make_batch).to_iter_dataset(options))
    try:
        yield from iterator
    finally:
        iterator.close()
