"""Data sets of TensorFlow Datasets: found, prepared once, read in the stated direction. The package is played here; the
real one is in test_tfds_builders.py."""

import dataclasses
import datetime
import errno
import importlib.machinery
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.bucket import Bucket, bucket, error_of
from transformer.config import DataConfig
from transformer.data import tfds_builders
from transformer.data.locks import locked
from transformer.data.pairs import PairList
from transformer.data.sources import make_source
from transformer.data.tfds_builders import DataSetName, download_and_prepare
from transformer.paths import as_path, copy_file, files_below
from transformer.types import UserError

assert bucket  # a fixture

PAIRS = {
    "train": [(f"Zeile {n}", f"line {n}") for n in range(7)],
    "validation": [("gültig", "valid")],
    "test": [("eins\u2028zwei", "one two"), ("drei", "three")],
}


def prepare(folder: Path, pairs=PAIRS, file_format: str = "array_record") -> Path:
    """A folder as the package leaves it, but for the form of its files."""
    folder.mkdir(parents=True)
    for split, examples in pairs.items():
        lines = [json.dumps({"de": source, "en": target}) for source, target in examples]
        (folder / f"{split}.records").write_text("\n".join(lines))
    (folder / "dataset_info.json").write_text(json.dumps({"splits": list(pairs), "format": file_format}))
    return folder


class Package:
    """What is used of ``tensorflow_datasets``."""

    decode = SimpleNamespace(DeserializeMethod=SimpleNamespace(RAW_BYTES="raw"))

    def builder_from_directory(self, folder):
        return Builder(Path(folder))

    def builder(self, name, data_dir):
        found = re.fullmatch(r"(\w+_translate)(/de-en)?(:1\.0\.0)?", name)
        if not found:
            raise ValueError(f"Failed to find {name}\nmore")
        return Builder(Path(data_dir) / found[1] / "de-en" / "1.0.0", may_prepare=True)


class Builder:
    def __init__(self, folder, may_prepare=False):
        self.folder = self.data_dir = folder
        info = {"splits": [], "format": ""}
        if not may_prepare:
            info = json.loads((folder / "dataset_info.json").read_text())
        formats = [SimpleNamespace(value=info["format"])]
        splits = Splits({split: self._split(split) for split in info["splits"]})
        features = {"de": None, "en": None}
        self.info = SimpleNamespace(splits=splits, features=features, available_file_formats=lambda: formats)

    def _split(self, split):
        path = self.folder / f"{split}.records"
        size = len(path.read_text().split("\n"))
        part = SimpleNamespace(filename=str(path), skip=0, take=size, examples_in_shard=size)
        return SimpleNamespace(num_examples=size, file_instructions=[part])

    def as_data_source(self, split, deserialize_method):
        assert deserialize_method == "raw"
        return Records((self.folder / f"{split}.records").read_bytes().split(b"\n"))

    def download_and_prepare(self, file_format):
        default = self.folder.parents[1] / ".config" / "metadata.json"
        default.parent.mkdir(parents=True, exist_ok=True)
        default.write_text('{"default_config_name": "de-en"}')
        if "broken" in str(self.folder):
            raise ConnectionError("no network")
        prepare(self.folder, file_format=file_format)


class Splits(dict):
    def __missing__(self, name):
        raise ValueError(f"Unknown split {name}")


class Records(list):
    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


class Example:
    @staticmethod
    def FromString(record):
        texts = {language: text.encode() for language, text in json.loads(record).items()}
        texts = {language: b"\xff" if text == b"bad" else text for language, text in texts.items()}
        feature = {key: SimpleNamespace(bytes_list=SimpleNamespace(value=[text])) for key, text in texts.items()}
        return SimpleNamespace(features=SimpleNamespace(feature=feature))


@pytest.fixture
def root(tmp_path, monkeypatch):
    """TFDS_DATA_DIR, with the played package, and TensorFlow as if it were installed."""
    play(monkeypatch)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    return tmp_path / "tfds"


