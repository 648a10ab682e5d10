"""Where images come from: scikit-learn's digits, arrays, tables and folders, behind one small interface; and batches.

An image is uint8 [height, width, channels], with one channel (grey) or three (RGB); its class is a name.
"""

import hashlib
import importlib
import json
import logging
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Protocol, runtime_checkable

import numpy as np

from transformer.config import DataConfig
from transformer.data.augmentation import AUGMENTATIONS, augment, rng_of
from transformer.data.batching import ALL_ROWS, PerEpoch
from transformer.data.labeled_text import LABELS_NAME, save_labels
from transformer.data.text_files import existing_file, names_near, read_lines
from transformer.data.tfds_builders import open_builder
from transformer.progress import progress
from transformer.types import ImageBatch, UserError, one_of

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
SPLITS = ("train", "validation", "test")

Shape = tuple[int, int, int]  # height, width, channels

logger = logging.getLogger(__name__)


# It has methods only: isinstance, by which tests check annotations, would compute a property.
@runtime_checkable
class ImageSet(Protocol):
    """Images in a row, each with the name of its class."""

    def class_names(self) -> np.ndarray:
        """Of each image, str [n]."""
        ...

    def image(self, number: int) -> np.ndarray:
        """uint8 [height, width, channels]."""
        ...

    def identity(self, number: int) -> bytes:
        """What tells an image from others, to make fingerprints of."""
        ...


class ImageArray:
    """Images of one size, in memory."""

    def __init__(self, images: np.ndarray, class_names: np.ndarray):
        self._images = images
        self._class_names = class_names

    def class_names(self) -> np.ndarray:
        return self._class_names

    def image(self, number: int) -> np.ndarray:
        return self._images[number]

    def identity(self, number: int) -> bytes:
        return self._images[number].tobytes()


