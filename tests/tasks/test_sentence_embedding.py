"""Sentence embedding: vectors of length 1 that depend on their text alone, the loss by hand, and retrieval."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig
from transformer.tasks.sentence_embedding import (
    TEMPERATURE,
    SentenceEmbeddingTask,
    contrastive_sums,
    retrieve,
    same_rows,
    text_vectors,
)
from transformer.training.partitioning import unbox
from transformer.types import Task, UserError

LENGTH = 16  # of a row


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    return Config(
        task="sentence_embedding",
        data=DataConfig(
            num_phrases=700,
            vocab_size=600,
            cache_directory=str(tmp_path_factory.mktemp("cache")),
            tokens_per_batch=37 * LENGTH,
            max_source_length=LENGTH,
            max_target_length=LENGTH + 2,
            num_buckets=1,
        ),
        model=ModelConfig(
            variant="encoder_only",
            pooling="mean",
            pooler=True,
            d_model=14,
            d_ff=17,
            num_heads=2,
            num_encoder_layers=1,
            norm_placement="pre",
            dropout_rate=0.0,
        ),
        training=TrainingConfig(label_smoothing=0.0, best_metric="accuracy"),
        decoding=DecodingConfig(tokens_per_batch=8 * LENGTH),
    )


def changed(config: Config, **sections) -> Config:
    """With keys of some sections replaced."""
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **keys) for name, keys in sections.items()}
    )


@pytest.fixture(scope="module")
def task(config):
    return SentenceEmbeddingTask(config)


@pytest.fixture(scope="module")
def params(task):
    """Norms and biases as they begin, all else drawn; quicker than to compile ``init``."""
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        if path[-1].key in ("scale", "bias"):
            return np.full(leaf.shape, path[-1].key == "scale", leaf.dtype)
        return (0.3 * rng.normal(size=leaf.shape)).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, unbox(jax.eval_shape(task.init, jax.random.key(0))))


@pytest.fixture(scope="module")
def gradient(task):
    """Of the sum of the loss, with all sums."""

    def loss(params, batch):
        sums = task.loss(params, batch, None)
        return sums["loss"][0], sums

    return jax.jit(jax.grad(loss, has_aux=True))


def test_it_is_a_task(task):
    assert isinstance(task, Task)


# Batches


def test_a_batch_holds_pairs(task):
    batch = task.batch(0)
    pairs = set(task._source.pairs("train"))
    sides = ((batch.first_tokens, batch.first_lengths), (batch.second_tokens, batch.second_lengths))
    for row in np.flatnonzero(batch.loss_weights):
        texts = []
        for tokens, lengths in sides:
            real = tokens[row, : lengths[row]]
            assert (real[0], real[-1]) == (task.tokenizer.bos_id, task.tokenizer.eos_id)
            assert (tokens[row, lengths[row] :] == task.tokenizer.pad_id).all()
            texts.append(task.tokenizer.decode(real[1:-1].tolist()))
        assert tuple(texts) in pairs
    assert task.work(batch)["pairs"] == batch.loss_weights.sum() and task.work(batch)["flops"] > 0


def test_an_epoch_has_every_pair_that_fits_once(task):
    seen, shapes = [], set()
    for step in range(task.steps_per_epoch()):
        batch = task.batch(step)
        shapes.add((batch.first_tokens.shape, batch.second_tokens.shape))
        seen += [tuple(row[row > 2]) for row in batch.first_tokens[batch.loss_weights > 0]]
    texts = [[task.tokenizer.encode(text) for text in pair] for pair in task._source.pairs("train")]
    fits = [tuple(first) for first, second in texts if len(first) + 2 <= LENGTH and len(second) <= LENGTH]
    assert 0 < len(fits) < len(texts) and sorted(seen) == sorted(fits)
    assert len(shapes) == 1
    assert max(shape[0][1] for shape in shapes) <= LENGTH and max(shape[1][1] for shape in shapes) <= LENGTH + 2


def test_a_batch_depends_on_its_number_only(config, task):
    step = 2 * task.steps_per_epoch() - 1
    jax.tree.map(np.testing.assert_array_equal, task.batch(step), SentenceEmbeddingTask(config).batch(step))
    assert not np.array_equal(task.batch(0).first_tokens, task.batch(task.steps_per_epoch()).first_tokens)


# The loss


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20))
def test_the_loss_by_hand(seed):
    rng = np.random.default_rng(seed)
    first, second = (rng.normal(size=(7, 5)).astype(np.float32) for _ in range(2))
    first, second = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (first, second))
    texts = rng.integers(0, 5, (2, 7))
    weights = rng.integers(0, 2, 7).astype(np.float32)
    same = (texts[0][:, None] == texts[0]) | (texts[1][:, None] == texts[1])
    total, right = 0.0, 0.0
    for pair in np.flatnonzero(weights):
        others = [other for other in np.flatnonzero(weights) if other == pair or not same[pair, other]]
        for query, answers in ((first, second), (second, first)):
            scores = answers[others].astype(np.float64) @ query[pair] / TEMPERATURE
            total += (np.log(np.exp(scores).sum()) - scores[others.index(pair)]) / 2
            right += (scores.max() == scores[others.index(pair)]) / 2
    sums = jax.jit(contrastive_sums)(first, second, same, weights)
    np.testing.assert_allclose(sums["loss"], (total, weights.sum()), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sums["accuracy"], (right, weights.sum()))


def test_equal_texts_are_no_negatives(task, params, gradient):
    """A pair that comes twice, or a text with two right answers, costs nothing."""
    batch = task.batch(0)
    rows = len(batch.loss_weights)

    def loss_of(first):
        """With the first texts of these rows, each with another second text."""
        chosen = np.resize(first, rows)
        weights = (np.arange(rows) < len(first)).astype(np.float32)
        batch_of = batch._replace(
            first_tokens=batch.first_tokens[chosen], first_lengths=batch.first_lengths[chosen], loss_weights=weights
        )
        return tuple(map(float, gradient(params, batch_of)[1]["loss"]))

    assert loss_of([0, 0, 0]) == (0.0, 3.0)
    assert loss_of([0, 1, 1])[0] > 0.1
    same = same_rows(jnp.array([[1, 2], [1, 3], [1, 2]]))
    np.testing.assert_array_equal(same, [[1, 0, 1], [0, 1, 0], [1, 0, 1]])


def test_rows_that_fill_a_batch_up_change_nothing(task, params, gradient):
    """They are no one's negatives, and where they are of zeros, as on many devices, their gradient is no NaN."""
    batch = task.batch(0)
    weights = (np.arange(len(batch.loss_weights)) < 30).astype(np.float32)
    zeros = jax.tree.map(lambda array: (array.T * weights.astype(array.dtype)).T, batch)
    found, expected = (gradient(params, each) for each in (batch._replace(loss_weights=weights), zeros))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found, expected)
    assert expected[1]["loss"][1] == 30
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


