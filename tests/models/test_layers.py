"""Feed-forwards, norms and where they stand, each against its equation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.small import NO_MASKS, config, model_and_params, run, tokens
from transformer.config import ModelConfig
from transformer.models.attention import attend
from transformer.models.feed_forward import ACTIVATIONS, FeedForward
from transformer.models.masks import AttentionMask
from transformer.models.multi_head_attention import MultiHeadAttention
from transformer.models.norms import norm
from transformer.models.seq2seq import Seq2Seq, branch_scales
from transformer.training.partitioning import unbox

ERF = np.vectorize(__import__("math").erf)
FUNCTIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + ERF(x / 2**0.5)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
GATES = {"swiglu": "silu", "geglu": "gelu_tanh", "reglu": "relu"}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forwards_are_their_equations(activation):
    module = FeedForward(ModelConfig(d_model=7, d_ff=11, activation=activation))
    x = np.random.default_rng(0).normal(size=(2, 3, 7)).astype(np.float32)
    params = unbox(module.init(jax.random.key(0), jnp.asarray(x), True))["params"]
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)  # biases off their zeros
    w = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    hidden = x @ w["up"]["kernel"] + w["up"]["bias"]
    if activation in GATES:
        hidden = hidden * FUNCTIONS[GATES[activation]](x @ w["gate"]["kernel"] + w["gate"]["bias"])
    else:
        assert "gate" not in w
        hidden = FUNCTIONS[activation](hidden)
    got = module.apply({"params": params}, jnp.asarray(x), True)
    np.testing.assert_allclose(got, hidden @ w["down"]["kernel"] + w["down"]["bias"], atol=1e-5)


def test_norms_are_their_equations_with_statistics_in_float32():
    x = np.random.default_rng(0).normal(3, 2, size=(5, 7)).astype(np.float32)
    for name, center in (("layer_norm", True), ("rms_norm", False)):
        for dtype in ("float32", "bfloat16"):
            module = norm(ModelConfig(d_model=7, norm=name, norm_epsilon=1e-5, dtype=dtype))
            variables = unbox(module.init(jax.random.key(0), jnp.asarray(x)))
            assert set(variables["params"]) == ({"scale", "bias"} if center else {"scale"})
            y = x - x.mean(-1, keepdims=True) if center else x
            expected = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5)
            got = module.apply(variables, jnp.asarray(x))
            assert got.dtype == dtype
            np.testing.assert_allclose(np.asarray(got, np.float32), expected, atol=1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize(
    ("placement", "norms", "final"),
    [("post", {""}, False), ("pre", {""}, True), ("sandwich", {"", "_output"}, True), ("deep_norm", {""}, False)],
)
def test_where_norms_stand(placement, norms, final):
    _, params = model_and_params(config(norm_placement=placement))
    layers = params["decoder"]["layers"]
    parts = ("self_attention", "cross_attention", "feed_forward")
    assert {name for name in layers if name.endswith("norm")} == {f"{p}{n}_norm" for p in parts for n in norms}
    assert ("final_norm" in params["decoder"]) == final


def test_every_placement_is_its_equation():
    """With branches that give zeros, what is left of a layer is its norms and the way around."""
    x = np.asarray(tokens(1, 3))
    for placement in ("post", "pre", "sandwich", "deep_norm"):
        model_config = config(
            num_encoder_layers=1, norm_placement=placement, norm="rms_norm", position_encoding="none", dropout_rate=0.0
        )
        model, params = model_and_params(model_config)
        params = jax.tree.map(np.ones_like, params)
        for name in ("self_attention", "feed_forward"):
            params["encoder"]["layers"][name] = jax.tree.map(np.zeros_like, params["encoder"]["layers"][name])
        rng = np.random.default_rng(0)
        table = rng.normal(size=params["shared_embedding"]["embedding"].shape).astype(np.float32)
        params["shared_embedding"]["embedding"] = table
        # Keys of the cross-attention are then sums over what the encoder gave.
        (key, _), = run(model, params, jnp.asarray(x), AttentionMask(), method="encode")  # fmt: skip
        encoded = np.asarray(key)[0, 0, :, 0, 0] - 1  # less the bias

        def rms(y):
            return y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-6)

        y = table[x[0]] * 14**0.5
        if placement in ("post", "deep_norm"):
            scale = branch_scales(model_config)[0].skip
            y = rms(scale * rms(scale * y))
        else:
            y = rms(y)
        np.testing.assert_allclose(encoded, y.sum(-1), rtol=1e-3, atol=1e-3)


def initial_stds(**changes):
    """Of the weights of a decoder's layer."""
    sizes = {"d_model": 64, "d_ff": 64, "num_heads": 4, "num_encoder_layers": 1, "num_decoder_layers": 1}
    model = Seq2Seq(ModelConfig(**sizes, **changes), 9, 9)
    ids = jnp.zeros((1, 1), jnp.int32)
    params = unbox(jax.jit(lambda key: model.init(key, ids, ids, NO_MASKS, deterministic=True))(jax.random.key(0)))
    layer = params["params"]["decoder"]["layers"]
    return {
        name: float(layer[part][name]["kernel"].std())
        for part, name in (
            ("self_attention", "query"),
            ("self_attention", "value"),
            ("cross_attention", "key"),
            ("self_attention", "output"),
            ("feed_forward", "up"),
            ("feed_forward", "down"),
        )
    }


