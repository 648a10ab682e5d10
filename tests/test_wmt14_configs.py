"""The experiments of the paper: its settings, and the exact parameters of every variant and row."""

import dataclasses
import functools
import importlib
import math
import re

import jax
import jax.numpy as jnp
import pytest

from configs import multi30k_ablations, wmt14_en_de, wmt14_table3
from tests.models.small import NO_MASKS, V
from transformer.config import Config, ModelConfig, differences, flatten, from_config_dict
from transformer.models.seq2seq import Seq2Seq
from transformer.training.schedules import make_schedule
from transformer.types import UserError

FILES = ("wmt14_en_de", "wmt14_en_fr", "wmt14_table3")
SLOW = ("A2", "A3", "A4", "C2", "C3", "C6", "C7")  # other rows are of their kind
VARIANTS = [
    pytest.param(file, name, marks=pytest.mark.slow if name in SLOW else ())
    for file in FILES
    for name in importlib.import_module(f"configs.{file}").PUBLISHED
]


def made(file: str, name: str) -> Config:
    return from_config_dict(importlib.import_module(f"configs.{file}").get_config(name))


def count(config: Config) -> int:
    """Parameters, of which dropout changes none and the vocabulary one table: models are traced once."""
    assert config.model.shared_embeddings == "all" and config.data.joint_vocabulary
    model_config = dataclasses.replace(config.model, dropout_rate=0.0)
    return without_embeddings(model_config) + config.data.vocab_size * config.model.d_model


@functools.cache
def without_embeddings(model_config: ModelConfig) -> int:
    model = Seq2Seq(model_config, V, V)
    ids = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), ids, ids, NO_MASKS, deterministic=True))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) - V * model_config.d_model


@pytest.mark.parametrize(("file", "name"), VARIANTS)
def test_parameters_are_exactly_as_stated(file, name):
    config = made(file, name)
    published = importlib.import_module(f"configs.{file}").PUBLISHED[name]
    assert count(config) == published.parameters
    if published.millions is not None:  # rounded, and of another vocabulary
        assert published.parameters / 1e6 == pytest.approx(published.millions, abs=5)


@pytest.mark.parametrize("file", FILES)
def test_the_docstring_shows_what_the_table_has(file):
    module = importlib.import_module(f"configs.{file}")
    for name, published in module.PUBLISHED.items():
        [line] = re.findall(rf"^{name} .*", module.__doc__, re.MULTILINE)
        assert f" {published.parameters:,} " in line
        for value, form in ((published.millions, " {}M"), (published.bleu, " {}"), (published.perplexity, " {:.2f} ")):
            assert value is None or form.format(value) in line


PAPER = {
    "model.d_model": (512, 1_024),
    "model.d_ff": (2_048, 4_096),
    "model.num_heads": (8, 16),
    "model.num_encoder_layers": (6, 6),
    "model.num_decoder_layers": (6, 6),
    "model.norm": ("layer_norm", "layer_norm"),
    "model.norm_placement": ("post", "post"),
    "model.position_encoding": ("sinusoidal", "sinusoidal"),
    "model.activation": ("relu", "relu"),
    "model.shared_embeddings": ("all", "all"),
    "model.scale_embeddings": (True, True),
    "model.dropout_rate": (0.1, 0.3),
    "model.attention_dropout_rate": (0.0, 0.0),
    "model.activation_dropout_rate": (0.0, 0.0),
    "data.tokens_per_batch": (25_000, 25_000),
    "data.count_padding": (False, False),
    "data.joint_vocabulary": (True, True),
    "training.num_steps": (100_000, 300_000),
    "training.schedule": ("paper", "paper"),
    "training.learning_rate": (1.0, 1.0),
    "training.warmup_steps": (4_000, 4_000),
    "training.optimizer": ("adam", "adam"),
    "training.beta1": (0.9, 0.9),
    "training.beta2": (0.98, 0.98),
    "training.epsilon": (1e-9, 1e-9),
    "training.weight_decay": (0.0, 0.0),
    "training.gradient_clip": (None, None),
    "training.label_smoothing": (0.1, 0.1),
    "training.label_smoothing_form": ("uniform", "uniform"),
    "training.keep_checkpoints": (5, 20),
    "training.checkpoint_every": (1_250, 600),
    "decoding.method": ("beam", "beam"),
    "decoding.beam_size": (4, 4),
    "decoding.length_penalty": ("gnmt", "gnmt"),
    "decoding.alpha": (0.6, 0.6),
    "decoding.max_extra_tokens": (50, 50),
}
"""Sections 3, 5 and 6.1 of the paper, for base and big."""


