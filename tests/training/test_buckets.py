"""A workdir in a bucket: small files go to and fro, and checkpoints are looked after as on disk.

Orbax writes to buckets by a way of its own, which this bucket does not have: see tests/system/test_bucket.py.
"""

import contextlib
import dataclasses
import errno
import logging

import jax.numpy as jnp
import pytest

from tests.bucket import Bucket, bucket, error_of
from transformer import paths
from transformer.config import Config, to_json
from transformer.training.checkpoints import MANIFEST, Checkpoints
from transformer.training.workdir import (
    CONFIG,
    checkpoints_folder,
    copy_to_bucket,
    local_workdir,
    opened,
    read_config,
    training_workdir,
)
from transformer.types import UserError

assert bucket  # a fixture


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))


CONFIG_A = dataclasses.replace(Config(), seed=7)
ADDRESS = "gs://bucket/runs/a"


def text_of(name: str) -> str:
    return paths.as_path(f"{ADDRESS}/{name}").read_text()


def test_a_folder_on_disk_is_itself(tmp_path):
    assert local_workdir(str(tmp_path)) == training_workdir(tmp_path) == tmp_path
    assert checkpoints_folder(tmp_path) == tmp_path / "checkpoints"
    copy_to_bucket(tmp_path)


def test_another_machine_goes_on_from_the_bucket(bucket, tmp_path, monkeypatch):
    workdir = training_workdir(ADDRESS)
    assert workdir.is_relative_to(tmp_path / "one") and str(checkpoints_folder(workdir)) == f"{ADDRESS}/checkpoints"
    with opened(workdir, CONFIG_A):
        (workdir / "tensorboard").mkdir()
        (workdir / "tensorboard" / "events").write_bytes(b"\xff\x00")
        (workdir / "metrics.jsonl").write_text('{"step": 1}\n')
        (workdir / "config.partial").write_text("half")
        paths.write_text(checkpoints_folder(workdir) / "metrics.json", "{}")
        copy_to_bucket(workdir)
    names = {path.relative_to(ADDRESS).as_posix() for path in paths.files_below(paths.as_path(ADDRESS))}
    assert names == {CONFIG, "log.txt", "metrics.jsonl", "tensorboard/events", "checkpoints/metrics.json"}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    for other in (local_workdir(ADDRESS + "/"), training_workdir(ADDRESS)):
        with opened(other, CONFIG_A) if other.name == "training" else contextlib.nullcontext():
            assert other.is_relative_to(tmp_path / "two") and read_config(other) == CONFIG_A
            assert (other / "tensorboard" / "events").read_bytes() == b"\xff\x00"
            assert not (other / "checkpoints").exists()


def test_those_who_read_a_run_and_those_who_may_not_train_it_do_not_disturb_it(bucket):
    workdir = training_workdir(ADDRESS)
    with opened(workdir, CONFIG_A), open(workdir / "metrics.jsonl", "w") as metrics:
        print(1, file=metrics, flush=True)
        copy_to_bucket(workdir)
        reader = local_workdir(ADDRESS)
        for _ in range(2):
            with (
                pytest.raises(UserError, match="another process is training in"),
                opened(training_workdir(ADDRESS), CONFIG_A),
            ):
                pass
        print(2, file=metrics, flush=True)
        logging.getLogger("transformer").warning("still there")
        copy_to_bucket(workdir)
        assert text_of("metrics.jsonl") == "1\n2\n" and "still there" in text_of("log.txt")

        # The reader's copy is older by now. What it writes are outputs.
        assert (reader / "metrics.jsonl").read_text() == "1\n"
        (reader / "outputs").mkdir()
        for name in ("test.txt", "test.html", "val.txt"):
            (reader / "outputs" / name).write_text(name)
        copy_to_bucket(reader, "outputs/test.txt", "outputs/test.html")
        assert text_of("metrics.jsonl") == "1\n2\n" and text_of("outputs/test.html") == "test.html"
        assert not paths.as_path(f"{ADDRESS}/outputs/val.txt").exists()
        copy_to_bucket(reader, "outputs")
        assert text_of("outputs/val.txt") == "val.txt"

    # Training goes on with these outputs at hand, while others write newer ones.
    with opened(workdir, CONFIG_A):
        assert (workdir / "outputs" / "val.txt").read_text() == "val.txt"
        paths.write_text(paths.as_path(f"{ADDRESS}/outputs/val.txt"), "newer")
        copy_to_bucket(workdir)
    assert text_of("outputs/val.txt") == "newer"


