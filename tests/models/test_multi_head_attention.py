"""Attention with its projections, and what config keys do to it, against NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import oracle
from transformer.config import ModelConfig
from transformer.models.causal_lm import CausalLM
from transformer.models.layers import single_stack_scales
from transformer.models.masks import AttentionMask
from transformer.models.multi_head_attention import MultiHeadAttention
from transformer.training.partitioning import unbox

B, T, D = 2, 7, 11
CONFIG = ModelConfig(d_model=D, num_heads=6, num_kv_heads=3, head_dim=5, attention_dropout_rate=0.0)
CAUSAL = AttentionMask(causal=True)


def setup(config):
    module = MultiHeadAttention(config)
    x_BTD = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, D)), jnp.float32)

    def attention(module, x_BTD, deterministic=True):
        options = {"implementation": "dense", "deterministic": deterministic}
        return module(x_BTD, *module.key_value(x_BTD), CAUSAL, **options)

    params = unbox(module.init(jax.random.key(0), x_BTD, method=attention))["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: leaf + rng.normal(size=leaf.shape).astype(np.float32) * 0.2, params)
    return functools.partial(module.apply, {"params": params}, x_BTD, method=attention), params, x_BTD


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qk_norm": True},
        {"attention_logit_softcap": 0.4},
        {"scale_attention": False, "attention_biases": ("key", "output")},
        {"qk_norm": True, "attention_logit_softcap": 0.9, "attention_biases": ()},
    ],
)
def test_each_key_is_its_equation(changes):
    config = dataclasses.replace(CONFIG, **changes)
    run, params, x_BTD = setup(config)

    def project(name):
        return np.einsum("btd,dhk->bthk", x_BTD, params[name]["kernel"]) + params[name].get("bias", 0)

    query, key, value = (project(name) for name in ("query", "key", "value"))
    if config.qk_norm:
        query, key = (
            array / np.sqrt((array**2).mean(-1, keepdims=True) + config.norm_epsilon) * params[f"{name}_norm"]["scale"]
            for name, array in (("query", query), ("key", key))
        )
    scale = 5**-0.5 if config.scale_attention else 1.0
    mixed, _ = oracle.attention(query, key, value, CAUSAL, scale=scale, softcap=config.attention_logit_softcap)
    expected = np.einsum("bthk,hkd->btd", mixed, params["output"]["kernel"]) + params["output"].get("bias", 0)
    assert {name for name in ("query", "key", "value", "output") if "bias" in params[name]} == set(
        config.attention_biases
    )
    np.testing.assert_allclose(run(), expected, atol=1e-5)


def test_attention_dropout_is_of_training_only_and_unbiased():
    clean, _, _ = setup(CONFIG)
    run, _, _ = setup(dataclasses.replace(CONFIG, attention_dropout_rate=0.4))
    np.testing.assert_array_equal(run(), clean())
    dropped = jax.vmap(lambda key: run(deterministic=False, rngs={"dropout": key}))(
        jax.random.split(jax.random.key(1), 600)
    )
    assert np.asarray(dropped).std(axis=0).min() > 0.01
    np.testing.assert_allclose(dropped.mean(axis=0), clean(), atol=0.25)


@pytest.mark.parametrize(
    ("pattern", "layers", "reach"), [(("local",), 1, 3), (("local",), 2, 5), (("local", "global"), 2, T)]
)
def test_a_window_reaches_so_far_and_no_further(pattern, layers, reach):
    """Which logits change with which token; every layer of local attention adds ``window - 1`` to the reach."""
    config = ModelConfig(
        variant="decoder_only",
        d_model=D + 1,
        d_ff=13,
        num_heads=2,
        num_decoder_layers=layers,
        attention_window=3,
        attention_pattern=pattern,
        position_encoding="alibi",
        norm_placement="pre",
        dropout_rate=0.0,
    )
    model = CausalLM(config, 23)
    ids = jnp.arange(4, 4 + T)[None]
    params = unbox(jax.jit(lambda key: model.init(key, ids[:, :1], CAUSAL, deterministic=True))(jax.random.key(0)))
    changed = jnp.where(jnp.eye(T, dtype=bool), ids + T, ids)  # row s has another token at s
    logits = jax.jit(lambda ids: model.apply(params, ids, CAUSAL, deterministic=True)[0])(
        jnp.concatenate([ids, changed])
    )
    differs_ST = np.abs(logits[1:] - logits[0]).max(axis=-1) > 1e-6
    distance_ST = np.arange(T) - np.arange(T)[:, None]
    np.testing.assert_array_equal(differs_ST, (distance_ST >= 0) & (distance_ST < reach))


def test_deep_norm_of_one_stack_is_that_of_the_paper():
    """Wang et al. 2022, figure 2: alpha (2 N)^(1/4) and beta (8 N)^(-1/4), in the module too."""
    config = ModelConfig(norm_placement="deep_norm")
    assert single_stack_scales(config, 8) == pytest.approx((2.0, 64**-0.25))
    assert single_stack_scales(ModelConfig(norm_placement="post"), 8) == (1.0, 1.0)

    def std(placement):
        config = ModelConfig(
            variant="decoder_only",
            d_model=64,
            d_ff=64,
            num_heads=4,
            num_decoder_layers=2,
            norm_placement=placement,
        )
        ids = jnp.zeros((1, 1), jnp.int32)
        params = unbox(
            jax.jit(lambda key: CausalLM(config, 9).init(key, ids, CAUSAL, deterministic=True))(jax.random.key(0))
        )["params"]
        layer = params["decoder"]["layers"]
        return {name: float(layer["self_attention"][name]["kernel"].std()) for name in ("query", "value", "output")}

    plain, scaled = std("pre"), std("deep_norm")
    assert scaled["query"] == pytest.approx(plain["query"], rel=1e-6)
    for name in ("value", "output"):
        assert scaled[name] / plain[name] == pytest.approx(16**-0.25, rel=1e-5)
