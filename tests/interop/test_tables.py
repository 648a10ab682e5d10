"""Every tensor goes to its place and back without a changed bit, and none is missing, left over or misshapen."""

import json

import jax
import numpy as np
import pytest

from tests.interop import model_files
from tests.interop.small import BERT, GPT2, LABELS, LLAMA, described, random_params, random_tensors, write_folder
from transformer.interop import tables
from transformer.interop.pretrained import export_pretrained, import_pretrained
from transformer.interop.safetensors_files import SafetensorsFolder
from transformer.training.loading import load
from transformer.types import UserError

MASKED_LM = ("cls.predictions.bias",)
CLASSIFIER = ("classifier.weight", "bert.pooler.dense.weight")
YARN = {"rope_type": "yarn", "factor": 3, "original_max_position_embeddings": 41}
MODELS = {
    "bert masked_lm": (BERT, MASKED_LM),
    "bert untied": ({**BERT, "tie_word_embeddings": False, "hidden_act": "gelu_new"}, MASKED_LM),
    "bert classifier": ({**BERT, "id2label": LABELS}, CLASSIFIER),
    "bert tokens": ({**BERT, "id2label": LABELS}, CLASSIFIER[:1]),
    "bert stated tokens": ({**BERT, "architectures": ["BertForTokenClassification"]}, CLASSIFIER),
    "bert embedding": ({**BERT, "type_vocab_size": 1, "pooling_mode": "cls"}, ()),
    "gpt2": (GPT2, ()),
    "gpt2 untied": ({**GPT2, "tie_word_embeddings": False, "scale_attn_weights": False}, ()),
    "llama": (LLAMA, ()),
    "llama untied": (
        {**LLAMA, "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "rope_scaling": YARN},
        (),
    ),
    "mistral": ({**LLAMA, "model_type": "mistral", "sliding_window": 5}, ()),
    "qwen2": ({**LLAMA, "model_type": "qwen2", "use_sliding_window": False, "tie_word_embeddings": False}, ()),
}


TASKS = {
    "bert masked_lm": "masked_lm",
    "bert untied": "masked_lm",
    "bert classifier": "text_classification",
    "bert tokens": "token_classification",
    "bert stated tokens": "token_classification",
    "bert embedding": "sentence_embedding",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("assets")


def read(settings, heads, tensors, folder):
    family, config = described(settings, heads)
    shapes = {path: array.shape for path, array in random_params(config, folder).items()}
    return tables.read_params(family, config, tensors, shapes, "model.safetensors")


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_changes_no_bit(name, folder):
    settings, heads = MODELS[name]
    family, config = described(settings, heads)
    assert config.task == TASKS.get(name, "language_modeling")
    params = random_params(config, folder)
    shapes = {path: array.shape for path, array in params.items()}
    tensors = dict(tables.write_tensors(family, config, params))
    back = tables.read_params(family, config, tensors, shapes, "model.safetensors")
    assert back.keys() == params.keys()
    for path, array in params.items():
        np.testing.assert_array_equal(back[path], array, err_msg=path)
    again = dict(tables.write_tensors(family, config, back))
    assert {key: value.tobytes() for key, value in again.items()} == {k: v.tobytes() for k, v in tensors.items()}


@pytest.mark.parametrize("change", ["missing", "extra", "another layer", "misshapen", "transposed", "not finite"])
def test_a_wrong_tensor_is_named(change, folder):
    tensors = random_tensors(GPT2, (), folder)
    name = "transformer.h.1.attn.c_attn.weight"
    if change == "missing":
        del tensors[name]
    if change == "extra":
        name = "transformer.h.1.attn.c_attn.weight_v"
        tensors[name] = np.zeros(3, np.float32)
    if change == "another layer":
        name = "transformer.h.3.ln_1.weight"
        tensors[name] = np.zeros(14, np.float32)
    if change == "misshapen":
        tensors[name] = tensors[name][:, :-1]
    if change == "transposed":
        tensors[name] = tensors[name].T
    if change == "not finite":
        tensors[name][2, 3] = np.nan
    with pytest.raises(UserError, match=name.replace(".", r"\.") + r"\b"):
        read(GPT2, (), tensors, folder)


def test_names_without_prefix_and_of_older_files(folder, caplog):
    tensors = random_tensors(BERT, (), folder)
    assert "embeddings.LayerNorm.weight" in tensors  # a model without a head has no prefix
    params = read(BERT, (), tensors, folder)
    old = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }
    old["bert.embeddings.position_ids"] = np.arange(31)[None]
    assert not caplog.records
    old["bert.pooler.dense.weight"] = np.zeros((14, 14), np.float32)
    again = read(BERT, (), old, folder)
    assert all(np.array_equal(again[path], array) for path, array in params.items())
    assert "does not use bert.pooler.dense.weight" in caplog.text


def test_a_pooler_that_was_left_in_the_files_makes_no_classifier_of_tokens_one_of_texts(folder, caplog):
    """As in files of BertForTokenClassification that were trained from a whole BERT."""
    settings = {**BERT, "id2label": LABELS, "architectures": ["BertForTokenClassification"]}
    tensors = random_tensors(settings, CLASSIFIER[:1], folder)
    params = read(settings, CLASSIFIER[:1], tensors, folder)
    more = tensors | {"bert.pooler.dense.weight": np.ones((14, 14), np.float32)}
    assert described(settings, tuple(more))[1].task == "token_classification"
    again = read(settings, tuple(more), more, folder)
    model_files.assert_same(again, params)
    assert "task=token_classification does not use bert.pooler.dense.weight" in caplog.text


def test_a_copy_must_be_one(folder):
    tensors = random_tensors(LLAMA, (), folder)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    read(LLAMA, (), tensors, folder)
    tensors["lm_head.weight"][3, 5] += 1
    with pytest.raises(UserError, match=r"lm_head\.weight and model\.embed_tokens\.weight differ.*tie_word_embeddings"):
        read(LLAMA, (), tensors, folder)


@pytest.mark.parametrize("name", ["bert classifier", "llama untied"])
def test_text_through_workdirs(name, folder, tmp_path, caplog):
    settings, heads = MODELS[name]
    settings = {**settings, "eos_token_id": 3}
    tensors = random_tensors(settings, heads, folder)
    first = write_folder(tmp_path / "first", settings, tensors)
    caplog.set_level("INFO", "transformer")
    config, params = import_pretrained(first, tmp_path / "workdir")
    run = load(tmp_path / "workdir")
    assert run.config == config
    jax.tree.map(np.testing.assert_array_equal, run.params, params)
    with pytest.raises(UserError, match=r"holds checkpoints"):
        import_pretrained(first, tmp_path / "workdir")
    export_pretrained(tmp_path / "workdir", tmp_path / "second")
    exported = dict(SafetensorsFolder(tmp_path / "second"))
    assert exported.keys() == tensors.keys()
    assert all(exported[key].tobytes() == value.tobytes() for key, value in tensors.items())
    written = json.loads((tmp_path / "second" / "config.json").read_text())
    assert {key: written[key] for key in settings if key != "rope_scaling"} == {
        key: value for key, value in settings.items() if key != "rope_scaling"
    }
    assert (tmp_path / "second" / "tokenizer.json").read_text() == (first / "tokenizer.json").read_text()
    again, params_again = import_pretrained(tmp_path / "second", tmp_path / "again")
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, params_again, params)
    if "classifier" in name:
        assert run.task.labels.names == tuple(LABELS.values())
        assert set(run.predict(["a b", "c"])) <= set(LABELS.values())
        (tmp_path / "text.txt").write_text("no a b\nyes c\n")
        assert not any("majority" in score for score in run.task.evaluate(run.params, {"text": tmp_path / "text.txt"}))
        assert "are taken to be of single texts" in caplog.text
        caplog.clear()
        import_pretrained(first, tmp_path / "pairs", pairs=True)
        assert load(tmp_path / "pairs").task.labels.pairs and "single texts" not in caplog.text
    with pytest.raises(UserError, match=r"holds config\.json"):
        export_pretrained(tmp_path / "workdir", tmp_path / "second")


