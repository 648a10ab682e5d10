"""Images of every source: split exactly, seen once an epoch, and refused by name where something is wrong."""

import dataclasses
import functools
import gzip
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.shared_data import shared_data
from transformer.config import IMAGE_RESAMPLINGS, DataConfig
from transformer.data.images import (
    ImageArray,
    ImageClasses,
    ImagePipeline,
    Images,
    ImageSet,
    ImageSource,
    Preparation,
    check_augmentations,
    fitted,
    read_image,
    read_images,
    stratified_split,
)
from transformer.types import UserError

DIGITS = DataConfig(source="digits", split="random", test_share=0.2, validation_share=0.05)


def config(**changes) -> DataConfig:
    return dataclasses.replace(DataConfig(), **changes)


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_folder(folder, sizes={"train": 3, "val": 2}, *, classes=("cat", "dog"), size=(7, 5)):  # noqa: B006
    """PNG files of random pixels; the images by split and class."""
    images = {}
    for split, number in sizes.items():
        for name in classes:
            images[split, name] = pixels(number, size[1], size[0], 3, seed=len(images))
            (folder / split / name).mkdir(parents=True)
            for place, image in enumerate(images[split, name]):
                Image.fromarray(image).save(folder / split / name / f"{place}.png")
    return images


def write_csv(path, images, labels):
    lines = "".join(
        ",".join(map(str, [*image.ravel(), label])) + "\n" for image, label in zip(images, labels, strict=True)
    )
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())


# Splits


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(4, 41), min_size=1, max_size=7),
    test_share=st.sampled_from([0.0, 0.1, 0.2, 0.37]),
    validation_share=st.sampled_from([0.0, 0.05, 0.3]),
    seed=st.integers(0, 2**31),
)
def test_each_class_gives_its_share_and_each_image_stands_in_one_split(sizes, test_share, validation_share, seed):
    names = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(str)
    shares = {"test_share": test_share, "validation_share": validation_share}
    parts = stratified_split(names, **shares, seed=seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(len(names)))
    for name, share in (("test", test_share), ("validation", validation_share)):
        for number, size in enumerate(sizes):
            assert (names[parts[name]] == str(number)).sum() == int(size * share + 0.5)
        assert (np.diff(parts[name]) > 0).all()
    again = stratified_split(names, **shares, seed=seed)
    assert all(np.array_equal(parts[name], again[name]) for name in parts)
    other = stratified_split(names, test_share=test_share, validation_share=0.1, seed=seed)
    np.testing.assert_array_equal(parts["test"], other["test"])


def test_the_split_follows_the_seed_and_leaves_something_for_training():
    names = np.repeat(np.arange(3), 20).astype(str)
    parts = [stratified_split(names, validation_share=0.1, test_share=0.2, seed=seed)["test"] for seed in (0, 1)]
    assert not np.array_equal(*parts)
    with pytest.raises(UserError, match=r"the class 7 has 1 images: .* leave none of them for training"):
        stratified_split(np.array(["3"] * 9 + ["7"]), validation_share=0.0, test_share=0.5, seed=0)


def test_the_digits_come_with_the_package():
    source = ImageSource(DIGITS, 0)
    sizes = {name: len(source.split(name)) for name in ("train", "validation", "test")}
    assert sum(sizes.values()) == 1_797 and sizes["test"] == 359
    assert source.classes().names == tuple("0123456789") and source.classes().image_shape == (8, 8, 1)
    image = source.split("train")[3]
    assert image.dtype == np.uint8
    values = np.unique([source.split("test")[number] for number in range(359)])
    np.testing.assert_array_equal(values, np.round(np.arange(17) * 255 / 16))
    same, other = ImageSource(DIGITS, 0), ImageSource(DIGITS, 1)
    assert source.split("train").fingerprint() == same.split("train").fingerprint()
    assert source.split("train").fingerprint() != other.split("train").fingerprint()
    assert source.split("train").fingerprint() != source.split("test").fingerprint()


# Sources


