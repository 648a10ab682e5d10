"""The card of small runs: what it counts, across interruptions too, and what it says when it cannot know."""

import dataclasses
import importlib
import json
import logging
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from configs import wmt14_en_de
from transformer.config import (
    Config,
    DataConfig,
    MeshConfig,
    ModelConfig,
    TrainingConfig,
    from_config_dict,
    to_json,
)
from transformer.report import card, scores
from transformer.tasks import make_task
from transformer.training import trainer
from transformer.training.checkpoints import MANIFEST, _checksum_of_content
from transformer.training.loading import load
from transformer.training.record import RECORD, read_record
from transformer.training.trainer import train
from transformer.types import UserError


@pytest.fixture(scope="module", autouse=True)
def no_validation():
    with pytest.MonkeyPatch.context() as patched:  # it takes most of the time
        patched.setattr(trainer.Trainer, "_evaluate", lambda self: True)
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    folder = tmp_path_factory.mktemp("data")
    numbers = [*range(101, 150), 103, 107, *range(90)]
    for split in ("train", "val", "test"):
        (folder / f"{split}.en").write_text("".join(f"the {number}\n" for number in numbers))
        (folder / f"{split}.de").write_text("".join(f"die {'x' * (number % 19)}\n" for number in numbers))
    return Config(
        data=DataConfig(
            source="files",
            directory=str(folder),
            cache_directory=str(folder),
            tokenizer_model="byte",
            batching="pack",
            tokens_per_batch=64,
            max_source_length=32,
            max_target_length=20,
            cleaning=("duplicates",),
        ),
        model=ModelConfig(d_model=8, d_ff=12, num_heads=2, num_encoder_layers=1, num_decoder_layers=1),
        training=TrainingConfig(
            num_steps=5,
            schedule="constant",
            warmup_steps=4,
            learning_rate=1e-2,
            log_every=1,
            checkpoint_every=2,
            evaluate_every=100,
        ),
        mesh=MeshConfig(data=1),
    )


def changed(config: Config, **training) -> Config:
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **training))


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("finished")
    assert train(config, workdir, name="small.py:one", at_end=card.update) == 0
    return workdir


def read(workdir: Path) -> dict:
    return json.loads((workdir / card.DATA).read_text(encoding="utf-8"))


def cells(page: str) -> dict[str, str]:
    """The rows of all tables of two columns, by their first; of rows with the same name the first."""
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    return {row[0]: row[1] for row in reversed(rows) if len(row) == 2}


def test_the_counts_are_those_of_the_batches(config, finished):
    found, task = read(finished), make_task(config, finished)
    batches = [task.batch(step) for step in range(5)]
    training = found["training"]
    assert training["updates"] == training["updates_planned"] == 5
    assert training["source_tokens_seen"] == sum(np.count_nonzero(batch.encoder_segment_ids) for batch in batches)
    assert training["target_tokens_seen"] == sum(int(batch.decoder_loss_weights.sum()) for batch in batches)
    assert training["target_tokens_per_update"] == training["target_tokens_seen"] / 5
    assert found["cost"]["training_flops"] == sum(task.work(batch)["flops"] for batch in batches)
    assert training["epochs"] == 5 / task.steps_per_epoch()
    assert training["peak_learning_rate"] == training["peak_learning_rate_reached"] == pytest.approx(1e-2)
    assert training["peak_learning_rate_at_update"] == 4
    assert found["model"]["parameters"] == sum(leaf.size for leaf in leaves(load(finished).params))
    assert found["model"]["vocabulary"] == task.tokenizer.vocab_size
    assert found["checkpoints"]["available"] == [2, 4, 5]


def leaves(params) -> list:
    return [leaf for each in params.values() for leaf in leaves(each)] if isinstance(params, dict) else [params]