# Vectors

LINES = ["the number seventeen", "", "  ", "twelve days ago", "a\tb\u2028c 🎉", "seven " * 5, "the number seventeen"]


def test_vectors_have_length_1_and_depend_on_their_text_alone(task, params):
    together = task.embed(params, LINES)
    assert together.shape == (len(LINES), 14) and together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)
    for line, vector in zip(LINES, together, strict=True):
        np.testing.assert_allclose(task.embed(params, [line])[0], vector, atol=1e-5)
        tokens = np.array([[task.tokenizer.bos_id, *task.tokenizer.encode(line), task.tokenizer.eos_id]], np.int32)
        lengths = np.array([tokens.shape[1]], np.int32)
        if line == LINES[0]:  # without padding
            alone = text_vectors(task.model, params, tokens, lengths)[0]
            np.testing.assert_allclose(alone, vector, atol=1e-5)
    np.testing.assert_allclose(together[0], together[-1], atol=1e-6)
    assert np.abs(together[0] - together[3]).max() > 1e-2
    assert task.embed(params, []).shape == (0, 14)


def test_a_line_gives_its_vector_as_json(task, params):
    found = [json.loads(text) for text in task.predict(params, LINES)]
    np.testing.assert_allclose(found, task.embed(params, LINES), rtol=1e-5, atol=1e-7)
    assert [candidate.score for [candidate] in task.candidates(params, LINES[:2], 1)] == [0.0, 0.0]
    with pytest.raises(UserError, match="num_best=2: task=sentence_embedding gives one vector"):
        next(task.candidates(params, LINES, 2))


def test_long_lines_lose_their_end(task, params, caplog):
    number = LENGTH - 2 - len(task.tokenizer.encode(""))
    ids = task.tokenizer.encode("seven " * LENGTH)[:number]
    long, cut = task.embed(params, ["seven " * LENGTH, task.tokenizer.decode(ids)])
    np.testing.assert_allclose(long, cut, atol=1e-5)
    assert f"1 of 2 rows have more than data.max_source_length={LENGTH} tokens" in caplog.text


