"""A run whose workdir is in a bucket: trained, gone on with on another machine, scored. A server on this machine plays
Google Cloud Storage, to gcsfs and to Orbax's own client: `make test-gcs`."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.system.scripts import ROOT, TRAIN, last_json
from tests.system.storage_server import Storage, served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("gcsfs") is None,
        reason="no gcsfs: make test-gcs, or pip install -r requirements-gcs.txt",
    ),
]


@pytest.fixture
def storage():
    return Storage()


@pytest.fixture
def server(storage):
    with served(storage) as address:
        yield address


def run(script: str, *flags: str, server: str, cache: str, code: int = 0) -> subprocess.CompletedProcess:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "",
        "XDG_CACHE_HOME": cache,
        "STORAGE_EMULATOR_HOST": server,
        "TENSORSTORE_GCS_HTTP_URL": server,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any",
    }
    result = subprocess.run(
        [sys.executable, script, *flags], cwd=ROOT, capture_output=True, env=environment, timeout=600
    )
    assert result.returncode == code, result.stderr.decode()[-4000:]
    return result


def test_a_run_goes_on_from_its_bucket(storage, server, tmp_path):
    workdir = "--workdir=gs://bucket/runs/a"
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    run("train.py", *TRAIN, workdir, "--config.training.num_steps=8", server=server, cache=first)
    errors = run("train.py", *TRAIN, workdir, server=server, cache=second).stderr.decode()
    assert "going on from step 8 in gs://bucket/runs/a/checkpoints" in errors and "finished at step 12" in errors
    found = run("eval.py", workdir, "--split=test", "--checkpoint=average:2", server=server, cache=first)
    scores = last_json(found)
    assert scores["steps"] == [8, 12] and scores["num_examples"] == 1_000
    outputs = {name for name in storage.objects if name.startswith("runs/a/outputs/")}
    assert "runs/a/outputs/test.average-2.raw.txt" in outputs

    storage.read_only = True
    found = run("eval.py", workdir, "--split=test", "--checkpoint=12", server=server, cache=first)
    assert last_json(found)["steps"] == [12]
    errors = found.stderr.decode()
    assert "were not copied to the bucket and stay there: gs://bucket/runs/a cannot be reached: Forbidden" in errors
    flags = (*TRAIN, workdir, "--config.training.num_steps=16")
    errors = run("train.py", *flags, server=server, cache=first, code=2).stderr.decode()
    assert "error: gs://bucket/runs/a cannot be reached: Forbidden" in errors and "Traceback" not in errors

    alone = f"--workdir={tmp_path / 'alone'}"
    run("train.py", *TRAIN, alone, server=server, cache=first)
    same = last_json(run("eval.py", alone, "--split=test", "--checkpoint=average:2", server=server, cache=first))
    assert same["nll_per_token"] == scores["nll_per_token"] and same["bleu"] == scores["bleu"]
