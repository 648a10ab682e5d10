"""Import: files of pretrained weights to a workdir. Export: a workdir to such files. Both by one table a family."""

import collections
import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.config import Config, from_json, to_json
from transformer.data.images import ImageClasses
from transformer.data.labeled_text import LabelSet
from transformer.data.vocabularies import save_tokenizers
from transformer.interop import safetensors_files, tables
from transformer.interop.computation import changed, computation
from transformer.interop.families import FAMILIES, MODEL_TYPES
from transformer.interop.family import Changes, Family
from transformer.interop.pooling import read_pooling, write_pooling
from transformer.interop.settings import Settings, read_json
from transformer.interop.tokenizer_files import check_tokenizer, export_tokenizer, read_tokenizers, special_ids
from transformer.tasks import make_task
from transformer.training.loading import load, open_checkpoints
from transformer.training.partitioning import unbox
from transformer.training.workdir import CONFIG, checkpoints_folder
from transformer.types import Params, UserError, one_of

logger = logging.getLogger(__name__)

BESIDE = ("preprocessor_config", "sentence_bert_config")
"""Files, NAME.json, that say more of a model than its config.json: their content is the value of NAME among its
settings."""
LABELLED = ("text_classification", "token_classification")

OF_TASKS: Mapping[str, Changes] = {
    "language_modeling": {
        "data.source": "topics",
        "decoding.method": "greedy",
        "training.best_metric": "bits_per_byte",
        "training.label_smoothing": 0.0,
    },
    "masked_lm": {"data.source": "topics", "training.best_metric": "accuracy", "training.label_smoothing": 0.0},
    "span_corruption": {"data.source": "topics", "training.best_metric": "accuracy", "training.label_smoothing": 0.0},
    "text_classification": {"data.source": "files", "data.directory": ".", "training.best_metric": "accuracy"},
    "token_classification": {"data.source": "files", "data.directory": ".", "training.best_metric": "f1"},
    "sentence_embedding": {"data.source": "files", "data.directory": ".", "training.best_metric": "accuracy"},
    "image_classification": {"data.source": "image_folder", "data.directory": ".", "training.best_metric": "accuracy"},
}
"""What no file of weights says and the config of a task must. The data is given at use: --config.data.directory=DIR."""


class Pretrained(NamedTuple):
    """A model in its files.

    origin    of the settings, for messages
    settings  its config.json
    tensors   by name, read one at a time
    gguf      the file, if it is one: it holds the tokenizer too
    """

    origin: Path
    settings: dict[str, Any]
    tensors: Mapping[str, np.ndarray]
    gguf: Any = None


def open_pretrained(source: Path) -> Pretrained:
    """The model in a folder with config.json and safetensors, or in a GGUF file.

    Raises:
      UserError: if it is neither, or cannot be read.
    """
    if source.is_dir():
        path = source / "config.json"
        settings = read_json(path) | read_pooling(source)
        settings |= {name: read_json(beside) for name in BESIDE if (beside := source / f"{name}.json").is_file()}
        return Pretrained(path, settings, safetensors_files.SafetensorsFolder(source))
    if source.suffix == ".gguf" and source.is_file():
        from transformer.interop.gguf_files import GgufFile

        file = GgufFile(source)
        return Pretrained(source, file.settings, file, file)
    raise UserError(f"--from={source} is neither a folder, with config.json and model.safetensors, nor a .gguf file")