def test_what_became_of_the_data(config, finished):
    found, task = read(finished)["data"], make_task(config, finished)
    pairs = list(task._source._source.pairs("train"))
    assert found["cleaning"] == ["duplicates"] and found["pairs_before_cleaning"] == len(pairs)
    assert found["left_out_by_cleaning"] == {"duplicates": len(pairs) - len(set(pairs))}
    assert found["pairs"] == len(set(pairs)) > 0
    assert found["examples_per_epoch"] + sum(found["left_out_by_length"].values()) == found["pairs"]
    assert found["fingerprint"] == task.data_fingerprint()


def test_who_ran_it_and_on_what(finished):
    found = read(finished)
    assert found["run"] == {
        "config": "small.py:one",
        "task": "translation",
        "direction": "en to de",
        "seed": 0,
        "state": "finished at update 5 of 5",
    }
    (environment,) = found["environments"]
    assert environment["starts"] == [1] and environment["devices"] == 1 and environment["platform"] == "cpu"
    assert environment["packages"]["jax"] == importlib.import_module("jax").__version__
    assert len(environment["code"].get("commit", "not in git: " + "." * 28)) == 40
    (session,) = read_record(finished)["sessions"]
    cost = found["cost"]
    assert cost["hours_are_complete"] and list(cost["device_hours_in_all"].values()) == [cost["hours"]]
    (in_updates,), (in_all,) = (cost[f"device_hours_{name}"].values() for name in ("in_updates", "in_all"))
    assert 0 < in_updates <= in_all == session["seconds"] / 3600


def test_a_run_in_three_parts_has_seen_what_the_run_in_one_has(config, finished, tmp_path, monkeypatch):
    require_finite, report = trainer.Trainer._require_finite, trainer.Trainer._report
    with monkeypatch.context() as patched:  # as if the fourth step had gone wrong
        patched.setattr(trainer, "first_non_finite", lambda *arguments: "gradient x")  # which takes long to compile
        patched.setattr(
            trainer.Trainer,
            "_require_finite",
            lambda self, healthy: require_finite(self, healthy and self.step != 4),
        )
        with pytest.raises(UserError, match="not finite"):
            train(config, tmp_path, name="small.py:one", at_end=card.update)
    found = read(tmp_path)
    assert found["interruptions"]["non_finite_steps"] == [4] and found["training"]["updates"] == 2
    assert found["run"]["state"].startswith("stopped at update 3 of 5 by UserError: step 4: the loss is not finite")
    assert found["training"]["peak_learning_rate_reached"] == pytest.approx(5e-3)

    def report_and_stop(self):
        report(self)
        if not self.signals.received:  # a second one would end this process
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Trainer, "_report", report_and_stop)
        assert train(config, tmp_path, at_end=card.update) == 143
    found = read(tmp_path)
    assert found["run"]["state"] == "stopped at update 4 of 5 by a signal" and found["run"]["config"] == "small.py:one"
    assert found["training"]["updates"] == found["checkpoints"]["available"][-1] == 4

    assert train(config, tmp_path, at_end=card.update) == 0
    alone, found = read(finished), read(tmp_path)
    assert found["training"] == alone["training"]
    assert found["cost"]["training_flops"] == alone["cost"]["training_flops"]
    assert found["model"] == alone["model"] and found["data"] == alone["data"]
    interruptions = found["interruptions"]
    assert interruptions["starts"] == 3 and interruptions["updates_made_again"] == 1
    assert {name.partition(":")[0]: number for name, number in interruptions["ended_by"].items()} == {
        "UserError": 1,
        "a signal": 1,
        "finished": 1,
    }
    seconds = [session["seconds"] for session in read_record(tmp_path)["sessions"]]
    assert found["cost"]["hours"] == sum(seconds) / 3600 and found["cost"]["hours_are_complete"]
    assert [each["starts"] for each in found["environments"]] == [[1, 2, 3]]


