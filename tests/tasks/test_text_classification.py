"""Text classification: padding changes nothing, every example counts once, labels come back for lines in order."""

import dataclasses
import functools
import json
import math

import jax
import numpy as np
import optax
import pytest

from transformer.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig
from transformer.models.masks import AttentionMask
from transformer.tasks.text_classification import TextClassificationTask
from transformer.training.loading import load
from transformer.training.partitioning import unbox
from transformer.training.trainer import train
from transformer.types import Candidate, Task, UserError

LABELS = ("negative", "neutral", "positive")
TRAIN = [f"{LABELS[min(n % 5, 2)]} film {n}" + ", again" * (n % 4) for n in range(37)]  # mostly positive
VALIDATION = [f"{LABELS[n % 3]} 🎉 film {n * n}" + ", again" * (n % 6) for n in range(23)]
LENGTH = 41  # of a row: all of TRAIN's texts fit, some of VALIDATION do not
NUM_CUT = sum(len(line.split(" ", 1)[1].encode()) + 2 > LENGTH for line in VALIDATION)


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    folder = tmp_path_factory.mktemp("text")
    for name, lines in (("train", TRAIN), ("val", VALIDATION)):
        (folder / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    return Config(
        task="text_classification",
        data=DataConfig(
            source="files",
            directory=str(folder),
            tokenizer_model="byte",
            tokens_per_batch=5 * LENGTH,
            max_source_length=LENGTH,
            num_buckets=1,
        ),
        model=ModelConfig(
            variant="encoder_only",
            d_model=14,
            d_ff=17,
            num_heads=2,
            num_encoder_layers=2,
            token_types=2,
            pooler=True,
            dropout_rate=0.0,
        ),
        training=TrainingConfig(
            num_steps=4,
            schedule="constant",
            learning_rate=1e-3,
            warmup_steps=0,
            label_smoothing=0.1,
            log_every=2,
            evaluate_every=4,
            checkpoint_every=4,
            best_metric="f1",
        ),
        decoding=DecodingConfig(tokens_per_batch=1_024),
    )


def changed(config: Config, **sections) -> Config:
    """With keys of some sections replaced."""
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **keys) for name, keys in sections.items()}
    )


def fresh_params(task):
    """Random, and sharpened, so that labels differ between texts."""
    params = jax.tree.map(np.array, unbox(jax.jit(task.init)(jax.random.key(1))))
    params["classifier"]["linear"]["kernel"] *= 5
    return params


@pytest.fixture(scope="module")
def task(config):
    return TextClassificationTask(config)


@pytest.fixture(scope="module")
def params(task):
    return fresh_params(task)


@functools.partial(jax.jit, static_argnames="model")
def forward(model, params, tokens, types, length):
    mask = AttentionMask(query_lengths=length, key_lengths=length)
    return model.apply({"params": params}, tokens, mask, token_types_BT=types, deterministic=True)


def log_probs_alone(task, params, *texts: str) -> np.ndarray:
    """Log-probabilities of the labels of a text or a pair, in a row of its own."""
    tokenizer = task.tokenizer
    ids, types = [tokenizer.bos_id], [0]
    for kind, text in enumerate(texts):
        ids += [*tokenizer.encode(text), tokenizer.eos_id]
        types += [kind] * (len(ids) - len(types))
    if len(ids) > LENGTH:
        ids[LENGTH - 1 :] = [tokenizer.eos_id]
    tokens, all_types = np.full((1, 64), 7, np.int32), np.ones((1, 64), np.int32)  # whatever stands in padding
    tokens[0, : len(ids)], all_types[0, : len(ids)] = ids, types[: len(ids)]
    logits = forward(task.model, params, tokens, all_types, np.array([len(ids)]))
    return np.asarray(jax.nn.log_softmax(logits))[0]


# Scores


def test_every_example_counts_once(task, params, tmp_path):
    """Against examples that are scored one by one."""
    examples = [line.split(" ", 1) for line in VALIDATION]
    expected = np.array([log_probs_alone(task, params, text) for _, text in examples])
    labels = np.array([LABELS.index(label) for label, _ in examples])
    outputs = tmp_path / "outputs.txt"
    scores = task.evaluate(params, "validation", outputs=outputs)
    assert scores["num_examples"] == len(examples) and scores["num_truncated"] == NUM_CUT > 0
    assert scores["accuracy"] == pytest.approx(np.mean(expected.argmax(axis=1) == labels))
    assert 0 < scores["accuracy"] < 1 and set(scores["f1_by_label"]) == set(LABELS)
    assert scores["nll"] == pytest.approx(-expected[np.arange(len(labels)), labels].mean(), rel=1e-4)
    assert scores["accuracy_of_majority"] == pytest.approx(np.mean(labels == LABELS.index("positive")))
    assert outputs.read_text() == "".join(LABELS[number] + "\n" for number in expected.argmax(axis=1))
    given = {"text": tmp_path / "other.txt"}
    given["text"].write_text("\n".join(VALIDATION), encoding="utf-8")
    assert task.evaluate(params, given) == scores


