"""What changes from step to step, and how it starts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.config import ModelConfig
from transformer.training.partitioning import parameter_shardings, state_shardings, unbox
from transformer.types import Params, Task


class TrainState(NamedTuple):
    """step: updates done, an int32 scalar; ema: the moving average of the parameters, or None."""

    step: Any
    params: Params
    optimizer: Any
    ema: Any


def count_active_parameters(params: Params, config: ModelConfig) -> int:
    """Parameters that one token meets: all but the weights of the experts it does not visit.

    Args:
      params: of a whole model or a part; only shapes are read. Mixtures lie under the name ``experts``.
    """

    def active(path: Any, leaf: Any) -> int:
        size = int(np.prod(leaf.shape))
        of_experts = any(getattr(entry, "key", None) == "experts" for entry in path)
        return size * config.experts_per_token // config.num_experts if of_experts else size

    return sum(active(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params))


def new_state(params: Params, optimizer: optax.GradientTransformation, with_ema: bool) -> TrainState:
    """The state before the first update."""
    ema = jax.tree.map(jnp.copy, params) if with_ema else None
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), ema)


def abstract_state(task: Task, optimizer: optax.GradientTransformation, with_ema: bool, mesh: Mesh) -> TrainState:
    """Shape, dtype and place of every array of the state, without computing any."""
    boxed = jax.eval_shape(lambda: task.init(jax.random.key(0)))  # no key is made: the devices may be only described
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


def _put(leaf: Any, place: NamedSharding) -> jax.Array:
    """An array that every process has, where it is to lie."""
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, place, lambda index: whole[index])


def init_state(
    task: Task, optimizer: optax.GradientTransformation, abstract: TrainState, seed: int, params: Params = None
) -> TrainState:
    """A fresh state, every array made where it will lie, from the seed.

    Args:
      params: given parts of the parameters, by their first names; None: no part is given.
    """
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    given = {name: jax.tree.map(_put, part, places.params[name]) for name, part in (params or {}).items()}

    def create(rng: Any, given: Params) -> TrainState:
        return new_state({**unbox(task.init(rng)), **given}, optimizer, abstract.ema is not None)

    return jax.jit(create, out_shardings=places)(jax.random.key(seed), given)
