"""Training pairs that are left out by rules, each counted. Validation and test pairs are left alone.

    empty          a side is empty or white space
    non_printing   a side has control characters (but tabs), line separators, private or surrogate code points
    max_words      a side has more than data.cleaning_max_words words, which white space separates
    max_ratio      one side has more than data.cleaning_max_ratio times the words of the other
    identical      both sides are the same
    duplicates     the same two sides came before

A pair that several rules leave out counts under the first, in this order.
"""

import array
import functools
import hashlib
import io
import json
import logging
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer.config import DataConfig
from transformer.data.cache import cache_folder, writing_cache
from transformer.data.pairs import ParallelSource
from transformer.data.processes import chunks_of, map_in_order, processes_for
from transformer.paths import write_bytes
from transformer.progress import progress
from transformer.types import UserError

VERSION = 1  # of what the rules mean
# By name: C0 but the tab, DEL, C1; line and paragraph separators; surrogates; private use, in all its planes.
NON_PRINTING = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ue000-\uf8ff\U000f0000-\U0010ffff]")
DUPLICATES = "duplicates"
TIMES_AS_QUICK = 10  # as tokenising, for which it pays to start another process sooner

logger = logging.getLogger(__name__)


def rules_of(config: DataConfig) -> dict[str, float | None]:
    """The rules that a config asks for, in their order, with their limits."""
    limits = {"max_words": config.cleaning_max_words, "max_ratio": config.cleaning_max_ratio}
    given = {name: float(limit) for name, limit in limits.items() if limit is not None}
    return {name: given.get(name) for name in (*PAIR_RULES, DUPLICATES) if name in config.cleaning or name in given}


class Outcome(NamedTuple):
    """What cleaning did: which pairs are kept, bool [pairs], and how many each rule left out."""

    kept: np.ndarray
    counts: dict[str, int]