def import_pretrained(
    source: Path, workdir: Path, tokenizer: Path | None = None, *, pairs: bool = False
) -> tuple[Config, Params]:
    """Write a workdir that holds a pretrained model.

    Args:
      source: see :func:`open_pretrained`.
      workdir: where there is no run yet.
      tokenizer: a workdir, a folder or a file with the tokenizer; None: where the weights are.
      pairs: of a classifier: its labels are of pairs of texts, which no file says.

    Raises:
      UserError: for settings or tensors that cannot be translated exactly.
    """
    if any(checkpoints_folder(workdir).glob("[0-9]*")):
        raise UserError(f"--workdir={workdir} holds checkpoints of a run; give another folder")
    pretrained = open_pretrained(source)
    family, config = read_config(pretrained)
    with tempfile.TemporaryDirectory() as folder:
        assets = Path(folder)
        _save_labels(pretrained, family, config, pairs, assets)
        if not family.images:
            if tokenizer is None and pretrained.gguf is not None:
                pretrained.gguf.save_tokenizer(assets)
                tokenizer = assets
            pair = read_tokenizers(tokenizer or source)
            check_tokenizer(pair[1], pretrained.settings, pretrained.origin)
            save_tokenizers(assets, pair)
        task = make_task(config, assets)
        shapes = tables.flatten(jax.tree.map(lambda leaf: leaf.shape, _abstract_params(task)))
        flat = tables.read_params(family, config, pretrained.tensors, shapes, str(source))
        params = tables.unflatten(flat)
        workdir.mkdir(parents=True, exist_ok=True)
        (workdir / CONFIG).write_text(to_json(config))
        task.save_assets(workdir)
        metadata = {
            "data_fingerprint": f"weights of {family.name}",
            "assets_fingerprint": task.assets_fingerprint(),
            "seconds": 0.0,
            "work": {},
        }
    checkpoints = open_checkpoints(workdir, config)
    checkpoints.save(0, params, {"step": np.int32(0)}, metadata=metadata)
    checkpoints.close()
    number = sum(array.size for array in flat.values())
    logger.info("%s parameters of the family %s for task=%s in %s", f"{number:,}", family.name, config.task, workdir)
    return config, params


def read_config(pretrained: Pretrained) -> tuple[Family, Config]:
    """The family of a model and its config, checked.

    Raises:
      UserError: for a setting that is not translated.
    """
    settings = Settings(pretrained.settings, str(pretrained.origin))
    family: Family = one_of("model_type", settings.get("model_type"), MODEL_TYPES)
    names = frozenset(tables.full_names(family, pretrained.tensors))
    changes = family.read_config(settings, names)
    settings.finish()
    defaults = OF_TASKS.get(changes["task"], {})
    return family, from_json(to_json(changed(Config(), {**defaults, **changes})))


def _abstract_params(task: Any) -> Params:
    return unbox(jax.eval_shape(task.init, jax.random.key(0)))


def _save_labels(pretrained: Pretrained, family: Family, config: Config, pairs: bool, folder: Path) -> None:
    """Write ``labels.json``, if the task has labels. Which is the most frequent is not known.

    A model of images without a classifier has none.
    """
    if family.images:
        classified = "classifier.weight" in tables.full_names(family, pretrained.tensors)
        names = _label_names(pretrained) if classified else ()
        size, channels = config.data.image_size, pretrained.settings.get("num_channels", 3)
        assert size is not None  # every family of images reads it
        ImageClasses(names, None, (size, size, channels)).save(folder)
    elif config.task in LABELLED:
        names = _label_names(pretrained)
        if len(names) == 1:
            raise UserError(f"{pretrained.origin}: one label alone, {names[0]}, is a number, which no task here learns")
        if config.task == "text_classification" and not pairs:
            logger.info("the labels %s are taken to be of single texts; if of pairs, import with --pairs", list(names))
        LabelSet(names, None, pairs).save(folder)


def _label_names(pretrained: Pretrained) -> tuple[str, ...]:
    """The labels in the order of their numbers, which follow a name that several have: ImageNet has two cranes."""
    named = pretrained.settings.get("id2label")
    if not named:
        named = {str(number): f"LABEL_{number}" for number in range(pretrained.settings.get("num_labels", 2))}
    if set(map(str, named)) != set(map(str, range(len(named)))):
        raise UserError(f"{pretrained.origin}: id2label={named} does not name the labels 0, 1, ...")
    names = [str(named[key]) for key in sorted(named, key=int)]
    counts = collections.Counter(names)
    return tuple(f"{name} ({number})" if counts[name] > 1 else name for number, name in enumerate(names))


