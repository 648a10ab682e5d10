"""Optimizers, all of one form: clip the gradient, give it a direction, add weight decay, multiply by the rate."""

from collections.abc import Callable
from typing import Any, Optional

import jax
import optax

from transformer.config import TrainingConfig
from transformer.types import one_of

DECAYED_PARAMETERS = ("kernel", "embedding")
"""Leaves of these names are matrices of weights; biases, norms' scales and the like are not decayed.

The name decides, not the rank: under scanned layers a bias is [L, D] and looks like a matrix.
"""


def adam(config: TrainingConfig) -> optax.GradientTransformation:
    """Reference: Kingma and Ba, Adam (2015), algorithm 1, epsilon outside the root.

    The moments are computed in float32, and the second is kept so, whatever ``moment_dtype`` the first is kept in.
    """
    return optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon, mu_dtype=config.moment_dtype)


def lion(config: TrainingConfig) -> optax.GradientTransformation:
    """Reference: Chen et al., Symbolic Discovery of Optimization Algorithms (2023), algorithm 2."""
    return optax.scale_by_lion(b1=config.beta1, b2=config.beta2, mu_dtype=config.moment_dtype)


def adafactor(config: TrainingConfig) -> optax.GradientTransformation:
    """Without momentum; the learning rate is relative to each parameter's root mean square.

    Of a stacked kernel the two longest axes are factored; its layers share one root mean square. ``beta1``, ``beta2``
    and ``epsilon`` have no part in it: the decay of the second moment is the paper's ``1 - s^-0.8``.

    Reference: Shazeer and Stern, Adafactor (2018), algorithms 4 and 5 and section 8.
    """
    return optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms())


OPTIMIZERS: dict[str, Callable[[TrainingConfig], optax.GradientTransformation]] = {
    "adam": adam,
    "adamw": adam,  # the weight decay, which adam is refused by the config, makes the difference
    "adafactor": adafactor,
    "lion": lion,
}


def make_optimizer(config: TrainingConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """The optimizer that ``training.optimizer`` names, with clipping and weight decay where they are set.

    Weight decay is decoupled under every optimizer, ``w -= rate * (direction + weight_decay * w)``, and touches only
    leaves named in ``DECAYED_PARAMETERS``.

    Args:
      config: the keys optimizer, beta1, beta2, epsilon, moment_dtype, weight_decay, gradient_clip (of the gradient's
        global norm) and trainable (parts of the parameters; the others stay as they are, without moments).
      schedule: from the number of updates made to the learning rate of the next.

    Raises:
      UserError: for an unknown name.

    Reference: Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019), for the decay.
    """
    parts: list[Optional[optax.GradientTransformation]] = [
        optax.clip_by_global_norm(config.gradient_clip) if config.gradient_clip is not None else None,
        one_of("training.optimizer", config.optimizer, OPTIMIZERS)(config),
        optax.add_decayed_weights(config.weight_decay, mask=_decayed) if config.weight_decay else None,
        optax.scale_by_learning_rate(schedule),
    ]
    optimizer = optax.chain(*(part for part in parts if part is not None))
    if not config.trainable:
        return optimizer
    return optax.partition(
        {"trained": optimizer, "kept": optax.set_to_zero()}, lambda params: _by_part(params, config.trainable)
    )


def _by_part(params: Any, trainable: tuple[str, ...]) -> Any:
    """``trained`` or ``kept`` for every part."""
    for name in trainable:
        one_of("training.trainable", name, params)
    return {name: "trained" if name in trainable else "kept" for name in params}


def _decayed(params: Any) -> Any:
    """True for the leaves that weight decay touches."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key in DECAYED_PARAMETERS, params)
