"""Several processes on one machine train one run: as one process does, through kills, signals and other numbers."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.system.scripts import ROOT, SMALL
from transformer.training.hosts import HEARTBEAT_SECONDS

COMMAND = [
    "--config=configs/phrases_en_de.py",
    *SMALL,
    "--config.model.dropout_rate=0",
    "--config.training.log_every=1",
]
STEPS = 12  # of SMALL, with a checkpoint after 4 and 8
PREEMPTED = 143


class Processes:
    """One run of train.py in so many processes; all are ended at the end."""

    def __init__(self, workdir: pathlib.Path, number: int, devices: int, *flags: str, of_one: dict | None = None):
        """``of_one``: flags of single processes, by their numbers."""
        self.workdir = workdir
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        count = f"--xla_force_host_platform_device_count={devices}"
        options = re.sub(r"--xla_force_host_platform_device_count=\d+", count, os.environ["XLA_FLAGS"])
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": options}
        self.all, self.logs = [], []
        for process in range(number):
            mesh = {"distributed": number > 1}
            if number > 1:
                mesh |= {"coordinator": address, "num_processes": number, "process": process, "wait_seconds": 240}
            given = [f"--config.mesh.{key}={value}" for key, value in mesh.items()]
            log = workdir.with_name(f"{workdir.name}.{process}.log")
            self.logs.append(log)
            command = [sys.executable, "train.py", f"--workdir={workdir}", *COMMAND, *given, *flags]
            command += (of_one or {}).get(process, [])
            with log.open("a") as file:
                self.all.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self.all:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def codes(self, seconds: float = 400) -> list[int]:
        end = time.monotonic() + seconds
        return [process.wait(timeout=max(end - time.monotonic(), 1)) for process in self.all]

    def text(self, process: int = 0) -> str:
        return self.logs[process].read_text()

    def until(self, step: int) -> None:
        """Return when a step was made."""
        end = time.monotonic() + 400
        while f"step {step}:" not in self.text():
            assert time.monotonic() < end and self.all[0].poll() is None, self.text()
            time.sleep(0.02)


def metrics(workdir: pathlib.Path) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        found.setdefault(values["step"], {}).update(values)
    return found


def assert_same_run(found: pathlib.Path, expected: pathlib.Path) -> None:
    """The same losses and scores to rounding, each example counted once, and the same work."""
    ours, theirs = metrics(found), metrics(expected)
    assert ours.keys() == theirs.keys() and max(ours) == STEPS
    for step, values in theirs.items():
        for name in ("loss", "gradient_norm", "validation_nll_per_token", "validation_num_examples"):
            if name in values:
                np.testing.assert_allclose(ours[step][name], values[name], rtol=2e-4)
    works = []
    for workdir in (found, expected):
        [manifest] = (workdir / "checkpoints").glob(f"{STEPS}/manifest.json")
        works.append(json.loads(manifest.read_text())["content"]["metadata"]["work"])
    assert works[0] == pytest.approx(works[1], rel=1e-9)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of a single process on a single device."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    with Processes(workdir, 1, 1) as run:
        assert run.codes() == [0], run.text()
    return workdir


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_the_run_goes_on_in_other_numbers(alone, tmp_path):
    workdir = tmp_path / "run"
    with Processes(workdir, 2, 2, "--config.mesh.fsdp=2") as run:
        run.until(6)
        run.all[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        codes = run.codes(3 * HEARTBEAT_SECONDS)
        assert time.monotonic() - killed < 60 and codes[0] != 0 and codes[1] == -signal.SIGKILL
        last = run.text()[run.text().index("step 6:") :]
        assert re.search("error|Error|FAILED|unhealthy|terminat", last), last
    with Processes(workdir, 4, 1) as run:
        assert run.codes() == [0] * 4, run.text()
        assert "going on from step 4" in run.text()
        assert run.text(1).count("step") == 0  # one process reports
    assert_same_run(workdir, alone)


@pytest.mark.slow
def test_a_signal_to_one_process_saves_in_all(alone, tmp_path):
    workdir = tmp_path / "run"
    with Processes(workdir, 2, 1) as run:
        run.until(2)
        run.all[1].send_signal(signal.SIGTERM)
        assert run.codes() == [PREEMPTED] * 2, run.text()
        stopped = int(re.search(r"stopped at step (\d+) of 12", run.text())[1])
        assert 2 < stopped < STEPS and (workdir / "checkpoints" / str(stopped) / "manifest.json").exists()
    with Processes(workdir, 1, 2) as run:
        assert run.codes() == [0], run.text()
        assert f"going on from step {stopped}" in run.text()
    assert_same_run(workdir, alone)


@pytest.mark.slow
def test_what_one_process_finds_wrong_all_say(tmp_path):
    other = {1: ["--config.training.learning_rate=0.5"]}
    with Processes(tmp_path / "run", 2, 1, of_one=other) as run:
        assert all(run.codes(120))
        assert "start all with the same flags and files" in run.text(1)
        assert "process 1 has failed" in run.text(0) and "start all with the same flags and files" in run.text(0)
    assert not list((tmp_path / "run").glob("checkpoints/*"))