def test_a_majority_that_is_not_known_has_no_score(task, params, monkeypatch):
    known = task.evaluate(params, "validation")
    monkeypatch.setattr(task, "labels", task.labels._replace(most_frequent=None))
    unknown = task.evaluate(params, "validation")
    assert known.keys() - unknown.keys() == {"accuracy_of_majority"} and unknown.items() <= known.items()


def test_uniform_scores_are_known(task, params):
    uniform = jax.tree.map(np.zeros_like, params)
    assert task.evaluate(uniform, "validation")["nll"] == pytest.approx(math.log(3))


def test_the_quick_scores_of_training_are_of_the_first_examples(config, task, params):
    limited = TextClassificationTask(changed(config, evaluation={"max_examples": 5}))
    scores = limited.evaluate(params, "validation", during_training=True)
    assert scores["num_examples"] == 5
    assert scores["accuracy_of_majority"] == pytest.approx(1 / 5)
    assert limited.evaluate(params, "validation")["num_examples"] == len(VALIDATION)


def test_the_loss_of_an_epoch_is_that_of_the_scores(task, params):
    loss = jax.jit(lambda params, batch: task.loss(params, batch, None))
    sums = [loss(params, task.batch(step)) for step in range(task.steps_per_epoch())]
    totals = {name: np.sum([pairs[name] for pairs in sums], axis=0) for name in sums[0]}
    scores = task.evaluate(params, "train")
    assert totals["nll"][1] == scores["num_examples"] == len(TRAIN)
    assert totals["nll"][0] / len(TRAIN) == pytest.approx(scores["nll"], rel=1e-5)
    assert totals["accuracy"][0] / len(TRAIN) == pytest.approx(scores["accuracy"])
    assert totals["loss"][0] != pytest.approx(totals["nll"][0])  # labels are smoothed
    work = task.work(task.batch(0))
    assert work["examples"] == (task.batch(0).lengths > 0).sum() and work["flops"] > 0
    assert work["input_tokens"] == task.batch(0).lengths.sum() < work["positions"]


