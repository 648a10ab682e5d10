"""The loop: going on bit for bit, stopping in time, refusing what it must."""

import dataclasses
import json
import logging
import os
import signal
import time

import jax
import numpy as np
import pytest

from transformer.config import Config, DataConfig, EvaluationConfig, MeshConfig, ModelConfig, TrainingConfig
from transformer.training import trainer as module
from transformer.training.loading import load, open_checkpoints, same_assets
from transformer.training.optimizers import make_optimizer
from transformer.training.partitioning import make_mesh
from transformer.training.schedules import make_schedule
from transformer.training.state import abstract_state
from transformer.training.trainer import train
from transformer.training.workdir import opened, read_config
from transformer.types import UserError


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    return Config(
        data=DataConfig(
            num_phrases=300,
            vocab_size=400,
            cache_directory=str(tmp_path_factory.mktemp("cache")),
            batching="pack",
            tokens_per_batch=192,
            max_source_length=64,
            max_target_length=64,
        ),
        model=ModelConfig(d_model=8, d_ff=12, num_heads=2, num_encoder_layers=1, num_decoder_layers=1),
        training=TrainingConfig(
            num_steps=5,
            schedule="constant",
            warmup_steps=2,
            learning_rate=1e-2,
            log_every=1,
            checkpoint_every=2,
            evaluate_every=100,
            ema_decay=0.5,
        ),
        evaluation=EvaluationConfig(beam_size=1, max_examples=4),
    )


def changed(config: Config, **training) -> Config:
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **training))


def arrays(config, workdir, step):
    """Every array of a checkpoint."""
    task = load(workdir).task
    schedule = make_schedule(config.training, config.model.d_model)
    state = abstract_state(task, make_optimizer(config.training, schedule), True, make_mesh(config.mesh))
    items = {"params": state.params, "ema": state.ema, "state": {"step": state.step, "optimizer": state.optimizer}}
    restored = open_checkpoints(workdir, config).restore(items, step)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(restored.items)]


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished")
    assert train(config, workdir) == 0
    return workdir


def test_a_run_in_two_parts_is_the_run_in_one(config, finished, tmp_path):
    assert train(changed(config, num_steps=3), tmp_path) == 0
    assert train(config, tmp_path) == 0
    for one, other in zip(arrays(config, finished, 5), arrays(config, tmp_path, 5), strict=True):
        np.testing.assert_array_equal(one, other)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5]
    calm = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines if "loss" in line] == [line["loss"] for line in calm if "loss" in line]


def test_out_of_time_saves_and_ends_well(config, tmp_path, caplog):
    config = dataclasses.replace(config, mesh=MeshConfig(data=1))
    with caplog.at_level(logging.INFO, "transformer"):
        assert train(changed(config, max_minutes=0.0, max_tokens_per_device=64), tmp_path) == 0
    assert open_checkpoints(tmp_path, config).steps() == [1]
    assert (
        "compiled the step for batches of 3 x 64, computed in 3 parts of 1 rows, in"
        in (tmp_path / "log.txt").read_text()
    )


def test_a_signal_while_the_data_is_opened_ends_at_once(config, tmp_path, monkeypatch, caplog):
    def fetch(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr(module, "open_task", fetch)
    since = time.monotonic()
    assert train(changed(config, preempted_exit_code=99), tmp_path) == 99
    assert time.monotonic() - since < 30
    assert "SIGINT: ending; a second" in caplog.text and "saving a checkpoint" not in caplog.text


def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_the_last_good_checkpoint(config, tmp_path):
    wild = changed(config, learning_rate=1e38, warmup_steps=0, checkpoint_every=1, num_steps=50)
    with pytest.raises(
        UserError, match=r"step \d+: the loss is not finite; the first bad tensor is \w+ .*learning_rate"
    ):
        train(wild, tmp_path)
    for leaf in arrays(wild, tmp_path, max(open_checkpoints(tmp_path, wild).steps())):
        assert np.isfinite(leaf).all()


def test_fine_tuning_starts_from_parameters_and_tokenizer_of_the_other_run(config, finished, tmp_path):
    tuned = changed(config, initialize_from=str(finished), num_steps=1, learning_rate=1e-30)
    assert train(tuned, tmp_path) == 0
    one, other = load(finished), load(tmp_path)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one.params, other.params)
    assert one.tokenizer.fingerprint == other.tokenizer.fingerprint