def play(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", Package())
    proto = SimpleNamespace(tf_example_pb2=SimpleNamespace(Example=Example))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets.proto", proto)
    found = importlib.machinery.ModuleSpec("tensorflow", None)
    monkeypatch.setattr(tfds_builders.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(tfds_builders, "_in_own_process", download_and_prepare)


def config(tmp_path, directory="wmt14_translate/de-en", **changes) -> DataConfig:
    base = DataConfig(source="tfds", validation="validation", cache_directory=str(tmp_path / "cache"))
    return dataclasses.replace(base, directory=str(directory), **changes)


def user_error(function, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        result = function(*arguments)
        if hasattr(result, "__next__"):
            list(result)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("wmt14_translate/de-en", ("wmt14_translate", "de-en", None)),
        ("wmt14_translate/de-en:1.0.0", ("wmt14_translate", "de-en", "1.0.0")),
        ("wmt14_translate/de-en/1.0.0", ("wmt14_translate", "de-en", "1.0.0")),
        ("ted_hrlr_translate/pt_to_en", ("ted_hrlr_translate", "pt_to_en", None)),
        ("wmt_t2t_translate", ("wmt_t2t_translate", None, None)),
        ("mnist:3.0.1", ("mnist", None, "3.0.1")),
        ("mnist/3.0.1", ("mnist", None, "3.0.1")),
        ("/data/mnist", None),
        ("../mnist", None),
        ("wmt14_translate/de-en/1.0.0/x", None),
        ("gs://bucket/mnist", None),
    ],
)
def test_names_have_parts(text, parts):
    found = DataSetName.parse(text)
    assert found == parts
    if found:
        assert DataSetName.parse(str(found)) == parts


def test_the_direction_is_that_of_the_config(root, tmp_path):
    folder = prepare(root / "wmt14_translate" / "de-en" / "1.0.0")
    for directory in ("wmt14_translate/de-en", "wmt14_translate/de-en:1.0.0", folder):
        source = make_source(config(tmp_path, directory), 0)
        assert list(source.pairs("train")) == [pair[::-1] for pair in PAIRS["train"]]
    assert source.size("train") == 7 and source.repeats("train") is None
    assert list(source.pairs("test")) == [pair[::-1] for pair in PAIRS["test"]]
    assert list(source.pairs("validation")) == [("valid", "gültig")]
    other = make_source(config(tmp_path, folder, source_language="de", target_language="en"), 0)
    assert list(other.pairs("test")) == PAIRS["test"]
    assert other.fingerprint_of("test") != source.fingerprint_of("test")
    weighted = make_source(config(tmp_path, folder, train=("train", "test"), train_weights=(1, 3)), 0)
    np.testing.assert_array_equal(weighted.repeats("train"), [1] * 7 + [3] * 2)


def test_records_are_read_in_chunks(root, tmp_path, monkeypatch):
    from transformer.data import tfds_pairs

    prepare(root / "wmt14_translate" / "de-en" / "1.0.0")
    monkeypatch.setattr(tfds_pairs, "RECORDS_PER_READ", 3)
    assert list(make_source(config(tmp_path), 0).pairs("train")) == [pair[::-1] for pair in PAIRS["train"]]


def test_the_fingerprint_is_of_the_text_and_not_of_its_place(root, tmp_path):
    fingerprints = []
    for number, target in enumerate(["line 0", "line 0", "Line 0"]):
        pairs = {**PAIRS, "train": [("Zeile 0", target), *PAIRS["train"][1:]]}
        folder = prepare(tmp_path / str(number) / "1.0.0", pairs)
        if number == 1:  # other bytes, the same text
            (folder / "train.records").write_text((folder / "train.records").read_text().replace(":", ": "))
        fingerprints.append(make_source(config(tmp_path, folder), 0).fingerprint_of("train"))
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    assert fingerprints[0] == PairList([pair[::-1] for pair in PAIRS["train"]]).fingerprint_of("train")


def test_text_is_read_once_for_its_fingerprint(root, tmp_path, monkeypatch):
    folder = prepare(tmp_path / "1.0.0")
    fingerprint = make_source(config(tmp_path, folder), 0).fingerprint_of("train")
    again = make_source(config(tmp_path, folder), 0)
    monkeypatch.setattr(again, "pairs", None)
    assert again.fingerprint_of("train") == fingerprint


def test_the_newest_version_is_taken(root, tmp_path):
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        prepare(root / "wmt14_translate" / "de-en" / version, {**PAIRS, "test": [(version, version)]})
    (root / "wmt14_translate" / "de-en" / "2.0.0.incompleteX").mkdir()
    assert list(make_source(config(tmp_path), 0).pairs("test")) == [("1.10.0", "1.10.0")]
    named = config(tmp_path, "wmt14_translate/de-en:1.2.0")
    assert list(make_source(named, 0).pairs("test")) == [("1.2.0", "1.2.0")]


def test_what_is_not_prepared_is_prepared_once(root, tmp_path, monkeypatch):
    assert make_source(config(tmp_path), 0).size("train") == 7
    assert (root / "wmt14_translate" / "de-en" / "1.0.0" / "dataset_info.json").exists()
    monkeypatch.setattr(tfds_builders, "_in_own_process", None)  # from here on it is there
    assert make_source(config(tmp_path, "wmt14_translate/de-en:1.0.0"), 0).size("train") == 7


def test_a_data_set_without_a_named_config_is_its_default(root, tmp_path, monkeypatch):
    assert make_source(config(tmp_path, "wmt_t2t_translate"), 0).size("train") == 7
    assert (root / "wmt_t2t_translate" / "de-en" / "1.0.0" / "dataset_info.json").exists()
    monkeypatch.setattr(tfds_builders, "_in_own_process", None)
    assert make_source(config(tmp_path, "wmt_t2t_translate"), 0).size("train") == 7


def test_the_one_that_waited_does_not_prepare_again(root, tmp_path, monkeypatch):
    def prepared_by_another(path, work, minutes):
        assert path.parent == root and minutes == 7.0
        prepare(root / "wmt14_translate" / "de-en" / "1.0.0")
        return locked(path, work, minutes)

    monkeypatch.setattr(tfds_builders, "locked", prepared_by_another)
    monkeypatch.setattr(tfds_builders, "_in_own_process", None)
    assert make_source(config(tmp_path, wait_minutes=7.0), 0).size("train") == 7


def test_waiting_for_another_host_ends(root, tmp_path):
    root.mkdir()
    with locked(root / ".wmt14_translate.lock", "preparing"):
        for name in ("wmt14_translate/de-en", "wmt14_translate", "wmt14_translate/de-en:1.0.0"):
            message = user_error(make_source, config(tmp_path, name, wait_minutes=0.0), 0)
            assert f"is still preparing {name} in" in message and "data.wait_minutes" in message


def test_without_tensorflow_the_requirements_are_named(root, tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_builders.importlib.util, "find_spec", lambda name: None)
    message = user_error(make_source, config(tmp_path), 0)
    assert f"wmt14_translate/de-en is not prepared in TFDS_DATA_DIR={root}" in message
    assert "TensorFlow: pip install -r requirements-tfds.txt" in message and not root.exists()
    prepare(root / "wmt14_translate" / "de-en" / "1.0.0")
    assert make_source(config(tmp_path), 0).size("test") == 2  # reading needs none
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert "pip install -r requirements-tfds.txt" in user_error(make_source, config(tmp_path), 0)


def test_what_cannot_be_prepared(root, tmp_path, monkeypatch):
    message = user_error(make_source, config(tmp_path, "wmt99"), 0)
    assert message == "data.directory=wmt99 is no data set that can be prepared: Failed to find wmt99"
    message = user_error(make_source, config(tmp_path, target_language="fr"), 0)
    assert "data.directory=wmt14_translate/de-en has examples of de, en, not of fr" in message
    assert not (root / "wmt14_translate").exists()  # that is found before anything is fetched
    message = user_error(make_source, config(tmp_path, "broken_translate/de-en"), 0)
    assert "ConnectionError: no network" in message and f"{root}/downloads/manual" in message
    message = user_error(make_source, config(tmp_path, "wmt14_translate/de-en:0.9.0"), 0)
    assert "no data set that can be prepared" in message

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tfds_builders, "locked", full)
    assert "No space left on device; set TFDS_DATA_DIR" in user_error(make_source, config(tmp_path), 0)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_folder_of_versions_is_not_taken_for_a_name(root, tmp_path, monkeypatch, absolute):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tfds_builders, "_in_own_process", None)
    directory = tmp_path / "data" / "wmt14_translate" if absolute else Path("data", "wmt14_translate")
    for version in ("1.0.0", "2.0.0"):
        prepare(tmp_path / "data" / "wmt14_translate" / version)
    message = user_error(make_source, config(tmp_path, directory), 0)
    assert f"a folder that holds {directory}/1.0.0, {directory}/2.0.0; give one of these" in message
    assert not root.exists()
    prepare(root / "data" / "wmt14_translate" / "1.0.0", {**PAIRS, "train": [("a", "b")]})
    if not absolute:  # a name that is prepared goes first
        assert make_source(config(tmp_path, directory), 0).size("train") == 1


