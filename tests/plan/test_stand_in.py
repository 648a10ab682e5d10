"""Text that was made up: full batches of full rows, and an embedding as large as the config says."""

import dataclasses

import jax
import numpy as np
import pytest

from transformer.config import Config, DataConfig, ModelConfig, TrainingConfig, from_json, to_json
from transformer.plan.stand_in import TEXTS, stand_in
from transformer.tasks import make_task
from transformer.training.partitioning import unbox
from transformer.types import UserError

SMALL = {"d_model": 16, "d_ff": 24, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
VARIANTS = {"language_modeling": "decoder_only", "masked_lm": "encoder_only", "sentence_embedding": "encoder_only"}
SCORES = {"translation": "bleu", "language_modeling": "nll_per_token"}


def config_of(task: str, **data) -> Config:
    """Of a run on a corpus that is not there."""
    sizes = {"source": "files", "directory": "nowhere", "max_source_length": 24, "max_target_length": 16}
    smoothing = 0.0 if task == "sentence_embedding" else 0.1
    model = {**SMALL, "variant": VARIANTS.get(task, "encoder_decoder")}
    if task == "sentence_embedding":
        model["pooling"] = "mean"
    config = Config(
        task=task,
        data=DataConfig(**{"tokens_per_batch": 480, "vocab_size": 613, "extra_ids": 11, **sizes, **data}),
        model=ModelConfig(**model),
        training=TrainingConfig(label_smoothing=smoothing, best_metric=SCORES.get(task, "accuracy")),
    )
    return from_json(to_json(config))


def planned(task: str, folder, **data):
    config = config_of(task, **data)
    return make_task(stand_in(config, folder))


@pytest.mark.parametrize("task", TEXTS)
def test_every_row_is_full(task, tmp_path):
    made = planned(task, tmp_path)
    rows, length = made.batch_size(0)
    batch, work = made.batch(0), made.work(made.batch(0))
    if task != "span_corruption":  # a text is shorter once spans are cut out
        assert length == (16 if task == "language_modeling" else 24)
        assert sum(value for name, value in work.items() if name.endswith("_tokens")) == work["positions"]
    assert rows * length <= 480 < (rows + 1) * length
    assert len(jax.tree.leaves(batch)[0]) == rows
    params = unbox(jax.eval_shape(made.init, jax.random.key(0)))
    rows_of = {
        leaf.shape[0] for path, leaf in jax.tree_util.tree_leaves_with_path(params) if "embedding" in str(path[-1])
    }
    assert rows_of == {613 + 11}


@pytest.mark.parametrize("batching", ["bucket", "pack", "stream"])
@pytest.mark.parametrize("count_padding", [True, False])
def test_batches_are_as_large_as_training_makes_them(batching, count_padding, tmp_path):
    task = "language_modeling" if batching == "stream" else "translation"
    if batching == "stream" and not count_padding:
        return
    made = planned(task, tmp_path, batching=batching, count_padding=count_padding, max_source_length=16)
    assert made.batch_size(0) == (30, 16)


def test_two_vocabularies_stay_two(tmp_path):
    config = config_of("translation")
    model = dataclasses.replace(config.model, shared_embeddings="none")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, joint_vocabulary=False), model=model)
    params = unbox(jax.eval_shape(make_task(stand_in(config, tmp_path)).init, jax.random.key(0)))
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(params)]
    assert shapes.count((624, 16)) == 2


def test_labels_are_a_matter_of_the_data(tmp_path):
    with pytest.raises(
        UserError, match=r"task=text_classification: how many labels .* what can be planned: translation"
    ):
        stand_in(dataclasses.replace(Config(), task="text_classification"), tmp_path)
