"""Lines, pairs and splits of text files, with everything that real files hold."""

import dataclasses
import gzip
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shared_data import shared_data
from transformer.config import DataConfig
from transformer.data import phrases
from transformer.data.cache import cache_folder
from transformer.data.pairs import PairList, ParallelSource
from transformer.data.sources import make_source
from transformer.data.text_files import decode_lines, escape_newlines, read_lines, read_pairs
from transformer.types import UserError

TRAPS = "a\x85b \u2028 c\x0bd\x0ce\x1cf\u2029\tg \r h \ufeff 😀 שלום  "


def write(path, *lines, end="\n"):
    data = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def files_config(directory, **changes):
    return dataclasses.replace(DataConfig(source="files", directory=str(directory)), **changes)


def user_error(function, *arguments):
    with pytest.raises(UserError) as error:
        result = function(*arguments)
        list(result if hasattr(result, "__iter__") else ())
    return str(error.value)


@pytest.fixture
def corpus(tmp_path):
    """Two training stems of 3 and 2 pairs, gzipped and plain, and a validation and a test split."""
    write(tmp_path / "news.en.gz", "one", TRAPS, "")
    write(tmp_path / "news.de", "eins", "", TRAPS)
    write(tmp_path / "talks.en", "four", "five")
    write(tmp_path / "talks.de.gz", "vier", "fünf")
    for stem in ("val", "test"):
        write(tmp_path / f"{stem}.en", stem)
        write(tmp_path / f"{stem}.de", stem.upper())
    return files_config(tmp_path, train=("news", "talks"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r")), max_size=7), st.data())
def test_only_newlines_end_lines(lines, data):
    mark = data.draw(st.sampled_from(["", "\ufeff"]))
    ends = [data.draw(st.sampled_from(["\n", "\r\n"])) for _ in lines]
    if lines and lines[-1] and data.draw(st.booleans()):
        ends[-1] = ""
    if not mark and lines:
        lines[0] = lines[0].removeprefix("\ufeff")
        lines[0] = "" if lines[0].startswith("\ufeff") else lines[0]
    content = mark + "".join(line + end for line, end in zip(lines, ends, strict=True))
    if lines and not lines[-1] and ends[-1] == "":
        lines = lines[:-1]
    assert list(decode_lines(io.BytesIO(content.encode()), "stdin")) == lines


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_traps_stay_in_their_line(tmp_path, suffix):
    path = write(tmp_path / f"text.en{suffix}", TRAPS, "", "\ufeff second mark stays", end="\r\n")
    expected = [TRAPS, "", "\ufeff second mark stays"]
    assert list(read_lines(path)) == expected
    assert list(read_lines(tmp_path / "text.en")) == expected  # the .gz is found by the plain name


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
        (b"a", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"a\r\r\nb\rc\n", ["a\r", "b\rc"]),
    ],
)
def test_ends_of_files(content, lines):
    assert list(decode_lines(io.BytesIO(content), "stdin")) == lines


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bad_utf8_is_named_by_line_and_column(tmp_path, suffix):
    path = tmp_path / f"text.en{suffix}"
    content = "\ufeffgood\nünï".encode() + b"\xff!\n"
    path.write_bytes(gzip.compress(content) if suffix else content)
    assert user_error(read_lines, path).startswith(f"{path}:2: not UTF-8 (byte 0xff at column 4)")


def test_what_cannot_be_read_is_named(tmp_path):
    write(tmp_path / "train.en", "a")
    message = user_error(read_lines, tmp_path / "trian.en")
    assert str(tmp_path / "trian.en") in message and "trian.en.gz" in message and "train.en" in message
    for content in (gzip.compress(b"line\n" * 99)[:-11], b"no gzip at all"):
        (tmp_path / "cut.en.gz").write_bytes(content)
        assert "cut.en.gz: not a whole compressed file" in user_error(read_lines, tmp_path / "cut.en.gz")
    assert str(tmp_path) in user_error(read_lines, tmp_path)


def test_a_missing_file_is_found_at_the_call(tmp_path):
    with pytest.raises(UserError):
        read_lines(tmp_path / "nothing")


def test_pairs_sizes_and_repeats(corpus):
    source = make_source(corpus, seed=0)
    pairs = [("one", "eins"), (TRAPS, ""), ("", TRAPS), ("four", "vier"), ("five", "fünf")]
    assert list(source.pairs("train")) == pairs
    assert source.size("train") == len(pairs)
    assert source.repeats("train") is None
    assert list(source.pairs("validation")) == [("val", "VAL")]
    assert list(source.pairs("test")) == [("test", "TEST")]
    assert list(source.pairs("talks")) == pairs[3:]

    repeats = make_source(dataclasses.replace(corpus, train_weights=(1, 7)), 0).repeats("train")
    np.testing.assert_array_equal(repeats, [1, 1, 1, 7, 7])
    assert repeats.dtype == np.int32
    assert make_source(dataclasses.replace(corpus, train_weights=(2, 7)), 0).repeats("test") is None


