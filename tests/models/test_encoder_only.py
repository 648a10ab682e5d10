"""Encoder-only models of text: padding and batch mates change nothing, heads see what they should."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.small import config, tokens
from transformer.config import MeshConfig, ModelConfig
from transformer.models.encoder_only import MaskedLM, Pooler, TextClassifier, TextEmbedder, TokenClassifier
from transformer.models.masks import AttentionMask
from transformer.training.partitioning import make_mesh, parameter_shardings, unbox

V, B, T, C = 23, 3, 11, 5
LENGTHS = jnp.array([11, 7, 1])
SMALL = config(
    variant="encoder_only",
    token_types=2,
    embedding_norm=True,
    position_encoding="learned",
    max_positions=13,
    activation="gelu",
    output_bias=True,
    pooler=True,
)


def by_length(lengths=LENGTHS):
    return AttentionMask(query_lengths=lengths, key_lengths=lengths)


def made(model, *arguments):
    """Parameters moved off their zeros and ones, so that a bias that is not used is seen."""
    params = unbox(jax.jit(functools.partial(model.init, deterministic=True))(jax.random.key(0), *arguments))["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: np.float32(leaf + rng.normal(size=leaf.shape) * 0.1), params)


@functools.cache
def models():
    """Each with its parameters and what it gives for rows of tokens under a mask."""
    ids, places = tokens(B, T), jnp.array([[0, 3], [6, 2], [0, 0]])
    with_rest = [
        (MaskedLM(SMALL, V), (places,)),
        (TextClassifier(SMALL, V, C), ()),
        (TokenClassifier(SMALL, V, C), ()),
        (TextEmbedder(SMALL, V), ()),
    ]
    return {type(model).__name__: (model, made(model, ids, by_length(), *rest), rest) for model, rest in with_rest}


@pytest.mark.parametrize("name", ["MaskedLM", "TextClassifier", "TokenClassifier", "TextEmbedder"])
def test_padding_and_batch_mates_change_nothing(name):
    model, params, rest = models()[name]
    ids = tokens(B, T)

    @jax.jit
    def run(ids, lengths, *rest):
        return model.apply({"params": params}, ids, by_length(lengths), *rest, deterministic=True)

    together = np.asarray(run(ids, LENGTHS, *rest))
    other_padding = jnp.where(jnp.arange(T) < LENGTHS[:, None], ids, 7)
    again = np.asarray(run(other_padding, LENGTHS, *rest))
    if name == "TokenClassifier":  # what it gives at padding is nobody's
        together, again = (
            np.where((jnp.arange(T) < LENGTHS[:, None])[..., None], found, 0) for found in (together, again)
        )
    np.testing.assert_array_equal(together, again)
    alone = np.asarray(run(ids[1:2, :7], LENGTHS[1:2], *(places[1:2] for places in rest)))[0]
    np.testing.assert_allclose(alone, together[1, :7] if name == "TokenClassifier" else together[1], atol=2e-5)


def test_token_types_and_positions_are_seen():
    model, params, _ = models()["TextClassifier"]
    ids = tokens(B, T)
    run = jax.jit(functools.partial(model.apply, {"params": params}, deterministic=True))
    plain = run(ids, by_length())
    np.testing.assert_array_equal(plain, run(ids, by_length(), token_types_BT=jnp.zeros_like(ids)))
    assert not np.allclose(plain, run(ids, by_length(), token_types_BT=jnp.ones_like(ids)), atol=1e-3)
    assert not np.allclose(plain[:2], run(ids[:, ::-1], by_length())[:2], atol=1e-3)


def test_masked_lm_scores_only_the_places_asked_for():
    model, params, _ = models()["MaskedLM"]
    ids = tokens(B, T)
    every = jnp.broadcast_to(jnp.arange(T), (B, T))
    run = jax.jit(functools.partial(model.apply, {"params": params}, deterministic=True))
    whole = run(ids, by_length(), every)
    np.testing.assert_allclose(run(ids, by_length(), every[:, 4:6]), whole[:, 4:6], atol=2e-5)
    assert whole.dtype == jnp.float32 and whole.shape == (B, T, V)


def test_pooling_by_hand():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, SMALL.d_model)), jnp.float32)
    first = Pooler(config(pooling="first")).apply({}, x, by_length())
    mean = Pooler(config(pooling="mean")).apply({}, x, by_length())
    np.testing.assert_array_equal(first, x[:, 0])
    np.testing.assert_allclose(mean, [x[row, :length].mean(axis=0) for row, length in enumerate(LENGTHS)], atol=1e-6)


def test_the_mean_of_rows_without_padding():
    x_BTD = jax.random.normal(jax.random.key(1), (B, T, SMALL.d_model))
    found = Pooler(config(pooling="mean")).apply({}, x_BTD, AttentionMask())
    np.testing.assert_allclose(found, x_BTD.mean(axis=1), atol=1e-6)


def test_embeddings_have_length_one():
    model, params, _ = models()["TextEmbedder"]
    found = model.apply({"params": params}, tokens(B, T), by_length(), deterministic=True)
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1, atol=1e-6)


def test_every_parameter_is_in_the_table_of_axes():
    for model, _, rest in models().values():
        init = functools.partial(model.init, deterministic=True)
        boxed = jax.eval_shape(init, jax.random.key(0), tokens(1, 3), AttentionMask(), *(part[:1] for part in rest))
        parameter_shardings(make_mesh(MeshConfig(data=1)), boxed["params"])


def test_bert_base_has_the_parameters_of_bert_base():
    """109,482,240 with the pooler and without the head of masked tokens: BERT-base, uncased, 30,522 pieces."""
    base = ModelConfig(
        variant="encoder_only",
        d_model=768,
        d_ff=3_072,
        num_heads=12,
        num_encoder_layers=12,
        token_types=2,
        embedding_norm=True,
        position_encoding="learned",
        max_positions=512,
        activation="gelu",
        pooler=True,
    )
    init = functools.partial(TextEmbedder(base, 30_522).init, deterministic=True)
    shapes = jax.eval_shape(init, jax.random.key(0), tokens(1, 3), AttentionMask())
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(unbox(shapes))) == 109_482_240