# Retrieval


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 9))
def test_retrieval_against_a_plain_search(seed, number):
    rng = np.random.default_rng(seed)
    queries, answers = (rng.normal(size=(number, 3)).astype(np.float32) for _ in range(2))
    answers[rng.integers(number)] = answers[0]  # a tie
    first, second = rng.integers(0, 6, (2, number))
    found = retrieve(queries, answers, first, second)
    for query in range(number):
        cosines = [float(queries[query] @ answers[other]) for other in range(number)]
        right = [other for other in range(number) if first[other] == first[query] or second[other] == second[query]]
        wrong = [other for other in range(number) if other not in right]
        best = max(cosines[other] for other in right)
        rank = 1 + sum(cosines[other] >= best - 1e-6 for other in wrong)
        assert found.ranks[query] == rank
        scores = np.array([cosines[other] / TEMPERATURE for other in [query, *wrong]])
        expected = np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[0]
        assert found.nlls[query] == pytest.approx(expected, rel=1e-3, abs=1e-3)
        assert cosines[found.nearest[query]] == pytest.approx(max(cosines), abs=1e-5)


def test_vectors_that_are_all_the_same_find_nothing():
    same = np.ones((5, 1), np.float32)
    found = retrieve(same, same, np.arange(5), np.arange(5))
    assert found.ranks.tolist() == [5] * 5
    assert retrieve(same, same, np.arange(5), np.zeros(5, int)).ranks.tolist() == [1] * 5  # one text is right for all


def test_scores_of_files_are_those_of_the_split(config, task, params, tmp_path):
    pairs = list(task._source.pairs("validation"))
    for name, texts in zip(("source", "reference"), zip(*pairs, strict=True), strict=True):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    scores = task.evaluate(params, "validation", outputs=tmp_path / "outputs.txt")
    files = {name: tmp_path / name for name in ("source", "reference")}
    assert task.evaluate(params, files) == scores
    assert scores["num_examples"] == len(pairs) == len((tmp_path / "outputs.txt").read_text().splitlines())
    with pytest.raises(UserError, match="scores --split or --source with --reference, not --text"):
        task.evaluate(params, {"text": tmp_path})
    quick = SentenceEmbeddingTask(changed(config, evaluation={"max_examples": 3}))
    assert quick.evaluate(params, "validation", during_training=True)["num_examples"] == 3


def test_a_little_training_finds_translations(task, params, gradient):
    """Chance is 1 in 500."""
    optimizer = optax.adam(1e-2)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step in range(100):
        grads, sums = gradient(params, task.batch(step))
        changes, state = update(jax.tree.map(lambda leaf, count=sums["loss"][1]: leaf / count, grads), state)
        params = optax.apply_updates(params, changes)
    scores = task.evaluate(params, "validation")
    assert scores["accuracy"] > 0.3 and scores["mean_reciprocal_rank"] > scores["accuracy"]
    assert scores["nll"] < np.log(500)


# The task as a whole


def test_a_saved_task_needs_no_data(config, task, params, tmp_path):
    task.save_assets(tmp_path)
    saved = SentenceEmbeddingTask(changed(config, data={"source": "files", "directory": "/nowhere"}), tmp_path)
    assert saved.assets_fingerprint() == task.assets_fingerprint()
    np.testing.assert_array_equal(saved.embed(params, LINES), task.embed(params, LINES))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"variant": "decoder_only"}}, "sentence_embedding needs model.variant=encoder_only, not decoder"),
        ({"data": {"batching": "pack"}}, "needs data.batching=bucket, not pack"),
        ({"data": {"joint_vocabulary": False}}, "has one encoder for both texts; use one vocabulary"),
        ({"data": {"max_target_length": 9999}}, "data.max_target_length=9999, which limits the second texts"),
        (
            {"model": {"position_encoding": "learned", "max_positions": LENGTH + 1}},
            r"data\.max_target_length=18, .* model\.max_positions=17",
        ),
        ({"training": {"best_metric": "bleu"}}, "best_metric=bleu is no score .* use one of accuracy, mean_reciprocal"),
        ({"model": {"activation": "rellu"}}, r"did you mean relu\?"),
    ],
)
def test_what_does_not_go_with_the_task_is_said_at_once(config, sections, message):
    with pytest.raises(UserError, match=message):
        SentenceEmbeddingTask(changed(config, **sections))


def test_label_smoothing_is_refused_in_training(config):
    with pytest.raises(UserError, match=r"training\.label_smoothing=0\.1: the texts of a batch are no classes"):
        SentenceEmbeddingTask(changed(config, training={"label_smoothing": 0.1})).batch(0)