def test_what_is_no_data_set_of_pairs(root, tmp_path):
    assert "data.directory is not set" in user_error(make_source, DataConfig(source="tfds"), 0)
    message = user_error(make_source, config(tmp_path, tmp_path / "nowhere"), 0)
    assert "nowhere is neither the folder of a prepared data set" in message
    folder = prepare(tmp_path / "old" / "1.0.0", file_format="tfrecord")
    message = user_error(make_source, config(tmp_path, folder), 0)
    assert "was prepared as tfrecord" in message and f"tfds convert_format --dataset_version_dir={folder}" in message
    (folder / "dataset_info.json").write_text("{")
    assert f"{folder} cannot be read as a data set" in user_error(make_source, config(tmp_path, folder), 0)
    folder = prepare(tmp_path / "new" / "1.0.0", {"train": [("a", "b"), ("bad", "c")]})
    source = make_source(config(tmp_path, folder), 0)
    assert "has no split val; it has train (data.train" in user_error(source.size, "val")
    assert "split train, example 1: not UTF-8" in user_error(source.pairs, "train")
    assert "has no split trian" in user_error(make_source, config(tmp_path, folder, train=("trian",)), 0)
    assert "data.split=end" in user_error(make_source, config(tmp_path, folder, split="end"), 0)


def test_a_bucket_is_prepared_into_and_read_from(bucket, tmp_path, monkeypatch):
    play(monkeypatch)
    monkeypatch.setenv("TFDS_DATA_DIR", f"{bucket}/tfds")
    source = make_source(config(tmp_path), 0)
    assert list(source.pairs("test")) == [pair[::-1] for pair in PAIRS["test"]]
    there = as_path(f"{bucket}/tfds/wmt14_translate/de-en/1.0.0")
    assert {path.name for path in files_below(there)} == {
        "dataset_info.json",
        *(f"{split}.records" for split in PAIRS),
    }
    # Another machine copies it to its own disk.
    monkeypatch.setattr(tfds_builders, "_in_own_process", None)
    for directory in ("wmt14_translate/de-en:1.0.0", there):
        other = make_source(config(tmp_path, directory, cache_directory=str(tmp_path / "other")), 0)
        assert other.fingerprint_of("train") == source.fingerprint_of("train")
        assert list(other.pairs("train")) == list(source.pairs("train"))
    (there / "train.records").write_text(
        (there / "train.records").read_text() + "\n" + json.dumps({"de": "x", "en": "y"})
    )
    assert make_source(config(tmp_path, there, cache_directory=str(tmp_path / "other")), 0).size("train") == 8


