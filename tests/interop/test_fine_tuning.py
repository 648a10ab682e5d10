"""Every config starts from an imported workdir: with its parameters, its tokenizer, and its way with images."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.interop.folders import FOLDERS, PREPARED
from transformer.config import Config, from_config_dict
from transformer.interop.pretrained import import_pretrained
from transformer.tasks import make_task
from transformer.training.loading import copy_tokenizer, load, read_parts
from transformer.training.trainer import train

SHORT = {"data.max_source_length": 16, "data.max_target_length": 16, "data.tokens_per_batch": 64}
GENERATE = {"decoding.max_source_length": 12, "decoding.max_extra_tokens": 4}
CONFIGS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "bert masked_lm": ("text_classification", SHORT, {"classifier"}),
    "bert embedding": ("text_classification", SHORT, {"classifier"}),
    "gpt2": ("topics_lm", SHORT | GENERATE, set()),
    "llama": ("llama_small", SHORT | GENERATE, set()),
    "t5": ("multi30k_en_de", SHORT | GENERATE, set()),
    "marian": ("multi30k_en_de", SHORT | GENERATE, set()),
    "vit": ("cifar_vit", {"data.examples_per_batch": 3}, {"classifier"}),
    "dinov2": ("cifar_vit", {"data.examples_per_batch": 3}, {"classifier"}),
}
"""By the folder that is imported: a config, what makes it small, and the parts that are new."""
QUICK = ("t5", "vit", "gpt2")  # in `make test`


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in ("train", "dev", "val", "test_2016_flickr", "test"):
        (folder / f"{name}.txt").write_text("other a b c d\nsome e f g\n" * 3)
        (folder / f"{name}.en").write_text("a b c\nd e f g\n" * 3)
        (folder / f"{name}.de").write_text("r q p\nn m\n" * 3)
    rng = np.random.default_rng(0)
    images = {f"x_{split}": rng.integers(0, 256, (6, 17, 23, 3), np.uint8) for split in ("train", "val", "test")}
    labels = {name.replace("x", "y"): np.arange(6) % 2 for name in images}
    np.savez(folder / "images.npz", **images, **labels)
    return folder


def imported(name: str, data: Path, folder: Path) -> tuple[Any, Config, set[str]]:
    """The parameters of a workdir, a config that starts from it, and the parts that are new."""
    _, params = import_pretrained(FOLDERS[name](folder / "source"), folder / "imported")
    config_name, changes, new = CONFIGS[name]
    config = importlib.import_module(f"configs.{config_name}").get_config(str(folder / "imported"))
    changes = changes | {"data.directory": str(data), "data.cache_directory": str(folder / "cache")}
    if config.data.source == "topics":
        changes |= {"data.source": "files", "data.documents": "line"}
    config.update_from_flattened_dict(changes)
    return params, from_config_dict(config), new


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS]
)
def test_a_run_starts_from_what_was_imported(name, data, tmp_path):
    params, config, new = imported(name, data, tmp_path)
    own = tmp_path / "own"
    own.mkdir()
    copy_tokenizer(tmp_path / "imported", own)
    task = make_task(config, own)
    parts = read_parts(tmp_path / "imported", config, task, own)
    assert new == jax.eval_shape(task.init, jax.random.key(0)).keys() - parts.keys()
    for part, found in parts.items():
        jax.tree.map(np.testing.assert_array_equal, found, params[part])
    if "image" in config.task:
        assert config.data.image_mean == tuple(PREPARED["image_mean"])
        assert config.data.image_std == tuple(PREPARED["image_std"])
        assert (config.data.image_size, config.data.image_crop, config.data.image_resampling) == (
            14,
            14 / 16,
            "bilinear",
        )
        assert task.batch(0).images.shape == (3, 14, 14, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_is_trained_from_what_was_imported(name, data, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # leave the user's cache alone
    _, config, _ = imported(name, data, tmp_path)
    values = {"num_steps": 2, "schedule": "constant", "accumulation_steps": 1, "evaluate_every": 2}
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, **values))
    assert train(config, tmp_path / "run") == 0
    assert load(tmp_path / "run").checkpoint["steps"] == [2]
