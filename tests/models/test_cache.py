"""Cached decoding: equal to the full forward pass over the grid of keys, and loud where it cannot be."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import ModelConfig
from transformer.models.cache import init_cache
from transformer.models.causal_lm import CausalLM
from transformer.models.masks import AttentionMask
from transformer.training.partitioning import unbox

V, B, T = 23, 2, 13
CONFIG = ModelConfig(
    variant="decoder_only",
    d_model=12,
    d_ff=17,
    num_heads=2,
    num_decoder_layers=2,
    norm_placement="pre",
    dropout_rate=0.0,
    max_positions=T,
    rotary_fraction=2 / 3,
    relative_num_buckets=8,
    relative_max_distance=6,
)
CAUSAL = AttentionMask(causal=True)
LOCAL = {"attention_window": 4}
PATTERN = {"attention_window": 3, "attention_pattern": ("local", "global")}


@functools.cache
def model_and_params(config):
    model, ids = CausalLM(config, V), jnp.zeros((1, 1), jnp.int32)
    params = unbox(jax.jit(lambda key: model.init(key, ids, CAUSAL, deterministic=True))(jax.random.key(0)))["params"]
    rng = np.random.default_rng(0)
    return model, jax.tree.map(lambda leaf: np.float32(leaf + rng.normal(size=leaf.shape) * 0.1), params)


@functools.partial(jax.jit, static_argnames="model")
def run(model, params, ids, mask, positions=None, cache=None):
    return model.apply({"params": params}, ids, mask, positions_BT=positions, cache=cache, deterministic=True)


def tokens(*shape):
    return jnp.asarray(np.random.default_rng(1).integers(4, V, shape), jnp.int32)


def agrees(config, mask, firsts, atol=3e-5):
    """A first part of the tokens at once, the others one at a time, far past every window."""
    model, params = model_and_params(config)
    ids = tokens(B, T)
    full, _ = run(model, params, ids, mask)
    for first in firsts:
        cache = init_cache(config, B, T)
        for start, stop in itertools.pairwise([0, *range(first, T + 1)]):
            positions = jnp.arange(start, stop)[None]
            logits, cache = run(model, params, ids[:, start:stop], mask, positions, cache)
            np.testing.assert_allclose(logits, full[:, start:stop], atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned", "rotary", "relative_bias", "alibi", "none"])
@pytest.mark.parametrize("num_kv_heads", [1, 2])
@pytest.mark.parametrize("windows", [{}, LOCAL, PATTERN], ids=["global", "local", "pattern"])
def test_cached_is_uncached_over_heads_positions_windows_masks_and_dtypes(position_encoding, num_kv_heads, windows):
    config = dataclasses.replace(
        CONFIG, position_encoding=position_encoding, num_kv_heads=num_kv_heads, **windows
    )  # fmt: skip
    agrees(config, CAUSAL, firsts=(1 if num_kv_heads == 1 else 6,))
    if windows == PATTERN:
        agrees(dataclasses.replace(config, dtype="bfloat16", qk_norm=True), CAUSAL, firsts=(5,), atol=0.2)
    if not windows:  # a row's prefix must go in together
        agrees(config, AttentionMask(causal=True, prefix_lengths=jnp.array([5, 2])), firsts=(5,))


@pytest.mark.parametrize("windows", [LOCAL, PATTERN], ids=["local", "pattern"])
def test_a_prefix_does_not_go_into_a_ring(windows):
    config = dataclasses.replace(CONFIG, **windows)
    model, params = model_and_params(config)
    mask = AttentionMask(causal=True, prefix_lengths=jnp.array([4, 2]))
    with pytest.raises(ValueError, match=r"a cache of \d slots in a ring forgets a prefix"):
        run(model, params, tokens(B, 5), mask, jnp.arange(5)[None], init_cache(config, B, T))


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("key_lengths", AttentionMask(causal=True, key_lengths=np.array([3, 2]))),
        ("query_segment_ids", AttentionMask(query_segment_ids=np.ones((B, 5), int), key_segment_ids=np.ones((B, 5)))),
    ],
)
def test_a_cache_knows_padding_by_its_position_and_no_segments(name, mask):
    model, params = model_and_params(CONFIG)
    with pytest.raises(ValueError, match=f"a cache takes no {name}: padding has position -1, and a row has one text"):
        run(model, params, tokens(B, 5), mask, jnp.arange(5)[None], init_cache(CONFIG, B, T))


@pytest.mark.parametrize("max_length", [3, 5, T])
def test_a_ring_holds_the_window_of_every_hypothesis_of_a_row(max_length):
    """Also where a row may have fewer positions than the window: in W hypotheses it may have more slots."""
    config, width = dataclasses.replace(CONFIG, position_encoding="alibi", attention_window=8), 4
    model, params = model_and_params(config)
    ids = tokens(width, T)
    full, _ = run(model, params, ids, CAUSAL)
    cache = init_cache(config, 1, max_length, tokens_per_position=width)
    assert cache.layers[0].positions.shape[1] == 8 * width
    own = jnp.tile(jnp.eye(width, dtype=bool), T)[None]  # each sees its own tokens among all, in the order they came
    for step in range(T):
        logits, cache = run(
            model, params, ids[:, step][None], AttentionMask(causal=True, matrix=own), jnp.full((1, width), step), cache
        )
        np.testing.assert_allclose(logits[0], full[:, step], atol=3e-5)
