"""Keys, types, checks, and which differences make another experiment."""

import dataclasses
import pathlib
import runpy

import pytest

from transformer.config import (
    HARMLESS_KEYS,
    Config,
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
        ("model.attention_biases", ("querry",), r"did you mean query\?"),
        ("model.rotary_scaling", "yarm", r"did you mean yarn\?"),
        ("model.expert_dispatch", "droples", r"did you mean dropless\?"),
        ("model.dropout_rate", 1.0, r"model\.dropout_rate=1\.0 must be at least 0 and below 1"),
        ("data.joint_vocabulary", False, r"model\.shared_embeddings=all needs one vocabulary"),
        ("data.tokens_per_batch", 100, r"does not fit into data\.tokens_per_batch=100"),
        ("data.train_weights", (1, 2), r"one number for each of data\.train"),
        ("data.train_weights", (0,), "whole numbers from 1 up"),
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


def test_a_prefix_needs_rows_of_one_text():
    config = changed("data.batching", "pack")
    config.model.update({"prefix_lm": True, "variant": "decoder_only"})
    with pytest.raises(UserError, match=r"data\.batching=pack has several texts in a row; use bucket or stream"):
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
    for name in HARMLESS_KEYS:
        assert any(key == name or key.startswith(name + ".") for key in known), f"{name} is no key"
    old = Config()
    for key, value in (("training.log_every", 7), ("mesh.data", 1), ("decoding.alpha", 1.0)):
        assert differences(old, from_config_dict(changed(key, value))) == {}
    for key, value in (("model.d_ff", 32), ("seed", 1), ("training.learning_rate", 0.5), ("data.batching", "pack")):
        assert list(differences(old, from_config_dict(changed(key, value)))) == [key]


def test_more_steps_are_harmless_only_where_the_schedule_does_not_end():
    for schedule, harmless in (("paper", True), ("constant", True), ("linear", False), ("cosine", False)):
        config = changed("training.schedule", schedule)
        old = from_config_dict(config)
        config.training.num_steps = 123_456
        assert bool(differences(old, from_config_dict(config))) is not harmless
