"""Plans: every pair as often as it should, in few shapes, as a pure function of (seed, step)."""

import dataclasses
import gzip
import io
import itertools
import logging
import re

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from tests.shared_data import shared_data
from transformer.config import DataConfig
from transformer.data import batching
from transformer.data.batching import choose_bounds, describe, evaluation_plan, training_plan
from transformer.types import UserError

BATCHINGS = pytest.mark.parametrize("kind", ["bucket", "pack"])


def config_of(
    kind: str, tokens: int = 53, source: int = 23, target: int = 19, buckets: int = 3, count_padding: bool = True
) -> DataConfig:
    return DataConfig(
        batching=kind,
        tokens_per_batch=tokens,
        count_padding=count_padding,
        max_source_length=source,
        max_target_length=target,
        num_buckets=buckets,
    )


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array(pairs, np.int32).reshape(-1, 2)
    return lengths[:, 0], lengths[:, 1]


def random_lengths(count: int, seed: int = 0, low: int = 1, high: int = 27) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    source = rng.integers(low, high, count)
    return source.astype(np.int32), np.clip(source + rng.integers(-3, 5, count), low, high).astype(np.int32)


def epoch_of(plan, epoch: int) -> list:
    return [plan.batch(epoch * plan.num_batches + index) for index in range(plan.num_batches)]


def check_layout(plan, layout, source, target) -> None:
    """Every pair lies inside its row, on both sides, and no two overlap: segments follow one another from 0."""
    assert layout.shape in plan.shapes
    num_rows, *row_lengths = layout.shape
    assert layout.rows.min(initial=0) >= 0 and layout.rows.max(initial=0) < num_rows
    for lengths, offsets, row_length in zip(
        (source, target), (layout.source_offsets, layout.target_offsets), row_lengths, strict=True
    ):
        free = np.zeros(num_rows, int)
        used = np.zeros(num_rows, int)
        for example, row, segment, offset in zip(layout.examples, layout.rows, layout.segments, offsets, strict=True):
            used[row] += 1
            assert segment == used[row]
            assert offset == free[row]
            free[row] = offset + lengths[example]
        assert (free <= row_length).all()


def same(left, right) -> bool:
    return left.shape == right.shape and all(
        np.array_equal(one, other) for one, other in zip(left[1:], right[1:], strict=True)
    )


lengths_with_repeats = st.lists(st.tuples(st.integers(1, 27), st.integers(1, 27), st.integers(0, 3)), max_size=61)


@BATCHINGS
@given(lengths_with_repeats, st.integers(23, 211), st.booleans(), st.integers(1, 5), st.integers(0, 7))
def test_every_kept_pair_comes_exactly_as_often_as_it_repeats(kind, triples, tokens, count_padding, buckets, seed):
    source, target = arrays([triple[:2] for triple in triples])
    repeats = np.array([triple[2] for triple in triples], np.int32)
    wanted = {
        index: times
        for index, (s, t, times) in enumerate(triples)
        if 2 <= s <= 23 and 2 <= t <= 19 and times  # EOS alone is an empty line
    }
    config = config_of(kind, tokens=tokens, buckets=buckets, count_padding=count_padding)
    if not wanted:
        with pytest.raises(UserError, match=r"data\.max_source_length and data\.max_target_length"):
            training_plan(config, source, target, seed, repeats)
        return
    plan = training_plan(config, source, target, seed, repeats)
    assert plan.num_examples == sum(wanted.values())
    assert 1 <= len(plan.shapes) <= (buckets if kind == "bucket" else 1)
    out = sum(not (2 <= s <= 23 and 2 <= t <= 19) for s, t, _ in triples)
    assert sum(dropped.num_pairs for dropped in plan.dropped) == out
    for epoch in (0, 3):
        layouts = epoch_of(plan, epoch)
        for layout in layouts:
            check_layout(plan, layout, source, target)
            assert len(layout.examples)
        read = np.concatenate([layout.examples for layout in layouts])
        assert dict(zip(*np.unique(read, return_counts=True), strict=True)) == wanted
        positions = sum(rows * (s + t) for rows, s, t in (layout.shape for layout in layouts))
        assert plan.padding_share() == pytest.approx(1 - (source[read].sum() + target[read].sum()) / positions)
        means = source[read].sum() / len(layouts), target[read].sum() / len(layouts)
        assert plan.mean_tokens() == pytest.approx(means)


