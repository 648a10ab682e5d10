"""What is done with files is done in the same way on disk and in a bucket."""

import errno

import fsspec
import pytest

from tests.bucket import bucket
from transformer import paths
from transformer.types import UserError

assert bucket  # a fixture


@pytest.fixture(params=["disk", "bucket"])
def folder(request, tmp_path):
    return paths.as_path(tmp_path if request.param == "disk" else request.getfixturevalue("bucket")) / "run"


def test_files_and_folders(folder, tmp_path):
    folder.mkdir(parents=True, exist_ok=True)
    paths.write_text(folder / "b.txt", "béta")
    paths.write_text(folder / "b.txt", "béta again")
    local = tmp_path / "local.txt"
    local.write_bytes(b"\x00" * 3_000_000)
    paths.copy_file(local, folder / "deep" / "er" / "a.bin")
    names = [path.relative_to(folder).as_posix() for path in paths.files_below(folder)]
    assert names == ["b.txt", "deep/er/a.bin"]
    assert [paths.file_size(folder / name) for name in names] == [11, 3_000_000]
    paths.sync_tree(folder)
    paths.copy_file(folder / "b.txt", tmp_path / "back" / "b.txt")
    assert (tmp_path / "back" / "b.txt").read_text() == "béta again"
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["b.txt"]
    paths.remove_tree(folder / "deep")
    assert not (folder / "deep").exists() and (folder / "b.txt").exists()
    paths.remove_tree(folder / "deep")


def test_what_cannot_be_reached_is_said(monkeypatch):
    with pytest.raises(UserError, match=r"s3://bucket/x is neither a path on disk nor in a bucket"):
        paths.as_path("s3://bucket/x")

    def missing(name):
        raise ImportError("Please install gcsfs")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(UserError, match=r"gs://bucket/x needs gcsfs: pip install -r requirements-gcs\.txt"):
        paths.as_path("gs://bucket/x")


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("gs://bucket/x", OSError(errno.ENOSPC, "No space left on device")),
        ("gs://bucket/x", KeyError("of our own")),
        ("gs://bucket/x", ValueError("of our own: no")),
        ("run", OSError("Forbidden")),
        ("run", ConnectionResetError("reset")),
    ],
)
def test_what_is_no_matter_of_the_bucket_stays_what_it_is(path, error):
    with pytest.raises(type(error)) as caught, paths.reaching(path):
        raise error
    assert caught.value is error


def test_a_copy_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")
    monkeypatch.setattr(paths.shutil, "copyfileobj", fail)
    with pytest.raises(OSError, match="No space"):
        paths.copy_file(tmp_path / "a", tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert (tmp_path / "b").read_text() == "old"


def test_the_user_s_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.user_cache() == tmp_path / "transformer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert paths.user_cache() == tmp_path / "home" / ".cache" / "transformer"


def test_a_file_is_written_whole_or_not_at_all_and_for_everybody(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    paths.write_bytes(path, b"old")
    assert path.stat().st_mode & 0o777 == 0o644

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(paths.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        paths.write_bytes(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
