"""Counts of parameters and bytes, against the arrays of a real state."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.plan.families import family
from transformer.config import MeshConfig
from transformer.plan.memory import bytes_on_a_device, kept_bytes, parts_of, state_bytes, temporary_bytes
from transformer.tasks import make_task
from transformer.training.optimizers import make_optimizer
from transformer.training.partitioning import make_mesh, place_batch, unbox
from transformer.training.schedules import make_schedule
from transformer.training.state import abstract_state
from transformer.training.step import jit_train_step

KEY = jax.random.key(0)


def on_first_device(tree) -> int:
    """Bytes of the shards that really lie there."""
    device = jax.devices()[0]
    return sum(shard.data.nbytes for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards
               if shard.device == device)  # fmt: skip


@pytest.mark.parametrize(
    ("task", "optimizer", "ema"), [("translation", "adam", 0.9), ("language_modeling", "adafactor", None)]
)
def test_bytes_and_counts_are_those_of_the_real_state(task, optimizer, ema, tmp_path):
    config = family(task, str(tmp_path), optimizer=optimizer, ema_decay=ema)
    experts = dataclasses.replace(config.model, num_experts=3, experts_per_token=2)
    config = dataclasses.replace(config, model=experts, mesh=dataclasses.replace(config.mesh, data=-1))
    task, mesh = make_task(config), make_mesh(config.mesh)
    optimizer = make_optimizer(config.training, make_schedule(config.training, config.model.d_model))
    abstract = abstract_state(task, optimizer, ema is not None, mesh)
    state = jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), abstract)
    assert jax.tree.map(np.shape, state.params) == jax.tree.map(np.shape, unbox(jax.eval_shape(task.init, KEY)))
    parts = {"parameters": state.params, "optimizer": (state.step, state.optimizer), "ema": state.ema}
    expected = {name: on_first_device(part) for name, part in parts.items() if part is not None}
    assert state_bytes(abstract) == state_bytes(state) == expected

    sizes = {part.name: part for part in parts_of(abstract.params, config.model)}
    assert sizes["total"].total == sum(leaf.size for leaf in jax.tree.leaves(state.params))
    tops = [part for name, part in sizes.items() if "/" not in name and name != "total"]
    assert sum(part.total for part in tops) == sizes["total"].total
    assert sum(part.active for part in tops) == sizes["total"].active < sizes["total"].total
    for part in tops:
        inner = [size.total for name, size in sizes.items() if name.startswith(part.name + "/")]
        assert not inner or sum(inner) == part.total


def pairs_in_shapes(tmp_path, number: int):
    config = family("translation", str(tmp_path))
    sizes = {"num_buckets": number, "num_phrases": 307, "tokens_per_batch": 1_009}
    return dataclasses.replace(config, data=dataclasses.replace(config.data, batching="bucket", **sizes))


def test_what_the_forward_pass_keeps_grows_with_rows_and_with_their_length(tmp_path):
    task = make_task(pairs_in_shapes(tmp_path, 2))
    params = unbox(jax.eval_shape(task.init, KEY))
    shorter, longer = sorted(map(task.batch, task.steps_of_shapes()), key=lambda batch: -len(batch[0]))
    kept = [kept_bytes(task, params, batch, rows) for batch, rows in ((longer, 6), (longer, 3), (shorter, 3))]
    assert 1.6 * kept[1] < kept[0] < 2.1 * kept[1] and kept[2] < kept[1]


@pytest.mark.slow
def test_what_the_forward_pass_keeps_tells_batches_apart(tmp_path):
    """As XLA's count of a whole step does."""
    config = pairs_in_shapes(tmp_path, 4)
    task, mesh = make_task(config), make_mesh(config.mesh)
    optimizer = make_optimizer(config.training, make_schedule(config.training, config.model.d_model))
    abstract = abstract_state(task, optimizer, False, mesh)
    step = jit_train_step(task, optimizer, config, abstract, 1)
    kept, counted = [], []
    for number in task.steps_of_shapes():
        batch = task.batch(number)
        kept.append(kept_bytes(task, abstract.params, batch, len(batch.encoder_input_tokens)))
        program = step.lower(abstract, place_batch(mesh, batch), jax.numpy.array(True)).compile()
        counted.append(temporary_bytes(program))
    assert len(kept) == 4 and np.argsort(kept).tolist() == np.argsort(counted).tolist()


def test_a_batch_is_shared_out_over_devices():
    mesh = make_mesh(MeshConfig())
    assert mesh.size > 1
    placed = place_batch(mesh, [np.zeros((2 * mesh.size - 1, 3), np.float32), np.zeros(5, np.int32)])
    assert bytes_on_a_device(placed) == on_first_device(placed) == 2 * 3 * 4 + -(-5 // mesh.size) * 4