class CleanedSource:
    """The pairs of another source without those of the training split that the rules leave out.

    The training split is read once to find them; what was found is kept in the cache.
    """

    def __init__(self, source: ParallelSource, config: DataConfig):
        self._source = source
        self._rules = rules_of(config)
        self._folder = cache_folder(config) / "cleaning"
        self._processes = config.processes
        self._found: Outcome | None = None

    def fingerprint_of(self, split: str) -> str:
        fingerprint = self._source.fingerprint_of(split)
        if split != "train":
            return fingerprint
        return hashlib.blake2b(json.dumps([VERSION, fingerprint, self._rules]).encode(), digest_size=16).hexdigest()

    def size(self, split: str) -> int:
        return int(self._outcome().kept.sum()) if split == "train" else self._source.size(split)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        pairs = self._source.pairs(split)
        return compress(pairs, self._outcome().kept.tobytes()) if split == "train" else pairs

    def repeats(self, split: str) -> np.ndarray | None:
        repeats = self._source.repeats(split)
        return repeats if repeats is None or split != "train" else repeats[self._outcome().kept]

    def facts(self) -> dict[str, Any]:
        """Counts for a report, if they are known without reading the text for them."""
        found = self._found or _load(self._path)
        if found is None:
            return {"left_out_by_cleaning": None}
        return {"pairs_before_cleaning": len(found.kept), "left_out_by_cleaning": found.counts}

    @property
    def _path(self) -> Path:
        return self._folder / f"{self.fingerprint_of('train')}.npz"

    def _outcome(self) -> Outcome:
        """Found once, and said once a process."""
        if self._found is None:
            path = self._path
            self._found = _load(path) or self._clean(path)
            kept, counts = self._found
            shown = ", ".join(f"{name} {counts[name]:,}" for name in self._rules)
            logger.info(
                "cleaning left out of %s training pairs: %s; %s stay", f"{len(kept):,}", shown, f"{kept.sum():,}"
            )
            if not kept.any():
                raise UserError(
                    f"data.cleaning leaves none of {len(kept)} training pairs ({shown}); take rules away, or check the "
                    "text in data.directory"
                )
        return self._found

    def _clean(self, path: Path) -> Outcome:
        size = self._source.size("train")
        processes = processes_for(size // TIMES_AS_QUICK, self._processes)
        name = f"cleaning train ({processes} process(es))"
        outcome = clean(progress(self._source.pairs("train"), name, size, "pair"), self._rules, processes)
        with writing_cache(path):
            _save(path, outcome)
        return outcome


def clean(pairs: Iterable[tuple[str, str]], rules: dict[str, float | None], processes: int = 1) -> Outcome:
    """Apply the rules of :func:`rules_of` to pairs; what comes out is the same on any number of processes.

    Duplicates are told by 8 bytes of a digest, of which 36 million take 0.3 GB, and 1.2 GB to be sorted. The chance
    that any pair is taken for a duplicate though it is none is about n^2 / 2^65: 4e-5 for 36 million.
    """
    judge = functools.partial(_judge, rules)
    chunks = chunks_of(pairs)
    found = map(judge, chunks) if processes == 1 else map_in_order(judge, chunks, processes, "clean")
    counts = dict.fromkeys(rules, 0)
    kept, digests = bytearray(), array.array("Q")
    for verdict in found:
        kept += verdict.kept
        digests += verdict.digests
        for name, count in verdict.counts.items():
            counts[name] += count
    mask = np.frombuffer(kept, bool)
    if DUPLICATES in rules:
        again = _repeated(np.frombuffer(digests, np.uint64))
        mask[np.flatnonzero(mask)[again]] = False
        counts[DUPLICATES] = len(again)
    return Outcome(mask, counts)


class _Verdict(NamedTuple):
    """Of a chunk: which pairs stay, bytes of 0 and 1; the digests of those, if they are needed; counts by rule."""

    kept: bytearray
    digests: "array.array[int]"
    counts: dict[str, int]


def _judge(rules: dict[str, float | None], chunk: list[tuple[str, str]]) -> _Verdict:
    """All that can be said of pairs without the others."""
    checks = [
        (name, PAIR_RULES[name], math.inf if limit is None else limit)
        for name, limit in rules.items()
        if name in PAIR_RULES
    ]
    verdict = _Verdict(bytearray(), array.array("Q"), dict.fromkeys(rules, 0))
    for source, target in chunk:
        for name, applies, limit in checks:
            if applies(source, target, limit):
                verdict.counts[name] += 1
                verdict.kept.append(0)
                break
        else:
            verdict.kept.append(1)
            if DUPLICATES in rules:
                text = f"{source}\n{target}".encode(errors="surrogatepass")
                verdict.digests.frombytes(hashlib.blake2b(text, digest_size=8).digest())
    return verdict


def _repeated(digests: np.ndarray) -> np.ndarray:
    """The places of all but the first of those that are equal."""
    order = np.argsort(digests, kind="stable")
    in_order = digests[order]
    return order[1:][in_order[1:] == in_order[:-1]]


def _too_long(source: str, target: str, limit: float) -> bool:
    return _has_more_words(source, limit) or _has_more_words(target, limit)


def _has_more_words(line: str, limit: float) -> bool:
    return len(line) > 2 * limit and len(line.split()) > limit  # n words have 2 n - 1 characters at least


def _too_unequal(source: str, target: str, limit: float) -> bool:
    fewer, more = sorted((len(source.split()), len(target.split())))
    return more > limit * fewer


def _is_non_printing(line: str) -> bool:
    return not line.isprintable() and NON_PRINTING.search(line) is not None  # the first is quick, but too strict


PAIR_RULES: dict[str, Callable[[str, str, float], bool]] = {
    "empty": lambda source, target, _: not source.strip() or not target.strip(),
    "non_printing": lambda source, target, _: _is_non_printing(source) or _is_non_printing(target),
    "max_words": _too_long,
    "max_ratio": _too_unequal,
    "identical": lambda source, target, _: source == target,
}
"""Whether a rule leaves out a pair, of which nothing else needs to be known."""


def _save(path: Path, outcome: Outcome) -> None:
    kept, counts = outcome
    content = io.BytesIO()
    np.savez(content, kept=np.packbits(kept), size=len(kept), names=list(counts), counts=list(counts.values()))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content.getvalue())


def _load(path: Path) -> Outcome | None:
    """What was saved; None where it is not, or not whole."""
    try:
        with np.load(path) as saved:
            kept = np.unpackbits(saved["kept"], count=int(saved["size"])).astype(bool)
            return Outcome(kept, dict(zip(saved["names"].tolist(), saved["counts"].tolist(), strict=True)))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