def test_no_card_is_no_reason_to_fail(config, finished, tmp_path, monkeypatch, caplog):
    def fail(workdir):
        raise RuntimeError("no card today")

    monkeypatch.setattr(card, "facts", fail)
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (tmp_path / RECORD).write_text("{")
    with caplog.at_level(logging.WARNING, "transformer"):
        assert train(config, tmp_path, at_end=card.update) == 0  # there is nothing to do
    assert "the experiment card" in caplog.text and "no card today" in caplog.text
    assert f"{RECORD} cannot be read" in caplog.text
    monkeypatch.undo()
    card.update(tmp_path)
    assert read(tmp_path)["interruptions"]["not_recorded"] == "what was before update 5"
    assert not read(tmp_path)["cost"]["hours_are_complete"]
    card.update(tmp_path / "nothing here")  # neither is that


def test_a_workdir_of_weights_from_elsewhere(finished, tmp_path):
    (tmp_path / "config.json").write_text((finished / "config.json").read_text())
    text = card.write(tmp_path)
    rows = cells(text)
    assert rows["state"] == rows["parameters"] == "unknown: run.json does not say"
    assert rows["tokens seen"] == "unknown: there is no checkpoint yet" and rows["updates"] == "0"
    assert "Nothing was scored by eval.py yet." in text


# A card of the paper's experiment


@pytest.fixture
def base(tmp_path) -> Path:
    """What a run of base on eight devices would leave behind."""
    config = from_config_dict(wmt14_en_de.get_config("base"))
    (tmp_path / "config.json").write_text(to_json(config))
    session = {
        "started": "2026-01-01T00:00:00+00:00", "from_step": 0, "to_step": 100_000, "seconds": 43_200.0,
        "training_seconds": 36_000.0, "ended": "finished", "non_finite_step": None, "devices": 8,
        "device_kind": "TPU v4", "platform": "tpu", "processor": "some CPU", "code": {"commit": "f" * 40},
    }  # fmt: skip
    data = {"vocabulary_sizes": [37_000], "batches_per_epoch": 5_000, "pairs": 4_508_785, "left_out_by_cleaning": None}
    record = {"config": "wmt14_en_de.py:base", "parameters": 63_082_496, "active_parameters": 63_082_496}
    record |= {"peak_learning_rate": {"rate": 6.9877e-4, "update": 4_000}, "data": data, "sessions": [session]}
    (tmp_path / RECORD).write_text(json.dumps(record))
    for step in (98_500, 100_000):
        work = {
            "source_tokens": 24e3 * step,
            "target_tokens": 25e3 * step,
            "positions": 6e4 * step,
            "flops": 1.1e13 * step,
        }
        metadata = {"data_fingerprint": "abc", "work": work, "peak_learning_rate": 6.9877e-4}
        content = {"step": step, "metadata": metadata}
        folder = tmp_path / "checkpoints" / str(step)
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_text(json.dumps({"sha256": _checksum_of_content(content), "content": content}))
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 90000, "validation_bleu": 25.9}\n{"step": 90100, "loss": 1.0}\n'
        '{"step": 97500, "validation_bleu": 25.7}\n{"step": 100'
    )
    (tmp_path / "outputs").mkdir()
    found = {
        "split": "test", "checkpoint": "average:2", "weights": "raw", "steps": [98_500, 100_000],
        "num_examples": 3_003, "text_form": "raw",
        "bleu": 26.0, "bleu_signature": "nrefs:1|case:mixed", "bleu_interval": 0.55,
        "bleu_interval_signature": "bs:1000", "bleu_paper": 27.0, "bleu_paper_definition": "split at hyphens",
        "perplexity": float("inf"), "log_probs": [0.5],
    }  # fmt: skip
    wide = dataclasses.replace(config, decoding=dataclasses.replace(config.decoding, beam_size=8))
    scores.save(tmp_path / "outputs" / "test.average-2.raw.txt", found, config, wide)
    return tmp_path


