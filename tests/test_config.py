"""Keys, types, checks, and which differences make another experiment."""

import dataclasses
import inspect
import pathlib
import runpy

import pytest

from transformer.config import (
    COMPUTATION_KEYS,
    HARMLESS_KEYS,
    Config,
    DataConfig,
    ModelConfig,
    default_config,
    differences,
    flatten,
    from_config_dict,
    from_json,
    to_config_dict,
    to_json,
)
from transformer.types import UserError

CONFIGS = sorted((pathlib.Path(__file__).parents[1] / "configs").glob("*.py"))


def changed(key: str, value):
    config = default_config()
    config.update_from_flattened_dict({key: value})
    return config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_passes_its_checks(path):
    config = runpy.run_path(str(path))["get_config"]()
    if config.data.source == "files":
        with pytest.raises(UserError, match=r"data\.directory is not set; give the folder"):
            from_config_dict(config)
        config.data.directory = "somewhere"
    assert from_json(to_json(from_config_dict(config))) == from_config_dict(config)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_starts_from_a_workdir(path, tmp_path):
    """Or has another argument, which chooses among its experiments."""
    get_config = runpy.run_path(str(path))["get_config"]
    (argument,) = inspect.signature(get_config).parameters
    if argument != "workdir":
        return
    images = {"source": "npz", "image_size": 28, "image_crop": 0.875, "image_std": (0.25,), "directory": "there"}
    model = {"d_ff": 97, "position_encoding": "rotary", "num_registers": 3, "layer_scale": 0.5}
    old = Config(data=DataConfig(**images), model=ModelConfig(**model))
    (tmp_path / "config.json").write_text(to_json(old))
    config = get_config(str(tmp_path))
    assert config.training.initialize_from == str(tmp_path)
    assert {key: config.model[key] for key in model} == model
    prepared = [key for key in images if key.startswith("image")]
    assert all(config.data[key] == images[key] for key in prepared) and config.data.directory is None
    (tmp_path / "config.json").write_text(to_json(dataclasses.replace(old, data=DataConfig())))
    alone = get_config()
    assert all(get_config(str(tmp_path)).data[key] == alone.data[key] for key in prepared)
    with pytest.raises(UserError, match=r"config\.json cannot be read .*give the workdir of a run"):
        get_config(str(tmp_path / "gone"))