def test_the_fingerprint_is_of_text_and_direction(corpus, tmp_path):
    source = make_source(corpus, 0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for side, language in enumerate(("en", "de")):
        write(elsewhere / f"all.{language}", *(pair[side] for pair in source.pairs("train")), end="\r\n")
    assert make_source(files_config(elsewhere, train=("all",)), 5).fingerprint_of("train") == source.fingerprint_of(
        "train"
    )
    assert source.fingerprint_of("train") != source.fingerprint_of("test")

    changed = [
        dataclasses.replace(corpus, train=("talks", "news")),
        dataclasses.replace(corpus, train=("news",)),
        dataclasses.replace(corpus, source_language="de", target_language="en"),
    ]
    assert (
        len({source.fingerprint_of("train"), *(make_source(config, 0).fingerprint_of("train") for config in changed)})
        == 4
    )


def test_the_place_of_a_line_break_changes_the_fingerprint(tmp_path):
    fingerprints = set()
    for number, (one, other) in enumerate([(("a", ""), ("", "b")), (("", "a"), ("", "b")), (("a", "b"), ("", ""))]):
        write(tmp_path / f"{number}.en", *one)
        write(tmp_path / f"{number}.de", *other)
        fingerprints.add(make_source(files_config(tmp_path, train=(str(number),)), 0).fingerprint_of("train"))
    assert len(fingerprints) == 3


@pytest.mark.parametrize("infix", ["en-de", "de-en"])
def test_names_of_wmt(tmp_path, infix):
    write(tmp_path / f"newstest.{infix}.en.gz", "one")
    write(tmp_path / f"newstest.{infix}.de", "eins")
    source = make_source(files_config(tmp_path, train=("newstest",)), 0)
    assert list(source.pairs("train")) == [("one", "eins")]
    assert "newstest" in user_error(source.pairs, "validation")


def test_an_unknown_split_names_path_and_stems(corpus):
    message = user_error(make_source(corpus, 0).pairs, "tests")
    assert f"{corpus.directory}/tests.en" in message and "tests.en.gz" in message
    assert "news, talks, test, val" in message.replace(f"{corpus.directory}", "")


def test_half_a_pair_names_the_other_half(corpus, tmp_path):
    write(tmp_path / "half.en-de.en", "one")
    source = make_source(dataclasses.replace(corpus, train=("half",)), 0)
    assert f"{tmp_path}/half.en-de.de" in user_error(source.size, "train")


def test_missing_directory(tmp_path):
    (tmp_path / "multi30k").mkdir()
    message = user_error(make_source, files_config(tmp_path / "multi-30k"), 0)
    assert "data.directory=" in message and "has multi30k" in message


@pytest.mark.parametrize("counts", [(3, 5), (5, 3), (0, 2)])
def test_unequal_files_are_found_at_the_end_of_the_stream(tmp_path, counts):
    paths = [write(tmp_path / f"a.{name}", *["x"] * n) for name, n in zip(("en", "de"), counts, strict=True)]
    pairs, seen = read_pairs(*paths), 0
    with pytest.raises(UserError) as error:
        for _ in pairs:
            seen += 1
    assert seen == min(counts)
    assert all(f"{path} has {n}" in str(error.value) for path, n in zip(paths[:1], counts[:1], strict=True))
    assert f"{paths[1]} has {counts[1]}" in str(error.value)
    source = make_source(files_config(tmp_path, train=("a",)), 0)
    assert str(error.value) == user_error(source.size, "train")


def test_empty_files(tmp_path):
    write(tmp_path / "a.en"), write(tmp_path / "a.de")
    source = make_source(files_config(tmp_path, train=("a",)), 0)
    assert f"{tmp_path}/a.en and {tmp_path}/a.de are empty" == user_error(source.size, "train")


def test_phrases_as_a_source():
    config = DataConfig(num_phrases=101)
    source = make_source(config, 7)
    generated = phrases.generate("train", "de", 101, 7)
    assert list(source.pairs("train")) == [(phrase.source, phrase.target) for phrase in generated]
    assert source.kinds("train") == [phrase.kind for phrase in generated]
    assert source.size("train") == 101 and source.repeats("train") is None
    fingerprints = {
        make_source(dataclasses.replace(config, target_language=language), seed).fingerprint_of("train")
        for language in ("de", "fr")
        for seed in (7, 8)
    }
    assert len(fingerprints) == 4 and source.fingerprint_of("train") in fingerprints
    assert "from en" in user_error(make_source, dataclasses.replace(config, source_language="de"), 0)
    assert "validation" in user_error(source.size, "news")


def test_pairs_at_hand_are_a_source_with_the_fingerprint_of_the_same_file(corpus):
    source = make_source(corpus, 0)
    given = PairList(list(source.pairs("train")))
    assert isinstance(given, ParallelSource)
    assert list(given.pairs("any")) == list(source.pairs("train")) and given.size("any") == source.size("train")
    assert given.fingerprint_of("any") == source.fingerprint_of("train") and given.repeats("any") is None


def test_a_newline_in_an_output_does_not_end_its_line():
    assert escape_newlines("one\ntwo\x85") == "one\\ntwo\x85"


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder(DataConfig(cache_directory=str(tmp_path / "given"))) == tmp_path / "given"
    assert cache_folder(DataConfig()) == tmp_path / "xdg" / "transformer"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder(DataConfig()) == tmp_path / "home" / ".cache" / "transformer"


def test_multi30k():
    source = make_source(files_config(shared_data("multi30k"), test="test_2016_flickr"), 0)
    assert [source.size(split) for split in ("train", "validation", "test")] == [29_000, 1_014, 1_000]
    assert source.fingerprint_of("test") == source.fingerprint_of("test_2016_flickr")


def test_newstest2009_keeps_its_next_line_characters():
    config = files_config(shared_data("wmt-newstest-2008-2013"), train=("newstest2009",), test="newstest2013")
    source = make_source(config, 0)
    assert source.size("train") == 2_525
    assert sum(german.count("\x85") for _, german in source.pairs("train")) == 8
    assert "newstest2012" in user_error(source.size, "newstest2014")