def text_lengths(typical: float, spread: float, ratio: float, count: int = 40_000) -> tuple[np.ndarray, np.ndarray]:
    """Lognormal lengths of source and target, the latter so many times as long and somewhat off."""
    rng = np.random.default_rng(0)
    source = typical * np.exp(rng.normal(0, spread, count))
    target = source * ratio * np.exp(rng.normal(0, 0.2, count))
    return tuple(np.clip(side, 2, 300).astype(np.int32) for side in (source, target))


@BATCHINGS
@pytest.mark.parametrize(
    ("lengths", "tokens"),
    [
        ((13, 0.3, 1.05), 2_560),  # captions: Multi30k
        ((13, 0.3, 1.05), 12_500),
        ((25, 0.8, 1.0), 12_500),  # a long tail: WMT
        ((25, 0.8, 1.4), 4_096),  # the target longer
        ((25, 0.8, 0.6), 4_096),  # the source
    ],
)
def test_batches_of_real_tokens_have_as_many_on_average(kind, lengths, tokens):
    source, target = text_lengths(*lengths)
    plan = training_plan(config_of(kind, tokens, 256, 256, buckets=8, count_padding=False), source, target, seed=0)
    for epoch in (0, 2):
        layouts = epoch_of(plan, epoch)
        larger = [max(source[one.examples].sum(), target[one.examples].sum()) for one in layouts]
        assert np.mean(larger) == pytest.approx(tokens, rel=0.03)
        assert max(larger) < 1.5 * tokens
        assert all(one.rows.max() < one.shape[0] for one in layouts)
    source_mean, target_mean = (f"{round(number):,}" for number in plan.mean_tokens())
    assert f"a batch has on average {source_mean} source and {target_mean} target tokens" in describe(plan)


@BATCHINGS
@given(st.integers(1, 397), st.integers(27, 997), st.integers(1, 7), st.integers(0, 99))
def test_few_pairs_make_as_many_batches_of_real_tokens_as_come_nearest(kind, num_pairs, tokens, buckets, seed):
    lengths, _ = random_lengths(num_pairs, seed, low=2)
    plan = training_plan(config_of(kind, tokens, 27, 27, buckets, count_padding=False), lengths, lengths, seed)
    rows = num_pairs if kind == "bucket" else plan.num_batches * plan.shapes[0][0]
    assert plan.num_batches == min(max(round(lengths.sum() / tokens), 1), rows)


@pytest.mark.parametrize(("num_pairs", "tokens"), [(300, 2_048), (3_000, 2_048), (3_000, 25_000), (13_000, 25_000)])
def test_batches_of_real_tokens_are_alike_where_there_are_few(num_pairs, tokens):
    """No bucket gets a batch for what is next to nothing."""
    source, target = text_lengths(25, 0.6, 1.05, num_pairs)
    plan = training_plan(config_of("bucket", tokens, 256, 256, buckets=8, count_padding=False), source, target, seed=0)
    kept = (source <= 256) & (target <= 256)
    share = target[kept].sum() / plan.num_batches
    assert share == pytest.approx(tokens, rel=max(0.03, 0.5 / plan.num_batches))
    for epoch in (0, 2):
        larger = [max(source[one.examples].sum(), target[one.examples].sum()) for one in epoch_of(plan, epoch)]
        assert np.mean(larger) == pytest.approx(share, rel=0.02)
        assert 0.6 * share < min(larger) and max(larger) < 1.4 * share