def test_the_bucket_is_the_run_but_a_log_that_went_on_stays(bucket):
    workdir = training_workdir(ADDRESS)
    with opened(workdir, CONFIG_A):
        (workdir / "metrics.jsonl").write_text("1\n")
        copy_to_bucket(workdir)
        logging.getLogger("transformer").warning("then it was killed")
        (workdir / "metrics.jsonl").write_text("1\n2\n")
    with opened(workdir, CONFIG_A):
        assert "then it was killed" in (workdir / "log.txt").read_text()
        assert (workdir / "metrics.jsonl").read_text() == "1\n2\n"
    assert (local_workdir(ADDRESS) / "metrics.jsonl").read_text() == "1\n"
    paths.write_text(paths.as_path(f"{ADDRESS}/metrics.jsonl"), "one\n")  # another machine went on
    with opened(workdir, CONFIG_A):
        assert (workdir / "metrics.jsonl").read_text() == "one\n"
    paths.remove_tree(paths.as_path(ADDRESS))
    with opened(workdir, CONFIG_A):
        assert {path.name for path in workdir.iterdir()} == {CONFIG, "log.txt", ".lock", "bucket.txt"}
        assert (workdir / "log.txt").read_text() == ""
    assert not (local_workdir(ADDRESS) / "metrics.jsonl").exists()


def test_another_experiment_in_the_bucket_is_refused(bucket):
    paths.write_text(paths.as_path(f"{ADDRESS}/{CONFIG}"), to_json(Config()))
    paths.write_text(paths.as_path(f"{ADDRESS}/checkpoints/3/{MANIFEST}"), "{}")
    with (
        pytest.raises(UserError, match="holds another experiment"),
        opened(training_workdir(ADDRESS), CONFIG_A),
    ):
        pass


ERRORS = [
    error_of("aiohttp.client_exceptions", "ClientConnectorError", OSError, errno.ECONNREFUSED, "Connect call failed"),
    error_of("gcsfs.retry", "HttpError", Exception, "Service Unavailable, 503"),
    error_of("google.auth.exceptions", "RefreshError", Exception, "no credentials"),
    OSError("Forbidden: https://somewhere"),
    TimeoutError("too slow"),
    ValueError("PERMISSION_DENIED: no storage.objects.create"),
]


@pytest.fixture(params=ERRORS, ids=lambda error: type(error).__name__)
def broken(request, monkeypatch):
    """From now on what is named fails."""

    def fail(*arguments, **options):
        raise request.param

    return lambda *names: [monkeypatch.setattr(Bucket, name, fail) for name in names]


def test_a_bucket_that_cannot_be_reached_is_said(bucket, broken):
    broken("exists", "info", "ls")
    with pytest.raises(UserError, match=r"gs://bucket/runs/a cannot be reached: .*; see that this machine is online"):
        local_workdir(ADDRESS)
    with (
        pytest.raises(UserError, match="gs://bucket/runs/a cannot be reached"),
        opened(training_workdir(ADDRESS), CONFIG_A),
    ):
        pass