def test_padding_changes_neither_the_loss_nor_the_gradient(task, params):
    """A token whose vector is NaN, another type; the last batch has rows that fill it up."""
    batch = min((task.batch(step) for step in range(task.steps_per_epoch())), key=lambda batch: batch.lengths.min())
    padding = np.arange(LENGTH)[: batch.input_tokens.shape[1]] >= batch.lengths[:, None]
    other = batch._replace(
        input_tokens=np.where(padding & (batch.lengths > 0)[:, None], 10**6, batch.input_tokens).astype(np.int32),
        token_types=np.where(padding, 1, batch.token_types).astype(np.int32),
        labels=np.where(batch.lengths > 0, batch.labels, 2).astype(np.int32),
    )
    assert padding.any() and not batch.lengths.all()
    gradient = jax.jit(jax.value_and_grad(lambda params, batch: task.loss(params, batch, None)["loss"][0]))
    for one, two in zip(*(jax.tree.leaves(gradient(params, each)) for each in (batch, other)), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


# Inference

LINES = ["film 7", "", "a film,\tagain", "  ", "film 7", "x" * 90, "\t", "🎉"]


def test_labels_come_back_in_the_order_of_the_lines(task, params):
    found = list(task.candidates(params, LINES, 3))
    assert task.predict(params, LINES) == [candidates[0].text for candidates in found]
    for line, candidates in zip(LINES, found, strict=True):
        if not line.strip():
            assert candidates == [Candidate("", 0.0)] * 3
            continue
        expected = log_probs_alone(task, params, line)
        assert [candidate.text for candidate in candidates] == [LABELS[n] for n in np.argsort(-expected)]
        np.testing.assert_allclose([candidate.score for candidate in candidates], sorted(expected)[::-1], rtol=1e-4)
    assert task.predict(params, ["", " "]) == ["", ""] and task.predict(params, []) == []
    with pytest.raises(UserError, match="num_best=4 is more than there are labels: 3"):
        next(task.candidates(params, LINES, 4))


@pytest.fixture(scope="module")
def pairs(config, tmp_path_factory):
    """A task over pairs, with as many labels as the other, so that the same parameters fit."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "train.tsv").write_text("".join(f"{n % 3}\tfilm {n}\tfilm {n + n % 3}\n" for n in range(17)))
    return TextClassificationTask(changed(config, data={"directory": str(folder)}))


def test_a_pair_is_two_texts_with_a_tab_between(pairs, params):
    found = list(pairs.candidates(params, ["film 1\tfilm 2", "", "film 1 \tfilm\t2"], 3))
    assert [candidates[0].text for candidates in found][1] == "" and pairs.labels.names == ("0", "1", "2")
    for candidates, texts in ((found[0], ("film 1", "film 2")), (found[2], ("film 1 ", "film\t2"))):
        expected = log_probs_alone(pairs, params, *texts)
        np.testing.assert_allclose([candidate.score for candidate in candidates], sorted(expected)[::-1], rtol=1e-4)
    swapped = log_probs_alone(pairs, params, "film 2", "film 1")
    assert not np.allclose(swapped, log_probs_alone(pairs, params, "film 1", "film 2"))
    with pytest.raises(UserError, match="line 2 has no tab: the model was trained on pairs"):
        pairs.predict(params, ["a\tb", "a b"])


# The task as a whole


def test_texts_and_labels_that_training_did_not_have_are_named(config, task, params, pairs, tmp_path):
    path = tmp_path / "given.tsv"
    path.write_text("positive\tfilm\nsuperb\tfilm\n")
    with pytest.raises(UserError, match=r"given\.tsv:2: the training split has no label 'superb'; it has negative, ne"):
        task.evaluate(params, {"text": path})
    path.write_text("positive\tfilm\npositive\tfilm\tfilm\n")
    with pytest.raises(UserError, match=r"given\.tsv:2: a pair, where the training split has single texts"):
        task.evaluate(params, {"text": path})
    path.write_text("1\tfilm\n")
    with pytest.raises(UserError, match=r"given\.tsv:1: a single text, where the training split has pairs"):
        pairs.evaluate(params, {"text": path})
    with pytest.raises(UserError, match="task=text_classification scores --split or --text, not --source"):
        task.evaluate(params, {"source": path, "reference": path})
    (tmp_path / "train.tsv").write_text("1\tfilm\n1\tno film\n")
    with pytest.raises(UserError, match="the training split has no label but 1"):
        TextClassificationTask(changed(config, data={"directory": str(tmp_path)}))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"variant": "decoder_only"}}, "needs model.variant=encoder_only, not decoder_only"),
        ({"training": {"best_metric": "bleu"}}, "best_metric=bleu is no score .* use one of accuracy, f1, nll"),
        ({"data": {"batching": "pack"}}, "needs data.batching=bucket, not pack"),
        ({"data": {"source": "topics"}}, "data.source=topics is not one of files, phrases"),
        ({"training": {"label_smoothing_form": "without_padding"}}, "use uniform or others"),
        ({"model": {"activation": "rellu"}}, r"did you mean relu\?"),
        ({"model": {"vocab_size": 5}}, "model.vocab_size=5 is less than"),
    ],
)
def test_what_does_not_go_with_the_task_is_said_at_once(config, sections, message):
    with pytest.raises(UserError, match=message):
        TextClassificationTask(changed(config, **sections))


def test_a_pair_needs_two_types_or_none(config, pairs):
    data = {"directory": pairs.config.data.directory}
    with pytest.raises(UserError, match=r"model\.token_types=1 has no type for the second text of a pair"):
        TextClassificationTask(changed(config, data=data, model={"token_types": 1}))
    assert TextClassificationTask(changed(config, data=data, model={"token_types": 0})).labels.pairs


def test_a_trained_model_needs_no_training_data(config, task, params, pairs, tmp_path):
    for name, saved in {"single": task, "pairs": pairs}.items():
        (tmp_path / name).mkdir()
        saved.save_assets(tmp_path / name)
        gone = changed(saved.config, data={"directory": str(tmp_path / "gone")})
        loaded = TextClassificationTask(gone, tmp_path / name)
        assert loaded.labels == saved.labels and loaded.assets_fingerprint() == saved.assets_fingerprint()
        assert loaded.predict(params, ["a\tb", ""]) == saved.predict(params, ["a\tb", ""])
    (tmp_path / "single" / "labels.json").unlink()  # as where a run starts from parameters of another task
    assert TextClassificationTask(config, tmp_path / "single").labels == task.labels


def test_it_learns(config):
    """What kind of phrase it is, far better than by always guessing one of nine."""
    config = changed(
        config,
        data={"source": "phrases", "num_phrases": 1_000, "tokens_per_batch": 512, "max_source_length": 32},
        model={"d_model": 32, "d_ff": 64, "num_encoder_layers": 1, "pooling": "mean", "norm_placement": "pre"},
        evaluation={"max_examples": 211},
    )
    task = TextClassificationTask(config)
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(params, state, batch):
        def loss(params):
            total, count = task.loss(params, batch, None)["loss"]
            return total / count

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    params = unbox(jax.jit(task.init)(jax.random.key(0)))
    state = optimizer.init(params)
    for number in range(60):
        params, state = step(params, state, task.batch(number))
    scores = task.evaluate(params, "validation", during_training=True)
    assert scores["accuracy"] > scores["accuracy_of_majority"] + 0.4 and scores["f1"] > 0.5


@pytest.mark.slow
def test_from_training_to_scores(config, tmp_path, monkeypatch):
    """The loop and the loading know nothing of it but the protocol."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # leave the user's cache alone
    assert isinstance(TextClassificationTask(config), Task)
    assert train(config, tmp_path / "run") == 0
    run = load(tmp_path / "run", "best")
    scores = run.task.evaluate(run.params, "validation")
    logged = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert logged["validation_f1"] == pytest.approx(scores["f1"], rel=1e-5)
    assert set(run.predict(["film 3", "film 4"])) <= set(LABELS)
