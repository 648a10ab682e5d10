"""One process holds the lock; the others wait, say for whom, and give up in time."""

import errno
import logging
import multiprocessing
import os
import threading

import pytest

from transformer.data import locks
from transformer.data.locks import locked
from transformer.types import UserError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(locks, "SECONDS_BETWEEN_TRIES", 0.01)


def test_the_others_wait_for_their_turn(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path, order, is_held = tmp_path / "lock", [], threading.Event()

    def hold():
        with locked(path, "preparing x"):
            is_held.set()
            order.append("first")

    with locked(path, "preparing x"):
        thread = threading.Thread(target=hold)
        thread.start()
        assert not is_held.wait(0.2)
        order.append("here")
    thread.join()
    assert order == ["here", "first"]
    assert f"process {os.getpid()} is preparing x; waiting for it" in caplog.text and str(path) in caplog.text
    assert len(caplog.messages) == 1


def hold_and_die(path, is_held):
    with locked(path, "preparing x"):
        is_held.set()
        os._exit(9)


def test_waiting_ends_in_time(tmp_path):
    with (
        locked(tmp_path / "lock", "preparing x"),
        pytest.raises(UserError, match=r"still preparing x after 0\.001 minutes .*data\.wait_minutes"),
        locked(tmp_path / "lock", "preparing x", 0.001),
    ):
        pass


def test_a_process_that_dies_lets_go(tmp_path):
    context = multiprocessing.get_context("spawn")
    is_held = context.Event()
    process = context.Process(target=hold_and_die, args=(tmp_path / "lock", is_held))
    process.start()
    process.join()
    assert is_held.is_set() and process.exitcode == 9
    with locked(tmp_path / "lock", "preparing x", 0.0):
        pass


def test_a_disk_without_locks_is_told(tmp_path, caplog, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with locked(tmp_path / "lock", "preparing x"):
        pass
    assert "cannot be locked (not supported): see that no other process is preparing x" in caplog.text