class ImageFolder:
    """Files ``FOLDER/CLASS/NAME.png`` (or .jpg, ...; also deeper within the class), read as RGB when needed.

    A fingerprint is made of their names and sizes, not of their content.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._paths: list[Path] = []
        names, others = [], 0
        for class_folder in sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."):
            files = sorted(path for path in class_folder.rglob("*") if path.is_file() and path.name[0] != ".")
            found = [path for path in files if path.suffix.lower() in IMAGE_ENDINGS]
            if not found:
                raise UserError(f"{class_folder} holds no image ({', '.join(IMAGE_ENDINGS)})")
            self._paths += found
            names += [class_folder.name] * len(found)
            others += len(files) - len(found)
        if not names:
            raise UserError(f"{folder} holds no folders of images, one for each class")
        if others:
            logger.warning("%s: left out %d files whose names are not those of images", folder, others)
        self._class_names = np.array(names)

    def class_names(self) -> np.ndarray:
        return self._class_names

    def image(self, number: int) -> np.ndarray:
        return read_image(self._paths[number])

    def identity(self, number: int) -> bytes:
        path = self._paths[number]
        return f"{path.relative_to(self._folder)} {path.stat().st_size}\n".encode()

    def require_one_size(self) -> None:
        """See that all files have the size of the first; only their beginnings are read.

        Raises:
          UserError: for the first that has not.
        """
        sizes = (_opened(path, lambda picture: picture.size) for path in self._paths)
        first: tuple[int, int] = next(sizes)
        paths = progress(self._paths[1:], f"looking at the images in {self._folder}", len(self._paths) - 1, "image")
        for path, size in zip(paths, sizes, strict=True):
            if size != first:
                raise UserError(
                    f"{path} has {size[0]} x {size[1]} pixels and {self._paths[0]} {first[0]} x {first[1]}: set "
                    "data.image_size, to which all are scaled"
                )


class TfdsImages:
    """A split of a data set that TensorFlow Datasets has prepared as ArrayRecord, read as NumPy when needed.

    The package reads that format without TensorFlow. See :mod:`transformer.data.tfds_builders` for its names.
    """

    def __init__(self, config: DataConfig, split: str):
        tfds, builder = open_builder(config, ("image", "label"))
        features = builder.info.features
        try:
            self._images = builder.as_data_source(split)
            self._records = builder.as_data_source(split, decoders={"image": tfds.decode.SkipDecoding()})
            labels = [int(self._records[number]["label"]) for number in range(len(self._records))]
        except Exception as error:  # the package has no common base of what it raises
            raise UserError(
                f"data.directory={config.directory} has no images and labels in a split {split}: {error}"
            ) from error
        self._class_names = np.array([features["label"].int2str(label) for label in labels])

    def class_names(self) -> np.ndarray:
        return self._class_names

    def image(self, number: int) -> np.ndarray:
        return self._images[number]["image"]

    def identity(self, number: int) -> bytes:
        return self._records[number]["image"]


class Images:
    """The images of a split: some of one set or of several."""

    def __init__(self, sets: Sequence[ImageSet], numbers: np.ndarray | None = None):
        """
        Args:
          numbers: which images, counted through all sets; None: all.
        """
        names = [one.class_names() for one in sets]
        self._sets = sets
        self._ends = np.cumsum([len(of_set) for of_set in names])
        self._numbers = np.arange(self._ends[-1]) if numbers is None else numbers
        self.class_names = np.concatenate(names)[self._numbers]

    def __len__(self) -> int:
        return len(self._numbers)

    def subset(self, numbers: np.ndarray) -> "Images":
        """Those of the images with these numbers."""
        return Images(self._sets, self._numbers[numbers])

    def __getitem__(self, number: int) -> np.ndarray:
        found, within = self._place(number)
        return found.image(within)

    def fingerprint(self) -> str:
        """A digest, in hex, of the images in their order, and their classes."""
        digest = hashlib.blake2b(digest_size=16)
        for number, name in enumerate(self.class_names):
            found, within = self._place(number)
            content = found.identity(within)
            digest.update(f"{name}\n{len(content)}\n".encode() + content)
        return digest.hexdigest()

    def labels(self, classes: Sequence[str]) -> np.ndarray:
        """The place of each image's class among ``classes``, int32.

        Raises:
          UserError: for a class that is not there.
        """
        places = {name: place for place, name in enumerate(classes)}
        found, inverse = np.unique(self.class_names, return_inverse=True)
        for name in found:
            if name not in places:
                shown = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
                raise UserError(f"an image has the class {name}, which is not one that the model knows: {shown}")
        return np.array([places[name] for name in found], np.int32)[inverse]

    def _place(self, number: int) -> tuple[ImageSet, int]:
        number = int(self._numbers[number])
        place = int(np.searchsorted(self._ends, number, side="right"))
        return self._sets[place], number - (int(self._ends[place - 1]) if place else 0)


class ImageSource:
    """What ``data.source`` names, in splits.

    With ``data.split=files`` the config names the files of "train" (one stem or several, one after the other),
    "validation" and "test", and any other split is the stem of files in the directory. With ``random`` these three are
    parts of the images of ``data.train``, see :func:`stratified_split`.

    Raises:
      UserError: for what cannot be found.
    """

    def __init__(self, config: DataConfig, seed: int):
        self._config = config
        self._seed = seed
        self._open = one_of("data.source", config.source, IMAGE_SOURCES)
        if config.split == "end":
            raise UserError("data.split=end is for text; images are split by data.split=files or random")
        if config.source == "digits" and config.split == "files":
            raise UserError("data.source=digits has no files for its splits; set data.split=random")
        if config.train_weights:
            raise UserError(f"data.train_weights={config.train_weights} is for text; images are read once an epoch")
        self._splits: dict[str, Images] = {}

    def split(self, name: str) -> Images:
        """The images of a split."""
        if name not in self._splits:
            self._splits |= self._read(name)
        return self._splits[name]

    def classes(self) -> "ImageClasses":
        """Those of the training split, and the shape of its first image."""
        images = self.split("train")
        names, counts = np.unique(images.class_names, return_counts=True)
        if len(names) == 1:
            raise UserError(f"all training images have the class {names[0]}: there is nothing to learn")
        most_frequent = str(names[counts.argmax()])
        numbers = all(re.fullmatch(r"\d+", name) for name in names)
        in_order = sorted(names.tolist(), key=int if numbers else None)
        height, width, channels = images[0].shape
        return ImageClasses(tuple(in_order), most_frequent, (height, width, channels))

    def _read(self, name: str) -> dict[str, Images]:
        config = self._config
        if config.split == "random" and name in SPLITS:
            images = self._join(config.train)
            parts = stratified_split(
                images.class_names,
                validation_share=config.validation_share,
                test_share=config.test_share,
                seed=self._seed,
            )
            return {split: images.subset(numbers) for split, numbers in parts.items()}
        if config.source == "digits":
            raise UserError(f"data.source=digits has no split {name}; use one of {', '.join(SPLITS)}")
        named = {"train": config.train, "validation": (config.validation,), "test": (config.test,)}
        return {name: self._join(named.get(name, (name,)))}

    def _join(self, stems: tuple[str, ...]) -> Images:
        return Images([self._open(self._config, stem) for stem in stems])


class ImageClasses(NamedTuple):
    """What a model of images tells apart, and what it looks at: all that its use needs of the training data.

    names          of the classes: numbers in their order, other names in that of the alphabet
    most_frequent  in the training split; None if it is not known
    image_shape    (height, width, channels) of the images that the model is given
    """

    names: tuple[str, ...]
    most_frequent: Optional[str]
    image_shape: Shape

    @classmethod
    def load(cls, folder: Path) -> "ImageClasses | None":
        """What :meth:`save` wrote; None where it is not.

        Raises:
          UserError: if the file holds something else.
        """
        path = folder / LABELS_NAME
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            height, width, channels = saved["image_shape"]
            return cls(tuple(saved["names"]), saved["most_frequent"], (height, width, channels))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} does not hold the classes of images ({error}); put the file back") from None

    def save(self, folder: Path) -> None:
        """Write ``folder/labels.json``, whole or not at all."""
        save_labels(folder, self._asdict())


def stratified_split(
    class_names: np.ndarray, *, validation_share: float, test_share: float, seed: int
) -> dict[str, np.ndarray]:
    """The numbers of the images of each split, ascending: of each class the same share, to half an image.

    Which they are follows from the names and the seed; those of "test" do not change with ``validation_share``.

    Raises:
      UserError: if a class has no image left for training.
    """
    names, classes, counts = np.unique(class_names, return_inverse=True, return_counts=True)
    keys = np.random.default_rng(seed).random(len(classes))
    order = np.lexsort((keys, classes))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    for_test, for_validation = (
        np.floor(counts * share + 0.5).astype(np.int64) for share in (test_share, validation_share)
    )
    missing = np.flatnonzero(for_test + for_validation >= counts)
    if len(missing):
        raise UserError(
            f"the class {names[missing[0]]} has {counts[missing[0]]} images: data.test_share={test_share} and "
            f"data.validation_share={validation_share} leave none of them for training"
        )
    in_test = ranks < for_test[classes]
    held_out = ranks < (for_test + for_validation)[classes]
    masks = {"train": ~held_out, "validation": held_out & ~in_test, "test": in_test}
    return {split: np.flatnonzero(mask) for split, mask in masks.items()}


def read_images(path: Path) -> Images:
    """All images of a folder as :class:`ImageFolder`, an ``.npz`` with x and y, or a ``.csv`` (``.csv.gz``).

    Raises:
      UserError: if it is none of these, or cannot be read.
    """
    if path.is_dir():
        return Images([ImageFolder(path)])
    if path.suffix == ".npz":
        return Images([_read_npz(path, "x", "y")])
    if path.name.endswith((".csv", ".csv.gz")):
        return Images([_read_csv(path)])
    raise UserError(f"{path} is neither a folder of images, one folder a class, nor a .npz or .csv file")


# Sources


def open_digits(config: DataConfig, stem: str) -> ImageSet:
    """1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn, 17 levels of grey spread over 0 to 255.

    Reference: Alpaydin & Kaynak, Optical Recognition of Handwritten Digits (UCI, 1998), its test set.
    """
    datasets = _needed("sklearn.datasets", "scikit-learn", "data.source=digits")
    digits = datasets.load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)
    return ImageArray(pixels[..., None], digits.target.astype(str))


def open_folder(config: DataConfig, stem: str) -> ImageSet:
    """``DIRECTORY/STEM/CLASS/*.png`` and so on."""
    folder = image_directory(config) / stem
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}{names_near(folder)}")
    images = ImageFolder(folder)
    if config.image_size is None:
        images.require_one_size()
    return images


def open_npz(config: DataConfig, stem: str) -> ImageSet:
    """``DIRECTORY/STEM.npz`` with x and y, or else the one ``.npz`` of the directory with x_STEM and y_STEM."""
    directory = image_directory(config)
    path = directory / f"{stem}.npz"
    if path.exists():
        return _read_npz(path, "x", "y")
    found = sorted(directory.glob("*.npz"))
    if len(found) != 1:
        names = ", ".join(other.name for other in found) or "no .npz at all"
        raise UserError(f"there is no {path}, nor is there one .npz for all splits: {directory} has {names}")
    return _read_npz(found[0], f"x_{stem}", f"y_{stem}")


def open_csv(config: DataConfig, stem: str) -> ImageSet:
    """``DIRECTORY/STEM.csv``, plain or gzipped."""
    directory = image_directory(config)
    path = directory / (stem if stem.endswith(".csv") else f"{stem}.csv")
    found = existing_file(path)
    if found is None:
        raise UserError(f"there is no {path} (nor {path.name}.gz){names_near(path)}")
    return _read_csv(found)


def open_tfds(config: DataConfig, stem: str) -> ImageSet:
    """The split STEM of the data set that DIRECTORY names, ``mnist`` or ``mnist:3.0.1``, or that is prepared there."""
    return TfdsImages(config, stem)


IMAGE_SOURCES: dict[str, Callable[[DataConfig, str], ImageSet]] = {
    "digits": open_digits,
    "image_folder": open_folder,
    "npz": open_npz,
    "csv": open_csv,
    "tfds": open_tfds,
}
"""The names that ``data.source`` may have, and what opens the images of a stem."""


def image_directory(config: DataConfig) -> Path:
    """``data.directory``.

    Raises:
      UserError: if it is not set, or is no folder.
    """
    if config.directory is None:
        raise UserError(
            f"data.directory is not set; data.source={config.source} needs the folder of the images: "
            "--config.data.directory=DIR"
        )
    folder = Path(config.directory).expanduser()
    if not folder.is_dir():
        raise UserError(f"data.directory={config.directory} is not a folder{names_near(folder)}")
    return folder


def _read_npz(path: Path, images_key: str, labels_key: str) -> ImageArray:
    """Images uint8 [n, height, width] or [n, height, width, channels], and a label for each, a number or a name."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for key in (images_key, labels_key):
                if key not in arrays:
                    raise UserError(f"{path} has no {key}; it has {', '.join(arrays)}")
            images, labels = arrays[images_key], arrays[labels_key]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} cannot be read as arrays of NumPy: {error}") from None
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or 0 in images.shape:
        raise UserError(f"{path}: {images_key} of shape {images.shape} is not [n, height, width(, 1 or 3 channels)]")
    if images.dtype != np.uint8:
        if images.dtype.kind not in "iu" or images.min() < 0 or images.max() > 255:
            raise UserError(f"{path}: {images_key} of type {images.dtype} must hold whole numbers from 0 to 255")
        images = images.astype(np.uint8)
    if labels.shape != (len(images),) or labels.dtype.kind not in "iuU":
        raise UserError(
            f"{path}: {labels_key} of shape {labels.shape} and type {labels.dtype} is not one whole number or name for "
            f"each of the {len(images)} images of {images_key}"
        )
    return ImageArray(images, labels.astype(str))


def _read_csv(path: Path) -> ImageArray:
    """A line for each square grey image: its pixels, 0 to 255, row by row, then its label, a whole number."""
    rows: list[list[int]] = []
    side = 0
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = [int(value) for value in line.split(",")]
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}; there must be nothing but whole numbers") from None
        if not rows:
            side = int(np.sqrt(len(row) - 1))
        if not side or len(row) != side * side + 1:
            expected = f"{side * side + 1} as in line 1" if rows else "the pixels of a square image and a label"
            raise UserError(f"{path}:{number}: there are {len(row)} values, and there should be {expected}")
        if min(row) < 0 or max(row[:-1]) > 255:
            raise UserError(f"{path}:{number}: pixels must lie in 0 to 255, and the label must not be negative")
        rows.append(row)
    if not rows:
        raise UserError(f"{path} is empty")
    values = np.array(rows)
    return ImageArray(values[:, :-1].astype(np.uint8).reshape(-1, side, side, 1), values[:, -1].astype(str))


def read_image(path: Path) -> np.ndarray:
    """An image file as RGB, uint8 [height, width, 3]; transparency is dropped.

    Raises:
      UserError: if there is none, it cannot be read, or its pixels have more than 8 bits.
    """

    def convert(picture: Any) -> np.ndarray:
        if picture.mode.startswith("I") or picture.mode == "F":
            raise UserError(f"{path} has more than 8 bits a pixel and channel; convert it first")
        return np.asarray(picture.convert("RGB"))

    pixels: np.ndarray = _opened(path, convert)
    return pixels


def _opened(path: Path, use: Callable[[Any], Any]) -> Any:
    """What ``use`` makes of an image file."""
    pillow = _needed("PIL.Image", "pillow", f"reading {path.name}")
    try:
        with pillow.open(path) as picture:
            return use(picture)
    except FileNotFoundError:
        raise UserError(f"there is no {path}{names_near(path)}") from None
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:  # Pillow's, by file format
        raise UserError(f"{path} cannot be read as an image: {error}") from None


def _needed(module: str, install: str, what: str) -> Any:
    """A module that only some sources need, and what pip must be told to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{what} needs {module}: pip install {install} ({error})") from None


# Batches


def fitted(image: np.ndarray, shape: Shape, config: DataConfig) -> np.ndarray:
    """An image with this many channels and pixels: scaled by Pillow, which smooths where images get smaller.

    With ``data.image_crop`` it keeps its form: the square, that share of its shorter side, is cut out of the middle.
    """
    if image.shape == shape and config.image_crop is None:
        return image
    pillow = _needed("PIL.Image", "pillow", f"making images of {image.shape} into {shape}")
    height, width, channels = shape
    picture = pillow.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    picture = picture.convert("L" if channels == 1 else "RGB")
    size: tuple[int, ...] = (width, height)
    if config.image_crop is not None:
        size = tuple(round(height / config.image_crop) * side // min(picture.size) for side in picture.size)
    if picture.size != size:
        picture = picture.resize(size, pillow.Resampling[config.image_resampling.upper()])
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return np.asarray(picture.crop((left, top, left + width, top + height))).reshape(shape)


class Preparation:
    """From images to what the model is given: fitted to a shape, pixels in 0 to 1, normalised."""

    def __init__(self, config: DataConfig, shape: Shape):
        self.shape = shape
        self._config = config
        self._mean, self._std = (self._of_channels(config, key) for key in ("image_mean", "image_std"))

    def pixels(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """float32 [n, height, width, channels] in 0 to 1."""
        equal = [fitted(image, self.shape, self._config) for image in images]
        return np.stack(equal).astype(np.float32) / np.float32(255)

    def normalized(self, pixels: np.ndarray) -> np.ndarray:
        """Each channel less its mean, by its standard deviation."""
        return (pixels - self._mean) / self._std

    def __call__(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return self.normalized(self.pixels(images))

    def _of_channels(self, config: DataConfig, key: str) -> np.ndarray:
        values = getattr(config, key)
        if len(values) not in (1, self.shape[-1]):
            raise UserError(f"data.{key}={values} has {len(values)} values, and the images {self.shape[-1]} channels")
        return np.array(values, np.float32)


class ImagePipeline:
    """Training batches: ``batch(n)`` depends on nothing but the images, the config, the seed and n.

    The epochs, each in an order of its own, follow each other without a gap: every image is seen once before any is
    seen again, every batch is full, and one across the end of an epoch holds images of both.

    Attributes:
      num_batches: per epoch, the one across its end included.
    """

    def __init__(self, images: Images, classes: Sequence[str], preparation: Preparation, config: DataConfig, seed: int):
        self._images = images
        self._labels = images.labels(classes)
        self._num_classes = len(classes)
        self._preparation = preparation
        self._config = config
        self._seed = seed
        self.num_batches = -(-len(images) // config.examples_per_batch)
        self._order = PerEpoch(lambda epoch: np.random.default_rng([seed, epoch]).permutation(len(images)))

    def steps_of_shapes(self) -> tuple[int, ...]:
        """Of each shape that a batch can have the first step with it, ascending."""
        return (0,)

    def batch(self, step: int, rows: slice = ALL_ROWS) -> ImageBatch:
        """Batch number ``step``, counted from 0 across epochs, or some rows of it; mixup needs all to make them."""
        numbers = self.numbers(step)
        pixels = self._preparation.pixels([self._images[number] for number in numbers.tolist()])
        label_weights = np.eye(self._num_classes, dtype=np.float32)[self._labels[numbers]]
        pixels, label_weights = augment(pixels, label_weights, rng_of(self._seed, step), self._config)
        return ImageBatch(
            images=self._preparation.normalized(pixels[rows]),
            label_weights=label_weights[rows],
            loss_weights=np.ones(len(numbers), np.float32)[rows],
        )

    def numbers(self, step: int) -> np.ndarray:
        """Which images batch number ``step`` holds."""
        rows = self._config.examples_per_batch
        epochs, places = np.divmod(step * rows + np.arange(rows), len(self._images))
        return np.concatenate([self._order(epoch)[places[epochs == epoch]] for epoch in np.unique(epochs).tolist()])


def check_augmentations(config: DataConfig) -> None:
    """Raise a ``UserError`` for a name in ``data.augmentations`` that is none."""
    for name in config.augmentations:
        one_of("data.augmentations", name, AUGMENTATIONS)