def test_a_bucket_that_cannot_be_written_is_said_at_the_start_and_no_loss_later(bucket, broken, caplog):
    workdir = training_workdir(ADDRESS)
    with opened(workdir, CONFIG_A):
        (workdir / "metrics.jsonl").write_text("1\n")
        broken("_open")
        copy_to_bucket(workdir)
        assert f"files of {workdir} were not copied to the bucket and stay there: {ADDRESS} cannot" in caplog.text
    with (
        pytest.raises(UserError, match="gs://bucket/runs/a cannot be reached"),
        opened(training_workdir(f"{ADDRESS}"), CONFIG_A),
    ):
        pass


def test_checkpoints_that_cannot_be_reached_are_not_taken_for_damaged(bucket, broken, caplog):
    folder = paths.as_path(f"{ADDRESS}/checkpoints")
    checkpoints = Checkpoints(folder, keep=1)
    for step in (3, 5):
        paths.write_text(folder / str(step) / MANIFEST, "{}")
    broken("_open", "rm")
    checkpoints._delete_old()
    assert f"checkpoint 3 in {folder} could not be deleted: {folder}/3 cannot be reached" in caplog.text
    for call in (lambda: checkpoints._newest_whole(1, {}), lambda: checkpoints.set_metric(5, 1.0)):
        with pytest.raises(UserError, match="checkpoints cannot be reached"):
            call()
    checkpoints._failure = ERRORS[0]
    with pytest.raises(UserError, match=r"checkpoints cannot be reached: .*Connect call failed"):
        checkpoints.wait()


def test_checkpoints_in_a_bucket(bucket, tmp_path, monkeypatch):
    params = {"w": jnp.arange(7.0)}
    local = Checkpoints(tmp_path / "local", keep=9)
    for step in (3, 5, 7):
        local.save(step, params, {"step": jnp.int32(step)}, metadata={"step": step})
    local.close()
    folder = paths.as_path(f"{bucket}/run/checkpoints")
    for path in paths.files_below(tmp_path / "local"):
        paths.copy_file(path, folder / path.relative_to(tmp_path / "local").as_posix())
    paths.write_text(folder / "9" / "params" / "half", "a save that was cut short")

    assert Checkpoints(f"{bucket}/empty").steps() == []
    Checkpoints(f"{bucket}/empty")._prepare_folder()
    there = Checkpoints(str(folder), keep=2)
    assert there.steps() == [3, 5, 7] and there.best() is None
    there.set_metric(5, 1.5)
    assert there.best() == 5 and there.metric(5) == 1.5 and Checkpoints(folder).best() == 5
    assert there.params_shapes()["w"].shape == (7,)
    there._verify(7, {"params": params}, every_file=True)

    def unreachable(path, *arguments, **options):
        if "/params/" in path:
            raise OSError("Forbidden")
        return opened_file(path, *arguments, **options)

    with monkeypatch.context() as patch:
        opened_file = Bucket().open
        patch.setattr(Bucket, "open", lambda self, *arguments, **options: unreachable(*arguments, **options))
        with pytest.raises(UserError, match="run/checkpoints/7 cannot be reached: Forbidden"):
            there._newest_whole(1, {"params": params})
    one = next(path for path in paths.files_below(folder / "7" / "params") if paths.file_size(path) > 3)
    one.write_bytes(b"x" * paths.file_size(one))
    with pytest.raises(UserError, match=r"checkpoint 7 in gs://bucket/run/checkpoints is damaged: .*another checksum"):
        there.read_params(7, "raw", params)
    assert there._newest_whole(1, {"params": params}) == [5]
    there._prepare_folder()
    assert there.steps() == [3, 5] and not (folder / "9").exists() and (folder / "7.damaged").exists()
    there._delete_old()
    assert there.steps() == [3, 5]
    one_left = Checkpoints(folder, keep=1)
    one_left.set_metric(3, 9.0)
    paths.write_text(folder / "8" / MANIFEST, (folder / "5" / MANIFEST).read_text())
    one_left._delete_old()
    assert one_left.steps() == [3, 8]  # the best stays
