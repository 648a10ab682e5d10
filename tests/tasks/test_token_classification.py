"""Token classification: every word counts once, padding and batch mates change nothing, and text is restored."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from transformer.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig
from transformer.data.labeled_text import NO_LABEL
from transformer.data.token_labels import restore, take_apart
from transformer.tasks.token_classification import TokenClassificationTask, label_log_probs
from transformer.training.partitioning import unbox
from transformer.types import Task, UserError

LENGTH = 13  # of a row


def documents(seed: int, number: int) -> list[str]:
    """Sentences of a few words, of which most say what comes after them."""
    rng = np.random.default_rng(seed)
    sentences = (
        "The {0} saw Anna, and then it left.",
        "Did the {0} see NATO?",
        "Yesterday, Paul and I met the {0}.",
        "Paul has a {0}, a {1}, and a {0}.",
    )
    animals = ("cat", "dog", "bird", "fish", "mouse")
    return [
        "\n".join(rng.choice(sentences).format(*rng.choice(animals, 2)) for _ in range(rng.integers(1, 8)))
        for _ in range(number)
    ]


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    folder = tmp_path_factory.mktemp("text")
    for name, seed, number in (("train", 0, 60), ("val", 1, 7), ("test", 2, 11)):
        (folder / f"{name}.txt").write_text("\n\n".join(documents(seed, number)), encoding="utf-8")
    return Config(
        task="token_classification",
        data=DataConfig(
            source="files",
            directory=str(folder),
            documents="blank_line",
            token_labels="case_and_punctuation",
            vocab_size=320,
            cache_directory=str(folder / "cache"),
            tokens_per_batch=17 * LENGTH,
            max_source_length=LENGTH,
            num_buckets=1,
        ),
        model=ModelConfig(
            variant="encoder_only",
            d_model=14,
            d_ff=17,
            num_heads=2,
            num_encoder_layers=1,
            position_encoding="learned",
            max_positions=LENGTH,
            norm_placement="pre",
            dropout_rate=0.0,
        ),
        training=TrainingConfig(label_smoothing=0.0, best_metric="f1"),
        decoding=DecodingConfig(tokens_per_batch=4 * LENGTH),  # batches of one shape
    )


def changed(config: Config, **sections) -> Config:
    """With keys of some sections replaced."""
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **keys) for name, keys in sections.items()}
    )


@pytest.fixture(scope="module")
def task(config):
    return TokenClassificationTask(config)


def random_params(task, scale: float):
    """Norms as they begin, all else drawn; quicker than to compile ``init``."""
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        if path[-1].key == "scale":
            return np.ones(leaf.shape, leaf.dtype)
        return (scale * rng.normal(size=leaf.shape)).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, unbox(jax.eval_shape(task.init, jax.random.key(0))))


@pytest.fixture(scope="module")
def params(task):
    """With labels that differ."""
    return random_params(task, 1.0)


@pytest.fixture(scope="module")
def gradient(task):
    """Of the sum of the loss, with all sums."""

    def loss(params, batch):
        sums = task.loss(params, batch, None)
        return sums["loss"][0], sums

    return jax.jit(jax.grad(loss, has_aux=True))


def test_it_is_a_task(task):
    assert isinstance(task, Task)


def test_a_batch_by_hand(task):
    """The first piece of each word carries the label of how it was written."""
    batch = task.batch(0)
    names, pieces = task.labels.names, task.tokenizer.pieces
    assert batch.input_tokens.shape == batch.labels.shape == batch.loss_weights.shape
    assert not batch.token_types.any()
    training = [restore(*take_apart(text)[:2]) for text in documents(0, 60)]
    for tokens, length, labels, weights in zip(
        batch.input_tokens, batch.lengths, batch.labels, batch.loss_weights, strict=True
    ):
        if not length:
            continue
        assert (tokens[0], tokens[length - 1]) == (task.tokenizer.bos_id, task.tokenizer.eos_id)
        assert (tokens[length:] == task.tokenizer.pad_id).all() and not weights[length:].any()
        firsts = [place for place in range(length) if pieces[tokens[place]].startswith("\u2581")]
        assert firsts == np.flatnonzero(weights).tolist()
        words = task.tokenizer.decode(tokens[1 : length - 1].tolist()).split()
        restored = restore(words, [names[label] for label in labels[firsts]])
        assert any(restored in text for text in training)  # of one document: none has another's end


def test_a_batch_depends_on_its_number_only(config, task):
    last = 2 * task.steps_per_epoch() - 1
    for step in (0, last):
        jax.tree.map(np.testing.assert_array_equal, task.batch(step), TokenClassificationTask(config).batch(step))
    assert not np.array_equal(task.batch(0).input_tokens, task.batch(task.steps_per_epoch()).input_tokens)


def test_an_epoch_has_every_word_once(task, params, gradient):
    sums = [gradient(params, task.batch(step))[1]["nll"] for step in range(task.steps_per_epoch())]
    nats, count = np.sum(sums, axis=0)
    scores = task.evaluate(params, "train")
    words = sum(len(take_apart(text).words) for text in documents(0, 60))
    assert count == scores["num_examples"] == words
    assert nats / count == pytest.approx(scores["nll"], rel=1e-5)
    assert task.work(task.batch(0))["words"] > 0 and task.work(task.batch(0))["flops"] > 0


def test_padding_changes_nothing(task, params, gradient):
    """Neither what stands in it, nor rows of nothing else."""
    batch = task.batch(task.steps_per_epoch() - 1)
    batch = jax.tree.map(lambda array: np.where(np.arange(len(array)) < 11, array.T, 0).T, batch)
    inside = np.arange(LENGTH) < batch.lengths[:, None]
    other = batch._replace(
        input_tokens=np.where(inside, batch.input_tokens, 5), labels=np.where(inside, batch.labels, 3)
    )
    assert not inside.all(axis=1).all() and (batch.lengths[:11] > 0).all()
    found, expected = (gradient(params, each) for each in (other, batch))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert expected[1]["loss"][1] == batch.loss_weights.sum() > 0


def test_scores_are_those_of_rows_one_by_one(task, params, tmp_path):
    """Against the model on single rows, whatever is in their padding, and scikit-learn's F1."""
    from sklearn.metrics import f1_score

    names = task.labels.names
    targets, found, nats = [], [], 0.0
    for text in documents(2, 11):
        words, labels, _ = take_apart(text)
        rows = task._encode_words([words])
        for number in range(len(rows.texts)):
            tokens = rows.rows.tokens[number]
            begins = rows.words[number] != NO_LABEL
            batch = task.batch(0)._replace(
                input_tokens=np.resize(tokens, (1, LENGTH)), lengths=np.array([len(tokens)], np.int32)
            )
            log_probs = np.asarray(label_log_probs(task.model, params, batch))[0, : len(tokens)][begins]
            right = [names.index(labels[word]) for word in rows.words[number][begins]]
            targets += right
            found += log_probs.argmax(axis=1).tolist()
            nats -= log_probs[np.arange(len(right)), right].sum()
    scores = task.evaluate(params, "test", outputs=tmp_path / "outputs.txt")
    assert scores["num_examples"] == len(targets)
    assert scores["nll"] == pytest.approx(nats / len(targets), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(np.mean(np.equal(targets, found)))
    assert scores["f1"] == pytest.approx(f1_score(targets, found, average="macro"))
    guess = [names.index("lower")] * len(targets)
    assert scores["f1_of_majority"] == pytest.approx(f1_score(targets, guess, average="macro"))
    assert scores["accuracy_of_majority"] == pytest.approx(np.mean(np.equal(targets, guess)))
    lines = (tmp_path / "outputs.txt").read_text().splitlines()
    assert lines == task.predict(params, [text.replace("\n", " ") for text in documents(2, 11)])


def test_a_majority_that_is_not_known_has_no_scores(task, params, monkeypatch):
    known = task.evaluate(params, "test")
    monkeypatch.setattr(task, "labels", task.labels._replace(most_frequent=None))
    unknown = task.evaluate(params, "test")
    assert (
        known.keys() - unknown.keys() == {"accuracy_of_majority", "f1_of_majority"} and unknown.items() <= known.items()
    )


def test_a_text_is_scored_as_a_split_is(config, task, params):
    path = task._source._documents._files("test")[0]
    assert task.evaluate(params, {"text": path}) == task.evaluate(params, "test")
    with pytest.raises(UserError, match="scores --split or --text, not --source with --reference"):
        task.evaluate(params, {"source": path, "reference": path})


def test_the_quick_scores_of_training_are_of_the_first_texts(config, task, params):
    quick = TokenClassificationTask(changed(config, evaluation={"max_examples": 2}))
    scores = quick.evaluate(params, "validation", during_training=True)
    assert scores["num_examples"] == sum(len(take_apart(text).words) for text in documents(1, 7)[:2])


LINES = ["the cat saw anna and then it left", "", "  ", 'Did -- "the" DOG see nato?', "x" * 90, "a\tb\u2028c"]


def test_lines_are_restored_and_none_loses_a_word(task, params):
    lines = [*LINES, " ".join(f"word{n}" for n in range(300))]
    outputs = task.predict(params, lines)
    assert len(outputs) == len(lines) and outputs[1] == outputs[2] == ""
    for line, output in zip(lines, outputs, strict=True):
        assert take_apart(output).words == take_apart(line).words and "\n" not in output
    assert len(outputs[-1].split()) == 300


def test_no_line_depends_on_its_batch_mates(task, params):
    together = [found for [found] in task.candidates(params, LINES, 1)]
    for line, found in zip(LINES, together, strict=True):
        [[alone]] = task.candidates(params, [line], 1)
        assert alone.text == found.text and alone.score == pytest.approx(found.score, abs=1e-4)
    assert together[1].score == 0.0 > together[0].score


def test_there_is_one_output_for_a_line(task, params):
    with pytest.raises(UserError, match="num_best=2: task=token_classification gives one output"):
        next(task.candidates(params, LINES, 2))


def test_a_little_training_restores_text(task, gradient):
    params, optimizer = random_params(task, 0.3), optax.adam(2e-2)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step in range(200):
        grads, sums = gradient(params, task.batch(step))
        changes, state = update(jax.tree.map(lambda leaf, count=sums["loss"][1]: leaf / count, grads), state)
        params = optax.apply_updates(params, changes)
    scores = task.evaluate(params, "test")
    assert scores["f1"] > 0.75 > 0.3 > scores["f1_of_majority"]
    assert scores["accuracy"] > 0.85 > scores["accuracy_of_majority"] + 0.25
    assert task.predict(params, ["did the fish see nato"]) == ["Did the fish see NATO?"]


# Given labels


@pytest.fixture(scope="module")
def given(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    for name, seed in (("train", 0), ("val", 1), ("test", 2)):
        pairs = [
            "\n".join(f"{word} {'NAME' if word[:1].isupper() else 'O'}" for word in text.split())
            for text in documents(seed, 9)
        ]
        (folder / f"{name}.conll").write_text("-DOCSTART- O\n\n" + "\n\n".join(pairs) + "\n")
    return changed(config, data={"directory": str(folder), "token_labels": "given", "vocab_size": 300})


def test_given_labels_stand_beside_their_words(given):
    task = TokenClassificationTask(given)
    assert task.labels.names == ("NAME", "O")
    params = random_params(task, 1.0)
    scores = task.evaluate(params, "test")
    assert scores["num_examples"] == sum(len(text.split()) for text in documents(2, 9))
    outputs = task.predict(params, ["The cat, Paul's", ""])
    assert [pair.rpartition("/")[0] for pair in outputs[0].split()] == ["The", "cat,", "Paul's"] and outputs[1] == ""
    assert {pair.rpartition("/")[2] for pair in outputs[0].split()} <= {"NAME", "O"}


def test_a_label_that_training_has_not_is_refused(given, tmp_path):
    task = TokenClassificationTask(given)
    (tmp_path / "other.conll").write_text("a O\n\nb O\nc PLACE\n")
    with pytest.raises(UserError, match=r"other\.conll:3-4: the training split has no label 'PLACE'; it has NAME, O"):
        task.evaluate(None, {"text": tmp_path / "other.conll"})


# The task as a whole


def test_a_saved_task_needs_no_data(config, task, params, tmp_path):
    task.save_assets(tmp_path)
    saved = TokenClassificationTask(changed(config, data={"directory": "/nowhere"}), tmp_path)
    assert saved.labels == task.labels and saved.assets_fingerprint() == task.assets_fingerprint()
    assert saved.predict(params, LINES) == task.predict(params, LINES)
    (tmp_path / "labels.json").unlink()
    assert TokenClassificationTask(config, tmp_path).labels == task.labels  # made from the data


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"variant": "decoder_only"}}, "token_classification needs model.variant=encoder_only, not decoder"),
        ({"data": {"batching": "pack"}}, "needs data.batching=bucket, not pack"),
        ({"training": {"best_metric": "bleu"}}, "best_metric=bleu is no score .* use one of accuracy, f1, nll"),
        ({"training": {"label_smoothing_form": "without_padding"}}, "predicts no tokens; use uniform or others"),
        ({"data": {"token_labels": "gven"}}, r"data\.token_labels=gven is not one of .*did you mean given\?"),
        ({"data": {"source": "phrases"}}, r"data\.source=phrases is not one of files, topics"),
        ({"model": {"activation": "rellu"}}, r"did you mean relu\?"),
    ],
)
def test_what_does_not_go_with_the_task_is_said_at_once(config, sections, message):
    with pytest.raises(UserError, match=message):
        TokenClassificationTask(changed(config, **sections))
