"""Which pairs stand where in batch number n: plans that are pure functions of (seed, n).

A plan sees only the lengths. The number of batches is the same in every epoch, so that a step's epoch and its place
in the epoch are one ``divmod``, and any batch can be laid out without the ones before it.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from transformer.config import DataConfig
from transformer.types import UserError

BOUND_MULTIPLE = 2  # bucket bounds are multiples of this
MAX_BOUNDS = 64  # per side, among which the bounds of the buckets are chosen
WAITING_PAIRS = 64  # packing: among so many the one that fits best is chosen
MAX_LANES = 2_048  # packing: rows filled side by side, where there are pairs enough
MIN_PAIRS_PER_LANE = 1_024  # packing: the last rows of a lane are filled less well
TOLERANCE = 0.03  # of the tokens of a batch where padding does not count, or it is said
NUM_NAMED = 5  # dropped pairs whose numbers are reported

Order = TypeVar("Order")

logger = logging.getLogger(__name__)


ALL_ROWS = slice(None)


class Layout(NamedTuple):
    """A batch before its tokens are read: where each of its n pairs stands.

    shape           (B, S, T)  rows, source positions, target positions
    examples        [n]  pairs of the store
    rows            [n]  0 to B - 1
    segments        [n]  1, 2, ... within a row
    source_offsets  [n]  the position of a pair's first source token in its row
    target_offsets  [n]
    """

    shape: tuple[int, int, int]
    examples: np.ndarray
    rows: np.ndarray
    segments: np.ndarray
    source_offsets: np.ndarray
    target_offsets: np.ndarray

    @property
    def size(self) -> tuple[int, int]:
        """Rows, and positions on the longer side."""
        return self.shape[0], max(self.shape[1:])

    def stand_in(self, rows: slice) -> np.ndarray:
        """[n] bool: which pairs stand in some rows."""
        start, stop, _ = rows.indices(self.shape[0])
        return (self.rows >= start) & (self.rows < stop)

    def of_rows(self, rows: slice) -> "Layout":
        """The batch that some rows make, counted from 0 anew."""
        if rows == ALL_ROWS:
            return self
        start, stop, _ = rows.indices(self.shape[0])
        kept = self.stand_in(rows)
        inside = Layout(self.shape, *(field[kept] for field in self[1:]))
        return inside._replace(shape=(stop - start, *self.shape[1:]), rows=inside.rows - start)


class Dropped(NamedTuple):
    """Pairs left out for one reason; ``first`` are the numbers of the first few, counted from 1."""

    reason: str
    num_pairs: int
    first: tuple[int, ...]


@runtime_checkable
class Plan(Protocol):
    """The order of a data set.

    Attributes:
      num_batches: per epoch, the same in each.
      num_examples: per epoch; a pair that is read k times counts k times.
      shapes: every (B, S, T) that a batch can have.
      dropped: what was left out, by reason.
    """

    num_batches: int
    num_examples: int
    shapes: tuple[tuple[int, int, int], ...]
    dropped: tuple[Dropped, ...]

    def batch(self, step: int) -> Layout:
        """Batch number ``step``, counted from 0 across epochs."""
        ...

    def steps_of_shapes(self) -> tuple[int, ...]:
        """Of each of ``shapes`` the first batch that has it, ascending."""
        ...

    def mean_tokens(self) -> tuple[float, float]:
        """Source and target tokens of a batch, padding not counted, on average over an epoch."""
        ...

    def padding_share(self) -> float:
        """The share of all positions of an epoch, of both sides, that hold no token."""
        ...


def describe(plan: Plan) -> str:
    """The batches of an epoch in words."""
    shapes = ", ".join(f"{rows} x ({source} + {target})" for rows, source, target in plan.shapes)
    source, target = (f"{round(number):,}" for number in plan.mean_tokens())
    return (
        f"{plan.num_batches} batches of {shapes}; a batch has on average {source} source and {target} target tokens; "
        f"{100 * plan.padding_share():.1f}% of the positions are padding"
    )


def plan_facts(plan: Plan) -> dict[str, Any]:
    """The same, and what is left out, by name."""
    source, target = plan.mean_tokens()
    return {
        "left_out_by_length": {each.reason: each.num_pairs for each in plan.dropped},
        "examples_per_epoch": plan.num_examples,
        "mean_tokens_per_batch": {"source": source, "target": target},
        "padding_share": plan.padding_share(),
    }


def training_plan(
    config: DataConfig,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    seed: int,
    repeats: np.ndarray | None = None,
) -> Plan:
    """The plan of the training split, by ``data.batching``; what it leaves out is logged.

    Args:
      config: the limits and the size of a batch.
      source_lengths: int32 [pairs], EOS included.
      target_lengths: int32 [pairs], EOS included.
      seed: of the order (``bucket``, ``pack``) and of the rows' composition (``pack``).
      repeats: int32 [pairs], how many times an epoch reads each pair; None: once.

    Raises:
      UserError: no pair is left.
    """
    kept, dropped = _keep(config, source_lengths, target_lengths)
    for reason, number, first in dropped:
        named = ", ".join(map(str, first)) + (", ..." if number > len(first) else "")
        logger.warning("dropped %d of %d training pairs: %s (pairs %s)", number, len(source_lengths), reason, named)
    if repeats is not None:
        kept = np.repeat(kept, repeats[kept])
    if not len(kept):
        raise UserError(
            f"none of the {len(source_lengths)} training pairs is left: "
            + "; ".join(f"{number} dropped, {reason}" for reason, number, _ in dropped)
            + "; raise data.max_source_length and data.max_target_length, or check the text in data.directory"
        )
    if config.batching == "pack":
        return PackPlan(
            kept,
            source_lengths,
            target_lengths,
            tokens_per_batch=config.tokens_per_batch,
            count_padding=config.count_padding,
            max_lengths=(config.max_source_length, config.max_target_length),
            seed=seed,
            dropped=dropped,
        )
    return BucketPlan(
        kept,
        source_lengths,
        target_lengths,
        tokens_per_batch=config.tokens_per_batch,
        count_padding=config.count_padding,
        max_lengths=(config.max_source_length, config.max_target_length),
        num_buckets=config.num_buckets,
        seed=seed,
        dropped=dropped,
    )


def evaluation_plan(
    source_lengths: np.ndarray, target_lengths: np.ndarray, tokens_per_batch: int, num_buckets: int = 8
) -> Plan:
    """Every pair exactly once, whatever its length, similar lengths together, in a fixed order.

    A pair that alone is longer than ``tokens_per_batch`` has a batch of its own.
    """
    return BucketPlan(
        np.arange(len(source_lengths), dtype=np.int32),
        source_lengths,
        target_lengths,
        tokens_per_batch=tokens_per_batch,
        num_buckets=num_buckets,
    )


def document_plan(config: DataConfig, lengths: np.ndarray, seed: int, repeats: np.ndarray | None = None) -> Plan:
    """The plan of documents, by ``data.batching`` (``bucket`` or ``pack``): of pairs of which both sides are the same.

    Args:
      config: the size of a batch, and its rows' length ``data.max_target_length``.
      lengths: int32 [documents], EOS included, none longer than a row.
      seed: as for :func:`training_plan`.
      repeats: int32 [documents], how many times an epoch reads each; None: once.
    """
    examples = np.arange(len(lengths), dtype=np.int32)
    if repeats is not None:
        examples = np.repeat(examples, repeats)
    options: dict[str, Any] = {
        "tokens_per_batch": config.tokens_per_batch,
        "count_padding": config.count_padding,
        "max_lengths": (config.max_target_length, config.max_target_length),
        "seed": seed,
    }
    if config.batching == "pack":
        return PackPlan(examples, lengths, lengths, **options)
    return BucketPlan(examples, lengths, lengths, num_buckets=config.num_buckets, **options)


class Windows(NamedTuple):
    """Overlapping stretches of documents whose tokens are to be scored, each once.

    documents  [n]  the document of each window
    starts     [n]  its first token in the document
    lengths    [n]  its tokens
    overlaps   [n]  its first tokens that the window before it has scored: they are context
    """

    documents: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    overlaps: np.ndarray


def make_windows(lengths: np.ndarray, most: int, stride: int, first: int = 0) -> Windows:
    """The first ``most`` tokens of each document, then as many from every ``stride`` tokens further on, to its end.

    So a token that is not among the first ``most`` is scored with at least ``most - stride`` tokens before it.

    Args:
      lengths: int32 [documents], EOS included.
      most: tokens of a window.
      stride: 1 to ``most``.
      first: so many tokens at the start of a document are not scored, since nothing is before them: windows begin after
        them. A document that has no others gives a window of no tokens.
    """
    lengths = np.maximum(lengths - first, 0)
    counts = 1 + np.maximum(-(-(lengths - most) // stride), 0)
    documents = np.repeat(np.arange(len(lengths)), counts)
    numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = numbers * stride
    lengths = np.minimum(lengths[documents] - starts, most)
    return Windows(documents, starts + first, lengths, np.where(numbers > 0, most - stride, 0))


class BucketPlan:
    """A pair a row, right-padded, in batches of at most ``num_buckets`` shapes.

    The bounds of the buckets grow on both sides from one to the next. A pair goes into the first bucket that holds
    it; what does not fill a batch goes on into the next bucket. Where padding counts, a batch is full when it has the
    rows of its shape, and only the last batch of the last bucket can have empty rows. Where it does not, a batch is
    full when it has its share of the tokens on the larger side, by the mean of its bucket: all batches have the same
    share, and some have one row empty.
    """

    def __init__(
        self,
        examples: np.ndarray,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        *,
        tokens_per_batch: int,
        num_buckets: int,
        count_padding: bool = True,
        max_lengths: tuple[int, int] | None = None,
        seed: int | None = None,
        dropped: tuple[Dropped, ...] = (),
    ):
        """
        Args:
          examples: int32, the pairs of an epoch, a repeated one as often as it is read.
          source_lengths: int32, of all pairs of the store, EOS included.
          target_lengths: likewise.
          tokens_per_batch: positions on the longer side of a batch, which none exceeds.
          num_buckets: at most so many shapes.
          count_padding: False: ``tokens_per_batch`` is of real tokens on the larger side, on average over an epoch.
          max_lengths: what no source and no target bound exceeds; None: whatever the longest needs.
          seed: of the order of each epoch; None: by bucket, then as in ``examples``, in every epoch.
          dropped: what was left out of ``examples``.
        """
        if not len(examples):
            raise UserError("there are no pairs to make batches of")
        self.num_examples = len(examples)
        self.dropped = dropped
        source, target = source_lengths[examples], target_lengths[examples]
        bounds = choose_bounds(source, target, tokens_per_batch, num_buckets, max_lengths)
        bucket = np.maximum(np.searchsorted(bounds[:, 0], source), np.searchsorted(bounds[:, 1], target))
        self._members = [examples[bucket == index] for index in range(len(bounds))]
        sizes = np.array([len(members) for members in self._members])
        # With the buckets in a line the batches of an epoch are consecutive slices, at places that do not depend on
        # the order within the buckets.
        self._ends: np.ndarray | None = None  # of each bucket's batches, among which what came from others is mixed
        if count_padding:
            rows = np.minimum(np.maximum(tokens_per_batch // bounds.max(axis=1), 1), len(examples))
            starts, shapes = _full_slices(sizes, rows)
        else:
            tokens = np.maximum(*(np.bincount(bucket, side, len(bounds)) for side in (source, target)))
            numbers, self._ends = _share_out(tokens, sizes, tokens_per_batch)
            sizes = np.diff(self._ends, prepend=0)
            rows = -(-sizes // np.maximum(numbers, 1))
            starts, shapes = _even_slices(sizes, numbers)
        self._starts = np.append(starts, len(examples))
        used, self._shapes = np.unique(shapes, return_inverse=True)
        self.shapes = tuple((int(rows[index]), int(bounds[index, 0]), int(bounds[index, 1])) for index in used)
        self.num_batches = len(self._shapes)
        self._tokens = int(source.sum(dtype=np.int64)), int(target.sum(dtype=np.int64))
        self._order = PerEpoch(lambda epoch: self._shuffle(seed, epoch))

    def _shuffle(self, seed: int | None, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The pairs, batch after batch, and the order of the batches."""
        if seed is None:
            return np.concatenate(self._members), np.arange(self.num_batches)
        rng = np.random.default_rng([seed, epoch])
        examples = np.concatenate([rng.permutation(each) for each in self._members])
        if self._ends is not None:
            for stretch in np.split(examples, self._ends[:-1]):
                rng.shuffle(stretch)
        return examples, rng.permutation(self.num_batches)

    def batch(self, step: int) -> Layout:
        epoch, place = divmod(step, self.num_batches)
        examples, order = self._order(epoch)
        index = order[place]
        examples = examples[self._starts[index] : self._starts[index + 1]]
        rows = np.arange(len(examples))
        zeros = np.zeros_like(rows)
        return Layout(self.shapes[self._shapes[index]], examples, rows, zeros + 1, zeros, zeros)

    def steps_of_shapes(self) -> tuple[int, ...]:
        _, order = self._order(0)
        _, steps = np.unique(self._shapes[order], return_index=True)
        return tuple(sorted(steps.tolist()))

    def mean_tokens(self) -> tuple[float, float]:
        return self._tokens[0] / self.num_batches, self._tokens[1] / self.num_batches

    def padding_share(self) -> float:
        positions = np.array([b * (s + t) for b, s, t in self.shapes], np.int64)
        return 1 - sum(self._tokens) / int(positions[self._shapes].sum())


