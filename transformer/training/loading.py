"""From a workdir to a model that can be used."""

import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax.sharding import Mesh

from transformer.config import Config
from transformer.data.labeled_text import LABELS_NAME
from transformer.paths import reaching
from transformer.tasks import check_training, make_task
from transformer.training import hosts
from transformer.training.checkpoints import Checkpoints
from transformer.training.devices import select_platform
from transformer.training.partitioning import (
    EVALUATION_AXES,
    make_mesh,
    parameter_shardings,
    require_even_shares,
    unbox,
)
from transformer.training.state import TrainState
from transformer.training.workdir import LOWER_IS_BETTER, checkpoints_folder, local_workdir, read_config
from transformer.types import Params, Task, UserError

CLASSIFIER = "classifier"
"""The part of the parameters that belongs to the names of labels."""

logger = logging.getLogger(__name__)


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


@contextlib.contextmanager
def inference_mesh(config: Config) -> Iterator[Mesh]:
    """All devices, those of other processes too with ``mesh.distributed``, for evaluation and inference.

    While entered, a task shares the rows of its batches out over them; see ``transformer.tasks.by_rows``.

    Raises:
      UserError: as ``select_platform`` and ``make_mesh``.
    """
    select_platform(config.mesh)
    with hosts.together():
        mesh = make_mesh(config.mesh)
        require_even_shares(config.model, mesh)
        with jax.set_mesh(mesh), nn.logical_axis_rules(EVALUATION_AXES):
            yield mesh
    hosts.end()


def load(
    workdir: str | Path,
    checkpoint: str | int = "latest",
    weights: str = "raw",
    config: Config | None = None,
    mesh: Mesh | None = None,
) -> Loaded:
    """The model of a workdir.

    Args:
      workdir: of a run that ``train.py`` started, on disk or in a bucket.
      checkpoint: ``latest``, ``best``, a step, or ``average:N`` for the mean of the newest N.
      weights: ``raw``, or ``ema`` for the moving average.
      config: that of the workdir, with other settings for decoding; None: as it is there.
      mesh: on which the parameters lie as in training; None: whole on the first device.

    Raises:
      UserError: if there is no such run or checkpoint, it is damaged, or its tokenizer is another one.
    """
    workdir = local_workdir(workdir)
    config = config or read_config(workdir)
    task = make_task(config, workdir)
    with reaching(checkpoints_folder(workdir)):
        params, description = read_params(workdir, config, task, checkpoint, weights, mesh)

    def predict(lines: Sequence[str]) -> list[str]:
        return task.predict(params, lines)

    return Loaded(task.model, params, task.tokenizer, predict, task, config, description)


def open_checkpoints(workdir: Path, config: Config) -> Checkpoints:
    """The checkpoints of a workdir."""
    return Checkpoints(
        checkpoints_folder(workdir),
        keep=config.training.keep_checkpoints,
        best_metric=config.training.best_metric,
        best_mode="min" if config.training.best_metric in LOWER_IS_BETTER else "max",
    )


def checkpoint_items(state: TrainState) -> dict[str, Any]:
    """The state as checkpoints hold it, by item."""
    items = {"params": state.params, "state": {"step": state.step, "optimizer": state.optimizer}}
    return items if state.ema is None else {**items, "ema": state.ema}


def read_params(
    workdir: Path, config: Config, task: Task, checkpoint: str | int, weights: str, mesh: Mesh | None = None
) -> tuple[Params, dict[str, Any]]:
    """Parameters that belong to ``task``, and which they are; ``mesh`` is as for :func:`load`.

    Raises:
      UserError: as for :func:`load`.
    """
    boxed = jax.eval_shape(task.init, jax.random.key(0))
    target = unbox(boxed)
    if mesh is not None:
        places = parameter_shardings(mesh, boxed)
        target = jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), target, places
        )
    params, description = open_checkpoints(workdir, config).read_params(checkpoint, weights, target)
    _require_tokenizer(workdir, description, task)
    return params, description