def test_a_data_set_without_a_named_config_is_prepared_into_a_bucket_once(bucket, tmp_path, monkeypatch):
    play(monkeypatch)
    monkeypatch.setenv("TFDS_DATA_DIR", f"{bucket}/tfds")
    assert make_source(config(tmp_path, "wmt_t2t_translate"), 0).size("train") == 7
    monkeypatch.setattr(tfds_builders, "_in_own_process", None)
    with monkeypatch.context() as patch:
        patch.setattr(tfds_builders, "copy_file", None)
        assert make_source(config(tmp_path, "wmt_t2t_translate"), 0).size("train") == 7  # nothing is copied back
    elsewhere = config(tmp_path, "wmt_t2t_translate", cache_directory=str(tmp_path / "other"))
    assert make_source(elsewhere, 0).size("train") == 7


def test_a_copy_of_a_data_set_follows_the_bucket(bucket, tmp_path, monkeypatch):
    play(monkeypatch)
    folder = as_path(f"{bucket}/data/wmt14_translate/1.0.0")
    for name in ("Zeile", "zeile"):  # another text of the same size
        local = prepare(tmp_path / name, {**PAIRS, "train": [(f"{name} 0", "line 0")]})
        (local / "extra" / "deep").mkdir(parents=True)
        (local / "extra" / "deep" / "dataset_info.json").write_text(name)
        for path in files_below(local):
            copy_file(path, folder / path.relative_to(local).as_posix())
            written = Bucket.store[f"/bucket/data/wmt14_translate/1.0.0/{path.relative_to(local).as_posix()}"]
            written.modified = datetime.datetime.fromtimestamp(len(name) if name == "Zeile" else 99, datetime.UTC)
        assert list(make_source(config(tmp_path, folder), 0).pairs("train")) == [("line 0", f"{name} 0")]
    copy = tmp_path / "cache" / "tfds" / "bucket" / "data" / "wmt14_translate" / "1.0.0"
    assert (copy / "extra" / "deep" / "dataset_info.json").read_text() == "zeile"
    assert json.loads((copy / "dataset_info.json").read_text())["splits"] == list(PAIRS)