def test_a_folder_has_a_folder_for_each_class(tmp_path):
    images = write_folder(tmp_path)
    source = ImageSource(config(source="image_folder", directory=str(tmp_path)), 0)
    for split, stem in (("train", "train"), ("validation", "val"), ("val", "val")):
        found = source.split(split)
        expected = np.concatenate([images[stem, "cat"], images[stem, "dog"]])
        np.testing.assert_array_equal([found[number] for number in range(len(found))], expected)
        np.testing.assert_array_equal(found.labels(("cat", "dog")), np.repeat([0, 1], len(expected) // 2))
    assert source.classes() == ImageClasses(("cat", "dog"), "cat", (5, 7, 3))
    joined = ImageSource(config(source="image_folder", directory=str(tmp_path), train=("val", "train")), 0)
    assert len(joined.split("train")) == 10
    np.testing.assert_array_equal(joined.split("train")[7], images["train", "dog"][0])


def test_files_of_different_sizes_need_a_size(tmp_path):
    write_folder(tmp_path)
    Image.fromarray(pixels(6, 4)).save(tmp_path / "train" / "cat" / "other.PNG")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    folder = config(source="image_folder", directory=str(tmp_path))
    with pytest.raises(UserError, match=r"other\.PNG has 4 x 6 pixels and .*0\.png 7 x 5: set data\.image_size"):
        ImageSource(folder, 0).split("train")
    images = ImageSource(dataclasses.replace(folder, image_size=6), 0).split("train")
    assert len(images) == 7
    assert Preparation(folder, (6, 6, 3))([images[number] for number in range(7)]).shape == (7, 6, 6, 3)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_a_table_has_a_line_for_each_image(tmp_path, ending):
    images, labels = pixels(23, 5, 5, 1), np.arange(23) % 3 + 8
    write_csv(tmp_path / f"all{ending}", images, labels)
    source = ImageSource(config(source="csv", directory=str(tmp_path), train=("all",), split="random"), 0)
    parts = [source.split(name) for name in ("train", "validation", "test")]
    assert sum(map(len, parts)) == 23
    assert source.classes().names == ("8", "9", "10")  # numbers in their order
    given = read_images(tmp_path / f"all{ending}")
    np.testing.assert_array_equal([given[number] for number in range(23)], images)
    np.testing.assert_array_equal(given.labels(("8", "9", "10")), labels - 8)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3)])
def test_arrays_of_all_splits_or_of_one(tmp_path, shape):
    images, labels = pixels(13, *shape), np.arange(13) % 3
    one, each = tmp_path / "one", tmp_path / "each"
    one.mkdir(), each.mkdir()
    np.savez(one / "all.npz", x_train=images[:8], y_train=labels[:8, None], x_val=images[8:], y_val=labels[8:])
    for stem, part in (("train", slice(8)), ("val", slice(8, None))):
        np.savez(each / f"{stem}.npz", x=images[part].astype(np.int64), y=labels[part].astype(str))
    for folder in (one, each):
        source = ImageSource(config(source="npz", directory=str(folder)), 0)
        for split, part in (("train", slice(8)), ("validation", slice(8, None))):
            found = source.split(split)
            stacked = np.stack([found[number] for number in range(len(found))])
            assert stacked.dtype == np.uint8
            np.testing.assert_array_equal(stacked, images[part].reshape(-1, 5, 7, *shape[2:] or (1,)))
            np.testing.assert_array_equal(found.labels(("0", "1", "2")), labels[part])
    assert len(read_images(each / "val.npz")) == 5


def test_the_real_sets():
    source = ImageSource(config(source="npz", directory=str(shared_data("cifar10-small"))), 0)
    assert len(source.split("train")) == 2_000 and len(source.split("validation")) == 500
    assert source.classes().names == tuple("0123456789") and source.classes().image_shape == (32, 32, 3)
    with pytest.raises(UserError, match=r"cifar10_small\.npz has no x_test; it has x_train, y_train, x_val, y_val"):
        source.split("test")


class PreparedDataSet:
    """What is used of ``tensorflow_datasets``, over these images."""

    def __init__(self, images):
        self.images = images
        label = SimpleNamespace(int2str=lambda number: ("cat", "dog")[number])
        formats = [SimpleNamespace(value="array_record")]
        self.info = SimpleNamespace(features={"image": None, "label": label}, available_file_formats=lambda: formats)
        self.decode = SimpleNamespace(SkipDecoding=object)

    def builder_from_directory(self, folder):
        assert (folder / "dataset_info.json").exists()
        return self

    def as_data_source(self, split, decoders=None):
        if split != "train":
            raise ValueError(f"Unknown split {split!r}")
        return [
            {"image": image if decoders is None else image.tobytes(), "label": number % 2}
            for number, image in enumerate(self.images)
        ]