class PackPlan:
    """Several pairs a row, in batches of one shape.

    Which pairs share a row follows from the seed and is the same in every epoch: attention never crosses segments,
    so that row mates do not matter. An epoch shuffles the rows. Where padding does not count, they are shared out
    evenly among so many batches that their tokens on the larger side are as many as wanted; some have one row empty.
    """

    def __init__(
        self,
        examples: np.ndarray,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        *,
        tokens_per_batch: int,
        max_lengths: tuple[int, int],
        seed: int,
        count_padding: bool = True,
        dropped: tuple[Dropped, ...] = (),
    ):
        """
        Args:
          examples: int32, the pairs of an epoch, a repeated one as often as it is read; none exceeds ``max_lengths``.
          source_lengths: int32, of all pairs of the store, EOS included.
          target_lengths: likewise.
          tokens_per_batch: positions on the longer side of a batch, which none exceeds.
          max_lengths: source and target positions of a row.
          seed: of the composition of the rows and of the order of each epoch.
          count_padding: False: ``tokens_per_batch`` is of real tokens on the larger side, on average over an epoch.
          dropped: what was left out of ``examples``.
        """
        if not len(examples):
            raise UserError("there are no pairs to make batches of")
        self.num_examples = len(examples)
        self.dropped = dropped
        self._examples, self._row_starts = pack(examples, source_lengths, target_lengths, max_lengths, seed)
        self._lengths = (source_lengths, target_lengths)
        num_rows = len(self._row_starts) - 1
        self._tokens = tuple(int(lengths[examples].sum(dtype=np.int64)) for lengths in self._lengths)
        sizes = np.array([num_rows])
        if count_padding:
            rows = min(max(tokens_per_batch // max(max_lengths), 1), num_rows)
            starts, _ = _full_slices(sizes, np.array([rows]))
        else:
            numbers, _ = _share_out(np.array([max(self._tokens)]), sizes, tokens_per_batch)
            rows = int(-(-num_rows // numbers[0]))
            starts, _ = _even_slices(sizes, numbers)
        self._starts = np.append(starts, num_rows)
        self.shapes: tuple[tuple[int, int, int], ...] = ((rows, *max_lengths),)
        self.num_batches = len(starts)
        self._order = PerEpoch(lambda epoch: np.random.default_rng([seed, epoch]).permutation(num_rows))

    def batch(self, step: int) -> Layout:
        epoch, place = divmod(step, self.num_batches)
        shape = self.shapes[0]
        chosen = self._order(epoch)[self._starts[place] : self._starts[place + 1]]
        starts = self._row_starts[chosen]
        counts = self._row_starts[chosen + 1] - starts
        firsts = np.cumsum(counts) - counts  # of each row, in this batch
        within = np.arange(counts.sum()) - np.repeat(firsts, counts)
        examples = self._examples[np.repeat(starts, counts) + within]
        offsets = []
        for lengths in self._lengths:
            before = np.cumsum(lengths[examples]) - lengths[examples]
            offsets.append(before - np.repeat(before[firsts], counts))
        return Layout(shape, examples, np.repeat(np.arange(len(chosen)), counts), within + 1, *offsets)

    def steps_of_shapes(self) -> tuple[int, ...]:
        return (0,)

    def mean_tokens(self) -> tuple[float, float]:
        return self._tokens[0] / self.num_batches, self._tokens[1] / self.num_batches

    def padding_share(self) -> float:
        rows, source, target = self.shapes[0]
        return 1 - sum(self._tokens) / (self.num_batches * rows * (source + target))


def _full_slices(sizes: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where batches start in groups that stand in a line, and the group whose shape each has.

    All have as many items as the shape has rows but the last; what is left over in a group goes on into the next.
    """
    starts, groups, start, end = [], [], 0, 0
    for group, size in enumerate(sizes):
        end += size
        full = (end - start) // rows[group]
        starts.append(start + rows[group] * np.arange(full))
        groups.append(np.full(full, group))
        start += full * rows[group]
    if start < end:
        starts.append(np.array([start]))
        groups.append(np.array([len(sizes) - 1]))
    return np.concatenate(starts), np.concatenate(groups)


def _even_slices(sizes: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same with so many batches of each group, which differ by one item at most."""
    firsts = np.cumsum(sizes) - sizes
    starts = [
        first + size * np.arange(number) // number for first, size, number in zip(firsts, sizes, numbers, strict=True)
    ]
    return np.concatenate(starts), np.repeat(np.arange(len(sizes)), numbers)


def _share_out(tokens: np.ndarray, sizes: np.ndarray, tokens_per_batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut groups that stand in a line into batches that have the same share of all tokens, as nearly as items allow.

    What does not fill a batch of a group goes on into the next, so that a group may have no batch of its own.

    Args:
      tokens: [groups], on the larger side; within a group an item counts as the mean of the group.
      sizes: [groups], items.
      tokens_per_batch: that a batch should have.

    Returns:
      numbers: [groups], of batches, none of them empty; together the whole number that comes nearest, at least one.
      ends: [groups], where in the line the batches of each group end.
    """
    total = int(tokens.sum())
    num_batches = max(round(total / tokens_per_batch), 1)
    share = total / num_batches
    if abs(share / tokens_per_batch - 1) > TOLERANCE:
        logger.warning(
            "data.tokens_per_batch=%d is not met to %.0f%%: an epoch has %s tokens on the larger side, %d x %s",
            tokens_per_batch,
            100 * TOLERANCE,
            f"{total:,}",
            num_batches,
            f"{round(share):,}",
        )
    numbers, ends, done, end, item, last = [], [], 0, 0, 0, len(sizes) - 1
    for group, (so_far, size) in enumerate(zip(np.cumsum(tokens), sizes, strict=True)):
        item += int(size)
        number = num_batches - done if group == last else min(int(so_far / share + 1e-9), num_batches) - done
        number = min(number, item - end)
        done += number
        if group == last:
            end = item
        elif number:
            left = (so_far - done * share) / tokens[group] * size
            end = min(max(item - round(left), end + number), item)
        numbers.append(number)
        ends.append(end)
    return np.array(numbers), np.array(ends)


def choose_bounds(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    tokens_per_batch: int,
    num_buckets: int,
    max_lengths: tuple[int, int] | None = None,
) -> np.ndarray:
    """Bounds [buckets, 2] of source and target, growing on both sides, that leave the fewest positions empty.

    Exact among at most ``MAX_BOUNDS`` bounds a side, by dynamic programming over the last bound of a chain. A bucket
    costs the positions of its pairs, and the half batch that on average is left over moves on to the next bucket.

    Args:
      source_lengths: int32 [pairs], EOS included.
      target_lengths: likewise.
      tokens_per_batch: positions on the longer side of a batch, or nearly so many.
      num_buckets: at most so many bounds.
      max_lengths: what no source and no target bound exceeds; None: whatever the longest needs.
    """
    limits = max_lengths or (None, None)
    sides = [
        _candidates(lengths, limit) for lengths, limit in zip((source_lengths, target_lengths), limits, strict=True)
    ]
    shape = (len(sides[0]), len(sides[1]))
    cells = [np.searchsorted(side, each) for side, each in zip(sides, (source_lengths, target_lengths), strict=True)]
    histogram = np.bincount(cells[0] * shape[1] + cells[1], minlength=shape[0] * shape[1]).reshape(shape)
    inside = histogram.cumsum(axis=0).cumsum(axis=1).astype(float)  # pairs that fit under each pair of bounds
    width = (sides[0][:, None] + sides[1]).astype(float)  # positions a row has under them
    half_batch = np.maximum(tokens_per_batch // np.maximum(sides[0][:, None], sides[1]), 1) / 2

    cost = inside * width
    chains = [np.zeros(shape, np.int64)]  # for each number of buckets and last bound: the bound before it
    totals = [cost[-1, -1]]
    for _ in range(1, num_buckets):
        # cost(now) = cost(before) + (inside(now) - inside(before)) width(now)
        #             + half_batch(before) (width(now) - width(before))
        fixed = cost - half_batch * width
        slope = half_batch - inside
        best, chain = np.empty(shape), np.empty(shape, np.int64)
        for s, t in np.ndindex(shape):
            choices = fixed[: s + 1, : t + 1] + slope[: s + 1, : t + 1] * width[s, t]
            index = np.unravel_index(choices.argmin(), choices.shape)
            chain[s, t] = np.ravel_multi_index(index, shape)
            best[s, t] = choices[index]
        cost = best + inside * width
        chains.append(chain)
        totals.append(cost[-1, -1])

    last = inside.size - 1
    bounds = [last]
    for chain in chains[int(np.argmin(totals)) : 0 : -1]:
        bounds.append(int(chain.flat[bounds[-1]]))
    unique = np.unique(bounds)  # a chain that stays where it is has fewer buckets
    return np.stack([sides[0][unique // shape[1]], sides[1][unique % shape[1]]], axis=1)


def _candidates(lengths: np.ndarray, limit: int | None) -> np.ndarray:
    """Bounds to choose from: every length, or quantiles where there are too many, rounded up."""
    bounds = np.unique(-(-lengths // BOUND_MULTIPLE) * BOUND_MULTIPLE)
    if len(bounds) > MAX_BOUNDS:
        ranks = np.linspace(0, len(lengths) - 1, MAX_BOUNDS + 1)[1:].astype(np.int64)
        bounds = np.unique(-(-np.sort(lengths)[ranks] // BOUND_MULTIPLE) * BOUND_MULTIPLE)
    return bounds if limit is None else np.unique(np.minimum(bounds, limit))


def pack(
    examples: np.ndarray,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    max_lengths: tuple[int, int],
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Put pairs together into rows that they fill on both sides.

    Best fit among a few: in many lanes side by side, each with its share of the shuffled pairs, the open row takes of
    the ``WAITING_PAIRS`` next ones that which leaves the least room on the side with more room left. Where none fits,
    the lane opens its next row.

    Args:
      examples: int32 [n], the pairs to pack; a pair may come several times.
      source_lengths: int32, of all pairs of the store, EOS included.
      target_lengths: likewise.
      max_lengths: source and target positions of a row.
      seed: of the order of the pairs.

    Returns:
      packed: int32 [n], the pairs, row after row.
      row_starts: int64 [rows + 1], where in ``packed`` each row starts, and the end.

    Raises:
      ValueError: a pair is longer than a row.
    """
    num_pairs = len(examples)
    shuffled = examples.copy()
    np.random.default_rng(seed).shuffle(shuffled)
    # The least type that holds all differences: the time goes into moving them through the processor's cache.
    kind = np.min_scalar_type(-max(max_lengths) - 2)
    sides = list(zip((source_lengths, target_lengths), max_lengths, strict=True))
    if any(lengths[examples].max() > limit for lengths, limit in sides):
        raise ValueError(f"a pair is longer than a row of {max_lengths} positions")
    # One entry more than there are pairs, longer than a row, stands for what comes after a lane's last pair.
    source, target = (np.append(lengths[shuffled].astype(kind), kind.type(limit + 1)) for lengths, limit in sides)

    num_lanes = max(1, min(MAX_LANES, num_pairs // MIN_PAIRS_PER_LANE))
    lane_starts = num_pairs * np.arange(num_lanes + 1) // num_lanes
    ends = lane_starts[1:]
    waiting = lane_starts[:-1, None] + np.arange(WAITING_PAIRS)
    waiting = np.where(waiting < ends[:, None], waiting, num_pairs)
    source_waiting, target_waiting = source[waiting], target[waiting]
    arriving = lane_starts[:-1] + WAITING_PAIRS
    placing = lane_starts[:-1].copy()
    source_room, target_room = (np.full(num_lanes, limit, kind) for limit in max_lengths)
    is_open = np.zeros(num_lanes, bool)

    packed = np.empty_like(examples)  # each lane writes its own stretch, row after row
    starts_row = np.zeros(num_pairs, bool)
    no_fit = np.iinfo(kind).max
    every_lane = np.arange(num_lanes)
    num_placed = 0
    while num_placed < num_pairs:
        source_left = source_room[:, None] - source_waiting
        target_left = target_room[:, None] - target_waiting
        left = np.where((source_left | target_left) < 0, no_fit, np.maximum(source_left, target_left))
        slot = left.argmin(axis=1)
        fits = left[every_lane, slot] != no_fit

        full = ~fits
        source_room[full], target_room[full] = max_lengths
        lane, slot = every_lane[fits], slot[fits]
        packed[placing[lane]] = shuffled[waiting[lane, slot]]
        starts_row[placing[lane]] = ~is_open[lane]
        is_open = fits
        source_room[lane] -= source_waiting[lane, slot]
        target_room[lane] -= target_waiting[lane, slot]
        placing[lane] += 1
        num_placed += len(lane)

        after = np.where(arriving[lane] < ends[lane], arriving[lane], num_pairs)
        arriving[lane] += 1
        waiting[lane, slot] = after
        source_waiting[lane, slot], target_waiting[lane, slot] = source[after], target[after]
    return packed, np.append(np.flatnonzero(starts_row), num_pairs)


def _keep(
    config: DataConfig, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> tuple[np.ndarray, tuple[Dropped, ...]]:
    """The pairs to train on, int32, and what is left out, each pair under the first reason that applies."""
    reasons = {
        "nothing but EOS on one side": (source_lengths <= 1) | (target_lengths <= 1),
        f"source longer than data.max_source_length={config.max_source_length}": source_lengths
        > config.max_source_length,
        f"target longer than data.max_target_length={config.max_target_length}": target_lengths
        > config.max_target_length,
    }
    keep = np.ones(len(source_lengths), bool)
    dropped = []
    for reason, applies in reasons.items():
        out = np.flatnonzero(applies & keep)
        if len(out):
            dropped.append(Dropped(reason, len(out), tuple(int(number) + 1 for number in out[:NUM_NAMED])))
        keep &= ~applies
    return np.flatnonzero(keep).astype(np.int32), tuple(dropped)


class PerEpoch(Generic[Order]):
    """Remembers the orders of the two newest epochs asked for: batches are built ahead, across an epoch's end."""

    def __init__(self, make: Callable[[int], Order]):
        self._make = make
        self._lock = threading.Lock()
        self._orders: dict[int, Order] = {}

    def __call__(self, epoch: int) -> Order:
        with self._lock:
            if epoch not in self._orders:
                for old in list(self._orders)[:-1]:
                    del self._orders[old]
                self._orders[epoch] = self._make(epoch)
            return self._orders[epoch]
