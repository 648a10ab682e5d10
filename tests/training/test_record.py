"""What a process notes of its part of a run: whatever ends it, and only the first one of several."""

import logging
import subprocess
import time
import types

import pytest

from transformer.training import record
from transformer.training.record import RECORD, Session, code_version, read_record
from transformer.training.trainer import Trainer


def session(workdir, **facts) -> Session:
    since = time.monotonic() - 100
    return Session(workdir, facts, {"devices": 3}, step=7, training_seconds=50.0, since=since)


def test_a_note_is_there_at_once_and_stays_when_the_process_is_gone(tmp_path):
    one = session(tmp_path, parameters=11)
    (noted,) = read_record(tmp_path)["sessions"]
    assert noted["from_step"] == noted["to_step"] == 7 and noted["ended"] is None and noted["devices"] == 3
    one.note(9, 53.5)
    (noted,) = read_record(tmp_path)["sessions"]
    assert noted["to_step"] == 9 and noted["training_seconds"] == 3.5 and 100 <= noted["seconds"] < 110


def test_sessions_come_one_after_the_other_and_new_facts_replace_old_ones(tmp_path):
    session(tmp_path, parameters=11, config="a.py")
    session(tmp_path, parameters=13).end("finished")
    found = read_record(tmp_path)
    assert [each["ended"] for each in found["sessions"]] == [None, "finished"]
    assert found["parameters"] == 13 and found["config"] == "a.py"


def test_an_error_is_how_it_ended_and_the_first_end_counts(tmp_path):
    with pytest.raises(ValueError, match="wrong"), session(tmp_path):
        raise ValueError("wrong " * 100)
    (noted,) = read_record(tmp_path)["sessions"]
    assert noted["ended"].startswith("ValueError: wrong wrong") and len(noted["ended"]) <= record.SHOWN_CHARACTERS
    other = session(tmp_path)
    other.end("a signal")
    other.end("finished")
    assert read_record(tmp_path)["sessions"][1]["ended"] == "a signal"


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    session(tmp_path).end("finished")
    assert not (tmp_path / RECORD).exists()
    closed = types.SimpleNamespace(close=lambda: None)
    other = types.SimpleNamespace(checkpoints=closed, metrics=closed, workdir=tmp_path, _copy_to_bucket=lambda: None)
    called = []
    Trainer.close(other, called.append)
    monkeypatch.setattr("jax.process_index", lambda: 0)
    assert not called
    Trainer.close(other, called.append)
    assert called == [tmp_path]


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_a_record_that_cannot_be_read_is_none(tmp_path, text, caplog):
    (tmp_path / RECORD).write_text(text, encoding="latin-1")
    with caplog.at_level(logging.WARNING, "transformer"):
        assert read_record(tmp_path) == {}
    assert f"{RECORD} cannot be read" in caplog.text
    session(tmp_path)
    assert len(read_record(tmp_path)["sessions"]) == 1


def test_what_cannot_be_written_is_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "transformer"):
        session(tmp_path, data={"not JSON": object()}).note(8, 51.0)
        session(tmp_path / "not there").end("finished")
    assert caplog.text.count("could not be written") == 4


def test_the_commit_or_why_it_is_not_known(monkeypatch):
    found = code_version()
    assert len(found["commit"]) == 40 if "commit" in found else "git" in found["unknown"]

    def asked(command, **options):
        if "ls-files" in command:
            raise subprocess.CalledProcessError(1, command)
        raise AssertionError

    monkeypatch.setattr(subprocess, "run", asked)
    assert code_version() == {"unknown": "the code does not lie in a git repository of its own"}

    def missing(command, **options):
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert code_version() == {"unknown": "git could not be asked: git"}
