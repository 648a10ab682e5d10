"""A checkpoint comes back bit for bit, or is not taken and the reason is said."""

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from transformer.training import checkpoints as module
from transformer.training.checkpoints import MANIFEST, UNFINISHED, Checkpoints
from transformer.types import UserError


def some_params(seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "decoder": {"kernel": jax.random.normal(keys[0], (5, 7)), "bias": jax.random.normal(keys[1], (7,))},
        "embedding": jax.random.normal(keys[2], (11, 5)),
    }


def some_state(params, step):
    return {"opt_state": optax.adamw(1e-3).init(params), "step": jnp.int32(step)}


def save(checkpoints, step, params=None, **arguments):
    params = some_params(step) if params is None else params
    checkpoints.save(step, params, some_state(params, step), metadata={"name": f"at {step}"}, **arguments)
    checkpoints.wait()


def target_of(params):
    tree = {"params": params, "state": some_state(params, 0)}
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, one), other in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        assert one.tobytes() == other.tobytes(), path


@pytest.fixture
def messages(caplog):
    caplog.set_level(logging.INFO, logger="transformer.training.checkpoints")
    return caplog


def data_files(folder, item):
    return sorted(path for path in (folder / item).rglob("d/*") if path.is_file())


# ---- what comes back


def test_every_kind_of_leaf_comes_back_bit_for_bit(tmp_path):
    params = some_params()
    special = np.array([np.nan, -np.nan, np.inf, -0.0, 1e-45, 0.1], np.float32)
    state = {
        "opt_state": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3), optax.ema(0.9)).init(params),
        "masked": optax.masked(optax.adam(1e-3), {"decoder": True, "embedding": False}).init(params),
        "special": jnp.asarray(special),
        "numpy": special.copy(),
        "nested": [jnp.ones(2), (jnp.zeros((3, 2)), None, {})],
        "int": 3,
        "float": 0.1,
        "bool": True,
        "numpy_scalar": np.asarray(2.5, np.float32),
    } | {name: jnp.arange(1, 4).astype(name) for name in ("bfloat16", "float16", "int8", "int32", "uint32", "bool_")}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, params, state, ema=some_params(1), metadata={"loss": 0.1, "list": [1, "two", None]})
    step, items, metadata = checkpoints.restore({"params": params, "state": state, "ema": params})
    assert step == 1 and metadata == {"loss": 0.1, "list": [1, "two", None]}
    assert_same(items, {"params": params, "state": state, "ema": some_params(1)})
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(items["state"]), strict=True):
        assert isinstance(after, type(before))


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.int8])
def test_a_scalar_of_numpy_keeps_its_dtype(tmp_path, kind):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, some_params(), {"scale": kind(0.1)}, metadata={})
    target = {"state": {"scale": jax.ShapeDtypeStruct((), kind)}}
    assert_same(checkpoints.restore(target).items["state"], {"scale": kind(0.1)})


def test_only_what_is_asked_for_is_read(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    shutil.rmtree(tmp_path / "1" / "state")
    params, description = checkpoints.read_params("latest", "raw", some_params())
    assert_same(params, some_params(1))
    assert description == {"steps": [1], "weights": "raw", "metadata": {"name": "at 1"}}
    with pytest.raises(UserError, match=r"file state/.* is missing"):
        checkpoints.restore({"params": some_params()})


def child_command(source, folder):
    return [sys.executable, "-c", f"FOLDER = {str(folder)!r}\n" + textwrap.dedent(source)]


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def on_four_devices(tmp_path_factory):
    """A process that saves from four devices and restores on two and on one, then fails to save; INFO is shown."""
    child = """
        import logging
        import jax, numpy as np, orbax.checkpoint as ocp
        from absl import logging as absl_logging
        from jax.sharding import NamedSharding, PartitionSpec
        from transformer.training.checkpoints import Checkpoints
        from transformer.types import UserError

        logging.basicConfig(level=logging.INFO)
        absl_logging.set_verbosity(absl_logging.INFO)

        def on(count):
            mesh = jax.make_mesh((count,), ("data",), devices=jax.devices()[:count])
            return NamedSharding(mesh, PartitionSpec("data"))

        checkpoints = Checkpoints(FOLDER)
        value = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
        array = jax.device_put(value, on(4))
        checkpoints.save(1, {"w": array}, {"step": 1}, metadata={})
        checkpoints.save(2, {"w": array * 3}, {"step": 2}, metadata={})
        for sharding in (on(2), None):
            target = {"w": jax.ShapeDtypeStruct((8, 3), np.float32, sharding=sharding)}
            restored = checkpoints.restore({"params": target}, step=1).items["params"]["w"]
            mean = checkpoints.read_params("average:2", "raw", target)[0]["w"]
            print((np.asarray(restored) == value).all(), np.allclose(mean, value * 2, rtol=1e-6, atol=0))
            print(len(restored.sharding.device_set), len(mean.sharding.device_set))

        def fail(*arguments):
            raise OSError(28, "No space left on device")

        ocp.CompositeCheckpointHandler.finalize = fail
        checkpoints.save(3, {"w": array}, {"step": 3}, metadata={})
        try:
            checkpoints.close()
        except UserError:
            print("failed")
    """
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = child_command(child, tmp_path_factory.mktemp("checkpoints"))
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)