def test_a_prepared_data_set_is_read_through_its_package(tmp_path, monkeypatch):
    tfds = config(source="tfds", directory=str(tmp_path))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert "data.source=tfds needs tensorflow_datasets: pip install -r requirements-tfds.txt" in user_error(
        ImageSource(tfds, 0).split, "train"
    )
    images = pixels(5, 7, 3, 1)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", PreparedDataSet(images))
    message = user_error(ImageSource(tfds, 0).split, "train")
    assert f"data.directory={tmp_path} is neither the folder of a prepared data set" in message
    (tmp_path / "dataset_info.json").touch()
    source = ImageSource(tfds, 0)
    found = source.split("train")
    assert source.classes() == ImageClasses(("cat", "dog"), "cat", (7, 3, 1))
    np.testing.assert_array_equal([found[number] for number in range(5)], images)
    np.testing.assert_array_equal(found.labels(("cat", "dog")), [0, 1, 0, 1, 0])
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", PreparedDataSet(images + 1))
    assert ImageSource(tfds, 0).split("train").fingerprint() != found.fingerprint()
    assert f"data.directory={tmp_path} has no images and labels in a split val" in user_error(
        source.split, "validation"
    )


def user_error(function, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3,4", "all.csv:2: there are 4 values, and there should be 5 as in line 1"),
        ("1,2,3,x,4", "all.csv:2: invalid literal for int() with base 10: 'x'; there must be nothing but whole"),
        ("1,2,3,256,4", "all.csv:2: pixels must lie in 0 to 255"),
        ("1,2,3,4,-1", "all.csv:2: pixels must lie in 0 to 255, and the label must not be negative"),
        ("", "all.csv:2: invalid literal"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    (tmp_path / "all.csv").write_text(f"1,2,3,4,0\n{line}\n")
    assert message in user_error(read_images, tmp_path / "all.csv")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((3, 5, 5), np.uint8)}, "has no y; it has x"),
        ({"x": np.zeros((3, 5)), "y": np.zeros(3, int)}, "x of shape (3, 5) is not [n, height, width"),
        ({"x": np.zeros((3, 5, 5, 2), np.uint8), "y": np.zeros(3, int)}, "(, 1 or 3 channels)"),
        ({"x": np.zeros((3, 5, 5)), "y": np.zeros(3, int)}, "x of type float64 must hold whole numbers from 0 to 255"),
        ({"x": np.full((3, 5, 5), 256), "y": np.zeros(3, int)}, "x of type int64 must hold whole numbers"),
        (
            {"x": np.zeros((3, 5, 5), np.uint8), "y": np.zeros(2, int)},
            "y of shape (2,) and type int64 is not one whole",
        ),
        ({"x": np.zeros((3, 5, 5), np.uint8), "y": np.zeros(3)}, "y of shape (3,) and type float64 is not one whole"),
        ({"x": np.array([{}]), "y": np.zeros(1, int)}, "cannot be read as arrays of NumPy"),
    ],
)
def test_bad_arrays_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    found = user_error(read_images, tmp_path / "bad.npz")
    assert message in found and str(tmp_path / "bad.npz") in found


