"""The dry run of a tiny model of each family, what it says of a workdir, and how it ends."""

import dataclasses
import json
import re
import shutil
import types

import jax
import numpy as np
import pytest

from tests.plan.families import SECTIONS, family
from tests.system.scripts import TRAIN, last_json, mistake, run
from transformer.config import to_json
from transformer.data.tfds_builders import require_prepared
from transformer.plan import dry_run as module
from transformer.plan.dry_run import dry_run
from transformer.tasks import TASKS, make_task
from transformer.training.loading import checkpoint_items, fingerprints, open_checkpoints
from transformer.training.optimizers import make_optimizer
from transformer.training.partitioning import make_mesh, place_batch, unbox
from transformer.training.schedules import make_schedule
from transformer.training.state import abstract_state, init_state
from transformer.training.step import count_parts
from transformer.training.trainer import train
from transformer.training.workdir import CONFIG
from transformer.types import UserError


@pytest.fixture(autouse=True)
def own_cache_of_programs(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # leave the user's alone


def outcome(capsys) -> tuple[str, dict]:
    """All that was printed, and the object on the last line."""
    printed = capsys.readouterr().out
    return printed, json.loads(printed.splitlines()[-1])


def check_family(name, tmp_path, capsys, **training):
    config = family(name, str(tmp_path), **training)
    workdir = tmp_path / "run"
    assert dry_run(config, workdir) == 0
    assert not workdir.exists()
    printed, result = outcome(capsys)
    task = make_task(config)
    assert result["failed"] == [] and "FAILED" not in printed
    params = jax.tree.leaves(unbox(jax.eval_shape(task.init, jax.random.key(0))))
    number = sum(leaf.size for leaf in params)
    assert result["num_parameters"] == number and f"{number:,}" in printed
    assert result["bytes_per_device"]["parameters"] == 4 * number
    assert result["bytes_per_device"]["optimizer"] >= 8 * number
    parts = {key: value for key, value in result["bytes_per_device"].items() if key != "total"}
    assert parts["temporaries"] >= 4 * number and sum(parts.values()) == result["bytes_per_device"]["total"]
    work = [task.work(task.batch(step)) for step in range(min(task.steps_per_epoch(), 100))]
    assert result["flops_per_step"] == pytest.approx(np.mean([each["flops"] for each in work]))
    for side, mean in result["tokens_per_step"].items():
        assert mean == pytest.approx(np.mean([each[side] for each in work]))
    assert result["epochs"] == pytest.approx(10 / task.steps_per_epoch())
    if name == "sentence_embedding":
        assert result["loss_of_chance"] is None and result["loss_at_start"] > 0
    else:
        assert result["loss_at_start"] == pytest.approx(result["loss_of_chance"], abs=3)
    return printed, result


def test_a_language_model(tmp_path, capsys):
    printed, result = check_family("language_modeling", tmp_path, capsys)
    assert "One step on 4 rows of batch 0" in printed
    assert "decoder, 89 x 89, 1 in 3" in printed
    assert result["peak_learning_rate"] == pytest.approx(14**-0.5 * 4**-0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SECTIONS if name != "language_modeling"])
def test_every_family(name, tmp_path, capsys):
    training = {"ema_decay": 0.9, "accumulation_steps": 3} if name == "translation" else {}
    printed, _ = check_family(name, tmp_path, capsys, **training)
    assert name != "translation" or "rows of batch 0, in 2 parts" in printed


