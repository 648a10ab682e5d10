"""How long a large corpus takes to become a vocabulary and a store, and what memory and disk it needs.

    PYTHONPATH=. python benchmarks/prepare_corpus.py --folder=DIR [--millions=5] [--processes=N] [--vocab_size=37000]
        [--tokenizer_model=bpe] [--plan_millions=36]

The corpus is made up: sentences of words that were invented from syllables, so frequent as in Zipf's law, as long as
sentences are (log-normal, 24 words on average), each target a word for most source words in an order that is moved
about. Of each hundred pairs seven break a rule of cleaning; that it left out just these is checked. The corpus is
written to DIR/corpus, then cleaned, learnt from and tokenised as training does it. Peak memory is the
resident memory of this process and all that it starts, looked at every tenth of a second: pages that they share count
for each. The last part lays out batches for the lengths of a corpus that is not there (--plan_millions; 0: none).
"""

import argparse
import dataclasses
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil

from transformer.config import DataConfig
from transformer.data.batching import training_plan
from transformer.data.cache import cache_folder
from transformer.data.sources import make_source
from transformer.data.store import open_store
from transformer.data.vocabularies import make_tokenizers

WORDS = 400_000  # of each language
WORDS_A_SENTENCE, SPREAD = 24, 0.6  # the mean, and the standard deviation of the logarithm
LEAST_WORDS, MOST_WORDS = 5, 175  # sentences of fewer words would be the same by chance
MAX_RATIO = 1.5
FIRST_PAIRS = 10  # that come again
PLANTED = {
    10: "empty",
    20: "non_printing",
    30: "max_words",
    40: "max_ratio",
    50: "identical",
    60: "duplicates",
    70: "duplicates",
}
"""Place in a hundred pairs -> the rule of cleaning that the pair there breaks."""
PAIRS_AT_A_TIME = 50_000
SECONDS_BETWEEN_LOOKS = 0.1


@dataclasses.dataclass
class Part:
    """A part of the work, with what it took."""

    name: str
    lines: int
    seconds: float = 0.0
    peak_bytes: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the corpus and the cache are written")
    parser.add_argument("--millions", type=float, default=5.0, help="pairs")
    parser.add_argument("--processes", type=int, help="that tokenise; default: one for each core")
    parser.add_argument("--vocab_size", type=int, default=37_000, help="pieces of the joint vocabulary")
    parser.add_argument("--tokenizer_model", choices=("bpe", "unigram"), default="bpe")
    parser.add_argument("--plan_millions", type=float, default=36.0, help="pairs of which only batches are laid out")
    flags = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    folder, num_pairs = flags.folder, round(flags.millions * 1e6)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    config = DataConfig(
        source="files",
        directory=str(folder / "corpus"),
        cache_directory=str(folder / "cache"),
        vocab_size=flags.vocab_size,
        tokenizer_model=flags.tokenizer_model,
        processes=flags.processes,
        cleaning=("empty", "non_printing", "identical", "duplicates"),
        cleaning_max_words=MOST_WORDS,
        cleaning_max_ratio=MAX_RATIO,
    )
    parts: list[Part] = []
    with part(parts, "write the corpus", 2 * num_pairs):
        write_corpus(folder / "corpus", num_pairs)
    source = make_source(config, 0)
    with part(parts, "fingerprint", 2 * num_pairs):
        source.fingerprint_of("train")
    with part(parts, "clean", 2 * num_pairs):
        kept = source.size("train")
    bad = sum(len(range(place, num_pairs, 100)) for place in PLANTED)
    if kept != num_pairs - bad:
        raise SystemExit(f"cleaning left {kept:,} of {num_pairs:,} pairs, of which {bad:,} break a rule")
    with part(parts, "vocabulary", 2 * min(kept, config.vocabulary_sample)):
        tokenizers = make_tokenizers(config, source)
    with part(parts, "store", 2 * kept):
        store = open_store(source, "train", tokenizers, cache_folder(config), config.processes)
    with part(parts, "batches", 2 * kept):
        plan = training_plan(config, store.source_lengths, store.target_lengths, 0)
        plan.batch(0)
    if flags.plan_millions:
        lengths = np.random.default_rng(0).choice(len(store), round(flags.plan_millions * 1e6))
        source_lengths, target_lengths = store.source_lengths[lengths], store.target_lengths[lengths]
        del lengths
        for batching in ("bucket", "pack"):
            with part(parts, f"{batching} plan of {flags.plan_millions:g} million", 2 * len(source_lengths)):
                changed = dataclasses.replace(config, batching=batching)
                plan = training_plan(changed, source_lengths, target_lengths, 0)
                plan.batch(0)
                plan.batch(plan.num_batches)  # the next epoch is in another order
                del plan
    print(f"\n{num_pairs:,} pairs, {kept:,} after cleaning; processes: {flags.processes or 'one for each core'}\n")
    print("| part | seconds | lines a second | peak memory, GiB |\n|---|---|---|---|")
    for one in parts:
        rate = one.lines / max(one.seconds, 1e-9)
        print(f"| {one.name} | {one.seconds:.1f} | {rate:,.0f} | {one.peak_bytes / 2**30:.2f} |")
    print("\n| on disk | GiB |\n|---|---|")
    for name in ("corpus", "cache"):
        size = sum(path.stat().st_size for path in (folder / name).rglob("*") if path.is_file())
        print(f"| {name} | {size / 2**30:.2f} |")
    tokens = [int(side.offsets[-1]) for side in store.sides]
    print(f"\n{tokens[0]:,} source and {tokens[1]:,} target tokens, {sum(tokens) / 2 / kept:.1f} a line on average")