def test_what_is_not_there_is_named(tmp_path):
    write_folder(tmp_path, {"train": 1})
    folder = config(source="image_folder", directory=str(tmp_path))
    path = str(tmp_path)
    for changes, split, message in (
        ({}, "validation", f"there is no folder {path}/val"),
        ({"directory": None}, "train", "data.directory is not set; data.source=image_folder needs the folder"),
        ({"directory": path + "x"}, "train", f"data.directory={path}x is not a folder"),
        ({"source": "csv"}, "train", f"there is no {path}/train.csv (nor train.csv.gz)"),
        ({"source": "npz"}, "train", f"there is no {path}/train.npz, nor is there one .npz for all splits"),
    ):
        assert message in user_error(ImageSource(dataclasses.replace(folder, **changes), 0).split, split)
    for changes, message in (
        ({"source": "phrases"}, "data.source=phrases is not one of digits, image_folder, npz, csv, tfds"),
        ({"split": "end"}, "data.split=end is for text"),
        ({"train_weights": (2,)}, "data.train_weights=(2,) is for text"),
        ({"source": "digits"}, "data.source=digits has no files for its splits; set data.split=random"),
    ):
        assert message in user_error(ImageSource, dataclasses.replace(folder, **changes), 0)
    assert "has no split val" in user_error(ImageSource(DIGITS, 0).split, "val")
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "text.txt").write_text("x")
    for name, message in (
        ("empty", f"{path}/empty/cat holds no image"),
        ("nothing", f"{path}/nothing holds no folders of images"),
        ("text.txt", f"{path}/text.txt is neither a folder of images"),
    ):
        assert message in user_error(read_images, tmp_path / name)
    assert "an image has the class dog, which is not one that the model knows: cat" in user_error(
        read_images(tmp_path / "train").labels, ("cat",)
    )
    with pytest.raises(UserError, match=r"flop is not one of flip, crop, mixup; did you mean flip\?"):
        check_augmentations(config(augmentations=("crop", "flop")))


def test_files_that_are_no_images_are_named(tmp_path):
    whole = tmp_path / "whole.png"
    Image.fromarray(pixels(9, 9)).save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:60])
    (tmp_path / "text.png").write_text("no image")
    Image.fromarray(np.full((3, 3), 40_000, np.uint16)).save(tmp_path / "deep.png")
    for name, message in (
        ("cut.png", "cannot be read as an image"),
        ("text.png", "cannot be read as an image"),
        ("deep.png", "has more than 8 bits a pixel and channel"),
        ("whale.png", f"there is no {tmp_path}/whale.png; {tmp_path} has whole.png"),
    ):
        found = user_error(read_image, tmp_path / name)
        assert message in found and str(tmp_path / name) in found


# What the model is given


def test_grey_and_colour_are_told_apart_by_the_shape():
    grey, colour = pixels(5, 7, 1), pixels(5, 7, 3)
    fit = functools.partial(fitted, config=config())
    assert fit(grey, (5, 7, 1)) is grey
    np.testing.assert_array_equal(fit(grey, (5, 7, 3)), np.repeat(grey, 3, axis=-1))
    np.testing.assert_array_equal(fit(np.repeat(grey, 3, axis=-1), (5, 7, 1)), grey)  # a grey file is read as RGB
    assert fit(colour, (10, 3, 1)).shape == (10, 3, 1)
    assert fit(np.full((5, 7, 3), 99, np.uint8), (11, 2, 3)).tolist() == np.full((11, 2, 3), 99).tolist()


@pytest.mark.parametrize("name", IMAGE_RESAMPLINGS)
def test_images_are_scaled_as_the_config_says(name):
    image, settings = pixels(17, 23, 3), config(image_size=10, image_resampling=name)
    number = IMAGE_RESAMPLINGS.index(name)
    expected = Image.fromarray(image).resize((10, 10), number)
    np.testing.assert_array_equal(fitted(image, (10, 10, 3), settings), np.asarray(expected))


def test_a_square_is_cut_out_of_the_middle():
    """Of a high image and a wide one, and of one that has the right size: it is enlarged first."""
    settings = config(image_size=8, image_crop=0.8, image_resampling="nearest")
    image = np.arange(30, dtype=np.uint8)[:, None, None] + np.zeros((1, 10, 3), np.uint8)
    np.testing.assert_array_equal(fitted(image, (8, 8, 3), settings)[:, 0, 0], np.arange(11, 19))
    wide = fitted(image.swapaxes(0, 1), (8, 8, 3), settings)
    np.testing.assert_array_equal(wide[0, :, 0], np.arange(11, 19))
    square = fitted(image[:8, :8], (8, 8, 3), settings)  # of 8 rows 10 are made
    assert square.shape == (8, 8, 3) and (square[0, 0, 0], square[-1, 0, 0]) == (1, 6)


