"""Each rule leaves out what it says, counts it, and leaves validation and test alone."""

import dataclasses
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.config import DataConfig
from transformer.data import processes as shared
from transformer.data.cleaning import CleanedSource, clean, rules_of
from transformer.data.pairs import PairList
from transformer.data.sources import make_source
from transformer.types import UserError

ALL = ("empty", "non_printing", "identical", "duplicates")
CONFIG = DataConfig(source="files", cleaning=ALL, cleaning_max_words=5, cleaning_max_ratio=2.0)
WORDS = st.lists(st.sampled_from(["a", "b", "\u00a0", "c\x07", "d\u2028e", "\ue000", "f\tg", "é"]), max_size=7)


def naive(pairs, config):
    """The rules once more, in other words."""
    kept, counts, seen = [], dict.fromkeys(("empty", "non_printing", "max_words", "max_ratio", "identical"), 0), []
    counts["duplicates"] = 0
    for pair in pairs:
        lengths = [len(side.split()) for side in pair]
        odd = [
            c for c in "".join(pair) if (ord(c) < 32 and c != "\t") or 127 <= ord(c) < 160 or c in "\u2028\u2029\ue000"
        ]
        if 0 in lengths:
            reason = "empty"
        elif odd:
            reason = "non_printing"
        elif max(lengths) > config.cleaning_max_words:
            reason = "max_words"
        elif max(lengths) / min(lengths) > config.cleaning_max_ratio:
            reason = "max_ratio"
        elif pair[0] == pair[1]:
            reason = "identical"
        elif pair in seen:
            reason = "duplicates"
        else:
            reason = None
            seen.append(pair)
            kept.append(pair)
        if reason:
            counts[reason] += 1
    return kept, counts


@given(st.lists(st.tuples(WORDS, WORDS), max_size=29), st.integers(1, 31))
def test_the_rules_are_those_of_their_words(pairs, chunk):
    pairs = [(" ".join(source), " ".join(target)) for source, target in pairs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "PAIRS_PER_CHUNK", chunk)
        kept, counts = clean(iter(pairs), rules_of(CONFIG))
    expected, expected_counts = naive(pairs, CONFIG)
    assert [pair for pair, stays in zip(pairs, kept, strict=True) if stays] == expected
    assert counts == expected_counts and sum(counts.values()) + kept.sum() == len(pairs)


def test_only_the_rules_that_are_asked_for_apply():
    assert rules_of(DataConfig()) == {}
    assert rules_of(DataConfig(cleaning=("duplicates", "empty"), cleaning_max_words=175)) == {
        "empty": None,
        "max_words": 175,
        "duplicates": None,
    }
    pairs = [("a", "a"), ("", "b"), ("a", "a"), ("x y z", "x")]
    for name, left_out in (("empty", [1]), ("identical", [0, 2]), ("duplicates", [2]), ("non_printing", [])):
        kept, counts = clean(iter(pairs), {name: None})
        assert np.flatnonzero(~kept).tolist() == left_out and counts == {name: len(left_out)}
    assert clean(iter(pairs), {"max_ratio": 3.0}).counts == {
        "max_ratio": 1
    }  # an empty side is any number of times shorter


@pytest.mark.parametrize("character", ["\x00", "\x0b", "\x7f", "\x85", "\u2029", "\uf8ff", "\U00100000"])
def test_characters_that_no_reader_sees(character):
    assert clean(iter([("a", f"b{character}")]), {"non_printing": None}).counts["non_printing"] == 1
    for fine in ("\t", "\u00a0", "\u200b", "\u200d", "\ufeff", "\u202f", "😀", "\u00ad"):
        assert clean(iter([(fine, fine)]), {"non_printing": None}).counts["non_printing"] == 0


class Counted(PairList):
    """Says how often it was read."""

    reads = 0

    def pairs(self, split):
        self.reads += 1
        return super().pairs(split)

    def repeats(self, split):
        return np.arange(1, 1 + self.size(split), dtype=np.int32)


PAIRS = [("a b", "c"), ("a b", "c"), ("", "d"), ("e", "e"), ("f", "g")]


@pytest.fixture
def config(tmp_path):
    return dataclasses.replace(CONFIG, cache_directory=str(tmp_path))


