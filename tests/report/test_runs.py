"""Which runs a report is made of, and what they are called."""

import pytest

from tests.report.workdirs import a_run
from transformer.report.runs import names_of, read_runs
from transformer.types import UserError


def test_names_are_as_long_as_it_takes_to_tell_runs_apart(tmp_path):
    paths = [tmp_path / name for name in ("x/run", "y/run", "y/other")]
    assert names_of(paths) == ["x/run", "y/run", "y/other"]
    assert names_of(paths[1:]) == ["run", "other"]
    assert names_of(["gs://bucket/x/run", "gs://bucket/y/run/"]) == ["x/run", "y/run"]


def test_a_config_that_cannot_be_read_is_told_with_its_workdir(tmp_path):
    workdirs = [a_run(tmp_path / name) for name in "ab"]
    (workdirs[1] / "config.json").write_text('{"config_version": 1}')
    with pytest.raises(UserError, match=rf"--workdir={workdirs[1]}: config_version=1 was written by another version"):
        read_runs(workdirs)


def test_a_workdir_may_be_given_once(tmp_path):
    workdirs = [a_run(tmp_path / name) for name in "ab"]
    with pytest.raises(UserError, match="is given twice"):
        read_runs([*workdirs, f"{workdirs[0]}/../a"])
    with pytest.raises(UserError, match="room for 26 runs"):
        read_runs([f"{workdirs[0]}/{number}" for number in range(27)])