def test_a_tokenizer_of_both_sides_may_be_named_twice_as_in_older_checkpoints():
    assert same_assets("a a", "a") and same_assets("a", "a a") and same_assets("a b", "a b")
    assert not same_assets("a", "b") and not same_assets("a b", "b a") and not same_assets("a b", "a")


def test_other_training_data_is_refused(config, finished):
    other = dataclasses.replace(config.data, num_phrases=301)
    with pytest.raises(UserError, match=r"data\.num_phrases: 300 there, 301 now"):
        train(dataclasses.replace(config, data=other), finished)


def test_a_second_trainer_in_the_same_workdir_is_refused(config, tmp_path):
    with opened(tmp_path, config), pytest.raises(UserError, match="another process is training in"):
        train(changed(config, learning_rate=1.0), tmp_path)
    assert read_config(tmp_path) == config  # the first one's
    with opened(tmp_path, config):
        pass


def test_one_batch_can_be_learnt_by_heart(config, tmp_path):
    again = changed(config, overfit_one_batch=True, num_steps=40, learning_rate=3e-2, log_every=40)
    assert train(again, tmp_path) == 0
    (line,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines() if "loss" in line]
    assert line["nll_per_token"] < 5.5


def test_the_python_interface(finished):
    import transformer

    run = transformer.load(finished, "average:2", "ema")
    assert len(run.predict(["in 28 weeks", "", "at noon"])) == 3
    assert run.checkpoint["steps"] == [4, 5]
    with pytest.raises(UserError, match=r"there is no checkpoint 17 in .*, only 2, 4, 5"):
        transformer.load(finished, 17)


def test_a_part_that_is_not_trained_stays_as_it_was(config, finished, tmp_path):
    tuned = changed(config, initialize_from=str(finished), num_steps=2, trainable=("decoder",), learning_rate=1e-2)
    assert train(tuned, tmp_path) == 0
    before, after = load(finished).params, load(tmp_path).params
    moved = {
        name: any(jax.tree.leaves(jax.tree.map(lambda a, b: (a != b).any(), before[name], after[name])))
        for name in after
    }
    assert moved == {name: name == "decoder" for name in after}
    with pytest.raises(UserError, match=r"training\.trainable=decodr is not one of .*did you mean decoder"):
        train(changed(tuned, trainable=("decodr",)), tmp_path / "other")


def test_a_run_starts_from_the_parts_that_it_has_in_common_with_another(config, finished, tmp_path):
    apart = dataclasses.replace(config.model, output_bias=True)
    tuned = dataclasses.replace(
        changed(config, initialize_from=str(finished), num_steps=1, learning_rate=1e-30), model=apart
    )
    assert train(tuned, tmp_path / "one") == 0
    before, after = load(finished).params, load(tmp_path / "one").params
    assert after.keys() - before.keys() == {"output"}  # the rest is as it was
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), before, {n: after[n] for n in before})
    wider = dataclasses.replace(config.model, d_ff=config.model.d_ff + 1)
    with pytest.raises(UserError, match=r"the part decoder is of another model: .*feed_forward/\w+/\w+ is \(.*there"):
        train(dataclasses.replace(tuned, model=wider), tmp_path / "two")


def test_a_profile_of_some_steps(config, tmp_path, caplog):
    caplog.set_level(logging.INFO, "transformer")
    assert train(changed(config, num_steps=4), tmp_path, profile=range(2, 4)) == 0
    assert list((tmp_path / "profile").glob("**/*.xplane.pb")) and "profile of steps 2 to 3 in" in caplog.text
    with pytest.raises(UserError, match="begins with a step that is done; this run goes on with step 5: name that"):
        train(changed(config, num_steps=6), tmp_path, profile=range(4, 6))
