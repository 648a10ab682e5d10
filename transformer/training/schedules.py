"""Learning rates as functions of the number of updates.

A schedule is called with the number of updates already made, as optax does: 0 for the first. The formulas below count
from 1, as the paper does: ``s = step + 1``.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from transformer.config import SCHEDULES_FREE_OF_NUM_STEPS, TrainingConfig
from transformer.types import UserError, one_of


def paper(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """``learning_rate * d_model^-0.5 * min(s^-0.5, s * warmup_steps^-1.5)``; ``learning_rate`` is a factor, 1 there.

    With 4,000 warm-up steps the peak is 6.99e-4 at d_model 512 and 4.94e-4 at 1,024.

    Reference: Vaswani et al., Attention Is All You Need (2017), section 5.3.
    """
    warmup = max(config.warmup_steps, 1)

    def schedule(step: Any) -> Any:
        s = step + 1.0
        return config.learning_rate * d_model**-0.5 * jnp.minimum(s**-0.5, s * warmup**-1.5)

    return schedule


def inverse_square_root(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """``learning_rate * min(s / warmup_steps, sqrt(warmup_steps / s))``: fairseq's form, ``learning_rate`` the peak."""
    warmup = max(config.warmup_steps, 1)

    def schedule(step: Any) -> Any:
        s = step + 1.0
        return config.learning_rate * jnp.minimum(s / warmup, jnp.sqrt(warmup / s))

    return schedule


def constant_inverse_square_root(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """``learning_rate * min(1, sqrt(warmup_steps / s))``: the same without the way up, from the peak at once.

    Reference: Raffel et al., T5 (2020), section 3.1.2.
    """
    warmup = max(config.warmup_steps, 1)
    return lambda step: config.learning_rate * jnp.minimum(1.0, jnp.sqrt(warmup / (step + 1.0)))


def constant(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """Linear warm-up to ``learning_rate``, which then stays."""
    return lambda step: _warm_up(config, step + 1.0)


def linear(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """Linear warm-up to ``learning_rate``, then a line to ``final_learning_rate`` at ``s = num_steps``."""
    return _decay_after(config, config.num_steps - config.warmup_steps, lambda progress: 1.0 - progress)


def cosine(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """Linear warm-up to ``learning_rate``, then half a cosine wave to ``final_learning_rate`` at ``s = num_steps``.

    Reference: Loshchilov and Hutter, SGDR (2017), equation 5, without restarts.
    """
    return _decay_after(
        config, config.num_steps - config.warmup_steps, lambda progress: 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    )


def warmup_stable_decay(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """Linear warm-up, ``learning_rate``, then a line to ``final_learning_rate`` over the last ``decay_steps``.

    Reference: Hu et al., MiniCPM (2024), section 4, which decays exponentially; a line as in Haegele et al. (2024).
    """
    decay_steps = config.decay_steps if config.decay_steps is not None else max(config.num_steps // 10, 1)
    if decay_steps < 1 or config.warmup_steps + decay_steps > config.num_steps:
        raise UserError(
            f"training.decay_steps={decay_steps} must be at least 1 and fit after "
            f"training.warmup_steps={config.warmup_steps} into training.num_steps={config.num_steps}"
        )
    return _decay_after(config, decay_steps, lambda progress: 1.0 - progress)


SCHEDULES: dict[str, Callable[[TrainingConfig, int], optax.Schedule]] = {
    "paper": paper,
    "inverse_square_root": inverse_square_root,
    "constant_inverse_square_root": constant_inverse_square_root,
    "linear": linear,
    "cosine": cosine,
    "constant": constant,
    "warmup_stable_decay": warmup_stable_decay,
}


def make_schedule(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """The schedule that ``training.schedule`` names: from the number of updates made to the rate of the next.

    Raises:
      UserError: for an unknown name, or a warm-up or decay that does not fit into ``training.num_steps``.
    """
    return one_of("training.schedule", config.schedule, SCHEDULES)(config, d_model)


def peak_rate(schedule: optax.Schedule, warmup_steps: int, num_updates: int) -> tuple[float, int]:
    """The highest rate of the first ``num_updates`` updates, and the first update, from 1, that has it.

    After its warm-up a schedule here goes one way, if any, so that a few updates tell.
    """
    near = (1, warmup_steps - 1, warmup_steps, warmup_steps + 1, num_updates)
    updates = np.array(sorted({update for update in near if 1 <= update <= num_updates}))
    rates = np.broadcast_to(np.asarray(schedule(updates - 1), np.float64), updates.shape)
    place = int(rates.argmax())
    return float(rates[place]), int(updates[place])


def _warm_up(config: TrainingConfig, s: Any) -> Any:
    return config.learning_rate * jnp.minimum(1.0, s / max(config.warmup_steps, 1))


def _decay_after(config: TrainingConfig, decay_steps: int, shape: Callable[[Any], Any]) -> optax.Schedule:
    """Warm-up and plateau, then over the last ``decay_steps`` the way down that ``shape`` draws from 1 to 0."""
    if config.warmup_steps > config.num_steps:
        raise UserError(
            f"training.warmup_steps={config.warmup_steps} is more than training.num_steps={config.num_steps}, where "
            f"the schedule {config.schedule} ends; lower it, or use one without an end: "
            f"{', '.join(SCHEDULES_FREE_OF_NUM_STEPS)}"
        )

    def schedule(step: Any) -> Any:
        s = step + 1.0
        progress = jnp.clip((s - (config.num_steps - decay_steps)) / max(decay_steps, 1), 0.0, 1.0)
        peak, final = config.learning_rate, config.final_learning_rate
        return jnp.where(s < config.warmup_steps, _warm_up(config, s), final + (peak - final) * shape(progress))

    return schedule
