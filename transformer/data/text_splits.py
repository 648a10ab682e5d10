"""The splits of the text in a folder: files of their own, or parts of the training files."""

import functools
import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config import DataConfig
from transformer.data.text_files import text_folder
from transformer.progress import progress
from transformer.types import UserError

SPLITS = ("train", "validation", "test")

logger = logging.getLogger(__name__)


class TextFiles:
    """Examples in the files of a folder: what pairs and documents have in common.

    The splits "train" (one stem or several, one after the other), "validation" and "test" are named by the config, or
    with ``data.split`` other than ``files`` all three are parts of the training files; any other split is the stem of
    files in the directory. Files are looked for when they are first needed. A subclass says which files belong to a
    stem, what examples they hold, and how a digest is made of examples.
    """

    _unit = "document"  # what an example is

    def __init__(self, config: DataConfig, seed: int):
        self._config = config
        self._seed = seed
        self._directory = text_folder(config)
        self._scans: dict[str, tuple[str, np.ndarray]] = {}

    def _files(self, stem: str) -> tuple[Path, ...]:
        """The files of a stem, or a ``UserError`` that names those that are there."""
        raise NotImplementedError

    def _read(self, files: tuple[Path, ...]) -> Iterator[Any]:
        """The examples in the files of a stem."""
        raise NotImplementedError

    def _text(self, example: Any) -> str:
        """All the text of an example."""
        raise NotImplementedError

    def _digest(self, examples: Iterable[Any]) -> str:
        """A digest, in hex, that no other examples have."""
        raise NotImplementedError

    def fingerprint_of(self, split: str) -> str:
        return self._scan(split)[0]

    def size(self, split: str) -> int:
        return int(self._scan(split)[1].sum())

    def repeats(self, split: str) -> np.ndarray | None:
        if split != "train" or all(weight == 1 for weight in self._config.train_weights):
            return None
        return np.repeat(np.asarray(self._config.train_weights, np.int32), self._scan(split)[1])

    def _examples(self, split: str) -> Iterator[Any]:
        return (example for _, example in self._numbered(split))

    def _numbered(self, split: str) -> Iterator[tuple[int, Any]]:
        """The examples of a split in the order of the files, each with the number of its stem."""
        return self._part(split) if self._is_part(split) else self._of_stems(self._stems(split))

    def _is_part(self, split: str) -> bool:
        return self._config.split != "files" and split in SPLITS

    def _of_stems(self, stems: Sequence[str]) -> Iterator[tuple[int, Any]]:
        found = [self._files(stem) for stem in stems]
        return ((number, example) for number, files in enumerate(found) for example in self._read(files))

    def _stems(self, split: str) -> tuple[str, ...]:
        config = self._config
        if self._is_part(split):
            return config.train
        named = {"train": config.train, "validation": (config.validation,), "test": (config.test,)}
        return named.get(split, (split,))

    def _part(self, split: str) -> Iterator[tuple[int, Any]]:
        """The examples of the training files that belong to a split."""
        empty = True
        for (stem, example), number in zip(self._of_stems(self._config.train), self._part_of_each, strict=True):
            if SPLITS[number] == split:
                empty = False
                yield stem, example
        if empty:
            config = self._config
            raise UserError(
                f"data.split={config.split} with data.validation_share={config.validation_share} and data.test_share="
                f"{config.test_share} leaves nothing of {len(self._part_of_each)} examples for the {split} split; "
                "change the shares, or give more or smaller examples"
            )

    @functools.cached_property
    def _part_of_each(self) -> np.ndarray:
        """The place in ``SPLITS`` of each example of the training files."""
        logger.info("reading the text of the training files, to split it")
        texts = (self._text(example) for _, example in self._of_stems(self._config.train))
        if self._config.split == "end":
            return parts_of(self._config, np.fromiter(map(len, texts), np.int64))
        drawn = np.fromiter(((len(text), _draw(text, self._seed)) for text in texts), [("size", "i8"), ("key", "u8")])
        keys, place = np.unique(drawn["key"], return_inverse=True)  # in their order, and the same for the same text
        return parts_of(self._config, np.bincount(place, drawn["size"], len(keys)))[place]

    def _scan(self, split: str) -> tuple[str, np.ndarray]:
        """The fingerprint of a split and the number of examples of each stem: the files are read once for both."""
        if split not in self._scans:
            sizes = np.zeros(len(self._stems(split)), np.int64)
            name = f"reading the text of the {split} split"
            logger.info(name)

            def examples() -> Iterator[Any]:
                for stem, example in progress(self._numbered(split), name, None, self._unit):
                    sizes[stem] += 1
                    yield example

            self._scans[split] = (self._digest(examples()), sizes)
        return self._scans[split]


def parts_of(config: DataConfig, sizes: np.ndarray) -> np.ndarray:
    """The place in ``SPLITS`` of each of some examples in a row: the first train, the last test.

    Each goes where its middle lies, so that a share is met to half an example.

    Args:
      config: ``validation_share`` and ``test_share``.
      sizes: of the examples, above 0; the shares are of their sum.
    """
    ends = np.cumsum(sizes)
    bounds = (1 - config.test_share - np.array([config.validation_share, 0.0])) * ends[-1]
    return np.searchsorted(bounds, ends - sizes / 2, side="right")


def _draw(text: str, seed: int) -> int:
    """A random number of 64 bits that belongs to a text."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {text}".encode(), digest_size=8).digest(), "little")


def check_own_splits(config: DataConfig) -> None:
    """Raise a ``UserError`` where the config would split what comes in splits."""
    if config.split != "files":
        raise UserError(
            f"data.split={config.split} is for data.source=files; {config.source} has splits of its own: leave the key "
            "at files"
        )