def test_deep_norm_scales_are_those_of_the_paper():
    """Wang et al. 2022, figure 2, for 18 encoder and 6 decoder layers; and in the initial weights."""
    deep = ModelConfig(num_encoder_layers=18, num_decoder_layers=6, norm_placement="deep_norm")
    encoder, decoder = branch_scales(deep)
    assert encoder == pytest.approx((0.81 * (18**4 * 6) ** (1 / 16), 0.87 * (18**4 * 6) ** (-1 / 16)))
    assert decoder == pytest.approx((18**0.25, 72**-0.25))
    plain, scaled = initial_stds(norm_placement="pre"), initial_stds(norm_placement="deep_norm")
    for name, ratio in (("query", 1), ("value", 12**-0.25), ("output", 12**-0.25), ("up", 12**-0.25)):
        assert scaled[name] / plain[name] == pytest.approx(ratio, rel=1e-3)


def test_queries_keys_and_values_of_post_norm_start_as_one_matrix():
    plain, post = initial_stds(norm_placement="pre"), initial_stds(norm_placement="post")
    for name, std in plain.items():
        assert std == pytest.approx(64**-0.5, rel=0.03)  # Glorot: sqrt(2 / (64 + 64))
        small = name in ("query", "key", "value")
        assert post[name] / std == pytest.approx((2 / (64 + 3 * 64) / (1 / 64)) ** 0.5 if small else 1, rel=1e-3)
    third = initial_stds(norm_placement="deep_norm", qkv_init_scale=1 / 3)
    assert third["key"] / plain["key"] == pytest.approx(1 / 3, rel=1e-3)
    assert third["value"] / plain["value"] == pytest.approx(12**-0.25 / 3, rel=1e-3)


def test_the_scale_keeps_the_softmax_from_saturating():
    """What 1 / sqrt(head_dim) is for: without it the weights of wide heads go to one key. Paper, section 3.2.1."""
    rng = np.random.default_rng(0)
    query, key = (jnp.asarray(rng.normal(size=(1, 17, 1, 256)), jnp.float32) for _ in range(2))
    values = jnp.eye(17)[None, :, None, :]
    values = jnp.pad(values, ((0, 0), (0, 0), (0, 0), (0, 239)))
    largest = [
        float(attend(query, key, values, AttentionMask(), scale=scale).max(-1).mean()) for scale in (None, 1.0)
    ]  # fmt: skip
    assert largest[0] < 0.4 and largest[1] > 0.9


@pytest.mark.parametrize("scaled", [True, False])
def test_queries_and_keys_may_be_smaller_than_values(scaled):
    """Two heads of 3 components for the dot products and 7 for what is summed up, by the equation."""
    attention = MultiHeadAttention(config(qk_head_dim=3, scale_attention=scaled))
    rng = np.random.default_rng(0)
    x_BTD = jnp.asarray(rng.normal(size=(2, 5, 14)), jnp.float32)

    def forward(module, x_BTD):
        key_value = module.key_value(x_BTD)
        return module(x_BTD, *key_value, AttentionMask(), implementation="dense", deterministic=True)

    params = unbox(attention.init(jax.random.key(0), x_BTD, method=forward))["params"]
    params = jax.tree.map(lambda leaf: leaf + rng.normal(size=leaf.shape).astype(np.float32), params)
    assert {name: part["bias"].shape for name, part in params.items()} == {
        "query": (2, 3), "key": (2, 3), "value": (2, 7), "output": (14,),
    }  # fmt: skip
    query, key, value = (
        np.einsum("btd,dhk->bhtk", x_BTD, part["kernel"]) + part["bias"][:, None]
        for part in (params[name] for name in ("query", "key", "value"))
    )
    logits = query @ key.swapaxes(-1, -2) / (3**0.5 if scaled else 1)
    summed = np.asarray(jax.nn.softmax(logits)) @ value
    expected = np.einsum("bhtk,hkd->btd", summed, params["output"]["kernel"]) + params["output"]["bias"]
    found = attention.apply({"params": params}, x_BTD, method=forward)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
