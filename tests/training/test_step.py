"""One update: the same on any number of devices and parts, safe from what is not finite."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.small_task import SmallTask, make_batch
from transformer.config import MeshConfig, TrainingConfig
from transformer.training.partitioning import (
    LOGICAL_AXES,
    make_mesh,
    parameter_shardings,
    place_batch,
    unbox,
)
from transformer.training.state import abstract_state, init_state
from transformer.training.step import count_parts, first_non_finite, gradients, make_train_step
from transformer.types import UserError


def jitted_step(task, optimizer, parts=1, ema_decay=None):
    return jax.jit(make_train_step(task, optimizer, seed=3, accumulation_steps=parts, ema_decay=ema_decay))


def start(task, optimizer, mesh, with_ema=False):
    return init_state(task, optimizer, abstract_state(task, optimizer, with_ema, mesh), seed=0)


@pytest.fixture(scope="module")
def reference():
    """Gradient and sums of a batch of 5 rows on one device, at once."""
    task = SmallTask()
    params = unbox(jax.jit(task.init)(jax.random.key(0)))
    batch = make_batch(5, 7, 6)
    return task, params, batch, jax.jit(lambda p, b: gradients(task, p, b, None, 1))(params, batch)


@pytest.mark.parametrize(("devices", "limit", "parts"), [(1, 7, 5), (4, None, 1), (2, 13, 3)])
def test_parts_and_devices_with_uneven_tokens_change_nothing(reference, devices, limit, parts):
    task, params, batch, (expected, expected_sums) = reference
    assert count_parts(TrainingConfig(max_tokens_per_device=limit), (5, 7), devices) == parts
    mesh = make_mesh(MeshConfig(data=devices))
    with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXES):
        placed = place_batch(mesh, batch, parts)
        assert len(placed.encoder_input_tokens.sharding.device_set) == devices
        assert placed.encoder_input_tokens.shape[0] % (devices * parts) == 0
        grads, sums = jax.jit(lambda p, b: gradients(task, p, b, jax.random.key(0) if parts > 1 else None, parts))(
            params, placed
        )
    for name, (total, count) in sums.items():
        np.testing.assert_allclose(total, expected_sums[name][0], rtol=1e-5)
        assert count == expected_sums[name][1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), grads, expected)


@given(st.integers(1, 61), st.integers(1, 17), st.integers(1, 17), st.integers(1, 9), st.integers(17, 211))
def test_a_batch_is_computed_in_as_few_parts_as_the_limit_allows(rows, source, target, devices, limit):
    size = rows, max(source, target)

    def most_positions(parts):
        return -(-rows // (devices * parts)) * max(source, target)  # with the rows that fill up, as place_batch does

    parts = count_parts(TrainingConfig(max_tokens_per_device=limit), size, devices)
    assert most_positions(parts) <= limit
    assert parts == 1 or most_positions(parts - 1) > limit
    assert count_parts(TrainingConfig(accumulation_steps=7), size, devices) == 7


def test_padding_rows_and_columns_change_nothing(reference):
    task, params, batch, (expected, expected_sums) = reference
    wider = jax.tree.map(lambda array: np.pad(array, ((0, 2), (0, 3))), batch)
    grads, sums = jax.jit(lambda p, b: gradients(task, p, b, None, 1))(params, wider)
    np.testing.assert_allclose(sums["loss"][0], expected_sums["loss"][0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), grads, expected)


def test_a_step_without_any_token_is_no_division_by_zero(reference):
    task, params, batch, _ = reference
    empty = jax.tree.map(np.zeros_like, batch)
    grads, sums = jax.jit(lambda p, b: gradients(task, p, b, None, 1))(params, empty)
    assert sums["loss"] == (0, 0)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(grads))


def test_dropout_comes_from_the_step_and_the_schedule_counts_updates():
    task = SmallTask(dropout_rate=0.5)
    seen = []
    optimizer = optax.sgd(lambda step: seen.append(1) or jnp.where(step < 2, 0.5, 0.0))
    mesh = make_mesh(MeshConfig(data=1))
    state, step = start(task, optimizer, mesh), jitted_step(task, optimizer, parts=5)
    batch = make_batch(5, 7, 6)
    losses, states = [], [state]
    for _ in range(3):
        state, sums = step(state, batch, True)
        losses.append(float(sums["loss"][0]))
        states.append(state)
    assert int(state.step) == 3
    assert not np.allclose(losses[0], losses[1])
    _, sums = step(states[0], batch, True)
    assert float(sums["loss"][0]) == losses[0]
    changed = [not np.array_equal(a, b) for a, b in zip(*(jax.tree.leaves(s.params) for s in states[2:4]), strict=True)]
    assert not any(changed), "the third update has rate 0, however many parts each had"
    assert not np.array_equal(*(jax.tree.leaves(s.params)[0] for s in (states[1], states[2])))


def test_the_moving_average():
    task, optimizer = SmallTask(), optax.sgd(0.1)
    mesh = make_mesh(MeshConfig(data=1))
    state = start(task, optimizer, mesh, with_ema=True)
    step = jitted_step(task, optimizer, ema_decay=0.75)
    expected = jax.tree.map(np.asarray, state.params)
    for number in range(3):
        state, _ = step(state, task.batch(number), True)
        expected = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * np.asarray(new), expected, state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), state.ema, expected)


def test_what_is_not_finite_never_enters_the_state_and_is_named():
    task, optimizer = SmallTask(), optax.adam(0.1)
    mesh = make_mesh(MeshConfig(data=1))
    state, step = start(task, optimizer, mesh, with_ema=True), jitted_step(task, optimizer, ema_decay=0.9)
    state, sums = step(state, task.batch(0), True)
    assert sums["finite"][0]
    batch = task.batch(1)
    bad = batch._replace(decoder_input_tokens=np.where(batch.decoder_segment_ids > 0, 10_000, 0).astype(np.int32))
    frozen, sums = step(state, bad, True)
    assert not sums["finite"][0]
    jax.tree.map(np.testing.assert_array_equal, frozen, state)
    later, sums = step(frozen, task.batch(2), sums["finite"][0])  # sticky, though this batch is good
    assert not sums["finite"][0]
    jax.tree.map(np.testing.assert_array_equal, later, state)
    assert first_non_finite(task, state, bad, 3, 1) == "loss loss"
    params = jax.tree.map(np.array, state.params)
    params["encoder"]["layers"]["feed_forward"]["up"]["kernel"][0, 1, 2] = np.inf
    broken = state._replace(params=params)
    assert first_non_finite(task, broken, batch, 3, 1) == "parameter encoder/layers/feed_forward/up/kernel"


def test_every_parameter_has_a_place_and_misspelt_names_are_errors():
    mesh = make_mesh(MeshConfig())
    boxed = jax.eval_shape(SmallTask().init, jax.random.key(0))
    parameter_shardings(mesh, boxed)
    box = boxed["shared_embedding"]["embedding"]
    with pytest.raises(ValueError, match="no logical axis is called 'vocab'"):
        parameter_shardings(mesh, {"table": box.replace(names=("vocab", "embedding"))})
    with pytest.raises(ValueError, match="has no logical axis names"):
        parameter_shardings(mesh, {"table": box.value})


def test_optimizer_state_lies_where_its_parameter_lies():
    task, optimizer = SmallTask(), optax.adam(0.1)
    mesh = make_mesh(MeshConfig())
    state = init_state(task, optimizer, abstract_state(task, optimizer, True, mesh), seed=0)
    for part in (state.params, state.ema, state.optimizer[0].mu, state.optimizer[0].nu):
        jax.tree.map(lambda a, b: a.sharding == b.sharding or pytest.fail("elsewhere"), part, state.params)


def test_more_devices_than_there_are():
    with pytest.raises(UserError, match=r"mesh.data=64 but there are 4 cpu devices"):
        make_mesh(MeshConfig(data=64))