def test_on_another_number_of_devices(on_four_devices):
    assert on_four_devices.stdout.split() == ["True", "True", "2", "2", "True", "True", "1", "1", "failed"]


def test_saving_restoring_and_failing_say_nothing_on_standard_error(on_four_devices):
    assert on_four_devices.stderr == ""


# ---- while it is being saved


def test_buffers_given_away_right_after_save_do_no_harm(tmp_path):
    """The step donates its buffers: on a CPU, where Orbax's copy to the host may be a view, as on any device."""
    value = np.random.default_rng(0).normal(size=(300, 301)).astype(np.float32)
    params = {str(number): jnp.asarray(value + number) for number in range(7)}
    host_state = {"numpy": value.copy(), "step": 1}
    step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, params, host_state, metadata={})
    host_state["numpy"][:] = -1
    for _ in range(5):
        params = step(params)
    jax.block_until_ready(params)
    items = checkpoints.restore({"params": params, "state": host_state}).items
    assert_same(items["params"], {str(number): value + number for number in range(7)})
    assert_same(items["state"]["numpy"], value)


def test_save_returns_before_the_files_are_written(tmp_path, monkeypatch):
    slow = module._checksum
    monkeypatch.setattr(module, "_checksum", lambda path: (time.sleep(0.05), slow(path))[1])
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, some_params(), {"step": 1}, metadata={})
    assert checkpoints.steps() == []
    checkpoints.save(2, some_params(), {"step": 2}, metadata={})
    assert checkpoints.steps() == [1]
    checkpoints.close()
    assert checkpoints.steps() == [1, 2]


# ---- whole or not taken


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def remove(path):
    path.unlink()


@pytest.mark.parametrize("damage", [cut_short, flip_a_bit, remove])
@pytest.mark.parametrize("item", ["params", "state"])
def test_any_damage_to_any_file_is_noticed(tmp_path, damage, item, messages):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    save(checkpoints, 2)
    target = target_of(some_params())
    every = [path for path in (tmp_path / "2").rglob("*") if path.is_file()]
    every = [path for path in every if path.relative_to(tmp_path / "2").parts[0] == item or path.parent.name == "2"]
    assert len(every) > 8
    for path in every:
        content = path.read_bytes()
        if not content:
            continue
        damage(path)
        messages.clear()
        step, items, _ = checkpoints.restore(target)
        assert step == 1, path
        assert_same(items["params"], some_params(1))
        if path.name != MANIFEST or damage is not remove:  # without a manifest it is no checkpoint at all
            name = path.relative_to(tmp_path / "2").as_posix()
            assert f"passing over checkpoint 2 in {tmp_path}: " in messages.text and name in messages.text
            assert "using checkpoint 1" in messages.text
            with pytest.raises(UserError, match=r"checkpoint 2 in .* is damaged: "):
                checkpoints.restore(target, step=2)
        path.write_bytes(content)
    assert checkpoints.restore(target).step == 2


def test_the_reason_says_how_many_bytes_are_missing(tmp_path, messages):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    (path,) = data_files(tmp_path / "1", "params")[:1]
    size = path.stat().st_size
    cut_short(path)
    name = path.relative_to(tmp_path / "1").as_posix()
    with pytest.raises(UserError, match=f"no checkpoint in .* is whole .*file {name} has {size - 1} bytes instead of"):
        checkpoints.restore(target_of(some_params()))


