"""Masked language modelling: only what is masked is scored, nothing tells the answer, and lines are filled in."""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig
from transformer.models.masks import AttentionMask
from transformer.tasks.masked_lm import MaskedLMTask
from transformer.training.loading import load
from transformer.training.partitioning import unbox
from transformer.training.trainer import train
from transformer.types import Task, UserError

TRAIN = "\n\n".join(
    f"the number {n} is less than {n + 1},\nand {n + 2} is more" + ", and more" * (n % 3) for n in range(11, 71)
)
TEST = "the number 17 is less than 18,\nand 19 is more\n\nb\n\n" + "and 23 is more, " * 5 + "and 🎉"
LENGTH = 31  # of a row


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    folder = tmp_path_factory.mktemp("text")
    for name, text in (("train", TRAIN), ("val", TEST), ("test", TEST)):
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return Config(
        task="masked_lm",
        data=DataConfig(
            source="files",
            directory=str(folder),
            documents="blank_line",
            tokenizer_model="character",
            extra_ids=1,
            cache_directory=str(folder / "cache"),
            tokens_per_batch=11 * LENGTH,
            max_source_length=LENGTH,
            num_buckets=1,
        ),
        model=ModelConfig(
            variant="encoder_only",
            vocab_size=47,  # more rows than there are pieces
            d_model=28,
            d_ff=37,
            num_heads=2,
            num_encoder_layers=1,
            position_encoding="rotary",
            rotary_fraction=6 / 7,
            norm_placement="pre",
            activation="gelu",
            output_bias=True,
            dropout_rate=0.0,
        ),
        training=TrainingConfig(
            num_steps=4,
            schedule="constant",
            learning_rate=1e-2,
            label_smoothing=0.0,
            log_every=2,
            evaluate_every=4,
            checkpoint_every=4,
            best_metric="nll_per_token",
        ),
        decoding=DecodingConfig(tokens_per_batch=2 * 32),
    )


def changed(config: Config, **sections) -> Config:
    """With keys of some sections replaced."""
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **keys) for name, keys in sections.items()}
    )


@pytest.fixture(scope="module")
def task(config):
    return MaskedLMTask(config)


@pytest.fixture(scope="module")
def params(task):
    """After a short training."""
    params = unbox(jax.jit(task.init)(jax.random.key(1)))
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(params, state, batch):
        def loss(params):
            total, count = task.loss(params, batch, None)["loss"]
            return total / count

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for number in range(200):
        params, state = step(params, state, task.batch(number))
    return params


def test_training_beats_always_guessing_the_most_frequent_piece(task, params):
    scores = task.evaluate(params, "train")
    text = TRAIN.replace("\n\n", "")
    share = max(map(text.count, set(text))) / len(text)
    assert scores["accuracy_of_most_frequent"] == pytest.approx(share, abs=0.06)
    assert scores["accuracy"] > scores["accuracy_of_most_frequent"] + 0.1
    assert scores["perplexity"] == pytest.approx(math.exp(scores["nll_per_token"]))


def test_the_loss_is_of_masked_places_only(task, params):
    batch = task.batch(0)
    sums = jax.jit(lambda params, batch: task.loss(params, batch, None))
    found = sums(params, batch)
    nll = 0.0
    for row in range(len(batch.input_tokens)):
        length = int((batch.segment_ids[row] > 0).sum())
        log_probs = forward(task, params, batch.input_tokens[row, :length])
        for place, target, weight in zip(
            batch.masked_positions[row], batch.target_tokens[row], batch.loss_weights[row], strict=True
        ):
            nll -= weight * log_probs[place, target]
    assert found["nll"][0] == pytest.approx(nll, rel=1e-4)
    assert found["nll"][1] == found["accuracy"][1] == batch.loss_weights.sum() > 0
    work = task.work(batch)
    assert (work["source_tokens"], work["positions"]) == ((batch.segment_ids > 0).sum(), batch.input_tokens.size)
    assert work["flops"] > 0


@functools.partial(jax.jit, static_argnames="model")
def padded_forward(model, params, tokens, length):
    mask = AttentionMask(query_lengths=length, key_lengths=length)
    places = jnp.arange(tokens.shape[1])[None]
    return jax.nn.log_softmax(model.apply({"params": params}, tokens, mask, places, deterministic=True))[0]