@BATCHINGS
def test_a_batch_that_is_off_by_more_than_3_percent_is_said(kind, caplog):
    lengths = np.full(1_000, 10, np.int32)
    for tokens, said in ((100, False), (97, False), (5_100, False), (3_000, True), (20_000, True)):
        caplog.clear()
        plan = training_plan(config_of(kind, tokens, 20, 20, count_padding=False), lengths, lengths, seed=0)
        assert ("is not met to 3%" in caplog.text) == said
        assert said == (abs(plan.mean_tokens()[0] / tokens - 1) > 0.03)
    said = "data.tokens_per_batch=20000 is not met to 3%: an epoch has 10,000 tokens on the larger side, 1 x 10,000"
    assert said in caplog.text


@pytest.mark.parametrize("count_padding", [True, False])
@BATCHINGS
def test_every_shape_is_found(kind, count_padding):
    plan = training_plan(config_of(kind, count_padding=count_padding), *random_lengths(401), seed=0)
    shapes = [layout.shape for layout in epoch_of(plan, 0)]
    assert [shapes.index(shape) for shape in plan.shapes] == [
        step for shape in plan.shapes for step in plan.steps_of_shapes() if shapes[step] == shape
    ]
    assert len(plan.steps_of_shapes()) == len(plan.shapes) == len(set(shapes))


@pytest.mark.parametrize("count_padding", [True, False])
@BATCHINGS
def test_a_batch_is_a_pure_function_of_seed_and_step(kind, count_padding):
    source, target = random_lengths(401)
    config = config_of(kind, count_padding=count_padding)
    plans = [training_plan(config, source, target, seed=5) for _ in range(2)]
    steps = list(range(3 * plans[0].num_batches))
    forward = {step: plans[0].batch(step) for step in steps}
    np.random.default_rng(1).shuffle(steps)
    assert all(same(plans[1].batch(step), forward[step]) for step in steps)
    other = training_plan(config, source, target, seed=6)
    assert not any(np.array_equal(other.batch(step).examples, forward[step].examples) for step in steps)


@BATCHINGS
def test_epochs_differ_in_order(kind):
    plan = training_plan(config_of(kind), *random_lengths(401), seed=0)
    orders = [[layout.examples.tolist() for layout in epoch_of(plan, epoch)] for epoch in range(3)]
    for one, other in itertools.combinations(orders, 2):
        assert not any(left == right for left, right in zip(one, other, strict=True))


def test_only_the_last_bucket_has_a_partial_batch_and_shapes_are_full():
    source, target = random_lengths(997, low=2, high=19)
    plan = training_plan(config_of("bucket", tokens=101), source, target, seed=0)
    layouts = epoch_of(plan, 2)
    partial = [layout for layout in layouts if len(layout.examples) < layout.shape[0]]
    assert len(partial) <= 1 and all(layout.shape == plan.shapes[-1] for layout in partial)
    assert len({layout.shape for layout in layouts}) == len(plan.shapes) == 3
    for rows, s, t in plan.shapes:
        assert rows == 101 // max(s, t) and s <= 23 and t <= 19
    assert [shape[1:] for shape in plan.shapes] == sorted(shape[1:] for shape in plan.shapes)


def test_batch_shapes_come_mixed():
    plan = training_plan(config_of("bucket"), *random_lengths(997), seed=0)
    shapes = [layout.shape for layout in epoch_of(plan, 0)]
    assert sum(one != other for one, other in itertools.pairwise(shapes)) > len(shapes) / 4