@pytest.mark.parametrize("classes", [0, 3])
def test_images_through_workdirs(classes, tmp_path):
    sizes = {"hidden_size": 14, "intermediate_size": 17, "num_attention_heads": 2, "num_hidden_layers": 3}
    settings = {"model_type": "vit", **sizes, "image_size": 10, "patch_size": 5}
    labels = {"id2label": LABELS} if classes else {}
    heads = ("vit.layernorm.bias", "classifier.weight") if classes else ("layernorm.bias",)
    tensors = model_files.make(tmp_path / "first", {**settings, **labels}, classes, heads)
    preprocessor = {"do_normalize": True, "image_mean": [0.5, 0.25, 0.125], "image_std": [0.5, 0.5, 0.5]}
    (tmp_path / "first" / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    config, _ = import_pretrained(tmp_path / "first", tmp_path / "workdir")
    run = load(tmp_path / "workdir")
    assert run.task.classes.names == tuple(LABELS.values())[:classes]
    assert config.data.image_mean == (0.5, 0.25, 0.125)
    export_pretrained(tmp_path / "workdir", tmp_path / "second")
    model_files.assert_same(model_files.tensors_of(tmp_path / "second"), tensors)
    again, _ = import_pretrained(tmp_path / "second", tmp_path / "again")
    assert again == config