def forward(task, params, ids):
    """Log-probabilities [T, V] at every place of one text, in one padded shape."""
    tokens = np.zeros((1, 64), np.int32)
    tokens[0, : len(ids)] = ids
    return np.asarray(padded_forward(task.model, params, tokens, np.array([len(ids)])))


def test_nothing_in_the_input_tells_what_was_masked(config, task):
    """Texts that differ where the mask stands give the same input."""
    masker, vocab_size = task._masker, task.tokenizer.vocab_size
    rng = np.random.default_rng(0)
    lengths = np.array([LENGTH] * 13)
    tokens, others = (rng.integers(4, vocab_size - 1, lengths.sum()).astype(np.int32) for _ in range(2))
    numbers = rng.random((3, lengths.sum()))
    inputs, chosen = masker(tokens, lengths, numbers)
    hidden = inputs == task.tokenizer.mask_id
    assert hidden.sum() > 30 and (chosen[hidden]).all()
    again, _ = masker(np.where(hidden, others, tokens), lengths, numbers)
    np.testing.assert_array_equal(again, inputs)


def test_a_packed_text_sees_no_other(config, params):
    packed = MaskedLMTask(changed(config, data={"batching": "pack", "max_source_length": 2 * LENGTH}))
    batch = next(
        batch
        for batch in map(packed.batch, range(packed.steps_per_epoch()))
        if (batch.segment_ids == 2).any(axis=1).sum() > 1
    )
    loss = jax.jit(lambda params, batch: packed.loss(params, batch, None)["nll"][0])
    of_places = np.take_along_axis(batch.segment_ids, batch.masked_positions, axis=1)
    second = batch._replace(loss_weights=batch.loss_weights * (of_places == 2))
    other = second._replace(input_tokens=np.where(batch.segment_ids == 1, 5, batch.input_tokens))
    assert float(loss(params, second)) == pytest.approx(float(loss(params, other)), rel=1e-5)
    own = second._replace(input_tokens=np.where(batch.segment_ids == 2, 5, batch.input_tokens))
    assert float(loss(params, own)) != pytest.approx(float(loss(params, second)), rel=1e-3)


# Scores


def test_every_text_is_scored_once_with_one_mask_whatever_the_batch(config, task, params, tmp_path):
    scores = task.evaluate(params, "test", outputs=tmp_path / "outputs.txt")
    assert scores == task.evaluate(params, "test", outputs=tmp_path / "again.txt")
    log_probs = [float(line) for line in (tmp_path / "outputs.txt").read_text().splitlines()]
    sizes = []
    for document in TEST.split("\n\n"):  # the party popper is unknown, so not to be guessed
        sizes += [len(document[i : i + LENGTH - 2].replace("🎉", "")) for i in range(0, len(document), LENGTH - 2)]
    assert scores["num_texts"] == len(log_probs) == len(sizes)
    assert scores["num_examples"] == sum(max(1, round(0.15 * size)) for size in sizes)
    assert -sum(log_probs) / scores["num_examples"] == pytest.approx(scores["nll_per_token"], abs=1e-5)

    other = MaskedLMTask(changed(config, decoding={"tokens_per_batch": 5 * 32}, data={"batching": "pack"}))
    same = other.evaluate(params, "test", outputs=tmp_path / "other.txt")
    assert same == pytest.approx(scores, rel=1e-5)
    found = [float(line) for line in (tmp_path / "other.txt").read_text().splitlines()]
    np.testing.assert_allclose(found, log_probs, atol=1e-4)
    seed = MaskedLMTask(dataclasses.replace(config, seed=7)).evaluate(params, "test")
    assert seed["num_examples"] == scores["num_examples"] and seed["nll_per_token"] != scores["nll_per_token"]


def test_a_text_is_scored_as_a_split_is(task, params, tmp_path):
    (tmp_path / "other.txt").write_text(TEST, encoding="utf-8")
    scores, split = task.evaluate(params, {"text": tmp_path / "other.txt"}), task.evaluate(params, "test")
    frequent = scores.pop("accuracy_of_most_frequent"), split.pop("accuracy_of_most_frequent")
    assert scores == split and all(0 < share < 0.5 for share in frequent)
    with pytest.raises(UserError, match="source"):
        task.evaluate(params, {"source": tmp_path, "reference": tmp_path})