@pytest.mark.parametrize("place", [0, 1], ids=["base", "big"])
@pytest.mark.parametrize(
    ("file", "language", "vocab_size"), [("wmt14_en_de", "de", 37_000), ("wmt14_en_fr", "fr", 32_000)]
)
def test_settings_are_those_of_the_paper(file, language, vocab_size, place):
    config = made(file, ("base", "big")[place])
    values = dict(flatten(config))
    expected = {key: pair[place] for key, pair in PAPER.items()}
    if language == "fr":
        expected["model.dropout_rate"] = 0.1
    assert {key: values[key] for key in expected} == expected
    assert (config.data.source_language, config.data.target_language) == ("en", language)
    assert config.data.vocab_size == vocab_size
    schedule = make_schedule(config.training, config.model.d_model)
    assert float(schedule(3_999)) == pytest.approx((6.99e-4, 4.94e-4)[place], rel=1e-3)


@pytest.mark.parametrize(("file", "name"), [(case.values[0], case.values[1]) for case in VARIANTS])
def test_checkpoints_that_are_averaged_are_equally_far_apart(file, name):
    training = made(file, name).training
    assert training.num_steps % training.checkpoint_every == 0  # the last step saves one
    assert training.evaluate_every % training.checkpoint_every == 0  # evaluations save one too


def test_a_row_changes_one_thing():
    base = made("wmt14_en_de", "base")
    for name, row in wmt14_table3.ROWS.items():
        if name != "big":
            assert differences(base, made("wmt14_table3", name)).keys() == row.changes.keys()
    sizes = {name: made("wmt14_table3", name).model for name in ("A1", "A2", "A3", "A4", "B1", "B2", "C4", "C5")}
    assert [(model.qk_head_size, model.head_size) for model in sizes.values()] == [
        (512, 512), (128, 128), (32, 32), (16, 16), (16, 64), (32, 64), (32, 32), (128, 128),
    ]  # fmt: skip


def test_text_files_do_as_well():
    config = wmt14_en_de.get_config("big")
    config.data.source, config.data.directory = "files", "somewhere"
    config.data.validation = "newstest2013"
    assert from_config_dict(config).data.train == ("train",)


@pytest.mark.parametrize("variant", multi30k_ablations.VARIANTS)
def test_ablations_take_away_one_thing(variant):
    full, config, french = (multi30k_ablations.get_config(name) for name in ("full", variant, f"{variant},fr"))
    for each in (full, config, french):
        each.data.directory = "somewhere"
    full, config, french = map(from_config_dict, (full, config, french))
    assert differences(full, config).keys() == multi30k_ablations.VARIANTS[variant].keys()
    assert differences(config, french) == {"data.target_language": ("de", "fr")}


def test_no_such_variant_row_or_language():
    for file, name, message in (
        ("wmt14_en_de", "bigg", r"configs/wmt14_en_de\.py=bigg is not one of base, big, .*; did you mean big\?"),
        ("wmt14_en_fr", "bigg", r"variant of configs/wmt14_en_fr\.py=bigg is not one of base, .*; did you mean big\?"),
        ("wmt14_en_fr", "fairseq", r"variant of configs/wmt14_en_fr\.py=fairseq is not one of base, big, modern, t2t"),
        ("wmt14_table3", "A9", r"variant of configs/wmt14_table3\.py=A9 is not one of base, A1, A2"),
        ("multi30k_ablations", "ful", r"did you mean full\?"),
        ("multi30k_ablations", "full,it", "the language it is not one of de, fr"),
    ):
        with pytest.raises(UserError, match=message):
            importlib.import_module(f"configs.{file}").get_config(name)


@pytest.mark.parametrize("file", [*FILES, "multi30k_ablations"])
def test_a_workdir_in_place_of_a_variant_is_told_from_a_misspelt_one(file, tmp_path):
    message = rf"configs/{file}\.py:{tmp_path}: .* --config\.training\.initialize_from={tmp_path}"
    with pytest.raises(UserError, match=message):
        importlib.import_module(f"configs.{file}").get_config(str(tmp_path))