def test_pixels_are_normalised_by_channel():
    image = pixels(5, 7, 3)
    prepared = Preparation(config(image_mean=(0.1, 0.2, 0.3), image_std=(0.5, 0.25, 2.0)), (5, 7, 3))([image])
    assert prepared.dtype == np.float32
    np.testing.assert_allclose(prepared[0], (image / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.25, 2.0], atol=1e-6)
    extremes = Preparation(config(), (1, 2, 1))([np.array([[[0], [255]]], np.uint8)])
    np.testing.assert_allclose(extremes.ravel(), [-1, 1])
    with pytest.raises(UserError, match=r"data\.image_mean=\(0\.1, 0\.2\) has 2 values, and the images 3 channels"):
        Preparation(config(image_mean=(0.1, 0.2)), (5, 7, 3))


def pipeline(number, rows, seed=0, **changes):
    images = Images([ImageArray(pixels(number, 5, 7, 1), np.arange(number).astype(str))])
    data = config(examples_per_batch=rows, **changes)
    classes = [str(label) for label in range(number)]
    return ImagePipeline(images, classes, Preparation(data, (5, 7, 1)), data, seed)


@settings(max_examples=30)
@given(number=st.integers(2, 29), rows=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_every_image_is_seen_once_before_any_is_seen_again(number, rows, seed):
    batches = pipeline(number, rows, seed)
    steps = 3 * number // rows + 2
    seen = np.concatenate([batches.numbers(step) for step in range(steps)])
    for epoch in range(3):
        np.testing.assert_array_equal(np.sort(seen[epoch * number : (epoch + 1) * number]), np.arange(number))
    assert batches.num_batches == -(-number // rows)
    np.testing.assert_array_equal(pipeline(number, rows, seed).numbers(steps - 1), seen[-rows:])


def test_batches_hold_the_images_and_their_labels():
    plain = pipeline(13, 5)
    batch, numbers = plain.batch(3), plain.numbers(3)
    assert batch.images.shape == (5, 5, 7, 1) and batch.images.dtype == np.float32
    np.testing.assert_allclose(batch.images, pixels(13, 5, 7, 1)[numbers] / 127.5 - 1, atol=1e-6)
    np.testing.assert_array_equal(batch.label_weights, np.eye(13)[numbers])
    np.testing.assert_array_equal(batch.loss_weights, 1)
    moved = pipeline(13, 5, augmentations=("flip", "crop", "mixup"), crop_padding=1, mixup_alpha=1.0)
    for got, again in zip(moved.batch(3), moved.batch(3), strict=True):
        np.testing.assert_array_equal(got, again)
    assert not np.array_equal(moved.batch(3).images, batch.images)
    assert moved.batch(3).images.min() >= -1 and moved.batch(3).images.max() <= 1
    np.testing.assert_allclose(moved.batch(3).label_weights.sum(axis=1), 1, rtol=1e-6)
    assert not np.array_equal(moved.numbers(0), pipeline(13, 5, seed=1).numbers(0))


def test_sets_are_joined_and_cut_by_number():
    sets = [
        ImageArray(pixels(3, 2, 2, 1, seed=1), np.array(["a"] * 3)),
        ImageArray(pixels(4, 5, 5, 3), np.array(["b"] * 4)),
    ]
    assert isinstance(sets[0], ImageSet)
    images = Images(sets)
    assert len(images) == 7 and images[2].shape == (2, 2, 1) and images[3].shape == (5, 5, 3)
    part = images.subset(np.array([6, 0])).subset(np.array([1, 0]))
    np.testing.assert_array_equal(part.class_names, ["a", "b"])
    np.testing.assert_array_equal(part[1], pixels(4, 5, 5, 3)[3])


def test_classes_are_saved_whole_or_not_at_all(tmp_path):
    classes = ImageClasses(("cat", "ñandú"), None, (5, 7, 3))
    classes.save(tmp_path)
    assert ImageClasses.load(tmp_path) == classes and [path.name for path in tmp_path.iterdir()] == ["labels.json"]
    assert ImageClasses.load(tmp_path / "elsewhere") is None
    (tmp_path / "labels.json").write_text('{"names": ["a"], "most_frequent": "a", "pairs": false}')
    with pytest.raises(UserError, match=r"labels\.json does not hold the classes of images \('image_shape'\)"):
        ImageClasses.load(tmp_path)
