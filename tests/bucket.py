"""A bucket in memory: what fsspec says of ``gs://`` in tests, with the names that gcsfs would give."""

import fsspec
import pytest
from etils.epath import backend, gpath
from fsspec.implementations.memory import MemoryFileSystem

ADDRESS = "gs://bucket"


class Bucket(MemoryFileSystem):
    protocol = ("gs", "gcs")
    store: dict = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("gs:/") if path.startswith("gs://") else path)

    def info(self, path, **options):
        found = super().info(path, **options)
        return found if found["type"] == "directory" else {**found, "mtime": self.store[found["name"]].modified}

    def mkdir(self, path, **options):
        """Nothing: a folder is there when something is in it."""

    def makedirs(self, path, **options):
        """Likewise."""

    def glob(self, path, **options):
        return [found.removeprefix("/") for found in super().glob(path, **options)]


@pytest.fixture
def bucket(monkeypatch):
    """An empty bucket at ``gs://bucket``, as if gcsfs were installed and TensorFlow were not."""
    monkeypatch.setattr(gpath, "_is_tf_installed", lambda: False)  # what EPATH_USE_TF says is read once
    monkeypatch.setattr(Bucket, "store", {})
    monkeypatch.setattr(Bucket, "pseudo_dirs", [""])
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda name: Bucket)
    others = fsspec.filesystem
    monkeypatch.setattr(fsspec, "filesystem", lambda name, **_: Bucket() if name == "gcs" else others(name))
    backend.fsspec_backend._get_filesystem.cache_clear()
    yield ADDRESS
    backend.fsspec_backend._get_filesystem.cache_clear()


def error_of(module: str, name: str, base: type, *arguments) -> Exception:
    """An error as a package raises it that need not be installed."""
    return type(name, (base,), {"__module__": module})(*arguments)
