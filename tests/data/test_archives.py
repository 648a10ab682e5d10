"""Corpora in the archives in which they are handed out read as if they were unpacked."""

import dataclasses
import gzip
import io
import tarfile

import numpy as np
import pytest
from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

from tests.data import statmt
from transformer.config import DataConfig
from transformer.data import archives
from transformer.data.sources import make_source
from transformer.data.text_files import read_lines
from transformer.types import UserError

CORPORA = {
    name: [(f"{name} line {n}", f"{name} ligne {n} é") for n in range(number)]
    for name, number in (("europarl", 7), ("commoncrawl", 5), ("news", 3), ("un", 2), ("giga", 11))
}
CORPORA["europarl"][2] = ("", "leer")
CORPORA["newstest2013"] = [("dev one", "dev un"), ("dev two", "dev deux")]
CORPORA["newstest2014"] = [(f"test {n} &amp; so", f"test {n} et <i>") for n in range(5)]


@pytest.fixture
def folder(tmp_path):
    for address, files in statmt.members("fr", CORPORA).items():
        statmt.write_archive(tmp_path / address.rpartition("/")[2], files)
    return tmp_path


def config(folder, **changes) -> DataConfig:
    stems = ("europarl-v7", "commoncrawl", "news-commentary-v9", "undoc.2000", "giga-fren.release2.fixed")
    base = DataConfig(
        source="files",
        directory=str(folder),
        target_language="fr",
        train=stems,
        validation="newstest2013",
        test="newstest2014",
    )
    return dataclasses.replace(base, **changes)