def test_there_and_back():
    config = Config()
    assert from_config_dict(to_config_dict(config)) == config
    assert from_json(to_json(config)) == config
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, max_minutes=2.5))
    assert from_config_dict(to_config_dict(config)) == config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.num_heads", 6, r"model\.num_heads=6 does not divide model\.d_model=512; use one of 1, 2, 4, 8, 16"),
        ("model.shared_embeddings", "al", r"is not one of all, target, inputs, none; did you mean all\?"),
        ("model.num_kv_heads", 3, r"does not divide model\.num_heads=8; use one of 1, 2, 4, 8"),
        ("model.attention_pattern", ("local", "globe"), r"=globe is not one of local, global; did you mean global\?"),
        ("model.attention_pattern", (), r"is empty; use local, or for example local,local,local,global"),
        ("model.attention_pattern", ("local", "global"), r"does nothing without model\.attention_window"),
        ("model.attention_window", 0, "must be at least 1"),
        ("model.head_dim", 0, r"model\.head_dim=0 must be at least 1"),
        ("model.norm_epsilon", -1.0, "must be at least 0"),
        ("model.d_ff_shared", 64, r"d_ff_shared=64 does nothing without model\.num_experts"),
        ("model.rotary_scaling", "yarn", r"=yarn does nothing with model\.rotary_scaling_factor=1\.0"),
        ("model.attention_logit_softcap", -1.0, "must be above 0, or None"),
        ("model.qkv_init_scale", 0.0, "must be above 0, or None"),
        ("model.attention_biases", ("querry",), r"did you mean query\?"),
        ("model.rotary_scaling", "yarm", r"did you mean yarn\?"),
        ("model.expert_dispatch", "droples", r"did you mean dropless\?"),
        ("model.dropout_rate", 1.0, r"model\.dropout_rate=1\.0 must be at least 0 and below 1"),
        ("data.joint_vocabulary", False, r"model\.shared_embeddings=all needs one vocabulary"),
        ("data.tokens_per_batch", 100, r"does not fit into data\.tokens_per_batch=100"),
        ("training.max_tokens_per_device", 255, r"=255 is less than a row of data\.max_source_length=256 tokens"),
        ("model.qk_head_dim", 65, r"model\.qk_head_dim=65 must lie in 1 to the size of a head's values, 64"),
        ("model.qk_head_dim", 0, "must lie in 1 to"),
        ("data.train_weights", (1, 2), r"one number for each of data\.train"),
        ("data.train_weights", (0,), "whole numbers from 1 up"),
        ("data.image_resampling", "cubic", r"did you mean bicubic\?"),
        ("data.image_crop", 0.875, r"data\.image_size=None must say what the square is scaled to"),
        ("data.cleaning", ("emty",), r"data\.cleaning=emty is not one of .*; did you mean empty\?"),
        ("data.cleaning", ("empty",), r"data\.cleaning=\('empty',\) cleans the pairs of data\.source=files or tfds"),
        ("data.cleaning_max_words", 0, r"data\.cleaning_max_words=0 must be at least 1"),
        ("data.cleaning_max_words", 9, "task=translation reads data.source=phrases; take the key away"),
        ("data.cleaning_max_ratio", 0.5, "cleans the pairs of"),
        ("data.processes", 0, "must be at least 1"),
        ("data.vocabulary_sample", 0, "must be at least 1"),
        ("data.wait_minutes", -1.0, "must be at least 0"),
        ("data.cache_directory", "gs://bucket/cache", "must be on local disk"),
        ("training.weight_decay", 0.1, "does nothing under adam; use adamw"),
        ("training.preempted_exit_code", 0, "must lie in 1 to 255"),
        ("training.learning_rate", 0.0, "must be above 0"),
        ("decoding.temperature", 0.0, r"use decoding\.method=greedy"),
        ("decoding.top_p", 0.0, "must lie above 0"),
        ("mesh.platform", "tpus", r"did you mean tpu\?"),
        ("seed", -1, "seed=-1 must be at least 0"),
    ],
)
def test_impossible_values_name_the_key_the_value_and_the_remedy(key, value, message):
    with pytest.raises(UserError, match=message):
        from_config_dict(changed(key, value))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_encoding": "rotary", "rotary_fraction": 0.01}, "of a head of 64 is 0.64 components; it must be an"),
        (
            {
                "position_encoding": "rotary",
                "rotary_fraction": 1 / 32,
                "rotary_scaling": "ntk",
                "rotary_scaling_factor": 2.0,
            },
            "more than 2 components",
        ),
        ({"position_encoding": "rotary", "rotary_scaling_factor": 0.5}, "must be at least 1"),
        ({"position_encoding": "relative_bias", "relative_num_buckets": 6}, "must be a multiple of 4"),
        (
            {"position_encoding": "learned", "max_positions": 200},
            r"data\.max_source_length=256 is more than model\.max_positions=200 can tell apart",
        ),
        (
            {"position_encoding": "learned", "max_positions": 300},
            r"decoding\.max_source_length \+ decoding\.max_extra_tokens=562 is more than",
        ),
        (
            {"attention_window": 8, "attention_pattern": ("local", "local", "local", "global")},
            r"model\.num_encoder_layers=6 is no multiple of 4, after which model\.attention_pattern=local,local,local",
        ),
        ({"prefix_lm": True}, r"prefix_lm=True: model\.variant=encoder_decoder has no prefix; use decoder_only"),
        (
            {"prefix_lm": True, "variant": "decoder_only", "attention_window": 8},
            r"prefix_lm=True: model\.attention_window=8 hides what a prefix shows; use None",
        ),
        ({"rotary_scaling": "ntk", "rotary_scaling_factor": 2.0}, "does nothing with model.position_encoding=sinusoid"),
        ({"attention_window": 8, "attention_pattern": ("global",)}, "does nothing: .*=global has no local layer"),
        ({"num_experts": 2, "experts_per_token": 3}, r"must lie in 1 to model\.num_experts=2"),
        ({"num_experts": 2, "experts_every": 4}, r"is no multiple of 4"),
        ({"num_experts": 2, "expert_router": "sigmoid", "experts_per_token": 1}, "the router learns nothing"),
    ],
)
def test_values_that_do_not_go_together(changes, message):
    config = default_config()
    config.model.update(changes)
    with pytest.raises(UserError, match=message):
        from_config_dict(config)


