"""What was started does not outlive its starter."""

import os
import signal
import subprocess
import sys
import time

import psutil

from tests.system.scripts import ROOT

START = """
import os, time
from transformer.data.processes import start_pool

if __name__ == "__main__":
    pool = start_pool(1, os.getpid)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 3_600)
    time.sleep(3_600)
"""


PREPARE = """
from transformer.data.tfds_builders import _in_own_process

if __name__ == "__main__":
    _in_own_process("name", "root", ())
"""
SLOW_PACKAGE = """
import os, time

def builder(name, data_dir):
    print(os.getpid(), flush=True)
    time.sleep(3_600)
"""


def test_a_ctrl_c_ends_a_preparation(tmp_path):
    (tmp_path / "start.py").write_text(PREPARE)
    (tmp_path / "tensorflow_datasets.py").write_text(SLOW_PACKAGE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, str(tmp_path / "start.py")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as starter:
        started = int(starter.stdout.readline())
        starter.send_signal(signal.SIGINT)
        try:
            errors = starter.communicate(timeout=60)[1]
        finally:
            starter.kill()
    assert "KeyboardInterrupt" in errors and not runs(started)


def test_the_processes_end_with_the_one_that_started_them(tmp_path):
    (tmp_path / "start.py").write_text(START)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "start.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as starter:
        started = int(starter.stdout.readline())
        assert runs(started)
        starter.send_signal(signal.SIGKILL)
    for _ in range(600):
        if not runs(started):
            return
        time.sleep(0.1)
    raise AssertionError("it is still there")


WITHOUT_GUARD = """
from transformer.data.processes import map_in_order
list(map_in_order(len, [[1]], 2, "count"))
"""


def test_a_script_that_starts_itself_again_is_told_of_its_mistake(tmp_path):
    (tmp_path / "start.py").write_text(WITHOUT_GUARD)
    command = [sys.executable, str(tmp_path / "start.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, env=environment, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "one of the 2 processes that count ended early" in last
    assert 'script that does not keep what it runs under if __name__ == "__main__"' in last


def runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
