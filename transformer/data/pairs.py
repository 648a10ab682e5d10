"""Pairs of lines, by split: in parallel text files, generated, or at hand."""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from transformer.config import DataConfig
from transformer.data import archives
from transformer.data.text_files import existing_file, read_pairs, reading
from transformer.data.text_splits import TextFiles, check_own_splits
from transformer.types import UserError


# It has methods only: isinstance, by which tests check annotations, would compute a property.
@runtime_checkable
class ParallelSource(Protocol):
    """Pairs of a source line and a target line, by split.

    A split is "train", "validation", "test", or another name that the source knows.
    """

    def fingerprint_of(self, split: str) -> str:
        """A digest, in hex, of the pairs of a split, wherever they lie."""
        ...

    def size(self, split: str) -> int:
        """The number of pairs."""
        ...

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The pairs in order, without the newline at the end of the lines."""
        ...

    def repeats(self, split: str) -> np.ndarray | None:
        """How many times each pair is read in an epoch, int32; None: once each."""
        ...


class FileSource(TextFiles):
    """Parallel text files ``DIRECTORY/STEM.LANGUAGE``, plain or gzipped (``.gz``), or in tar archives of the directory.

    Where there is no ``STEM.en`` and ``STEM.de``, the names of WMT are tried: ``STEM.en-de.en`` and ``STEM.en-de.de``
    (or ``de-en``), then the test sets ``STEM-ende-src.en.sgm`` and ``STEM-ende-ref.de.sgm`` (or ``deen``, or neither),
    of which source and reference may change places. What lies in archives comes after what lies in the directory.
    """

    _unit = "pair"

    def __init__(self, config: DataConfig, seed: int):
        self._languages = (config.source_language, config.target_language)
        super().__init__(config, seed)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return self._examples(split)

    def _read(self, files: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
        return read_pairs(*files)

    def _text(self, example: tuple[str, str]) -> str:
        return "\n".join(example)

    def _digest(self, examples: Iterable[tuple[str, str]]) -> str:
        return digest_of_pairs(examples)

    @functools.cached_property
    def _endings(self) -> list[tuple[str, str]]:
        """What the names of two files may have after their stem, in the order in which they are looked for."""
        source, target = self._languages
        infixes = ("", f".{source}-{target}", f".{target}-{source}")
        endings = [(f"{infix}.{source}", f"{infix}.{target}") for infix in infixes]
        for first, second in (("src", "ref"), ("ref", "src")):
            for infix in (f"-{source}{target}", f"-{target}{source}", ""):
                endings.append((f"{infix}-{first}.{source}.sgm", f"{infix}-{second}.{target}.sgm"))
        return endings

    def _files(self, stem: str) -> tuple[Path, Path]:
        """The two files of a stem."""
        names = [(stem + source, stem + target) for source, target in self._endings]
        halves = []  # half a pair says best what is wrong
        for find in (self._in_directory, self._in_archives):
            for pair in names:
                source, target = map(find, pair)
                if source and target:
                    return source, target
                halves += [pair[1]] if source else [pair[0]] if target else []
        missing = self._directory / (halves or names[0])[0]
        stems = self._known_stems()
        raise UserError(
            f"there is no {missing} (nor {missing.name}.gz); stems with {' and '.join(self._languages)} in "
            f"{self._directory}: {', '.join(stems) if stems else 'none'}"
        )

    def _in_directory(self, name: str) -> Path | None:
        return existing_file(self._directory / name)

    def _in_archives(self, name: str) -> Path | None:
        found = []
        for archive in archives.in_folder(self._directory):
            with reading(archive):
                members = archives.members(archive)
            for wanted in (name, f"{name}.gz"):
                found += [archive / member for member in members if f"/{member}".endswith(f"/{wanted}")]
        if len(found) > 1:
            raise UserError(
                f"there are several {name}: {', '.join(map(str, found))}; give the stem with its way through the "
                f"archive, {found[0].relative_to(self._directory).parent / 'STEM'}, or put the file beside the archives"
            )
        return found[0] if found else None

    def _known_stems(self) -> list[str]:
        """Those that a message may name: in the directory, and by their plain names in its archives."""
        names = {path.name for path in self._directory.iterdir()}
        for archive in archives.in_folder(self._directory):
            names |= {Path(member).name for member in archives.members(archive)}
        names = {name.removesuffix(".gz") for name in names}
        stems = set()
        # Of names that fit several, the longest ending is taken off.
        for source, target in sorted(self._endings, key=lambda pair: len(pair[0]), reverse=True):
            heads = {name.removesuffix(source) for name in names if name.endswith(source)}
            found = {head for head in heads if head + target in names}
            stems |= found
            names -= {head + ending for head in found for ending in (source, target)}
        return sorted(stems)


class PhraseSource:
    """Phrases that are generated from the seed: see :mod:`transformer.data.phrases`."""

    def __init__(self, config: DataConfig, seed: int):
        from transformer.data import phrases  # what makes them takes long to import

        if config.source_language != phrases.SOURCE_LANGUAGE:
            raise UserError(
                f"data.source_language={config.source_language}: the generated phrases are translations from "
                f"{phrases.SOURCE_LANGUAGE}; bring your own text with data.source=files"
            )
        check_own_splits(config)
        self._config = config
        self._seed = seed
        self._generate = phrases.generate
        self._splits: dict[str, list[Any]] = {}

    def fingerprint_of(self, split: str) -> str:
        return digest_of_pairs(self.pairs(split))

    def size(self, split: str) -> int:
        return len(self._phrases(split))

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return ((phrase.source, phrase.target) for phrase in self._phrases(split))

    def kinds(self, split: str) -> list[str]:
        """The name of the kind of each pair."""
        return [phrase.kind for phrase in self._phrases(split)]

    def repeats(self, split: str) -> np.ndarray | None:
        return None

    def _phrases(self, split: str) -> list[Any]:
        if split not in self._splits:
            config = self._config
            self._splits[split] = self._generate(split, config.target_language, config.num_phrases, self._seed)
        return self._splits[split]


class PairList:
    """Pairs at hand, as if they were every split of a source."""

    def __init__(self, pairs: Sequence[tuple[str, str]]):
        self._pairs = pairs

    def fingerprint_of(self, split: str) -> str:
        return digest_of_pairs(self._pairs)

    def size(self, split: str) -> int:
        return len(self._pairs)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def repeats(self, split: str) -> np.ndarray | None:
        return None


def digest_of_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """A digest of the text of the pairs, in hex; no line holds a newline, so that no two texts look the same."""
    digest = hashlib.blake2b(digest_size=16)
    for source, target in pairs:
        digest.update(f"{source}\n{target}\n".encode())
    return digest.hexdigest()