def test_packed_rows_keep_their_pairs_over_epochs():
    plan = training_plan(config_of("pack"), *random_lengths(401), seed=0)

    def rows(epoch):
        return {
            tuple(layout.examples[layout.rows == row])
            for layout in epoch_of(plan, epoch)
            for row in np.unique(layout.rows)
        }

    assert rows(0) == rows(1)
    layouts = epoch_of(plan, 0)
    assert all(layout.shape == (53 // 23, 23, 19) for layout in layouts)
    assert all(len(np.unique(layout.rows)) == layout.shape[0] for layout in layouts[:-1])


@pytest.mark.parametrize(("num_pairs", "pairs_per_lane"), [(397, 7), (401, 101), (13, 3)])
def test_pairs_packed_in_many_lanes_all_come_once(monkeypatch, num_pairs, pairs_per_lane):
    monkeypatch.setattr(batching, "MIN_PAIRS_PER_LANE", pairs_per_lane)
    monkeypatch.setattr(batching, "WAITING_PAIRS", 11)
    source, target = random_lengths(num_pairs, low=2, high=19)
    packed, row_starts = batching.pack(np.arange(num_pairs, dtype=np.int32), source, target, (23, 29), seed=0)
    assert sorted(packed) == list(range(num_pairs))
    assert row_starts[0] == 0 and row_starts[-1] == num_pairs and (np.diff(row_starts) > 0).all()
    assert np.add.reduceat(source[packed], row_starts[:-1]).max() <= 23
    assert np.add.reduceat(target[packed], row_starts[:-1]).max() <= 29


def test_a_pair_longer_than_a_row_cannot_be_packed():
    lengths = np.array([5, 24, 7], np.int32)
    with pytest.raises(ValueError, match="longer than a row"):
        batching.pack(np.arange(3, dtype=np.int32), lengths, lengths, (24, 23), seed=0)


@pytest.mark.parametrize("max_length", [63, 64, 127, 16384])
def test_lengths_at_the_edge_of_a_number_type_are_packed(max_length):
    lengths = np.array([max_length, max_length - 1, 2, max_length, 2] * 3, np.int32)
    plan = training_plan(
        config_of("pack", tokens=2 * max_length, source=max_length, target=max_length), lengths, lengths, seed=0
    )
    for layout in epoch_of(plan, 0):
        check_layout(plan, layout, lengths, lengths)
    assert plan.num_batches == 5  # of 2 rows: 6 are full, 3 are one short, the six pairs of 2 share the last


def best_bounds(source, target, tokens, num_buckets):
    """The least cost by trying every chain of bounds."""
    sides = [
        np.unique(-(-lengths // batching.BOUND_MULTIPLE) * batching.BOUND_MULTIPLE) for lengths in (source, target)
    ]
    bounds = list(itertools.product(*sides))
    last = (sides[0][-1], sides[1][-1])
    return min(
        cost(np.array([*chain, last]), source, target, tokens)
        for size in range(num_buckets)
        for chain in itertools.combinations(bounds, size)
        if all(a[0] <= b[0] and a[1] <= b[1] and a != b for a, b in itertools.pairwise([*chain, last]))
    )


def cost(bounds, source, target, tokens):
    inside = (source[:, None] <= bounds[:, 0]) & (target[:, None] <= bounds[:, 1])
    width = bounds.sum(axis=1)
    half_batch = np.maximum(tokens // bounds.max(axis=1), 1) / 2
    return width[inside.argmax(axis=1)].sum() + (half_batch[:-1] * np.diff(width)).sum()


@given(st.lists(st.tuples(st.integers(2, 11), st.integers(2, 11)), min_size=1, max_size=31), st.integers(11, 37))
def test_no_chain_of_bounds_leaves_less_empty(pairs, tokens):
    source, target = arrays(pairs)
    for num_buckets in (1, 2, 3):
        bounds = choose_bounds(source, target, tokens, num_buckets)
        assert len(bounds) <= num_buckets
        assert (np.diff(bounds, axis=0) >= 0).all()
        assert cost(bounds, source, target, tokens) == pytest.approx(best_bounds(source, target, tokens, num_buckets))


@given(st.lists(st.tuples(st.integers(1, 997), st.integers(1, 997)), min_size=1, max_size=97), st.integers(1, 499))
def test_evaluation_reads_every_pair_once_whatever_its_length(pairs, tokens):
    source, target = arrays(pairs)
    plan = evaluation_plan(source, target, tokens, num_buckets=5)
    layouts = epoch_of(plan, 0)
    for layout in layouts:
        check_layout(plan, layout, source, target)
    assert sorted(np.concatenate([layout.examples for layout in layouts])) == list(range(len(pairs)))
    assert len(plan.shapes) <= 5 and not plan.dropped
    assert all(same(one, other) for one, other in zip(layouts, epoch_of(plan, 1), strict=True))


def test_evaluation_of_nothing_is_an_error():
    with pytest.raises(UserError, match="no pairs"):
        evaluation_plan(*arrays([]), tokens_per_batch=7)


def test_many_different_lengths_still_give_few_bounds():
    rng = np.random.default_rng(0)
    source, target = (rng.permutation(np.arange(1, 4001)).astype(np.int32) for _ in range(2))
    plan = evaluation_plan(source, target, 9973, num_buckets=3)
    assert sorted(np.concatenate([layout.examples for layout in epoch_of(plan, 0)])) == list(range(4000))
    assert len(plan.shapes) <= 3 and plan.shapes[-1][1:] == (4000, 4000)


def test_bounds_do_not_exceed_the_limits():
    source, target = random_lengths(997, high=23, low=2)
    plan = training_plan(config_of("bucket", source=17, target=21), source, target, seed=0)
    assert plan.shapes[-1][1:] == (17, 21)


@BATCHINGS
def test_what_is_dropped_is_named_once(kind, caplog):
    caplog.set_level(logging.INFO)
    pairs = [(5, 7)] * 30
    for index in (2, 3, 5, 7, 11, 13, 17):
        pairs[index] = (24, 3)
    pairs[19], pairs[23], pairs[28] = (24, 20), (23, 20), (1, 25)
    pairs[0], pairs[1] = (23, 19), (2, 1)
    plan = training_plan(config_of(kind), *arrays(pairs), seed=0)
    assert [tuple(dropped) for dropped in plan.dropped] == [
        ("nothing but EOS on one side", 2, (2, 29)),
        ("source longer than data.max_source_length=23", 8, (3, 4, 6, 8, 12)),
        ("target longer than data.max_target_length=19", 1, (24,)),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "dropped 2 of 30 training pairs: nothing but EOS on one side (pairs 2, 29)",
        "dropped 8 of 30 training pairs: source longer than data.max_source_length=23 (pairs 3, 4, 6, 8, 12, ...)",
        "dropped 1 of 30 training pairs: target longer than data.max_target_length=19 (pairs 24)",
    ]


@BATCHINGS
def test_nothing_left_says_why_and_what_to_change(kind):
    source, target = arrays([(24, 3), (1, 5), (25, 3)])
    message = (
        "none of the 3 training pairs is left: 1 dropped, nothing but EOS on one side; 2 dropped, source longer than "
        "data.max_source_length=23; raise data.max_source_length and data.max_target_length"
    )
    with pytest.raises(UserError, match=re.escape(message)):
        training_plan(config_of(kind), source, target, seed=0)


def test_few_pairs_make_small_batches():
    source, target = arrays([(5, 7), (6, 3), (2, 2)])
    for kind in ("bucket", "pack"):
        plan = training_plan(dataclasses.replace(config_of(kind), tokens_per_batch=10007), source, target, seed=0)
        assert plan.num_batches == 1 and plan.shapes[0][0] <= 3


@pytest.fixture(scope="module")
def multi30k():
    folder = shared_data("multi30k")
    files = [folder / f"train.{side}.gz" for side in ("en", "de")]
    sides = [gzip.decompress(file.read_bytes()).decode().split("\n")[:-1] for file in files]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for side in sides for line in side[::5]]),
        model_writer=model,
        vocab_size=4001,
        model_type="bpe",
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [np.array([len(ids) + 1 for ids in processor.encode(side)], np.int32) for side in sides]


@pytest.mark.parametrize(("kind", "most"), [("bucket", 0.15), ("pack", 0.06)])
def test_little_of_a_batch_of_real_text_is_padding(multi30k, kind, most):
    plan = training_plan(config_of(kind, 4096, 128, 128, buckets=8), *multi30k, seed=0)
    assert plan.padding_share() <= most
    assert plan.num_examples == len(multi30k[0])