def test_uniform_guesses_by_hand(config, task, params):
    uniform = jax.tree.map(np.zeros_like, params)
    scores = task.evaluate(uniform, "test")
    assert scores["perplexity"] == pytest.approx(config.model.vocab_size)
    assert scores["accuracy"] == 0  # the first of all pieces is padding
    quick = MaskedLMTask(changed(config, evaluation={"max_examples": 2}))
    assert quick.evaluate(uniform, "validation", during_training=True)["num_texts"] == 3


# Filling in


def test_one_mask_is_filled_in_by_the_best_pieces(task, params):
    line, tokenizer = "the number 2<mask> is less", task.tokenizer
    before, after = (tokenizer.encode(text) for text in line.split("<mask>"))
    ids = [tokenizer.bos_id, *before, tokenizer.mask_id, *after, tokenizer.eos_id]
    log_probs = forward(task, params, ids)[1 + len(before)]
    ordinary = np.arange(4, tokenizer.mask_id)
    [found] = task.candidates(params, [line], 3)
    best = ordinary[np.argsort(-log_probs[ordinary], kind="stable")]
    assert [candidate.text for candidate in found] == [
        line.replace("<mask>", tokenizer.decode([piece])) for piece in best[:3].tolist()
    ]
    np.testing.assert_allclose([candidate.score for candidate in found], log_probs[best[:3]], atol=1e-4)
    assert task.predict(params, [line.replace("<mask>", "[MASK]")]) == [found[0].text]


def test_several_masks_are_filled_in_independently(task, params):
    line = "the number 2<mask> is less th<mask>n"
    [found] = task.candidates(params, [line], 3)
    scores = [candidate.score for candidate in found]
    [[one, other]] = task._fill(params, [line], 3)
    pairs = sorted((a + b for a in one.scores for b in other.scores), reverse=True)
    np.testing.assert_allclose(scores, pairs[:3], atol=1e-6)
    best = (task.tokenizer.decode([choices.pieces[0]]) for choices in (one, other))
    assert found[0].text == line.replace("<mask>", "{}").format(*best)
    assert len({candidate.text for candidate in found}) == 3


def test_lines_come_back_in_order_whatever_is_in_them(task, params):
    lines = ["", "  ", "no mask 🎉", "\tthe nu<mask>ber\u2028 1 and more", "x" * 61 + " the nu<mask>ber 🎉 " + "y" * 53]
    found = list(task.candidates(params, lines, 3))
    assert [[candidate.text for candidate in few] for few in found[:3]] == [[line] * 3 for line in lines[:3]]
    for line, few in zip(lines[3:], found[3:], strict=True):
        before, after = line.split("<mask>")
        assert len({candidate.text for candidate in few}) == 3
        assert all(candidate.text.startswith(before) and candidate.text.endswith(after) for candidate in few)
        [alone] = task.candidates(params, [line], 3)
        assert [candidate.text for candidate in alone] == [candidate.text for candidate in few]


# The task as a whole


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"variant": "decoder_only"}}, r"needs model\.variant=encoder_only, not decoder_only"),
        ({"data": {"batching": "stream"}}, r"data\.batching=bucket or pack, not stream"),
        ({"data": {"extra_ids": 0}}, r"set data\.extra_ids=1"),
        ({"data": {"max_source_length": 2}}, r"data\.max_source_length=2 has no room"),
        ({"training": {"best_metric": "bleu"}}, "best_metric=bleu is no score .* use one of nll_per_token, perplex"),
        ({"model": {"vocab_size": 7}}, r"model\.vocab_size=7 is less than the \d+ pieces"),
        ({"model": {"activation": "rellu"}}, r"did you mean relu\?"),
    ],
)
def test_what_does_not_go_with_the_task_is_said_at_once(config, sections, message):
    with pytest.raises(UserError, match=message):
        MaskedLMTask(changed(config, **sections))


def test_more_outputs_than_pieces(task, params):
    with pytest.raises(UserError, match="num_best=99 is more than the"):
        next(iter(task.candidates(params, ["<mask>"], 99)))


@pytest.mark.slow
def test_from_training_to_scores(config, tmp_path, monkeypatch):
    """The loop and the loading know nothing of it but the protocol."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # leave the user's cache alone
    assert isinstance(MaskedLMTask(config), Task)
    assert train(config, tmp_path / "run") == 0
    run = load(tmp_path / "run", "best")
    scores = run.task.evaluate(run.params, "validation")
    logged = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert logged["validation_nll_per_token"] == pytest.approx(scores["nll_per_token"], rel=1e-5)