def test_orbax_alone_would_take_a_flipped_bit(tmp_path):
    """Why the manifest is there: the bytes of an array change and Orbax restores it without a word."""
    folder = tmp_path / "1"
    value = {"w": np.random.default_rng(0).integers(0, 2**31, (64, 65), dtype=np.int32)}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as writer:
        writer.save(folder, ocp.args.PyTreeSave(value))
        silent = 0
        for path in [path for path in folder.rglob("d/*") if path.stat().st_size > 10_000]:
            content = path.read_bytes()
            flip_a_bit(path)
            with contextlib.suppress(ValueError):
                silent += (writer.restore(folder)["w"] != value["w"]).any()
            path.write_bytes(content)
    assert silent


def test_no_checkpoint_at_all_is_no_error(tmp_path):
    assert Checkpoints(tmp_path / "not there").restore(target_of(some_params())) is None
    (tmp_path / "7").mkdir()
    (tmp_path / f"8{UNFINISHED}").mkdir()
    assert Checkpoints(tmp_path).restore(target_of(some_params())) is None
    with pytest.raises(UserError, match="there is no checkpoint in"):
        Checkpoints(tmp_path).read_params("latest", "raw", some_params())


def test_metadata_that_was_changed_is_not_taken(tmp_path):
    save(Checkpoints(tmp_path), 1)
    manifest = tmp_path / "1" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"at 1"', '"at 2"'))
    with pytest.raises(UserError, match=r"manifest\.json has another checksum"):
        Checkpoints(tmp_path).restore(target_of(some_params()))


def test_a_renamed_step_is_not_taken(tmp_path):
    save(Checkpoints(tmp_path), 1)
    (tmp_path / "1").rename(tmp_path / "5")
    with pytest.raises(UserError, match="that of step 1"):
        Checkpoints(tmp_path).restore(target_of(some_params()))


def test_leftovers_are_ignored_by_all_and_removed_by_the_next_that_saves(tmp_path):
    save(Checkpoints(tmp_path), 1)
    for name in (f"2{UNFINISHED}", f"3{UNFINISHED}-17", "4", "notes", "best"):
        (tmp_path / name / "params").mkdir(parents=True)
        (tmp_path / name / "params" / "file").write_text("half")
    (tmp_path / "4" / f"{MANIFEST}.tmp").write_text("{}")
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.steps() == [1]
    assert checkpoints.restore(target_of(some_params())).step == 1
    assert (tmp_path / "4").exists()
    save(checkpoints, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "4", "best", "notes"]
    assert checkpoints.steps() == [1, 4]


def test_training_goes_on_past_a_damaged_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    save(checkpoints, 2)
    flip_a_bit(data_files(tmp_path / "2", "params")[0])
    again = Checkpoints(tmp_path)
    assert again.restore(target_of(some_params())).step == 1
    save(again, 2)
    assert_same(Checkpoints(tmp_path).restore(target_of(some_params()), step=2).items["params"], some_params(2))
    assert (tmp_path / "2.damaged").is_dir() and again.steps() == [1, 2]


def test_a_step_that_is_there_is_left_as_it_is(tmp_path):
    save(Checkpoints(tmp_path), 1)
    before = (tmp_path / "1" / MANIFEST).stat().st_mtime_ns
    save(Checkpoints(tmp_path), 1)
    assert (tmp_path / "1" / MANIFEST).stat().st_mtime_ns == before


