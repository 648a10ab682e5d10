"""From a workdir to a model that can be used."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from transformer.config import Config
from transformer.tasks import make_task
from transformer.training.checkpoints import Checkpoints
from transformer.training.partitioning import unbox
from transformer.training.workdir import CHECKPOINTS, LOWER_IS_BETTER, read_config
from transformer.types import Params, Task, UserError


class Loaded(NamedTuple):
    """A trained model.

    model      the flax module; ``model.apply({"params": params}, ...)``
    params     a pytree of float32 arrays
    tokenizer  of the outputs
    predict    lines to lines
    task       all else that belongs to it, see ``transformer.types.Task``
    config     that it was trained with
    checkpoint what was read: ``{"steps": [...], "weights": ..., "metadata": ...}``
    """

    model: nn.Module
    params: Params
    tokenizer: Any
    predict: Callable[[Sequence[str]], list[str]]
    task: Task
    config: Config
    checkpoint: dict[str, Any]


def load(
    workdir: str | Path, checkpoint: str | int = "latest", weights: str = "raw", config: Config | None = None
) -> Loaded:
    """The model of a workdir.

    Args:
      workdir: of a run that ``train.py`` started.
      checkpoint: ``latest``, ``best``, a step, or ``average:N`` for the mean of the newest N.
      weights: ``raw``, or ``ema`` for the moving average.
      config: that of the workdir, with other settings for decoding; None: as it is there.

    Raises:
      UserError: if there is no such run or checkpoint, it is damaged, or its tokenizer is another one.
    """
    workdir = Path(workdir)
    config = config or read_config(workdir)
    task = make_task(config, workdir)
    params, description = read_params(workdir, config, task, checkpoint, weights)

    def predict(lines: Sequence[str]) -> list[str]:
        return task.predict(params, lines)

    return Loaded(task.model, params, task.tokenizer, predict, task, config, description)


def open_checkpoints(workdir: Path, config: Config) -> Checkpoints:
    """The checkpoints of a workdir."""
    return Checkpoints(
        workdir / CHECKPOINTS,
        keep=config.training.keep_checkpoints,
        best_metric=config.training.best_metric,
        best_mode="min" if config.training.best_metric in LOWER_IS_BETTER else "max",
    )


def read_params(
    workdir: Path, config: Config, task: Task, checkpoint: str | int, weights: str
) -> tuple[Params, dict[str, Any]]:
    """Parameters that belong to ``task``, and which they are.

    Raises:
      UserError: as for :func:`load`.
    """
    target = unbox(jax.eval_shape(task.init, jax.random.key(0)))
    params, description = open_checkpoints(workdir, config).read_params(checkpoint, weights, target)
    if description["metadata"]["assets_fingerprint"] != task.assets_fingerprint():
        raise UserError(
            f"the checkpoints in {workdir / CHECKPOINTS} were trained with another tokenizer than the one given; "
            "put the one they were trained with back"
        )
    return params, description