def export_pretrained(workdir: Path, folder: Path, checkpoint: str = "latest", weights: str = "raw") -> Family:
    """Write the model of a workdir as ``model.safetensors`` and ``config.json``.

    Args:
      folder: where there are no such files yet.
      checkpoint, weights: which, see ``training.loading.load``.

    Raises:
      UserError: if no family can express the model, with the keys that the nearest cannot.
    """
    for name in ("config.json", safetensors_files.SINGLE):
        if (folder / name).exists():
            raise UserError(f"--to={folder} holds {name}; give another folder")
    run = load(workdir, checkpoint, weights)
    config = run.config
    if config.model.vocab_size is None and run.tokenizer is not None:
        config = changed(config, {"model.vocab_size": run.tokenizer.vocab_size})
    # The size of the table of positions may be left to the images in the config; the model knows it.
    config = changed(config, {"model.position_grid": run.model.config.position_grid})
    family, settings = written_config(config)
    labels = ImageClasses.load(workdir) if family.images else LabelSet.load(workdir)
    if labels is not None:
        settings["id2label"] = {str(number): name for number, name in enumerate(labels.names)}
        settings["label2id"] = {name: number for number, name in enumerate(labels.names)}
    if isinstance(labels, ImageClasses):
        settings["num_channels"] = labels.image_shape[2]
    folder.mkdir(parents=True, exist_ok=True)
    if not family.images:
        settings = special_ids(run.tokenizer) | settings
        if config.model.variant == "encoder_decoder":
            settings["decoder_start_token_id"] = run.tokenizer.bos_id
        export_tokenizer(run.tokenizer, folder, workdir)
    flat = {path: np.asarray(array) for path, array in tables.flatten(run.params).items()}
    safetensors_files.save(folder / safetensors_files.SINGLE, tables.write_tensors(family, config, flat))
    if "pooling_mode" in settings:
        write_pooling(folder, settings.pop("pooling_mode"), config.model.d_model)
    files = {name: settings.pop(name) for name in BESIDE if name in settings} | {"config": settings}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    logger.info("checkpoint %s as a model of the family %s in %s", run.checkpoint["steps"], family.name, folder)
    return family


def written_config(config: Config) -> tuple[Family, dict[str, Any]]:
    """The family that expresses the model, and its config.json.

    What a family writes is read back: where the model comes back as another one, it cannot be expressed.

    Raises:
      UserError: if no family can, with the keys that the nearest cannot.
    """
    found = []
    for family in FAMILIES:
        if config.task in family.tasks:
            settings = family.write_config(config)
            back = changed(Config(), _read_back(family, config, settings))
            ours, theirs = computation(config), computation(back)
            lost = {key: ours.get(key) for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
            found.append((len(lost), family.name, lost, family, settings))
    if not found:
        tasks = sorted({task for family in FAMILIES for task in family.tasks})
        raise UserError(f"task={config.task} is none of a family that can be exported: {', '.join(tasks)}")
    number, name, lost, family, settings = min(found, key=lambda item: item[:2])
    if number:
        shown = ", ".join(f"{key}={_shown(value)}" for key, value in sorted(lost.items()))
        raise UserError(f"no family can express this model; the nearest, {name}, has no {shown}")
    return family, settings


def _read_back(family: Family, config: Config, settings: Mapping[str, Any]) -> Changes:
    names = frozenset(row.theirs.replace(tables.LAYER, "0") for row in family.rows(config))
    return family.read_config(Settings(settings, "config.json"), names)


def _shown(value: Any) -> Any:
    return ",".join(sorted(value)) if isinstance(value, frozenset) else value
