"""Pairs of a translation data set of TensorFlow Datasets, read from its ArrayRecord files without TensorFlow."""

import hashlib
import importlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer.config import DataConfig
from transformer.data.cache import cache_folder, writing_cache
from transformer.data.pairs import digest_of_pairs
from transformer.data.text_splits import check_own_splits
from transformer.data.tfds_builders import open_builder
from transformer.paths import write_text
from transformer.progress import progress
from transformer.types import UserError

RECORDS_PER_READ = 4_096

logger = logging.getLogger(__name__)


class TfdsPairs:
    """The data set that ``data.directory`` names, in the direction that the config states.

    The name of a data set, ``wmt14_translate/de-en``, says nothing about direction. The splits "train" (one or
    several), "validation" and "test" are those that ``data.train``, ``data.validation`` and ``data.test`` name; parts
    of them, ``train[:1%]``, are splits too.

    The fingerprint is of the text, as for other sources: preparing a data set anew gives other files with the same
    text. It is kept in the cache under a digest of the files, so that later the text need not be read for it.
    """

    def __init__(self, config: DataConfig):
        check_own_splits(config)
        self._config = config
        self._languages = (config.source_language, config.target_language)
        self._package, self._builder = open_builder(config, self._languages)
        self._fingerprints: dict[str, str] = {}
        for name in config.train:
            self._info(name)

    def fingerprint_of(self, split: str) -> str:
        if split not in self._fingerprints:
            path = cache_folder(self._config) / "fingerprints" / self._digest_of_files(split)
            if not path.exists():
                pairs = progress(self.pairs(split), f"reading {split}", self.size(split), "pair")
                fingerprint = digest_of_pairs(pairs)
                with writing_cache(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_text(path, fingerprint)
            self._fingerprints[split] = path.read_text()
        return self._fingerprints[split]

    def _digest_of_files(self, split: str) -> str:
        """Of their bytes, of which parts of them belong to the split, and of the direction."""
        logger.info("looking at the files of the %s split", split)
        digest = hashlib.blake2b(repr(self._languages).encode(), digest_size=16)
        for name in self._names(split):
            for part in self._info(name).file_instructions:
                digest.update(f"\n{part.skip} {part.take} {part.examples_in_shard} ".encode())
                with open(part.filename, "rb") as file:
                    digest.update(hashlib.file_digest(file, "blake2b").digest())
        return digest.hexdigest()

    def size(self, split: str) -> int:
        return sum(self._info(name).num_examples for name in self._names(split))

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return (pair for name in self._names(split) for pair in self._read(name))

    def repeats(self, split: str) -> np.ndarray | None:
        if split != "train" or all(weight == 1 for weight in self._config.train_weights):
            return None
        sizes = [self._info(name).num_examples for name in self._config.train]
        return np.repeat(np.asarray(self._config.train_weights, np.int32), sizes)

    def _names(self, split: str) -> tuple[str, ...]:
        config = self._config
        named = {"train": config.train, "validation": (config.validation,), "test": (config.test,)}
        return named.get(split, (split,))

    def _info(self, name: str) -> Any:
        """What the package knows of a split."""
        splits = self._builder.info.splits
        try:
            return splits[name]
        except Exception as error:  # the package has no common base of what it raises
            raise UserError(
                f"data.directory={self._config.directory} has no split {name}; it has {', '.join(splits)} (data.train, "
                "data.validation, data.test)"
            ) from error

    def _read(self, name: str) -> Iterator[tuple[str, str]]:
        source, target = self._languages
        self._info(name)
        # The package's own decoding to NumPy takes three times as long, for text that is bytes before and after.
        records = self._builder.as_data_source(
            name, deserialize_method=self._package.decode.DeserializeMethod.RAW_BYTES
        )
        parse = importlib.import_module("tensorflow_datasets.proto").tf_example_pb2.Example.FromString
        for start in range(0, len(records), RECORDS_PER_READ):
            numbers = range(start, min(start + RECORDS_PER_READ, len(records)))
            for number, record in zip(numbers, records.__getitems__(numbers), strict=True):
                texts = parse(record).features.feature
                try:
                    yield texts[source].bytes_list.value[0].decode(), texts[target].bytes_list.value[0].decode()
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"data.directory={self._config.directory}, split {name}, example {number}: not UTF-8 ({error})"
                    ) from None