def test_parts_follow_from_one_key_and_from_tokens():
    config = changed("training.max_tokens_per_device", 1_024)
    assert from_config_dict(config).training.max_tokens_per_device == 1_024
    config.training.accumulation_steps = 2
    with pytest.raises(UserError, match=r"accumulation_steps=2 would follow from training\.max_tokens_per_device=1024"):
        from_config_dict(config)
    config.training.accumulation_steps = 1
    config.task = "image_classification"
    with pytest.raises(UserError, match=r"task=image_classification .* use training\.accumulation_steps"):
        from_config_dict(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data.batching": "stream", "model.variant": "decoder_only"},
            "data.batching=stream has no padding",
        ),
        ({"task": "image_classification", "data.source": "digits"}, "does nothing: images have no padding"),
    ],
)
def test_padding_counts_only_where_there_is_some(changes, message):
    config = default_config()
    config.update_from_flattened_dict(changes)
    from_config_dict(config)
    config.data.count_padding = False
    with pytest.raises(UserError, match=rf"data\.count_padding=False.*{message}"):
        from_config_dict(config)


def test_only_translations_are_made_text_from_tokens():
    from_config_dict(changed("decoding.detokenize", True))
    config = changed("decoding.detokenize", True)
    config.update_from_flattened_dict({"task": "span_corruption", "data.source": "topics", "data.extra_ids": 9})
    with pytest.raises(UserError, match=r"decoding\.detokenize is for task=translation, not task=span_corruption"):
        from_config_dict(config)


def test_a_prefix_needs_rows_of_one_text():
    config = changed("data.batching", "pack")
    config.model.update({"prefix_lm": True, "variant": "decoder_only"})
    with pytest.raises(UserError, match=r"data\.batching=pack has several texts in a row; use bucket or stream"):
        from_config_dict(config)


def test_cleaning_is_for_pairs_of_text():
    config = default_config()
    config.data.update({"source": "files", "directory": "somewhere", "cleaning": ("empty",), "cleaning_max_words": 175})
    config.data.cleaning_max_ratio = 1.5
    assert from_config_dict(config).data.cleaning_max_ratio == 1.5
    config.data.cleaning_max_ratio = 0.9
    with pytest.raises(UserError, match=r"data\.cleaning_max_ratio=0\.9 must be at least 1"):
        from_config_dict(config)
    config.data.cleaning_max_ratio = None
    config.task = "language_modeling"
    with pytest.raises(UserError, match=r"task=language_modeling reads data\.source=files; take the key away"):
        from_config_dict(config)


def test_a_list_may_be_written_with_commas():
    """ml_collections makes one string of --config.data.train=news,talks."""
    config = changed("data.train", ("news,talks",))
    assert from_config_dict(config).data.train == ("news", "talks")


def test_a_stated_head_size_need_not_divide_the_width():
    config = changed("model.num_heads", 6)
    config.model.head_dim = 64
    assert from_config_dict(config).model.head_dim == 64


def test_unknown_keys_wrong_types_and_missing_keys_in_a_saved_config():
    values = to_config_dict(Config()).to_dict()
    for section, key, value, message in (
        ("model", "d_modell", 3, r"unknown config key model\.d_modell; did you mean d_model\?"),
        ("model", "d_model", "wide", r"model\.d_model='wide' must be of type int, not str"),
        ("model", "scale_embeddings", 1, "must be of type bool, not int"),
        ("training", "num_steps", True, "must be of type int, not bool"),
        ("data", "train", "train", "must be a list"),
    ):
        with pytest.raises(UserError, match=message):
            from_config_dict({**values, section: {**values[section], key: value}})
    with pytest.raises(UserError, match=r"config key model\.d_ff is missing"):
        from_config_dict({**values, "model": {k: v for k, v in values["model"].items() if k != "d_ff"}})
    with pytest.raises(UserError, match="another version of this code"):
        from_config_dict({**values, "config_version": 0})


def test_every_key_is_harmless_or_makes_another_experiment():
    known = dict(flatten(Config()))
    for name in (*HARMLESS_KEYS, *COMPUTATION_KEYS):
        assert any(key == name or key.startswith(name + ".") for key in known), f"{name} is no key"
    old = Config()
    for key, value in (("training.log_every", 7), ("mesh.data", 1), ("decoding.alpha", 1.0)):
        assert differences(old, from_config_dict(changed(key, value))) == {}
    for key, value in (
        ("model.d_ff", 32),
        ("seed", 1),
        ("training.learning_rate", 0.5),
        ("data.batching", "pack"),
        ("data.image_size", 8),
    ):
        assert list(differences(old, from_config_dict(changed(key, value)))) == [key]


def test_more_steps_are_harmless_only_where_the_schedule_does_not_end():
    for schedule, harmless in (("paper", True), ("constant", True), ("linear", False), ("cosine", False)):
        config = changed("training.schedule", schedule)
        old = from_config_dict(config)
        config.training.num_steps = 123_456
        assert bool(differences(old, from_config_dict(config))) is not harmless
