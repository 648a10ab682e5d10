"""One update, as one compiled program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer.config import Config, TrainingConfig
from transformer.training.state import TrainState
from transformer.types import Sums, Task


def make_train_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    seed: int,
    accumulation_steps: int,
    ema_decay: float | None,
    trainable: tuple[str, ...] = (),
) -> Callable[[TrainState, Any, Any], tuple[TrainState, Sums]]:
    """``(state, batch, healthy) -> (state, sums)``: the gradient of sum(loss) / sum(count), then the update.

    The batch is computed in ``accumulation_steps`` parts, one after the other; sums are added up and divided once, so
    that the parts and the devices may hold any number of tokens. Dropout keys are folded from the step.

    A non-finite loss or gradient leaves the state as it was, step included, and ``sums["finite"]`` says so. Given to
    the next call as ``healthy``, it keeps that and all later ones from changing the state, so that the host may look
    at it late and still find the state of the bad step.

    Parts of the parameters that are not ``trainable``, by their first names, have no gradient; () means that all are.
    """

    def train_step(state: TrainState, batch: Any, healthy: Any) -> tuple[TrainState, Sums]:
        rng = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, sums = gradients(task, state.params, batch, rng, accumulation_steps, trainable)
        norm = optax.tree.norm(grads)
        finite = healthy & jnp.isfinite(sums["loss"][0]) & jnp.isfinite(norm)
        updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = state.ema
        if ema_decay is not None:
            ema = jax.tree.map(lambda old, new: ema_decay * old + (1 - ema_decay) * new, ema, params)
        updated = TrainState(state.step + 1, params, optimizer_state, ema)
        state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, state)
        return state, {**sums, "gradient_norm": (norm, jnp.ones(())), "finite": (finite, jnp.ones(()))}

    return train_step


def count_parts(config: TrainingConfig, size: tuple[int, int], num_shares: int) -> int:
    """In how many parts a batch is computed: ``accumulation_steps``, or as few as ``max_tokens_per_device`` allows.

    Args:
      config: of the two keys at most one is set.
      size: of the batch, see :meth:`transformer.types.Task.size_of`.
      num_shares: of its rows; see ``count_row_shards``.
    """
    if config.max_tokens_per_device is None:
        return config.accumulation_steps
    num_rows, length = size
    rows_at_a_time = max(config.max_tokens_per_device // length, 1)
    return -(-num_rows // (num_shares * rows_at_a_time))


def jit_train_step(
    task: Task, optimizer: optax.GradientTransformation, config: Config, state: TrainState, num_parts: int
) -> Any:
    """The step of a run, to be compiled; it takes over the memory of the state that it is given.

    Args:
      config: of the run.
      state: live or abstract; the new one lies where it lies.
      num_parts: in which a batch is computed; see :func:`count_parts`.
    """
    training = config.training
    step = make_train_step(
        task,
        optimizer,
        seed=config.seed,
        accumulation_steps=num_parts,
        ema_decay=training.ema_decay,
        trainable=training.trainable,
    )
    places = jax.tree.map(lambda leaf: leaf.sharding, state)
    return jax.jit(step, donate_argnums=0, out_shardings=(places, None))


def gradients(
    task: Task, params: Any, batch: Any, rng: Any, parts: int, trainable: tuple[str, ...] = ()
) -> tuple[Any, Sums]:
    """The gradient of the batch's mean loss, and the sums that ``task.loss`` reports."""

    def loss(params: Any, part: Any, rng: Any) -> tuple[Any, Sums]:
        if trainable:  # what is not trained needs no backward pass
            params = {name: tree if name in trainable else jax.lax.stop_gradient(tree) for name, tree in params.items()}
        sums = task.loss(params, part, rng)
        return sums["loss"][0], sums

    gradient = jax.grad(loss, has_aux=True)
    if parts == 1:
        grads, sums = gradient(params, batch, rng)
    else:
        # Row r goes to part r mod parts: the padding rows at the end of a batch are shared out evenly.
        split = jax.tree.map(lambda leaf: leaf.reshape(-1, parts, *leaf.shape[1:]).swapaxes(0, 1), batch)
        shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda leaf: leaf[0], split), rng)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def add_part(total: Any, numbered: Any) -> tuple[Any, None]:
            number, part = numbered
            return jax.tree.map(jnp.add, total, gradient(params, part, jax.random.fold_in(rng, number))), None

        (grads, sums), _ = jax.lax.scan(add_part, zeros, (jnp.arange(parts), split))
    count = jnp.maximum(sums["loss"][1], 1)
    return jax.tree.map(lambda leaf: leaf / count, grads), sums


def first_non_finite(task: Task, state: TrainState, batch: Any, seed: int, parts: int) -> str:
    """The name of the first tensor of an update that is not finite: a parameter, the loss, or a gradient."""

    @jax.jit
    def look(state: TrainState, batch: Any) -> Any:
        rng = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, sums = gradients(task, state.params, batch, rng, parts)
        named = {"parameter": state.params, "loss": {name: pair[0] for name, pair in sums.items()}, "gradient": grads}
        return jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), named)

    found = jax.device_get(look(state, batch))
    for kind in ("parameter", "loss", "gradient"):
        for path, finite in jax.tree_util.tree_leaves_with_path(found[kind]):
            if not finite:
                return f"{kind} {jax.tree_util.keystr(path, simple=True, separator='/')}"
    return "none on a second look (the hardware may be at fault)"
