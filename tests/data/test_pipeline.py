"""Batches: the right tokens at the right places, the same for everyone who asks, in order when built ahead."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_store import ListSource, NumberTokenizer, lines_of
from transformer.config import DataConfig
from transformer.data.batching import evaluation_plan, training_plan
from transformer.data.pipeline import Pipeline, prefetch, real_tokens
from transformer.data.store import open_store
from transformer.types import UserError

KINDS = ["bucket", "pack", "evaluation"]
SOURCE, TARGET = NumberTokenizer(97, pad_id=3, eos_id=2), NumberTokenizer(101, pad_id=0, bos_id=6, eos_id=5)


def pipeline_of(kind: str, pairs, folder, seed: int = 0, tokens: int = 53) -> Pipeline:
    store = open_store(ListSource([lines_of(pair) for pair in pairs]), "train", (SOURCE, TARGET), folder)
    if kind == "evaluation":
        plan = evaluation_plan(store.source_lengths, store.target_lengths, tokens, 3)
    else:
        config = DataConfig(
            batching=kind, tokens_per_batch=tokens, max_source_length=23, max_target_length=19, num_buckets=3
        )
        plan = training_plan(config, store.source_lengths, store.target_lengths, seed)
    return Pipeline(store, plan, (SOURCE, TARGET))


def random_pairs(count: int):
    rng = np.random.default_rng(count)
    return [[rng.integers(7, 97, rng.integers(1, 18)).tolist() for _ in range(2)] for _ in range(count)]


def assert_same(left, right) -> None:
    for name, one, other in zip(left._fields, left, right, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


def read_rows(tokens, segments, positions, pad_id: int) -> list[dict[int, list[int]]]:
    """Each row's tokens by segment, position after position, by the plain meaning of the fields."""
    rows = []
    for row in range(len(tokens)):
        found: dict[int, list[int]] = {}
        before = 0
        for token, segment, position in zip(tokens[row], segments[row], positions[row], strict=True):
            if segment == 0:
                assert token == pad_id and position == 0
                before = None  # padding stands only at the end of a row
                continue
            assert before is not None and segment in (before, before + 1)  # contiguous, counted from 1
            before = segment
            assert position == len(found.setdefault(segment, []))
            found[segment].append(int(token))
        rows.append(found)
    return rows


token_lists = st.lists(st.integers(7, 96), min_size=1, max_size=18)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.tuples(token_lists, token_lists), min_size=1, max_size=41), st.integers(23, 199), st.integers(0, 2))
def test_an_epoch_holds_every_pair_and_nothing_else(tmp_path_factory, kind, pairs, tokens, epoch):
    pipeline = pipeline_of(kind, pairs, tmp_path_factory.mktemp("cache"), tokens=tokens)
    seen = []
    for index in range(pipeline.num_batches):
        batch = pipeline.batch(epoch * pipeline.num_batches + index)
        source = read_rows(
            batch.encoder_input_tokens, batch.encoder_segment_ids, batch.encoder_positions, SOURCE.pad_id
        )
        target, shifted = (
            read_rows(tokens, batch.decoder_segment_ids, batch.decoder_positions, TARGET.pad_id)
            for tokens in (batch.decoder_target_tokens, batch.decoder_input_tokens)
        )
        for in_row, out_row, shifted_row in zip(source, target, shifted, strict=True):
            assert in_row.keys() == out_row.keys() == shifted_row.keys()
            assert kind == "pack" or in_row.keys() <= {1}
            for segment, ids in out_row.items():
                assert shifted_row[segment] == [TARGET.bos_id, *ids[:-1]]
                seen.append((in_row[segment], ids))
        np.testing.assert_array_equal(batch.decoder_loss_weights, batch.decoder_segment_ids > 0)
        dtypes = {name: array.dtype for name, array in batch._asdict().items()}
        assert dtypes.pop("decoder_loss_weights") == np.float32 and set(dtypes.values()) == {np.dtype(np.int32)}
        assert real_tokens(batch) == tuple(
            sum(len(ids) for row in side for ids in row.values()) for side in (source, target)
        )
    assert sorted(seen) == sorted(([*source, SOURCE.eos_id], [*target, TARGET.eos_id]) for source, target in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_does_not_depend_on_those_built_before_it(tmp_path, kind):
    pairs = random_pairs(211)
    pipeline = pipeline_of(kind, pairs, tmp_path)
    num_steps = 2 * pipeline.num_batches + 3
    forward = [pipeline.batch(step) for step in range(num_steps)]
    again = pipeline_of(kind, pairs, tmp_path)
    for step in np.random.default_rng(0).permutation(num_steps):
        assert_same(again.batch(int(step)), forward[step])
    start = pipeline.num_batches - 2  # across the end of an epoch
    resumed = list(prefetch(pipeline_of(kind, pairs, tmp_path).batch, start, num_steps, 5))
    assert len(resumed) == num_steps - start
    for one, other in zip(resumed, forward[start:], strict=True):
        assert_same(one, other)


def test_another_seed_gives_other_batches(tmp_path):
    pairs = random_pairs(211)
    for kind in ("bucket", "pack"):
        one, other = (pipeline_of(kind, pairs, tmp_path, seed=seed).batch(0) for seed in (0, 1))
        assert not np.array_equal(one.decoder_target_tokens, other.decoder_target_tokens)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_prefetch_keeps_the_order(size):
    def slow_when_even(step):
        time.sleep(0.01 * (step % 2 == 0))
        return step

    assert list(prefetch(slow_when_even, 3, 20, size)) == list(range(3, 20))
    assert list(prefetch(slow_when_even, 3, 3, size)) == []


def test_prefetch_builds_ahead_but_not_without_end():
    built = []
    batches = prefetch(lambda step: built.append(step) or step, 0, 1000, 5)
    assert next(batches) == 0
    time.sleep(0.3)
    assert 3 <= len(built) <= 12
    batches.close()


@pytest.mark.parametrize("size", [0, 3])
def test_an_error_in_a_worker_arrives_as_it_is_at_its_step(size):
    error = UserError("data.directory=gone is not a folder")

    def make_batch(step):
        if step == 5:
            raise error
        return step

    batches = prefetch(make_batch, 0, 9, size)
    assert [next(batches) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(UserError) as caught:
        next(batches)
    assert caught.value is error and str(caught.value) == "data.directory=gone is not a folder"


def test_leaving_early_leaves_no_threads():
    before = threading.active_count()
    batches = prefetch(lambda step: step, 0, 10**6, 5)
    next(batches)
    batches.close()
    for _ in range(100):
        if threading.active_count() <= before:
            break
        time.sleep(0.02)
    assert threading.active_count() <= before


def test_building_a_batch_takes_little_time(tmp_path):
    pairs = [[list(range(7, 7 + 25 + index % 6)), list(range(7, 7 + 25 + index % 5))] for index in range(640)]
    store = open_store(ListSource([lines_of(pair) for pair in pairs]), "train", (SOURCE, TARGET), tmp_path)
    pipeline = Pipeline(
        store, evaluation_plan(store.source_lengths, store.target_lengths, 64 * 32, 1), (SOURCE, TARGET)
    )
    assert pipeline.batch(0).encoder_input_tokens.shape == (64, 32)
    times = []
    for step in range(100):
        start = time.perf_counter()
        pipeline.batch(step)
        times.append(time.perf_counter() - start)
    assert min(times) < 2e-3