def test_the_card_of_the_papers_base(base):
    text = card.write(base)
    rows, found = cells(text), read(base)
    assert text.startswith("# Experiment card: wmt14_en_de.py:base\n")
    for name, value in {
        "parameters": "63,082,496",
        "target tokens seen": "2,500,000,000",
        "source tokens seen": "2,400,000,000",
        "training flops": "1.1e+18",
        "training flops of the paper": "3.3e+18",
        "devices": "8 x TPU v4",
        "device hours in all": "TPU v4 96",
        "device hours in updates": "TPU v4 80",
        "peak learning rate": "0.0006988",
        "best in validation": "step 90,000; bleu 25.9",
        "available": "98,500, 100,000",
        "left out by cleaning": "unknown: the tokenised text was there already, and the counts were not",
    }.items():
        assert rows[name] == value
    assert (
        "As newstest2014, told by the split test of wmt14_translate/de-en: bleu_paper 27.00 is 0.30 below the "
        "published 27.3; bleu 26.00 (± 0.55) is 0.30 below the expected 26.3 to 26.6." in text
    )
    assert "| newstest2014 | 27.3 | 26.3 to 26.6 | not known | 5 |" in text
    assert "| newstest2013 | 25.8 | not known | 4.92 | 1 |" in text
    assert "the mean of checkpoints 98,500, 100,000. Other than in the run's config: decoding.beam_size 8." in text
    assert "nrefs:1\\|case:mixed" in text and "split at hyphens" in text
    assert found["deviations"]["of_the_experiment"] == found["deviations"]["others"] == []
    (evaluation,) = found["evaluations"]
    assert evaluation["scores"]["perplexity"] is None and "log_probs" not in evaluation["scores"]
    assert "None" not in text and "nan" not in text and "inf" not in text.replace("inference", "")


def test_deviations_are_a_line_each(base):
    config = json.loads((base / "config.json").read_text())
    config["model"]["dropout_rate"], config["training"]["num_steps"], config["seed"] = 0.2, 50_000, 7
    (base / "config.json").write_text(json.dumps(config))
    text = card.write(base)
    assert "| key | here | wmt14_en_de.py:base |" in text
    assert "| model.dropout_rate | 0.2 | 0.1 |\n| training.num_steps | 50000 | 100000 |\n" in text
    assert text.index("| training.num_steps |") < text.index("Others (paths") < text.index("| seed | 7 | 0 |")


def test_the_development_set_and_a_perplexity_without_bounds(base):
    path = base / "outputs" / "test.average-2.raw.scores.json"
    record = json.loads(path.read_text())
    record["scores"] |= {"split": "validation", "num_examples": 3_000}
    path.write_text(json.dumps(record))
    text = card.write(base)
    assert "| perplexity | not finite |" in text
    assert "bleu_paper 27.00 is 1.20 above the published 25.8; perplexity not finite, published 4.92" in text


def test_a_run_that_was_killed_counts_up_to_its_last_note(base):
    record = json.loads((base / RECORD).read_text())
    killed = {**record["sessions"][0], "to_step": 99_300, "ended": None}
    after = {**killed, "from_step": 98_500, "to_step": 99_000, "seconds": 3_600.0, "training_seconds": 1_800.0}
    (base / RECORD).write_text(json.dumps({**record, "sessions": [killed, after]}))
    rows = cells(card.write(base))
    assert rows["state"] == "in training, or killed, at update 99,000 of 100,000 or later"
    assert rows["ended by"] == "a kill 1" and rows["updates made again"] == "800"
    assert rows["hours are complete"] == "no" and rows["device hours in all"] == "TPU v4 104"
    assert card.INCOMPLETE in (base / card.PAGE).read_text()


def test_damaged_files_are_passed_over(base, caplog):
    (base / "checkpoints" / "100000" / MANIFEST).write_text("{")
    (base / "outputs" / "other.scores.json").write_text("[]")
    card.update(base)
    found = read(base)
    assert found["training"]["updates"] == 98_500 and found["training"]["target_tokens_seen"] == 25_000 * 98_500
    assert len(found["evaluations"]) == 1 and "other.scores.json is left out" in caplog.text


@pytest.mark.parametrize("text", ["a|b", "a\nb", "  a   b "])
def test_cells_hold_any_text(text):
    assert "\n" not in card._escaped(text) and card._escaped(text).count("|") == card._escaped(text).count("\\|")