def test_what_another_host_has_put_into_the_bucket_stays(bucket, tmp_path, monkeypatch):
    play(monkeypatch)
    monkeypatch.setenv("TFDS_DATA_DIR", f"{bucket}/tfds")
    there = as_path(f"{bucket}/tfds/wmt14_translate/de-en/1.0.0")

    def slower_than_another_host(name, root, features):
        copy_file(prepare(tmp_path / "theirs") / "dataset_info.json", there / "dataset_info.json")
        return download_and_prepare(name, root, features)

    monkeypatch.setattr(tfds_builders, "_in_own_process", slower_than_another_host)
    assert make_source(config(tmp_path), 0).size("train") == 7
    assert [path.name for path in files_below(there)] == ["dataset_info.json"]


def test_a_bucket_that_fails(bucket, tmp_path, monkeypatch, caplog):
    play(monkeypatch)
    monkeypatch.setenv("TFDS_DATA_DIR", f"{bucket}/tfds")

    def forbidden(*arguments, **options):
        raise OSError("Forbidden: no\nstorage.objects.create")

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "_open", forbidden)
        assert make_source(config(tmp_path), 0).size("train") == 7  # what was prepared is of use all the same
        assert "wmt14_translate/de-en stays in" in caplog.text and "Forbidden: no storage" in caplog.text
    assert make_source(config(tmp_path), 0).size("train") == 7
    elsewhere = config(tmp_path, cache_directory=str(tmp_path / "other"))
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "_open", forbidden)
        message = user_error(make_source, elsewhere, 0)
    assert "gs://bucket/tfds/wmt14_translate/de-en/1.0.0 cannot be reached: Forbidden: no storage" in message
    with monkeypatch.context() as patch:
        error = error_of("gcsfs.retry", "HttpError", Exception, "503")
        patch.setattr(Bucket, "exists", lambda *_, **__: (_ for _ in ()).throw(error))
        assert "gs://bucket/tfds cannot be reached: 503" in user_error(make_source, elsewhere, 0)
    (tmp_path / "file").write_text("")
    message = user_error(make_source, config(tmp_path, cache_directory=str(tmp_path / "file")), 0)
    assert "Not a directory; set data.cache_directory" in message