# What stands in the workdir, and how it ends


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A config, and the workdir of a run after 7 steps."""
    folder = tmp_path_factory.mktemp("saved")
    config = family("language_modeling", str(folder))
    task, training = make_task(config), config.training
    optimizer = make_optimizer(training, make_schedule(training, config.model.d_model))
    abstract = abstract_state(task, optimizer, False, make_mesh(config.mesh))
    items = checkpoint_items(init_state(task, optimizer, abstract, 0))
    workdir = folder / "run"
    workdir.mkdir()
    (workdir / CONFIG).write_text(to_json(config))
    task.save_assets(workdir)
    checkpoints = open_checkpoints(workdir, config)
    checkpoints.save(7, items["params"], items["state"], metadata={**fingerprints(task), "seconds": 0.0})
    checkpoints.close()
    return config, workdir


@pytest.fixture
def without_programs(monkeypatch):
    monkeypatch.setattr(module._DryRun, "show_step", lambda self, batch: None)
    monkeypatch.setattr(module._DryRun, "show_memory", lambda self, batch: None)


def files_of(folder) -> dict[str, tuple[int, bytes]]:
    """When each was written last, and what it holds."""
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_a_run_would_go_on_or_be_refused_and_stays_as_it_is(saved, without_programs, tmp_path, capsys):
    config, workdir = saved
    before = files_of(workdir)

    assert dry_run(config, workdir) == 0
    printed, result = outcome(capsys)
    assert "holds this run: it would go on from step 7, with 3 steps left" in printed and result["start_step"] == 7

    other = dataclasses.replace(config, model=dataclasses.replace(config.model, d_ff=19))
    assert dry_run(other, workdir) == 1
    printed, result = outcome(capsys)
    assert "training would refuse it" in printed and "model.d_ff: 17 there, 19 now" in printed
    assert result["failed"] == ["workdir"] and result["start_step"] == 0

    for stem in ("train", "val", "test"):
        (tmp_path / f"{stem}.txt").write_text("Another text.\n\nOf two documents.\n")
    moved = dataclasses.replace(config.data, directory=str(tmp_path))
    assert dry_run(dataclasses.replace(config, data=moved), workdir) == 1
    printed, result = outcome(capsys)
    assert "the training data is not what checkpoint 7 in" in printed and result["failed"] == ["workdir"]
    assert files_of(workdir) == before


def test_splits_that_training_asks_for_late_are_looked_at_first(without_programs, tmp_path, capsys):
    config = family("language_modeling", str(tmp_path))
    (tmp_path / "val.txt").unlink()
    (tmp_path / "test.txt").write_text("\n")
    assert dry_run(config, tmp_path / "run") == 1
    printed, result = outcome(capsys)
    assert result["failed"] == ["validation split", "test split"]
    missing = f"the validation split (data.validation=val) cannot be read: there is no {tmp_path / 'val.txt'}"
    assert f"FAILED  validation split: {missing}" in printed
    assert f"the test split (data.test=test) cannot be read: {tmp_path / 'test.txt'} holds no text" in printed
    with pytest.raises(UserError, match=re.escape(missing)):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "tokenizer.json").exists() and not list((tmp_path / "run").glob("checkpoints/*"))
    (tmp_path / "val.txt").write_text("A text.\n\nAnother.\n")
    (tmp_path / "test.txt").write_text("A text.\n")
    assert dry_run(config, tmp_path / "another") == 0
    printed, _ = outcome(capsys)
    assert "validation split: 2 examples" in printed and "test split: 1 examples" in printed


def with_buckets(tmp_path, **training):
    """Pairs of many lengths in several shapes; the first batches have not all of them."""
    config = family("translation", str(tmp_path), **training)
    data = dataclasses.replace(config.data, batching="bucket", num_buckets=5, num_phrases=307, tokens_per_batch=311)
    return dataclasses.replace(config, data=data)


@pytest.mark.parametrize("limit", [None, 103])
def test_memory_is_that_of_the_widest_shape_of_the_whole_run(limit, tmp_path, capsys, monkeypatch):
    program = types.SimpleNamespace(memory_analysis=lambda: None)
    monkeypatch.setattr(module._DryRun, "compile", lambda *arguments: program)
    monkeypatch.setattr(module._DryRun, "show_step", lambda self, batch: None)
    monkeypatch.setattr(module, "NUM_BATCHES", 1)
    config = with_buckets(tmp_path, max_tokens_per_device=limit)
    plan = make_task(config)._training._plan
    *others, (rows, source, target) = plan.shapes
    named = {shape: " and ".join(dict.fromkeys(f"{shape[0]} x {s}" for s in shape[1:])) for shape in plan.shapes}
    assert len(others) == 4 and plan.batch(0).shape != plan.shapes[-1]
    assert any(b * (s + t) > rows * (source + target) for b, s, t in others)
    assert dry_run(config, tmp_path / "run") == 0
    printed, _ = outcome(capsys)
    assert f"with a batch of {named[plan.shapes[-1]]}" in printed
    assert ", the one that needs most" in printed
    for (b, s, t), shape in named.items():
        parts = 1 if limit is None else -(-b // (limit // max(s, t)))
        in_parts = f"each in {parts} part{'s' * (parts > 1)} of {-(-b // parts)} row"
        assert re.search(rf"shapes +{shape}: [01] of these batches, {in_parts}s? on each of 1 device\n", printed)


def test_what_is_said_of_parts_is_what_is_computed(tmp_path, capsys, without_programs):
    config = with_buckets(tmp_path, max_tokens_per_device=103)
    config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, data=2))
    assert dry_run(config, tmp_path / "run") == 0
    printed, _ = outcome(capsys)
    task, mesh = make_task(config), make_mesh(config.mesh)
    for step in task.steps_of_shapes():
        batch = task.batch(step)
        parts = count_parts(config.training, task.size_of(batch), 2)
        placed = place_batch(mesh, batch, parts).encoder_input_tokens
        shape = re.escape(module._shapes(batch))
        found = re.search(rf"shapes +{shape}: .* in (\d+) parts? of (\d+) rows? on each of 2 devices", printed)
        assert int(found[1]) == parts and parts * 2 * int(found[2]) == placed.shape[0]


@pytest.mark.parametrize(
    ("name", "stated", "printed_by_paper"),
    [
        ("wmt14_en_de.py:base", "63,082,496", "65M"),
        ("wmt14_en_de.py:t2t", "60,880,896", "none"),
        ("mine.py", None, None),
    ],
)
def test_parameters_stand_beside_those_of_the_paper(name, stated, printed_by_paper, without_programs, tmp_path, capsys):
    assert dry_run(family("translation", str(tmp_path)), tmp_path / "run", name) == 0
    printed, result = outcome(capsys)
    if stated is None:
        assert "the paper prints" not in printed and "stated_parameters" not in result
    else:
        lines = rf"as the config states +{stated}\n +as the paper prints, rounded +{printed_by_paper}\n"
        assert re.search(lines, printed)
        assert f"{result['stated_parameters']:,}" == stated


def test_a_run_that_sees_one_batch_needs_its_memory_alone(tmp_path, capsys, without_programs):
    assert dry_run(with_buckets(tmp_path, overfit_one_batch=True), tmp_path / "run") == 0
    assert outcome(capsys)[0].count("  shapes  ") <= 5  # those of the first batches


def test_a_data_set_that_is_not_prepared_is_not_prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    config = family("translation", str(tmp_path))
    data = dataclasses.replace(config.data, source="tfds", directory="wmt14_translate/de-en")
    config = dataclasses.replace(config, data=data)
    with pytest.raises(UserError, match=r"is not prepared in TFDS_DATA_DIR=.*sets, and preparing it may take hours"):
        dry_run(config, tmp_path / "run")
    assert not (tmp_path / "sets").exists()
    folder = tmp_path / "sets" / "wmt14_translate" / "de-en" / "1.0.0"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("{}")
    for directory in ("wmt14_translate/de-en", str(folder), "no name of one"):
        require_prepared(dataclasses.replace(data, directory=directory))  # the last is another mistake


def test_a_damaged_checkpoint_is_seen(saved, without_programs, tmp_path, capsys):
    config, whole = saved
    workdir = shutil.copytree(whole, tmp_path / "run")
    large = max((workdir / "checkpoints").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    large.write_bytes(large.read_bytes()[:-1])
    assert dry_run(config, workdir) == 1
    assert "no checkpoint in" in outcome(capsys)[0]


def test_a_fault_in_the_data_ends_with_exit_code_1(without_programs, tmp_path, capsys, monkeypatch):
    kind = TASKS["language_modeling"]
    whole = kind.batch

    def faulty(self, step):
        batch = whole(self, step)
        tokens = np.where(batch.target_tokens == self.tokenizer.eos_id, 260, batch.target_tokens)
        return batch._replace(target_tokens=tokens)

    monkeypatch.setattr(kind, "batch", faulty)
    assert dry_run(family("language_modeling", str(tmp_path)), tmp_path / "run") == 1
    printed, result = outcome(capsys)
    assert result["failed"] == ["ids in range", "EOS at every end"]
    assert re.search(
        r"FAILED +ids in range: batch 0, row \d+, column \d+ of target: id 260; there are 260 pieces", printed
    )


def test_a_state_that_does_not_fit_here_is_not_run(tmp_path, capsys, monkeypatch):
    program = types.SimpleNamespace(memory_analysis=lambda: None)
    monkeypatch.setattr(module._DryRun, "compile", lambda *arguments: program)
    monkeypatch.setattr(module, "host_memory", lambda: 2**10)
    assert dry_run(family("language_modeling", str(tmp_path)), tmp_path / "run") == 0
    printed, result = outcome(capsys)
    assert "temporaries      not known" in printed
    assert "not run: it needs" in printed and "1.000 KiB are free" in printed and result["loss_at_start"] is None


def test_a_file_in_place_of_the_workdir_is_a_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file; give a folder"):
        dry_run(family("language_modeling", str(tmp_path)), tmp_path / "file")


@pytest.mark.slow
def test_a_tuned_run_starts_from_the_other_one(saved, tmp_path, capsys):
    config, other = saved
    tuned = dataclasses.replace(config.training, initialize_from=str(other))
    assert dry_run(dataclasses.replace(config, training=tuned), tmp_path / "run") == 0
    printed, result = outcome(capsys)
    assert "loss at the start" not in printed and result["loss_at_start"] > 0
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_script(tmp_path):
    arguments = [*TRAIN, f"--workdir={tmp_path / 'run'}", f"--config.data.cache_directory={tmp_path / 'cache'}"]
    result = run("train.py", *arguments, "--dry_run")
    found = last_json(result)
    assert found["failed"] == [] and found["num_parameters"] > 0 and not (tmp_path / "run").exists()
    assert b"Who sees whom in batch 0, row 0" in result.stdout
    assert "model.d_mode" in mistake("train.py", *arguments, "--dry_run", "--config.model.d_mode=3")
    assert "does not divide" in mistake("train.py", *arguments, "--dry_run", "--config.model.num_heads=3")
