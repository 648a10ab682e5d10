"""What changes from step to step, and how it starts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.training.partitioning import parameter_shardings, state_shardings, unbox
from transformer.types import Params, Task


class TrainState(NamedTuple):
    """step: updates done, an int32 scalar; ema: the moving average of the parameters, or None."""

    step: Any
    params: Params
    optimizer: Any
    ema: Any


def new_state(params: Params, optimizer: optax.GradientTransformation, with_ema: bool) -> TrainState:
    """The state before the first update."""
    ema = jax.tree.map(jnp.copy, params) if with_ema else None
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), ema)


def abstract_state(task: Task, optimizer: optax.GradientTransformation, with_ema: bool, mesh: Mesh) -> TrainState:
    """Shape, dtype and place of every array of the state, without computing any."""
    boxed = jax.eval_shape(task.init, jax.random.key(0))
    shardings = parameter_shardings(mesh, boxed)
    params = unbox(boxed)
    shapes = jax.eval_shape(lambda params: new_state(params, optimizer, with_ema), params)
    places = TrainState(
        step=NamedSharding(mesh, PartitionSpec()),
        params=shardings,
        optimizer=state_shardings(mesh, shapes.optimizer, params, shardings),
        ema=shardings if with_ema else None,
    )
    return jax.tree.map(
        lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place), shapes, places
    )


def init_state(
    task: Task, optimizer: optax.GradientTransformation, abstract: TrainState, seed: int, params: Params = None
) -> TrainState:
    """A fresh state, every array made where it will lie; from given parameters or from the seed."""
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    with_ema = abstract.ema is not None
    if params is not None:
        params = jax.device_put(params, places.params)
        return jax.jit(lambda params: new_state(params, optimizer, with_ema), out_shardings=places)(params)

    def create(rng: Any) -> TrainState:
        return new_state(unbox(task.init(rng)), optimizer, with_ema)

    return jax.jit(create, out_shardings=places)(jax.random.key(seed))