def user_error(function, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        result = function(*arguments)
        if hasattr(result, "__next__"):
            list(result)
    return str(caught.value)


def test_archives_are_read_under_the_names_that_they_have(folder):
    source = make_source(config(folder), 0)
    expected = [pair for name in ("europarl", "commoncrawl", "news", "un", "giga") for pair in CORPORA[name]]
    assert list(source.pairs("train")) == expected and source.size("train") == len(expected)
    assert list(source.pairs("validation")) == CORPORA["newstest2013"]
    assert list(source.pairs("test")) == CORPORA["newstest2014"]  # of which source and reference change places
    other = make_source(config(folder, source_language="fr", target_language="en"), 0)
    assert list(other.pairs("test")) == [pair[::-1] for pair in CORPORA["newstest2014"]]


def test_unpacked_files_are_the_same_text(folder, tmp_path_factory):
    unpacked = tmp_path_factory.mktemp("unpacked")
    for path in folder.iterdir():
        with tarfile.open(path) as tar:
            tar.extractall(unpacked, filter="data")
    source = make_source(config(folder), 0)
    stems = {"europarl-v7": "training/europarl-v7", "news-commentary-v9": "training/news-commentary-v9"}
    stems |= {"undoc.2000": "un/undoc.2000"}
    train = tuple(stems.get(stem, stem) for stem in config(folder).train)
    changed = config(unpacked, train=train, validation="dev/newstest2013", test="dev/newstest2014")
    for split in ("train", "validation", "test"):
        assert make_source(changed, 0).fingerprint_of(split) == source.fingerprint_of(split)


def test_a_path_may_lead_through_an_archive(folder):
    path = folder / "dev.tgz" / "dev" / "newstest2014-fren-src.fr.sgm"
    assert list(read_lines(path)) == [target for _, target in CORPORA["newstest2014"]]
    through = config(folder, train=("dev.tgz/dev/newstest2013",))
    assert list(make_source(through, 0).pairs("train")) == CORPORA["newstest2013"]
    assert "there is no file" in user_error(read_lines, folder / "dev.tgz" / "dev" / "newstest2015.fr")


def test_files_come_before_archives(folder):
    for language in ("en", "fr"):
        (folder / f"europarl-v7.fr-en.{language}").write_text(f"other {language}\n")
    source = make_source(config(folder, train=("europarl-v7",)), 0)
    assert list(source.pairs("train")) == [("other en", "other fr")]


def test_what_is_missing_or_double_is_named(folder):
    message = user_error(make_source(config(folder, train=("europarl-v8",)), 0).size, "train")
    assert f"there is no {folder}/europarl-v8.en" in message
    known = (
        "commoncrawl, europarl-v7, giga-fren.release2.fixed, news-commentary-v9, newstest2013, newstest2014, undoc.2000"
    )
    assert message.endswith(known)
    statmt.write_archive(folder / "again.tar", {"x/newstest2013.en": b"one\n", "x/newstest2013.fr": b"un\n"})
    message = user_error(make_source(config(folder), 0).pairs, "validation")
    assert "there are several newstest2013.en" in message and "again.tar/x/STEM" in message


def test_half_a_pair_in_an_archive(tmp_path):
    statmt.write_archive(tmp_path / "half.tar", {"half.fr-en.en": b"one\n"})
    assert f"there is no {tmp_path}/half.fr-en.fr" in user_error(
        make_source(config(tmp_path, train=("half",)), 0).size, "train"
    )


@pytest.mark.parametrize("share", [0.05, 0.5, 0.8])
def test_damaged_archives_are_named(folder, share):
    path = folder / "dev.tgz"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert user_error(make_source(config(folder), 0).size, "train").startswith(f"{path}: not a whole ")
    path.write_bytes(b"no archive at all" * 99)
    message = user_error(read_lines, path / "dev" / "newstest2013.en")
    assert message.startswith(f"{path}/dev/newstest2013.en: not a whole tar archive")


@pytest.mark.parametrize("ending", ["tar.gz", "tar.bz2", "tar.xz"])
def test_one_wrong_bit_in_an_archive_is_found_or_does_no_harm(tmp_path, ending):
    rng = np.random.default_rng(0)
    words = [f"{number:x}" for number in rng.integers(16**5, size=6_000)]
    lines = [" ".join(words[start : start + 10]) for start in range(0, len(words), 10)]
    text = statmt.text(lines)
    whole = statmt.write_archive(tmp_path / f"whole.{ending}", {"train.en": text, "train.de": text}).read_bytes()
    harmless = 0
    for place in rng.integers(8 * len(whole), size=40):
        content = bytearray(whole)
        content[place // 8] ^= 1 << (place % 8)
        folder = tmp_path / str(place)
        folder.mkdir()
        (folder / f"a.{ending}").write_bytes(content)
        source = make_source(DataConfig(source="files", directory=str(folder)), 0)
        try:
            assert list(source.pairs("train")) == [(line, line) for line in lines]
            harmless += 1
        except UserError as error:
            assert str(folder) in str(error)
    assert harmless < 5  # such as in the date of the archive


def test_test_sets_are_read_as_sacrebleu_reads_them(tmp_path):
    lines = ["a &quot;b&quot;  c", "", "  spaces  ", "<seg id='x'> inside", "a\u00a0b\tc \u2003d"]
    (tmp_path / "t-src.en.sgm").write_bytes(statmt.sgm(lines, "srcset", "en", "fr"))
    with gzip.open(tmp_path / "t-ref.fr.sgm.gz", "wb") as file:
        file.write(statmt.sgm(["1", "2", "3", "4", "5"], "refset", "en", "fr"))
    pairs = list(make_source(config(tmp_path, train=("t",)), 0).pairs("train"))
    FakeSGMLDataset._convert_format(FakeSGMLDataset, str(tmp_path / "t-src.en.sgm"), str(tmp_path / "theirs.en"))
    theirs = (tmp_path / "theirs.en").read_text().removesuffix("\n").split("\n")
    assert pairs == [(line, str(n)) for n, line in enumerate(theirs, start=1)] and "a b c d" in theirs
    (tmp_path / "t-src.en.sgm").write_text('<doc>\n<seg id="1">cut\nhere</seg>\n')
    assert f"{tmp_path}/t-src.en.sgm:2: a segment does not end in its line" in user_error(
        make_source(config(tmp_path, train=("t",)), 0).size, "train"
    )


def test_members_are_files_by_their_plain_names(tmp_path):
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as tar:
        folder = tarfile.TarInfo("./data")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        entry = tarfile.TarInfo("./data/x.en")
        entry.size = 3
        tar.addfile(entry, io.BytesIO(b"abc"))
    assert archives.members(tmp_path / "a.tar.xz") == ("data/x.en",)
    assert archives.in_folder(tmp_path) == [tmp_path / "a.tar.xz"]
    with archives.open_member(tmp_path / "a.tar.xz", "data/x.en") as stream:
        assert stream.read() == b"abc"
