"""Image classification: every image is scored once as it is, and a trained model needs no training data."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
from PIL import Image

from transformer.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig
from transformer.data.images import ImageArray, Images
from transformer.tasks import make_task
from transformer.tasks.image_classification import ImageClassificationTask, mixed_cross_entropy
from transformer.tasks.losses import cross_entropy
from transformer.training.loading import load
from transformer.training.partitioning import unbox
from transformer.training.trainer import train
from transformer.types import Candidate, Task, UserError

HEIGHT, WIDTH, CLASSES = 6, 10, ("2", "3", "11")
SIZES = {"train": 29, "val": 17, "test": 13}


def arrays(stem: str):
    """Random images, brighter for later classes; the second class is the most frequent in training."""
    rng = np.random.default_rng(len(stem))
    labels = np.sort(rng.integers(0, 3, SIZES[stem])) if stem != "train" else np.repeat([0, 1, 2], [7, 13, 9])
    images = rng.integers(0, 120, (len(labels), HEIGHT, WIDTH, 3)) + 60 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    folder = tmp_path_factory.mktemp("images")
    for stem in SIZES:
        images, labels = arrays(stem)
        np.savez(folder / f"{stem}.npz", x=images, y=np.array(CLASSES)[labels])
    return Config(
        task="image_classification",
        data=DataConfig(
            source="npz", directory=str(folder), examples_per_batch=7, augmentations=("flip", "crop", "mixup")
        ),
        model=ModelConfig(
            variant="encoder_only",
            d_model=14,
            d_ff=17,
            num_heads=2,
            num_encoder_layers=2,
            norm_placement="pre",
            position_encoding="learned",
            patch_size=2,
            dropout_rate=0.1,
            stochastic_depth_rate=0.1,
        ),
        training=TrainingConfig(
            num_steps=40,
            schedule="constant",
            learning_rate=3e-3,
            warmup_steps=5,
            label_smoothing=0.1,
            log_every=20,
            evaluate_every=40,
            checkpoint_every=20,
            best_metric="accuracy",
        ),
        decoding=DecodingConfig(tokens_per_batch=5 * 16 + 3),  # five images at a time
    )


def changed(config: Config, **sections) -> Config:
    """With keys of some sections replaced."""
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **keys) for name, keys in sections.items()}
    )


@pytest.fixture(scope="module")
def task(config):
    return ImageClassificationTask(config)


def fresh_params(task):
    """Random, and sharpened, so that outputs differ between images."""
    params = jax.tree.map(np.array, unbox(jax.jit(task.init)(jax.random.key(1))))
    params["classifier"]["linear"]["kernel"] *= 3
    return params


@pytest.fixture(scope="module")
def params(task):
    return fresh_params(task)


@functools.partial(jax.jit, static_argnames="model")
def forward(model, params, images):
    return jax.nn.log_softmax(model.apply({"params": params}, images, deterministic=True))


def log_probs_of(task, params, images):
    """One image at a time, normalised by hand."""
    return np.concatenate([forward(task.model, params, np.float32(image[None]) / 127.5 - 1) for image in images])


def test_every_image_is_scored_once_as_it_is(config, task, params, tmp_path):
    images, labels = arrays("test")
    log_probs = log_probs_of(task, params, images)
    found = log_probs.argmax(axis=1)
    assert len(set(found)) > 1
    scores = task.evaluate(params, "test", outputs=tmp_path / "outputs.txt")
    assert scores["num_examples"] == 13
    assert scores["accuracy"] == pytest.approx((found == labels).mean())
    assert scores["nll"] == pytest.approx(-log_probs[np.arange(13), labels].mean(), rel=1e-5)
    assert scores["accuracy_of_majority"] == pytest.approx((labels == 1).mean())
    f1 = []
    for label in np.union1d(labels, found):
        both = ((found == label) & (labels == label)).sum()
        f1.append(2 * both / ((found == label).sum() + (labels == label).sum()))
    assert scores["f1"] == pytest.approx(np.mean(f1))
    assert (tmp_path / "outputs.txt").read_text().splitlines() == [CLASSES[label] for label in found]
    for tokens in (1, 16 * 13):  # one at a time, and all at once
        other = ImageClassificationTask(changed(config, decoding={"tokens_per_batch": tokens}))
        again = other.evaluate(params, "test")
        assert again["nll"] == pytest.approx(scores["nll"], rel=1e-5) and again["accuracy"] == scores["accuracy"]


def test_files_are_scored_as_splits_are(config, task, params, tmp_path):
    split = task.evaluate(params, "test")
    assert task.evaluate(params, {"text": tmp_path.joinpath(config.data.directory, "test.npz")}) == split
    images, labels = arrays("test")
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = tmp_path / CLASSES[label]
        folder.mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / f"{number:02}.png")
    from_folder = task.evaluate(params, {"text": tmp_path})
    assert from_folder["num_examples"] == 13 and from_folder["accuracy"] == split["accuracy"]
    assert from_folder["nll"] == pytest.approx(split["nll"], rel=1e-5)
    with pytest.raises(UserError, match="one folder or file of images; it has no use for source, reference"):
        task.evaluate(params, {"source": tmp_path, "reference": tmp_path})


def test_the_quick_scores_of_training_are_of_all_classes(config, params):
    """Though the images are sorted by class."""
    quick = ImageClassificationTask(changed(config, evaluation={"max_examples": 5}))
    scores = quick.evaluate(params, "validation", during_training=True)
    images, labels = arrays("val")
    chosen = [0, 3, 6, 10, 13]
    log_probs = log_probs_of(quick, params, images[chosen])
    assert scores["num_examples"] == 5
    assert scores["nll"] == pytest.approx(-log_probs[np.arange(5), labels[chosen]].mean(), rel=1e-5)
    assert quick.evaluate(params, "validation")["num_examples"] == 17


# Loss


def test_loss_of_one_class_an_image_is_that_of_tokens():
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(5, 11)).astype(np.float32) * 3, rng.integers(0, 11, 5)
    weights = np.float32([1, 1, 0, 1, 0.5])
    logits[2] = np.nan
    shares = np.eye(11, dtype=np.float32)[targets]
    for smoothing in (0.0, 0.1):
        got = jax.jit(functools.partial(mixed_cross_entropy, label_smoothing=smoothing))(logits, shares, weights)
        expected = jax.jit(functools.partial(cross_entropy, label_smoothing=smoothing))(logits, targets, weights)
        for name in expected:
            np.testing.assert_allclose(got[name], expected[name], rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda x, *rest: mixed_cross_entropy(x, *rest)["loss"][0]))(logits, shares, weights)
    assert (gradient[2] == 0).all() and np.isfinite(gradient).all()


def test_loss_of_mixed_labels_by_hand():
    logits = np.log(np.float32([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
    shares = np.float32([[0.7, 0.3, 0.0], [0.6, 0.0, 0.4]])
    sums = jax.jit(functools.partial(mixed_cross_entropy, label_smoothing=0.3))(logits, shares, np.ones(2))
    smoothed = 0.7 * shares + 0.1
    assert float(sums["nll"][0]) == pytest.approx(-(shares * logits).sum(), rel=1e-5)
    assert float(sums["loss"][0]) == pytest.approx(-(smoothed * logits).sum(), rel=1e-5)
    assert float(sums["accuracy"][0]) == 1 and float(sums["loss"][1]) == 2


def test_training_batches_are_augmented_and_loss_sums_are_of_the_batch(config, task, params):
    batch = task.batch(2)
    assert batch.images.shape == (7, HEIGHT, WIDTH, 3) and batch.label_weights.shape == (7, 3)
    for got, again in zip(batch, ImageClassificationTask(config).batch(2), strict=True):
        np.testing.assert_array_equal(got, again)
    loss = jax.jit(lambda params, batch: task.loss(params, batch, None))
    nats, count = loss(params, batch)["nll"]
    expected = -(np.asarray(forward(task.model, params, batch.images)) * batch.label_weights).sum()
    assert float(nats) == pytest.approx(float(expected), rel=1e-5) and count == 7
    half = batch._replace(loss_weights=np.float32([1, 1, 1, 0, 0, 0, 0]))
    first = jax.tree.map(lambda leaf: leaf[:3], batch)
    np.testing.assert_allclose(loss(params, half)["loss"], loss(params, first)["loss"], rtol=1e-5)
    assert task.steps_per_epoch() == 5
    work = task.work(half)
    assert work["images"] == 3 and work["image_tokens"] == 3 * 16 and work["positions"] == 7 * 16
    patches_and_head = 2 * 7 * (HEIGHT * WIDTH * 3 * 14 + 14 * 3)
    layer = 16 * (4 * 14 * 14 + 2 * 14 * 17) + 2 * 16 * 16 * 14
    assert work["flops"] == 3 * (2 * 7 * 2 * layer + patches_and_head)


# Inference


@pytest.fixture
def lines(tmp_path):
    """Paths of images, a blank line, and an image of another size in grey."""
    images, _ = arrays("test")
    for number, image in enumerate(images[:6]):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    Image.fromarray(images[0, :, :, 0]).resize((31, 23)).save(tmp_path / "grey.jpg")
    paths = [str(tmp_path / f"{number}.png") for number in range(6)]
    return [*paths[:3], "  ", *paths[3:], str(tmp_path / "grey.jpg")]


def test_candidates_are_the_classes_of_the_images(task, params, lines):
    found = list(task.candidates(params, lines, 3))
    assert len(found) == len(lines) and found[3] == [Candidate("", 0.0)] * 3
    expected = log_probs_of(task, params, arrays("test")[0][:6])
    for candidates, values in zip([*found[:3], *found[4:7]], expected, strict=True):
        assert {candidate.text for candidate in candidates} == set(CLASSES)
        scores = [candidate.score for candidate in candidates]
        assert scores == sorted(scores, reverse=True)
        np.testing.assert_allclose(scores, [values[CLASSES.index(one.text)] for one in candidates], atol=1e-5)
    assert task.predict(params, lines) == [candidates[0].text for candidates in found]
    assert list(task.candidates(params, ["", " "], 2)) == [[Candidate("", 0.0)] * 2] * 2
    with pytest.raises(UserError, match="num_best=4 is more than there are classes: 3"):
        next(task.candidates(params, lines, 4))
    with pytest.raises(UserError, match=r"there is no .*nowhere\.png"):
        task.predict(params, ["nowhere.png"])


def test_features_are_what_the_classifier_is_given(task, params, lines):
    images, labels = arrays("test")
    features = task.embed(params, images)
    assert features.shape == (13, 14) and features.dtype == np.float32
    linear = params["classifier"]["linear"]
    log_probs = jax.nn.log_softmax(features @ linear["kernel"] + linear["bias"])
    np.testing.assert_allclose(log_probs, log_probs_of(task, params, images), atol=1e-5)
    np.testing.assert_allclose(task.embed(params, lines[:3]), features[:3], atol=1e-5)
    np.testing.assert_allclose(task.embed(params, Images([ImageArray(images, labels.astype(str))])), features)
    np.testing.assert_allclose(task.embed({"encoder": params["encoder"]}, images), features, atol=1e-6)


def test_a_trained_model_needs_no_data(config, task, params, lines, tmp_path):
    task.save_assets(tmp_path)
    alone = ImageClassificationTask(changed(config, data={"directory": str(tmp_path / "gone")}), tmp_path)
    assert alone.classes == task.classes and alone.predict(params, lines) == task.predict(params, lines)
    assert alone.assets_fingerprint() == task.assets_fingerprint() == "none"
    assert task.data_fingerprint() == ImageClassificationTask(config).data_fingerprint()
    with pytest.raises(UserError, match="is not a folder"):
        alone.batch(0)


def test_parameters_fit_another_resolution(config, task, params):
    """The table of positions keeps the size that its key says, and is interpolated."""
    larger = ImageClassificationTask(changed(config, data={"image_size": 14}, model={"position_grid": 5}))
    assert larger.classes.image_shape == (14, 14, 3) and larger.batch(0).images.shape == (7, 14, 14, 3)
    shapes = jax.tree.map(lambda leaf: leaf.shape, unbox(jax.eval_shape(larger.init, jax.random.key(0))))
    assert shapes == jax.tree.map(lambda leaf: leaf.shape, params)  # made for 6 x 10, a grid of 5 x 5
    assert larger.evaluate(params, "test")["num_examples"] == 13


def test_a_trained_model_is_used_at_another_resolution(config, task, params, tmp_path):
    """Its table of positions, which no key sizes, keeps the size of the images it was trained on."""
    task.save_assets(tmp_path)
    larger = ImageClassificationTask(changed(config, data={"image_size": 14}), tmp_path)
    assert larger.classes.image_shape == (14, 14, 3) and larger.model.config.position_grid == 5
    assert larger.evaluate(params, "test")["num_examples"] == 13


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"variant": "decoder_only"}}, "image_classification needs model.variant=encoder_only, not decoder"),
        ({"model": {"pooling": "first", "class_token": False}}, r"set model\.class_token=True"),
        ({"model": {"patch_size": 4}}, "images of 6 x 10 pixels are no whole patches .* height could be 4 or 8"),
        ({"training": {"best_metric": "bleu"}}, "best_metric=bleu is no score .* use one of accuracy, f1, nll"),
        ({"training": {"label_smoothing_form": "others"}}, "label_smoothing_form=others is for tokens"),
        ({"data": {"augmentations": ("flop",)}}, r"did you mean flip\?"),
        ({"data": {"image_std": (1.0, 1.0)}}, "has 2 values, and the images 3 channels"),
    ],
)
def test_what_does_not_go_with_the_task_is_said_at_once(config, sections, message):
    with pytest.raises(UserError, match=message):
        ImageClassificationTask(changed(config, **sections))


@pytest.mark.slow
def test_from_training_to_scores(config, tmp_path, monkeypatch):
    """The loop and the loading know nothing of it but the protocol. Brightness tells the classes apart."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # leave the user's cache alone
    config = changed(config, training={"num_steps": 80, "evaluate_every": 80})
    assert isinstance(make_task(config), Task)
    assert train(config, tmp_path / "run") == 0
    run = load(tmp_path / "run", "best")
    scores = run.task.evaluate(run.params, "validation")
    assert scores["accuracy"] > 0.9
    logged = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert logged["validation_accuracy"] == scores["accuracy"]
