"""Small models in files: read and written by the tables, without a workdir and a tokenizer around them."""

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import Config
from transformer.interop import pretrained, safetensors_files, tables
from transformer.interop.family import Family
from transformer.interop.layouts import expected_shape
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2Seq, Seq2SeqMasks
from transformer.models.vision import ImageClassifier
from transformer.training.partitioning import unbox


class Model(NamedTuple):
    """What files hold: ``flat`` are the parameters of ``module`` by their paths."""

    family: Family
    config: Config
    module: nn.Module
    flat: dict[str, np.ndarray]

    def apply(self, *inputs: Any, **options: Any) -> Any:
        return self.module.apply({"params": self.params}, *inputs, deterministic=True, **options)

    @property
    def params(self) -> Any:
        return jax.tree.map(jnp.asarray, tables.unflatten(self.flat))


def seq2seq_of(config: Config, number: int) -> tuple[nn.Module, tuple[Any, ...]]:
    tokens, mask = jnp.zeros((1, 1), jnp.int32), AttentionMask()
    rows = config.model.vocab_size
    return Seq2Seq(config.model, rows, rows), (tokens, tokens, Seq2SeqMasks(mask, mask, mask))


def classifier_of(config: Config, number: int) -> tuple[nn.Module, tuple[Any, ...]]:
    size = config.data.image_size
    return ImageClassifier(config.model, number), (jnp.zeros((1, size, size, 3)),)


@functools.cache
def module_of(config: Config, num_classes: int) -> tuple[nn.Module, dict[str, tuple[int, ...]]]:
    """The model of a config, and the shapes of its parameters."""
    make = classifier_of if config.task == "image_classification" else seq2seq_of
    module, inputs = make(config, num_classes)
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs, deterministic=True))
    shapes = jax.tree.map(lambda leaf: leaf.shape, unbox(variables["params"]))
    return module, tables.flatten(shapes)


def read(folder: pathlib.Path, num_classes: int = 0) -> Model:
    opened = pretrained.open_pretrained(folder)
    family, config = pretrained.read_config(opened)
    module, shapes = module_of(config, num_classes)
    return Model(family, config, module, tables.read_params(family, config, opened.tensors, shapes, str(folder)))


def write(folder: pathlib.Path, model: Model, **more: Any) -> dict[str, Any]:
    """What of the config.json does not depend on the tokenizer or the labels, ``more`` of it, and the tensors."""
    family, settings = pretrained.written_config(model.config)
    settings.pop("preprocessor_config", None)
    save(folder, settings | more, dict(tables.write_tensors(family, model.config, model.flat)))
    return settings


def save(folder: pathlib.Path, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    safetensors_files.save(folder / "model.safetensors", tensors.items())


def tensors_of(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return dict(safetensors_files.SafetensorsFolder(folder))


def make(
    folder: pathlib.Path, settings: Mapping[str, Any], num_classes: int = 0, heads: tuple[str, ...] = ("none",)
) -> dict[str, np.ndarray]:
    """Files of the model that a config.json and the names of what is in its heads describe, with random numbers."""
    save(folder, settings, {name: np.zeros(1, np.float32) for name in heads})
    family, config = pretrained.read_config(pretrained.open_pretrained(folder))
    _, shapes = module_of(config, num_classes)
    rng, tensors = np.random.default_rng(7), {}
    for row in tables.covering_rows(family, config, shapes):
        parts = tuple(shapes[path][tables.LAYER in row.theirs :] for path in row.ours)
        for name in tables.names_of(row, shapes):
            tensors[name] = rng.normal(size=expected_shape(row.layout, parts)).astype(np.float32)
    save(folder, settings, tensors)
    return tensors


def assert_same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype and np.array_equal(array, other[name]), name
