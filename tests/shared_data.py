"""Real data that lies outside the repository: a folder given by SHARED_DATA, or ../shared/data beside the checkout."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def shared_data(name: str) -> pathlib.Path:
    """The folder of a data set, or skip the test with the reason."""
    folder = pathlib.Path(os.environ.get("SHARED_DATA", ROOT.parent / "shared" / "data")) / name
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set SHARED_DATA to the folder that holds {name}")
    return folder