def test_the_training_split_is_read_once_to_be_cleaned(config, caplog):
    caplog.set_level(logging.INFO)
    base = Counted(PAIRS)
    source = CleanedSource(base, config)
    assert source.size("train") == 2 and base.reads == 1
    assert list(source.pairs("train")) == [("a b", "c"), ("f", "g")] and base.reads == 2
    np.testing.assert_array_equal(source.repeats("train"), [1, 5])
    assert len(caplog.messages) == 1
    assert (
        "left out of 5 training pairs: empty 1, non_printing 0, max_words 0, max_ratio 0, identical 1, duplicates 1"
        in (caplog.text)
    )
    base = Counted(PAIRS)
    assert CleanedSource(base, config).size("train") == 2 and base.reads == 0 and "empty 1" in caplog.messages[1]
    for split in ("validation", "test"):
        assert list(source.pairs(split)) == PAIRS and source.size(split) == 5
        assert source.fingerprint_of(split) == base.fingerprint_of(split)


def test_the_fingerprint_is_of_the_pairs_and_the_rules(config):
    changed = [
        dataclasses.replace(config, cleaning=("empty",)),
        dataclasses.replace(config, cleaning_max_words=6),
        dataclasses.replace(config, cleaning_max_ratio=None),
    ]
    sources = [CleanedSource(PairList(PAIRS), one) for one in (config, *changed)]
    sources.append(CleanedSource(PairList(PAIRS[1:]), config))
    assert len({source.fingerprint_of("train") for source in sources} | {PairList(PAIRS).fingerprint_of("train")}) == 6
    in_other_order = dataclasses.replace(config, cleaning=ALL[::-1])
    assert CleanedSource(PairList(PAIRS), in_other_order).fingerprint_of("train") == sources[0].fingerprint_of("train")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_a_damaged_outcome_is_found_again(config, tmp_path, share):
    assert CleanedSource(PairList(PAIRS), config).size("train") == 2
    [path] = (tmp_path / "cleaning").iterdir()
    assert path.stat().st_mode & 0o777 == 0o644  # the cache may be shared
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert CleanedSource(PairList(PAIRS), config).size("train") == 2


def test_rules_that_leave_nothing(config):
    with pytest.raises(UserError, match=r"data\.cleaning leaves none of 1 training pairs \(empty 0.*identical 1"):
        CleanedSource(PairList([("e", "e")]), config).size("train")


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    config = dataclasses.replace(CONFIG, cache_directory=str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"set data\.cache_directory"):
        CleanedSource(PairList(PAIRS), config).size("train")


def test_the_source_of_a_config_is_cleaned(tmp_path):
    for side, language in enumerate(("en", "de")):
        for stem in ("train", "val"):
            (tmp_path / f"{stem}.{language}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    config = DataConfig(source="files", directory=str(tmp_path), cache_directory=str(tmp_path / "cache"))
    assert make_source(config, 0).size("train") == 5
    source = make_source(
        dataclasses.replace(config, cleaning=("empty",), train=("train", "val"), train_weights=(1, 3)), 0
    )
    assert source.size("train") == 8 and source.size("validation") == 5
    np.testing.assert_array_equal(source.repeats("train"), [1] * 4 + [3] * 4)


def test_several_processes_find_what_one_finds(config, monkeypatch):
    """Duplicates in other chunks too."""
    bad = [("", "a"), ("a\x07", "b"), ("a b c d e f", "a b c d"), ("a b c", "d"), ("a", "a")]
    pairs = [bad[n] if n < len(bad) else (str(n), str(-n)) for n in np.random.default_rng(0).integers(0, 200, 700)]
    expected = clean(iter(pairs), rules_of(CONFIG))
    assert all(count > 1 for count in expected.counts.values())
    monkeypatch.setattr(shared, "PAIRS_PER_CHUNK", 101)
    monkeypatch.setattr(shared, "EXAMPLES_PER_PROCESS", 30)
    found = CleanedSource(PairList(pairs), dataclasses.replace(config, processes=2))._outcome()
    np.testing.assert_array_equal(found.kept, expected.kept)
    assert found.counts == expected.counts


def test_many_duplicates_are_told_apart():
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 5_000, 20_000)
    kept, counts = clean(((str(n), str(-n)) for n in numbers), {"duplicates": None})
    firsts = np.unique(numbers, return_index=True)[1]
    np.testing.assert_array_equal(np.flatnonzero(kept), np.sort(firsts))
    assert counts == {"duplicates": len(numbers) - len(firsts)}
