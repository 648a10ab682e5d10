"""A workdir in a bucket: small files go to and fro, and checkpoints are looked after as on disk.

Orbax writes to buckets by a way of its own, which this bucket does not have: see tests/system/test_bucket.py.
"""

import dataclasses

import jax.numpy as jnp
import pytest

from tests.bucket import bucket
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
)
from transformer.types import UserError

assert bucket  # a fixture


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))


def test_a_folder_on_disk_is_itself(tmp_path):
    assert local_workdir(str(tmp_path)) == tmp_path and checkpoints_folder(tmp_path) == tmp_path / "checkpoints"
    copy_to_bucket(tmp_path)


def test_another_machine_goes_on_from_the_bucket(bucket, tmp_path, monkeypatch):
    address = f"{bucket}/runs/a"
    workdir = local_workdir(address)
    assert workdir.is_relative_to(tmp_path / "one") and str(checkpoints_folder(workdir)) == f"{address}/checkpoints"
    config = dataclasses.replace(Config(), seed=7)
    with opened(workdir, config):
        (workdir / "tensorboard").mkdir()
        (workdir / "tensorboard" / "events").write_bytes(b"\xff\x00")
        (workdir / "metrics.jsonl").write_text('{"step": 1}\n')
        (workdir / "config.partial").write_text("half")
        paths.write_text(checkpoints_folder(workdir) / "metrics.json", "{}")
        copy_to_bucket(workdir)
    names = {path.relative_to(address).as_posix() for path in paths.files_below(paths.as_path(address))}
    assert names == {CONFIG, "log.txt", "metrics.jsonl", "tensorboard/events", "checkpoints/metrics.json"}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    other = local_workdir(address + "/")
    assert other != workdir and read_config(other) == config
    # What an evaluation elsewhere has read may be old when it ends: it gives back only what it made.
    (workdir / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    copy_to_bucket(workdir)
    (other / "outputs").mkdir()
    for name in ("outputs/test.txt", "card.md"):
        (other / name).write_text("new")
    copy_to_bucket(other, "outputs", "card.md")
    there = paths.as_path(address)
    assert (there / "metrics.jsonl").read_text() == (workdir / "metrics.jsonl").read_text()
    assert (there / "outputs" / "test.txt").read_text() == (there / "card.md").read_text() == "new"
    assert (other / "tensorboard" / "events").read_bytes() == b"\xff\x00"
    assert not (other / "checkpoints").exists()


def test_another_experiment_in_the_bucket_is_refused(bucket):
    workdir = local_workdir(f"{bucket}/runs/a")
    (workdir / CONFIG).write_text(to_json(Config()))
    paths.write_text(checkpoints_folder(workdir) / "3" / MANIFEST, "{}")
    with (
        pytest.raises(UserError, match="holds another experiment"),
        opened(workdir, dataclasses.replace(Config(), seed=7)),
    ):
        pass


def test_checkpoints_in_a_bucket(bucket, tmp_path):
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
