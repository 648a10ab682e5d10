"""What cannot be translated is refused by name, in both directions, and what can comes back as it was."""

import dataclasses
import json

import pytest

from tests.interop.small import BERT, GPT2, LLAMA, described, random_tensors, write_folder
from transformer.config import Config, ModelConfig
from transformer.data.tokenizer import CharacterTokenizer
from transformer.interop.computation import computation
from transformer.interop.pooling import read_pooling
from transformer.interop.pretrained import (
    OF_TASKS,
    export_pretrained,
    import_pretrained,
    open_pretrained,
    written_config,
)
from transformer.training.loading import load
from transformer.types import UserError

MISTRAL = {**LLAMA, "model_type": "mistral"}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
ROPE = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 41}

REFUSED = [
    (BERT, {"hidden_act": "quick_gelu"}, "hidden_act=quick_gelu"),
    (BERT, {"position_embedding_type": "relative_key"}, "position_embedding_type=relative_key"),
    (BERT, {"is_decoder": True}, "is_decoder=True"),
    (BERT, {"add_cross_attention": True}, "add_cross_attention=True"),
    (BERT, {"architectures": ["BertForQuestionAnswering"]}, "architectures=BertForQuestionAnswering"),
    (BERT, {"pooling_mode": "max"}, "pooling_mode=max"),
    (BERT, {"pruned_heads": {"1": [0]}}, "pruned_heads"),
    (BERT, {"embedding_size": 7}, "embedding_size=7"),
    (BERT, {"sentence_bert_config": {"max_seq_length": 7, "prompts": 3}}, "sentence_bert_config.json: prompts=3"),
    (BERT, {"quantization_config": {"bits": 4}}, "quantization_config"),
    (GPT2, {"activation_function": "mish"}, "activation_function=mish"),
    (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    (GPT2, {"add_cross_attention": True}, "add_cross_attention=True"),
    (GPT2, {"architectures": ["GPT2ForTokenClassification"]}, "architectures"),
    (GPT2, {"n_heads": 3}, "n_heads=3"),
    (LLAMA, {"hidden_act": "gelu"}, "hidden_act=gelu"),
    (LLAMA, {"rope_interleaved": True}, "rope_interleaved=True"),
    (LLAMA, {"sliding_window": 5}, "sliding_window=5"),
    (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type=dynamic"),
    (LLAMA, {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope_parameters.rope_type=longrope"),
    (LLAMA, {"rope_scaling": {**ROPE, "beta_fast": 16}}, "rope_scaling.beta_fast=16"),
    (LLAMA, {"rope_scaling": {**ROPE, "attention_factor": 2.0}}, "rope_scaling.attention_factor=2.0"),
    (LLAMA, {"rope_scaling": {**ROPE, "rope_type": "llama3", "low_freq_factor": 2}}, "rope_scaling.low_freq_factor=2"),
    (LLAMA, {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor=None"),
    (LLAMA, {"auto_map": {"AutoModel": "code.py"}}, "auto_map"),
    (MISTRAL, {"sliding_window": 5, "layer_types": ["full_attention"] * 3}, "layer_types"),
    (QWEN2, {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}, "max_window_layers=2"),
    (QWEN2, {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
    (LLAMA, {"model_type": "llame"}, "model_type=llame is not one of.*did you mean llama"),
]


@pytest.mark.parametrize(("settings", "change", "message"), REFUSED)
def test_a_setting_that_changes_the_model_is_refused(settings, change, message):
    described(settings)
    with pytest.raises(UserError, match=message):
        described({**settings, **change})


@pytest.mark.parametrize("settings", [BERT, GPT2, LLAMA])
def test_a_missing_setting_is_named(settings):
    for key in ("vocab_size", "hidden_size", "n_embd", "num_attention_heads", "n_head"):
        if key in settings:
            with pytest.raises(UserError, match=f"{key} is missing"):
                described({name: value for name, value in settings.items() if name != key})


def test_both_forms_of_rotary_settings():
    old = described({**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}})[1]
    rope = {"rope_type": "linear", "factor": 2, "rope_theta": 5e5}
    new = described({**{key: LLAMA[key] for key in LLAMA if key != "rope_theta"}, "rope_parameters": rope})[1]
    assert old == new
    assert (old.model.rotary_theta, old.model.rotary_scaling, old.model.rotary_scaling_factor) == (5e5, "linear", 2.0)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_a_factor_of_one_stretches_nothing(kind):
    model = described({**LLAMA, "rope_scaling": {"rope_type": kind, "factor": 1.0}})[1].model
    assert (model.rotary_scaling, model.rotary_scaling_factor) == ("none", 1.0)
    assert model == described(LLAMA)[1].model


LM = Config(
    task="language_modeling",
    model=ModelConfig(
        variant="decoder_only",
        vocab_size=23,
        norm_placement="pre",
        scale_embeddings=False,
        position_encoding="learned",
        activation="gelu_tanh",
    ),
)
LLAMA_LIKE = {
    "norm": "rms_norm",
    "position_encoding": "rotary",
    "activation": "swiglu",
    "attention_biases": (),
    "feed_forward_bias": False,
}


def expressed(config, **changes):
    return written_config(dataclasses.replace(config, model=dataclasses.replace(config.model, **changes)))


@pytest.mark.parametrize(
    ("changes", "family", "model_type"),
    [
        ({}, "gpt2", "gpt2"),
        ({"activation": "relu", "shared_embeddings": "none", "rotary_theta": 7.0}, "gpt2", "gpt2"),
        (LLAMA_LIKE, "llama", "llama"),
        ({**LLAMA_LIKE, "attention_window": 5}, "llama", "mistral"),
        ({**LLAMA_LIKE, "attention_biases": ("query", "key", "value"), "num_kv_heads": 2}, "llama", "qwen2"),
        (
            {**LLAMA_LIKE, "activation": "geglu", "rotary_scaling": "llama3", "rotary_scaling_factor": 8.0},
            "llama",
            "llama",
        ),
    ],
)
def test_the_family_is_found(changes, family, model_type):
    found, settings = expressed(LM, **changes)
    assert (found.name, settings["model_type"]) == (family, model_type)
    back = described(settings)[1]
    ours = dataclasses.replace(LM, model=dataclasses.replace(LM.model, **changes))
    assert computation(back) == computation(ours)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_embeddings": True}, "gpt2, has no model.scale_embeddings=True$"),
        ({"num_kv_heads": 2}, "model.num_kv_heads=2$"),
        ({"activation": "swiglu"}, "model.activation=swiglu"),
        ({"embedding_norm": True, "layer_scale": 0.1}, "model.embedding_norm=True, model.layer_scale=True$"),
        ({**LLAMA_LIKE, "qk_norm": True}, "llama, has no model.qk_norm=True$"),
        ({**LLAMA_LIKE, "rotary_fraction": 0.5}, "model.rotary_fraction=0.5$"),
        ({**LLAMA_LIKE, "rotary_scaling": "ntk", "rotary_scaling_factor": 2.0}, "model.rotary_scaling=ntk"),
        ({**LLAMA_LIKE, "attention_biases": ("query",)}, "model.attention_biases=query$"),
        ({**LLAMA_LIKE, "attention_window": 5, "feed_forward_bias": True}, "model.feed_forward_bias=True$"),
        ({**LLAMA_LIKE, "num_experts": 2}, "model.num_experts=2"),
        ({**LLAMA_LIKE, "attention_logit_softcap": 30.0}, "model.attention_logit_softcap=30.0$"),
    ],
)
def test_what_no_family_can_express_is_named(changes, message):
    with pytest.raises(UserError, match=message):
        expressed(LM, **changes)


def test_defaults_of_tasks_are_configs():
    for task, changes in OF_TASKS.items():
        assert task and all("." in key for key in changes)


def test_pooling_is_that_of_sentence_transformers(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    (tmp_path / "1_Pooling").mkdir()
    modes = {"word_embedding_dimension": 14, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    with pytest.raises(UserError, match=r"holds neither model\.safetensors"):
        open_pretrained(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense"}]))
    with pytest.raises(UserError, match="the module Dense"):
        open_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls+mean"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "mean", "include_prompt": True}, "mean"),
    ],
)
def test_ways_of_pooling_have_names(tmp_path, said, expected):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 14, **said}))
    assert read_pooling(tmp_path) == {"pooling_mode": expected}


def test_files_beside_the_config_are_heeded(tmp_path):
    """The length of sentences, and whether they are lower-cased, which the tokenizer then must do by itself."""
    folder = write_folder(tmp_path / "cased", BERT, random_tensors(BERT, (), tmp_path / "assets"))
    limits = folder / "sentence_bert_config.json"
    limits.write_text(json.dumps({"max_seq_length": 23, "do_lower_case": False}))
    data = import_pretrained(folder, tmp_path / "first")[0].data
    assert (data.max_source_length, data.max_target_length) == (23, 23)
    limits.write_text(json.dumps({"max_seq_length": 99, "do_lower_case": True}))
    parts = json.loads((folder / "tokenizer.json").read_text())
    parts["model"]["vocab"]["The"] = 23  # as nothing else begins with a capital there, only now it is seen
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    with pytest.raises(UserError, match=r"sentence_bert_config\.json: do_lower_case=true, but .*--tokenizer=FOLDER"):
        import_pretrained(folder, tmp_path / "second")
    parts["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    assert import_pretrained(folder, tmp_path / "second")[0].data.max_source_length == 31  # all positions
    with pytest.raises(UserError, match=r"config\.json must hold a JSON object"):
        (folder / "config.json").write_text("[]")
        open_pretrained(folder)


def test_the_tokenizer_may_be_elsewhere(tmp_path, caplog):
    """In a workdir, another folder or a file; and one that has no form for others is found so again."""
    folder = write_folder(tmp_path / "weights", GPT2, random_tensors(GPT2, (), tmp_path / "assets"))
    import_pretrained(folder, tmp_path / "first")
    (tmp_path / "tokenizer").mkdir()
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer" / "tokenizer.json")
    with pytest.raises(UserError, match="holds no tokenizer"):
        import_pretrained(folder, tmp_path / "second")
    places = [tmp_path / "first", tmp_path / "tokenizer", tmp_path / "tokenizer" / "tokenizer.json"]
    for number, place in enumerate(places):
        import_pretrained(folder, tmp_path / str(number), place)
    contents = {(tmp_path / name / "tokenizer.model").read_bytes() for name in ("first", "0")}
    assert len(contents) == 1  # in the others nothing says which pieces are special but their usual names
    CharacterTokenizer("abc").save(tmp_path / "first", "tokenizer.model")
    import_pretrained(folder, tmp_path / "third", tmp_path / "first")
    export_pretrained(tmp_path / "third", tmp_path / "exported")
    assert f"--tokenizer={tmp_path / 'third'}" in caplog.text
    import_pretrained(tmp_path / "exported", tmp_path / "fourth", tmp_path / "third")
    assert load(tmp_path / "fourth").tokenizer.encode("cab") == [6, 4, 5]