def read_parts(workdir: Path, config: Config, task: Task, own: Path) -> Params:
    """The parts of the parameters, by their first names, that both the newest checkpoint and ``task`` have.

    A model may so start from one with another head: from an encoder that was trained to guess masked tokens, say. A
    classifier is only taken over if it is for the same labels.

    Args:
      own: the workdir of the run that is to start, with the assets of its task.

    Raises:
      UserError: as for :func:`load`; if no part is the same, or one is of another shape.
    """
    checkpoints = open_checkpoints(workdir, config)
    there = checkpoints.params_shapes()
    here = unbox(jax.eval_shape(task.init, jax.random.key(0)))
    common = sorted(there.keys() & here.keys())
    if CLASSIFIER in common and _labels(workdir) != _labels(own):
        common.remove(CLASSIFIER)
    for name in common:
        differing = _differences(there[name], here[name])
        if differing:
            raise UserError(
                f"training.initialize_from={workdir}: the part {name} is of another model: {differing[0]}; "
                f"--config=NAME.py:{workdir} takes over the keys of its model"
            )
    if not common:
        raise UserError(
            f"training.initialize_from={workdir} has the parts {', '.join(sorted(there))}, and the model here "
            f"{', '.join(sorted(here))}: there is nothing to start from"
        )
    params, description = checkpoints.read_params("latest", "raw", there)
    _require_tokenizer(workdir, description, task)
    logger.info(
        "starting from %s in %s; new: %s; left there: %s",
        ", ".join(common),
        workdir,
        ", ".join(sorted(here.keys() - set(common))) or "nothing",
        ", ".join(sorted(there.keys() - set(common))) or "nothing",
    )
    return {name: params[name] for name in common}


def _labels(workdir: Path) -> Any:
    path = workdir / LABELS_NAME
    return json.loads(path.read_text(encoding="utf-8"))["names"] if path.exists() else None


def open_task(config: Config, workdir: Path | None) -> Task:
    """The task of a run that is to be trained.

    Args:
      workdir: of a run that goes on, whose tokenizer and other assets are used; None: the run starts anew, with those
        of the run that ``training.initialize_from`` names, or such as are made from the data.

    Raises:
      UserError: for what the model could not do in training, before any data is read.
    """
    check_training(config)
    if workdir is not None:
        return make_task(config, workdir)
    if config.training.initialize_from is None:
        return make_task(config)
    with tempfile.TemporaryDirectory() as folder:
        copy_tokenizer(local_workdir(config.training.initialize_from), Path(folder))
        return make_task(config, Path(folder))


def count_examples(task: Task, config: Config, split: str) -> int:
    """How many examples the validation or the test split has.

    Raises:
      UserError: if it is not there, cannot be read or is empty.
    """
    key = f" (data.{split}={getattr(config.data, split)})" if config.data.split == "files" else ""
    named = f"the {split} split{key}"
    try:
        number = task.num_examples(split)
    except UserError as error:
        raise UserError(f"{named} cannot be read: {error}") from None
    if not number:
        raise UserError(f"{named} has no examples")
    return number


def fingerprints(task: Task) -> dict[str, str]:
    """What a checkpoint says of the data and the assets it was trained with."""
    return {"data_fingerprint": task.data_fingerprint(), "assets_fingerprint": task.assets_fingerprint()}


def require_fingerprints(found: Mapping[str, str], metadata: Mapping[str, Any], checkpoint: str) -> None:
    """Raise a ``UserError`` unless :func:`fingerprints` are those of a checkpoint's metadata."""
    for name, value in found.items():
        same = metadata[name] == value if name == "data_fingerprint" else same_assets(metadata[name], value)
        if not same:
            what = "training data" if name == "data_fingerprint" else "tokenizer"
            raise UserError(
                f"the {what} is not what checkpoint {checkpoint} was trained with; put it back or use another --workdir"
            )


def copy_tokenizer(workdir: Path, folder: Path) -> None:
    """Of what ``save_assets`` wrote into a workdir, copy the tokenizer."""
    for path in workdir.glob("tokenizer*"):
        shutil.copy(path, folder)


def same_assets(saved: str, present: str) -> bool:
    """Whether two fingerprints name the same tokenizers, of which older checkpoints may name one twice."""
    return list(dict.fromkeys(saved.split())) == list(dict.fromkeys(present.split()))


def _require_tokenizer(workdir: Path, description: dict[str, Any], task: Task) -> None:
    if not same_assets(description["metadata"]["assets_fingerprint"], task.assets_fingerprint()):
        raise UserError(
            f"the checkpoints in {checkpoints_folder(workdir)} were trained with another tokenizer than the one given; "
            "put the one they were trained with back"
        )


def _differences(there: Params, here: Params) -> list[str]:
    """What is not the same in two parts, in words."""
    old, new = (
        {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, (there, here))
    )
    return [
        f"{name} is {old.get(name, 'missing')} there and {new.get(name, 'missing')} here"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
