"""What several processes say to each other, in processes that do nothing else."""

import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.system.scripts import ROOT
from transformer.config import MeshConfig
from transformer.training import hosts
from transformer.training.partitioning import make_mesh, place_batch, row_share
from transformer.types import UserError

PROGRAM = """
import logging, pathlib, sys
from transformer.config import MeshConfig
from transformer.training import hosts
from transformer.types import UserError

number, count, address, folder, seconds = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
logging.basicConfig(format="%(message)s", level=logging.INFO)
try:
    hosts.join(MeshConfig(
        distributed=True, coordinator=address, num_processes=count, process=number, wait_seconds=int(seconds)
    ))
except UserError as error:
    sys.exit(str(error))
with hosts.together():
    assert hosts.several() and hosts.is_first() == (number == 0)
    for _ in range(3):
        assert hosts.totals({"a": 0.1 * number, "b": 1.0}) == {"a": 0.1 * (count - 1), "b": float(count)}
    hosts.barrier("here", 120.0)
    hosts.require_same("the size", "7", 120.0, "no remedy")
    hosts.require_shared(pathlib.Path(folder), "the folder", 120.0)
    hosts.require_shared(pathlib.Path(folder) / str(number), "the workdir", 120.0)
"""


def start(folder: pathlib.Path, number: int, count: int, address: str, seconds: int) -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, str(number), str(count), address, str(folder), str(seconds)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def test_one_that_fails_takes_the_others_down_with_its_message(tmp_path):
    address = free_address()
    running = [start(tmp_path, number, 2, address, 120) for number in range(2)]
    since = time.monotonic()
    errors = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [1, 2], errors
    reason = "what lies in the workdir is nothing here and"
    assert f"ending, for process 1 has failed: UserError: process 1: {reason}" in errors[0]
    assert reason in errors[1] and "give a folder on a disk that all hosts share" in errors[1]
    assert time.monotonic() - since < 240
    assert not (tmp_path / hosts.MARK).exists()


def test_a_process_that_is_missing(tmp_path):
    alone = start(tmp_path, 0, 2, free_address(), 3)
    error = alone.communicate(timeout=300)[1]
    assert alone.returncode == 2 and "not all processes of the run were there within mesh.wait_seconds=3" in error
    assert "a mesh.process of its own" in error


def test_alone_nothing_is_asked(tmp_path):
    hosts.join(MeshConfig())
    assert not hosts.several() and hosts.is_first() and hosts.totals({"a": 0.1}) == {"a": 0.1}
    hosts.barrier("nobody", 0.0)
    hosts.require_same("x", "1", 0.0, "")
    hosts.require_shared(tmp_path / "not there", "y", 0.0)
    with pytest.raises(UserError, match="mine"), hosts.together():
        raise UserError("mine")
    hosts.end()


def test_a_cluster_that_is_not_there(monkeypatch):
    monkeypatch.setattr(hosts.distributed.global_state, "client", None)
    monkeypatch.setattr("jax._src.xla_bridge.backends_are_initialized", lambda: False)  # as at the start of a program
    with pytest.raises(UserError, match=r"no cluster that JAX knows was found .*; set mesh\.coordinator, mesh\.num"):
        hosts.join(MeshConfig(distributed=True))


def test_the_rows_of_a_process_are_filled_up():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2))
    share = row_share(mesh, 13, 3)
    assert share == (24, slice(0, 24), 1)
    batch = np.arange(26).reshape(13, 2)
    placed = place_batch(mesh, (batch,), 3, share)[0]
    np.testing.assert_array_equal(placed, np.concatenate([batch, np.zeros((11, 2))]))