def write_corpus(folder: Path, num_pairs: int) -> None:
    """``train.en`` and ``train.de``, unless they are there with that many pairs."""
    done, what = folder / "pairs.txt", f"{num_pairs} pairs with {PLANTED}"
    if done.exists() and done.read_text() == what:
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    vocabularies = [make_words(rng, WORDS) for _ in range(2)]
    weights = np.cumsum(1 / (np.arange(WORDS) + 2.7))  # Zipf's law with Mandelbrot's shift
    weights /= weights[-1]
    pairs: list[tuple[str, str]] = []
    with open(folder / "train.en", "w") as source_file, open(folder / "train.de", "w") as target_file:
        for start in range(0, num_pairs, PAIRS_AT_A_TIME):
            number = min(PAIRS_AT_A_TIME, num_pairs - start)
            mean = np.log(WORDS_A_SENTENCE) - SPREAD**2 / 2
            lengths = np.clip(rng.lognormal(mean, SPREAD, number).astype(int), LEAST_WORDS, MOST_WORDS)
            target_lengths = lengths - rng.integers(0, lengths // 4 + 1)
            words = np.searchsorted(weights, rng.random(lengths.sum()))
            ends = np.cumsum(lengths)
            sentences = np.repeat(np.arange(number), lengths)
            moved = np.lexsort((np.arange(len(words)) + 3 * rng.random(len(words)), sentences))
            source_words, target_words = vocabularies[0][words], vocabularies[1][words[moved]]
            for place, first in enumerate(ends - lengths):
                source = " ".join(source_words[first : first + lengths[place]]) + "."
                target = " ".join(target_words[first : first + target_lengths[place]]) + "."
                pairs.append((source, target))
                rule = PLANTED.get((start + place) % 100)
                if rule is not None:
                    pairs[-1] = faulty(rule, pairs, start + place)
                source_file.write(pairs[-1][0] + "\n")
                target_file.write(pairs[-1][1] + "\n")
            del pairs[FIRST_PAIRS:]
    done.write_text(what)


def faulty(rule: str, pairs: list[tuple[str, str]], number: int) -> tuple[str, str]:
    """What the last of some pairs becomes in order to break a rule of cleaning, and none that comes before it."""
    source, target = pairs[-1]
    if rule == "duplicates":  # of one near and of one far away, in turns
        return pairs[-2] if number // 100 % 2 else pairs[number // 100 % FIRST_PAIRS]
    return {
        "empty": (source, ""),
        "non_printing": (source, f"{target}\x07"),
        "max_words": (" ".join([source] * (MOST_WORDS // len(source.split()) + 1)), target),
        "max_ratio": (source, target.split()[0]),
        "identical": (source, source),
    }[rule]


def make_words(rng: np.random.Generator, number: int) -> np.ndarray:
    """Different words of one to five syllables, the frequent ones shorter."""
    consonants, vowels = [*"bdfghklmnprstvwz", "sch", "st", "th", "tr"], [*"aeiouäü", "ei", "ou"]
    syllables = [first + second for first in consonants for second in vowels]
    words: dict[str, None] = {}
    while len(words) < number:
        most = min(5, 1 + int(np.log10(len(words) + 10)))
        for draw in rng.integers(len(syllables), size=(len(words) + 10, most)).tolist():
            words["".join(syllables[place] for place in draw[: 1 + draw[0] % most])] = None
    return np.array(list(words)[:number], object)


@contextmanager
def part(parts: list[Part], name: str, lines: int) -> Iterator[None]:
    """Measure what is done within."""
    this = psutil.Process()
    found = Part(name, lines)
    is_done = threading.Event()

    def look() -> None:
        while not is_done.wait(SECONDS_BETWEEN_LOOKS):
            total = 0
            for process in (this, *this.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    total += process.memory_info().rss
            found.peak_bytes = max(found.peak_bytes, total)

    thread = threading.Thread(target=look)
    thread.start()
    start = time.monotonic()
    try:
        yield
    finally:
        found.seconds = time.monotonic() - start
        is_done.set()
        thread.join()
        parts.append(found)


if __name__ == "__main__":
    main()