@pytest.mark.parametrize("phase", ["writing", "checksums"])
def test_killed_during_a_save(tmp_path, phase):
    """Really killed; the one before is what the next start takes, and it can save again."""
    child = """
        import time
        import jax.numpy as jnp, orbax.checkpoint as ocp
        from transformer.training import checkpoints as module

        checkpoints = module.Checkpoints(FOLDER, keep=1)
        checkpoints.save(1, {"w": jnp.full((3, 5), 1.0)}, {"step": 1}, metadata={})
        checkpoints.wait()
        def hang(*args, **kwargs):
            print("in the middle", flush=True)
            time.sleep(60)
        if PHASE == "writing":
            ocp.CompositeCheckpointHandler.finalize = hang
        else:
            module._checksum = hang
        checkpoints.save(2, {"w": jnp.full((3, 5), 2.0)}, {"step": 2}, metadata={})
        checkpoints.wait()
    """
    command = child_command(child.replace("PHASE", repr(phase)), tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout.readline() == "in the middle\n"
        process.send_signal(signal.SIGKILL)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == (["1", f"2{UNFINISHED}"] if phase == "writing" else ["1", "2"])
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.steps() == [1]
    target = {"params": {"w": jax.ShapeDtypeStruct((3, 5), jnp.float32)}, "state": {"step": 0}}
    step, items, _ = checkpoints.restore(target)
    assert step == items["state"]["step"] == 1 and (items["params"]["w"] == 1).all()
    checkpoints.save(3, items["params"], items["state"], metadata={})
    checkpoints.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3"]


def test_a_deletion_that_was_broken_off_leaves_nothing_that_looks_whole(tmp_path, monkeypatch, messages):
    def fail(path, **arguments):
        raise PermissionError(13, "Permission denied")

    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 1)
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", fail)
        save(checkpoints, 2)
    assert "checkpoint 1 in" in messages.text and "could not be deleted" in messages.text
    assert data_files(tmp_path / "1", "params") and checkpoints.steps() == [2]
    save(Checkpoints(tmp_path, keep=1), 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3"]


# ---- the disk


def test_a_full_disk_is_said_and_harms_nothing(tmp_path):
    """A real one: a file system of 1 MB in memory."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        checkpoints = Checkpoints(tmp_path)
        save(checkpoints, 1)
        large = {"w": jax.random.normal(jax.random.key(0), (700, 701))}
        checkpoints.save(2, large, {"step": 2}, metadata={})
        with pytest.raises(UserError) as error:
            checkpoints.save(3, large, {"step": 3}, metadata={})
        for part in ("checkpoint 2", str(tmp_path), "the disk is full", "2.0 MB", "MB are free", "unharmed: 1"):
            assert part in str(error.value)
        assert not list(tmp_path.glob("2*"))
        assert checkpoints.restore(target_of(some_params())).step == 1
        save(checkpoints, 4)
        assert checkpoints.steps() == [1, 4]
        (tmp_path / "filler").write_bytes(bytes(os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize))
        with pytest.raises(UserError, match="the disk is full"):
            save(checkpoints, 5)
        (tmp_path / "filler").unlink()
        assert checkpoints.steps() == [1, 4] and checkpoints.restore(target_of(some_params())).step == 4
        save(checkpoints, 6)
        assert checkpoints.steps() == [1, 4, 6]
        checkpoints.close()
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_writes_that_fail_after_the_first_are_not_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    module._hide_late_failures.__wrapped__()
    sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError("Event loop is closed")))
    other = SimpleNamespace(exc_value=RuntimeError("something else"))
    sys.unraisablehook(other)
    assert shown == [other]


def test_a_manifest_that_cannot_be_written_leaves_no_checkpoint(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)

    def fail(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_text", fail)
    with pytest.raises(UserError, match="the disk is full"):
        save(checkpoints, 2)
    with pytest.raises(UserError, match="the disk is full"):
        checkpoints.set_metric(1, 0.5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1"]


def test_a_folder_that_may_not_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Not a directory"):
        save(Checkpoints(tmp_path / "file" / "checkpoints"), 1)


# ---- which ones are kept and chosen


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2, best_metric="bleu")
    scores = {1: 3.0, 2: 7.0, 3: 7.0, 4: float("nan"), 5: 5.0}
    for step in range(1, 8):
        if step in scores:
            checkpoints.set_metric(step, scores[step])
        save(checkpoints, step)
    assert checkpoints.steps() == [3, 6, 7]
    assert checkpoints.best() == 3
    assert (checkpoints.metric(3), checkpoints.metric(7)) == (7.0, None)
    checkpoints.set_metric(7, 8.0)
    save(checkpoints, 8)
    assert checkpoints.steps() == [7, 8]
    assert Checkpoints(tmp_path, best_metric="chrf").best() is None
    with pytest.raises(UserError, match="has a chrf yet"):
        Checkpoints(tmp_path, best_metric="chrf").read_params("best", "raw", some_params())


def test_the_smallest_can_be_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1, best_mode="min")
    for step, score in ((1, 5.0), (2, 3.0), (3, 4.0)):
        save(checkpoints, step)
        checkpoints.set_metric(step, score)
    save(checkpoints, 4)
    assert checkpoints.steps() == [2, 4]
    params, description = checkpoints.read_params("best", "raw", some_params())
    assert description["steps"] == [2]
    assert_same(params, some_params(2))


def test_the_mean_is_that_of_the_newest_whole_ones(tmp_path, messages):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3, 4, 5):
        save(checkpoints, step, ema=some_params(step + 10))
    flip_a_bit(data_files(tmp_path / "4", "params")[0])
    params, description = checkpoints.read_params("average:3", "raw", some_params())
    assert description["steps"] == [2, 3, 5] and description["metadata"] == {"name": "at 5"}

    def mean(*trees):
        return jax.tree.map(lambda *leaves: np.mean(np.float64(leaves), axis=0).astype(np.float32), *trees)

    assert_same(params, mean(*map(some_params, (2, 3, 5))))
    assert "has only" not in messages.text
    params, description = checkpoints.read_params("average:9", "ema", some_params())
    assert description["steps"] == [1, 2, 3, 4, 5]
    assert_same(params, mean(*map(some_params, (11, 12, 13, 14, 15))))
    assert "has only 1, 2, 3, 4, 5; their mean is taken" in messages.text


@pytest.mark.parametrize("which", [2, "2"])
@pytest.mark.parametrize("weights", ["raw", "ema"])
def test_a_step_by_its_number(tmp_path, which, weights):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 2, ema=some_params(12))
    save(checkpoints, 3, ema=some_params(13))
    params, _ = checkpoints.read_params(which, weights, some_params())
    assert_same(params, some_params(2 if weights == "raw" else 12))


@pytest.mark.parametrize(
    "which, weights, message",
    [
        (7, "raw", "there is no checkpoint 7 in .*, only 1, 2"),
        ("last", "raw", "checkpoint=last is not one of latest, best, average:N, or a step: 1, 2"),
        ("average:0", "raw", "checkpoint=average:0 is not one of"),
        ("average:", "raw", "checkpoint=average: is not one of"),
        ("latest:2", "raw", "checkpoint=latest:2 is not one of"),
        ("latest", "ema", "training.ema_decay"),
        ("latest", "mean", "weights=mean is not one of raw, ema"),
        ("best", "raw", "checkpoint=best: .*use latest or one of 1, 2"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, which, weights, message):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    save(checkpoints, 2)
    with pytest.raises(UserError, match=message):
        checkpoints.read_params(which, weights, some_params())


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda tree: tree | {"embedding": jnp.ones((13, 5))},
            r"params/embedding is float32 \[11, 5\] there and float32 \[13, 5\] here",
        ),
        (
            lambda tree: tree | {"embedding": jnp.ones((11, 5), jnp.bfloat16)},
            r"params/embedding .* bfloat16 \[11, 5\] here",
        ),
        (lambda tree: {"embedding": tree["embedding"]}, r"params/decoder/bias is float32 \[7\] there and missing here"),
        (lambda tree: tree | {"more": jnp.ones(2)}, r"params/more is missing there and float32 \[2\] here"),
    ],
)
def test_other_arrays_are_refused_before_anything_is_read(tmp_path, monkeypatch, change, message):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    monkeypatch.setattr(module, "_checksum", lambda path: pytest.fail("the files were read"))
    with pytest.raises(UserError, match=message):
        checkpoints.restore({"params": change(some_params())})
    with pytest.raises(UserError, match=message):
        checkpoints.read_params("average:2", "raw", change(some_params()))


def test_the_manifest_can_be_checked_by_hand(tmp_path):
    save(Checkpoints(tmp_path), 1)
    content = json.loads((tmp_path / "1" / MANIFEST).read_text())["content"]
    lines = "".join(f"{facts['sha256']}  {name}\n" for name, facts in content["files"].items())
    subprocess.run(["sha256sum", "--check", "--quiet"], cwd=tmp_path / "1", input=lines, text=True, check=True)
