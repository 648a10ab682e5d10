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
import tokenizers

from transformer.config import Config, from_json, to_json
from transformer.data.images import ImageClasses
from transformer.data.labeled_text import LabelSet
from transformer.data.pretrained_tokenizers import HuggingFaceTokenizer, load_pretrained
from transformer.data.tokenizer import save_tokenizers
from transformer.interop import safetensors_files, tables
from transformer.interop.computation import changed, computation
from transformer.interop.families import FAMILIES, MODEL_TYPES
from transformer.interop.family import Changes, Family
from transformer.interop.settings import Settings
from transformer.tasks import make_task
from transformer.training.loading import load, open_checkpoints
from transformer.training.partitioning import unbox
from transformer.training.workdir import CONFIG, checkpoints_folder
from transformer.types import Params, UserError, one_of

logger = logging.getLogger(__name__)

PREPROCESSOR = "preprocessor_config.json"  # how images are prepared
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
        settings = read_json(path) | _pooling_mode(source)
        if (source / PREPROCESSOR).is_file():
            settings["preprocessor_config"] = read_json(source / PREPROCESSOR)
        return Pretrained(path, settings, safetensors_files.SafetensorsFolder(source))
    if source.suffix == ".gguf" and source.is_file():
        from transformer.interop.gguf_files import GgufFile

        file = GgufFile(source)
        return Pretrained(source, file.settings, file, file)
    raise UserError(f"--from={source} is neither a folder, with config.json and model.safetensors, nor a .gguf file")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _pooling_mode(folder: Path) -> dict[str, str]:
    """What a folder of sentence-transformers makes of the last layer, as a setting: ``mean`` or ``cls``.

    Raises:
      UserError: if it does something else, or more.
    """
    if (folder / "modules.json").is_file():
        for module in read_json(folder / "modules.json"):
            kind = module["type"].rpartition(".")[2]
            if kind not in ("Transformer", "Pooling", "Normalize"):
                raise UserError(f"{folder / 'modules.json'}: the module {kind} cannot be translated")
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return {}
    modes = {
        key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for key, value in read_json(path).items()
        if key.startswith("pooling_mode_") and value
    }
    return {"pooling_mode": "+".join(sorted(modes))}


def import_pretrained(
    source: Path, workdir: Path, tokenizer: Path | None = None, *, pairs: bool = False
) -> tuple[Config, Params]:
    """Write a workdir that holds a pretrained model.

    Args:
      source: see :func:`open_pretrained`.
      workdir: where there is no run yet.
      tokenizer: a folder or file with the tokenizer; None: where the weights are.
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
            save_tokenizers(assets, _tokenizers(pretrained, tokenizer or source, assets))
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


def _tokenizers(pretrained: Pretrained, place: Path, scratch: Path) -> Any:
    """Of the source and the target side, mostly one object."""
    if pretrained.gguf is not None and place == pretrained.origin:
        pretrained.gguf.save_tokenizer(scratch)
        place = scratch
    return load_pretrained(place)


def _save_labels(pretrained: Pretrained, family: Family, config: Config, pairs: bool, folder: Path) -> None:
    """Write ``labels.json``, if the task has labels. Which is the most frequent is not known; the first stands for it.

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
        LabelSet(names, names[0], pairs).save(folder)


def _label_names(pretrained: Pretrained) -> tuple[str, ...]:
    """The labels in the order of their numbers, which follow a name that several have: ImageNet has two cranes."""
    named = pretrained.settings.get("id2label")
    if not named:
        named = {str(number): f"LABEL_{number}" for number in range(pretrained.settings.get("num_labels", 2))}
    if sorted(map(int, named)) != list(range(len(named))):
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
        export_tokenizer(run.tokenizer, folder)
    flat = {path: np.asarray(array) for path, array in tables.flatten(run.params).items()}
    safetensors_files.save(folder / safetensors_files.SINGLE, tables.write_tensors(family, config, flat))
    preprocessor = settings.pop("preprocessor_config", None)
    if preprocessor is not None:
        (folder / PREPROCESSOR).write_text(json.dumps(preprocessor, indent=2) + "\n")
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    logger.info("checkpoint %s as a model of the family %s in %s", run.checkpoint["steps"], family.name, folder)
    return family


def special_ids(tokenizer: Any) -> dict[str, int]:
    """Those that a config.json names, without padding and the like that was chosen here for want of one."""
    ids = {"eos": tokenizer.eos_id, "pad": tokenizer.pad_id, "bos": tokenizer.bos_id, "mask": tokenizer.mask_id}
    if isinstance(tokenizer, HuggingFaceTokenizer):
        given = json.loads(tokenizer.content)
        ids = {name: given[f"{name}_id"] for name in ids}
    if tokenizer.bos_id == tokenizer.pad_id:
        ids["bos"] = None
    return {f"{name}_token_id": number for name, number in ids.items() if number is not None}


def export_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write ``tokenizer.json``, and which pieces are special, if the tokenizer was once read from such a file."""
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        logger.warning("the tokenizer is no tokenizer.json: %s has none", folder)
        return
    content = json.loads(tokenizer.content)["tokenizer"]
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    vocabulary = tokenizers.Tokenizer.from_str(content)
    pieces = {key.removesuffix("_id"): vocabulary.id_to_token(i) for key, i in special_ids(tokenizer).items()}
    named = {key: piece for key, piece in pieces.items() if piece is not None}
    text = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named}, ensure_ascii=False, indent=2)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


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
