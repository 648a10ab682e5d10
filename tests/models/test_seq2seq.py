"""The encoder-decoder model: the paper's figures, causality, packing, the cache."""

import dataclasses
import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.small import CONFIG, NO_MASKS, V, config, model_and_params, run, tokens
from transformer.config import MeshConfig, ModelConfig
from transformer.models.cache import init_cache
from transformer.models.flops import seq2seq_forward_flops
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2Seq, Seq2SeqMasks
from transformer.tasks.seq2seq_training import make_masks
from transformer.training.partitioning import LOGICAL_AXES, make_mesh
from transformer.types import Seq2SeqBatch

BIG = {"d_model": 1024, "d_ff": 4096, "num_heads": 16}
VARIANTS = {
    "2017": CONFIG,
    "pre-norm, no attention biases": config(norm_placement="pre", attention_biases=(), shared_embeddings="target"),
    "bfloat16, half-split, own head size": config(
        dtype="bfloat16",
        position_encoding="sinusoidal_half_split",
        head_dim=5,
        shared_embeddings="none",
        scan_unroll=2,
    ),
    "rotary, grouped heads, gated, RMS": config(
        position_encoding="rotary",
        num_heads=6,
        num_kv_heads=3,
        head_dim=4,
        activation="swiglu",
        norm="rms_norm",
        norm_placement="pre",
        attention_biases=("query", "value"),
        feed_forward_bias=False,
    ),
    "window, partial rotary by YaRN": config(
        attention_window=3, position_encoding="rotary", head_dim=8, rotary_fraction=0.5, rotary_scaling="yarn",
        rotary_scaling_factor=4.0, rotary_original_length=8,
    ),
    "pattern of windows, relative bias, cap": config(
        attention_window=2,
        attention_pattern=("local", "local", "global"),
        num_encoder_layers=3,
        position_encoding="relative_bias",
        relative_num_buckets=8,
        relative_max_distance=5,
        attention_logit_softcap=0.8,
        norm_placement="sandwich",
        activation="geglu",
    ),
    "alibi, one key/value head, DeepNorm, normalised queries and keys, no scale": config(
        position_encoding="alibi", num_kv_heads=1, norm_placement="deep_norm", qk_norm=True, scale_attention=False
    ),
    "learned, experts in every second layer, queries smaller than values": config(
        position_encoding="learned",
        qk_head_dim=5,
        max_positions=11,
        num_experts=3,
        experts_every=2,
        num_decoder_layers=2,
        d_ff_shared=5,
        activation="gelu",
    ),
    "window and experts, no positions": config(
        attention_window=4, position_encoding="none", num_experts=4, expert_router="sigmoid", activation="reglu",
        norm_placement="pre",
    ),
}  # fmt: skip
SLOW_VARIANTS = (  # the others have a part of each
    "pre-norm, no attention biases",
    "bfloat16, half-split, own head size",
    "window, partial rotary by YaRN",
    "window and experts, no positions",
)


def abstract_params(model_config: ModelConfig, vocab_size: int):
    model = Seq2Seq(model_config, vocab_size, vocab_size)
    ids = jnp.zeros((1, 1), jnp.int32)
    return nn.unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), ids, ids, NO_MASKS, deterministic=True)))


@pytest.mark.parametrize(
    ("changes", "vocab_size", "base", "big"),
    [
        ({}, 37_000, 63_082_496, 214_245_376),
        ({"attention_biases": ()}, 37_000, 63_045_632, 214_171_648),
        ({}, 32_768, 60_915_712, 209_911_808),
        ({"norm_placement": "pre"}, 32_000, 60_524_544, 209_129_472),
        ({"shared_embeddings": "none"}, 37_000, 100_970_496, 290_021_376),
    ],
)
def test_parameter_counts_of_the_paper(changes, vocab_size, base, big):
    for sizes, expected in (({}, base), (BIG, big)):
        params = abstract_params(ModelConfig(**sizes, **changes), vocab_size)
        assert sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params)) == expected


def test_parameter_paths_are_public():
    """Path, shape and dtype of every parameter: a change here breaks everybody's checkpoints."""
    params = abstract_params(CONFIG, V)["params"]
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/"): (leaf.shape, str(leaf.dtype))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    attention = {
        "query/kernel": (14, 2, 7), "query/bias": (2, 7), "key/kernel": (14, 2, 7), "key/bias": (2, 7),
        "value/kernel": (14, 2, 7), "value/bias": (2, 7), "output/kernel": (2, 7, 14), "output/bias": (14,),
    }  # fmt: skip
    feed_forward = {"up/kernel": (14, 17), "up/bias": (17,), "down/kernel": (17, 14), "down/bias": (14,)}
    norm = {"scale": (14,), "bias": (14,)}
    encoder = {"self_attention": attention, "feed_forward": feed_forward}
    decoder = {"self_attention": attention, "cross_attention": attention, "feed_forward": feed_forward}
    expected = {"shared_embedding/embedding": ((23, 14), "float32")}
    for stack, layers, blocks in (("encoder", 2, encoder), ("decoder", 3, decoder)):
        for block, parts in blocks.items():
            for name, shape in parts.items():
                expected[f"{stack}/layers/{block}/{name}"] = ((layers, *shape), "float32")
            for name, shape in norm.items():
                expected[f"{stack}/layers/{block}_norm/{name}"] = ((layers, *shape), "float32")
    assert found == expected


def test_initial_scales():
    """Embeddings of variance 1 after scaling; Glorot's bound on every projection, biases zero.

    Queries, keys and values have that of one matrix for all three: the defaults are post-norm.
    """
    model = Seq2Seq(ModelConfig(d_model=64, d_ff=48, num_heads=4, num_encoder_layers=2, num_decoder_layers=2), 500, 500)
    ids = jnp.zeros((1, 1), jnp.int32)
    init = functools.partial(model.init, deterministic=True)
    params = nn.unbox(jax.jit(init)(jax.random.key(0), ids, ids, NO_MASKS))["params"]
    assert float(jnp.std(params["shared_embedding"]["embedding"]) * 64**0.5) == pytest.approx(1, abs=0.02)
    layers = params["decoder"]["layers"]
    for kernel, fans in (
        (layers["cross_attention"]["query"]["kernel"], (64, 3 * 64)),
        (layers["self_attention"]["output"]["kernel"], (64, 64)),
        (layers["feed_forward"]["up"]["kernel"], (64, 48)),
    ):
        bound = (6 / sum(fans)) ** 0.5
        assert float(jnp.abs(kernel).max()) == pytest.approx(bound, rel=0.02)
        assert not np.allclose(kernel[0], kernel[1])
    assert not np.asarray(layers["feed_forward"]["up"]["bias"]).any()


def test_sub_layers_are_the_equations_of_the_paper():
    """One encoder layer and one decoder layer, written out in NumPy."""
    model, params = model_and_params(config(num_encoder_layers=1, num_decoder_layers=1))
    source, target = tokens(1, 5), tokens(1, 4, seed=1)
    got = run(model, params, source, target, NO_MASKS, deterministic=True)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    table = p["shared_embedding"]["embedding"]

    def embed(ids):
        place = np.arange(ids.shape[1])[:, None] / 10_000 ** (2 * (np.arange(14) // 2) / 14)
        return table[np.asarray(ids[0])] * 14**0.5 + np.where(np.arange(14) % 2 == 0, np.sin(place), np.cos(place))

    def attention(w, x, y, causal):
        q, k, v = (np.einsum("td,dhk->htk", z, w[n]["kernel"]) + w[n]["bias"][:, None] for n, z in
                   (("query", x), ("key", y), ("value", y)))  # fmt: skip
        scores = q @ k.swapaxes(1, 2) / 7**0.5
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        return np.einsum("hts,hsk,hkd->td", weights, v, w["output"]["kernel"]) + w["output"]["bias"]

    def norm(w, x):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * w["scale"] + w["bias"]

    def feed(w, x):
        return np.maximum(x @ w["up"]["kernel"] + w["up"]["bias"], 0) @ w["down"]["kernel"] + w["down"]["bias"]

    e = jax.tree.map(lambda leaf: leaf[0], p["encoder"]["layers"])
    x = embed(source)
    x = norm(e["self_attention_norm"], x + attention(e["self_attention"], x, x, False))
    encoded = norm(e["feed_forward_norm"], x + feed(e["feed_forward"], x))
    d = jax.tree.map(lambda leaf: leaf[0], p["decoder"]["layers"])
    y = embed(target)
    y = norm(d["self_attention_norm"], y + attention(d["self_attention"], y, y, True))
    y = norm(d["cross_attention_norm"], y + attention(d["cross_attention"], y, encoded, False))
    y = norm(d["feed_forward_norm"], y + feed(d["feed_forward"], y))
    np.testing.assert_allclose(got[0], y @ table.T, atol=1e-4)


@pytest.mark.parametrize("variant", ["2017", "pre-norm, no attention biases"])
def test_the_decoder_is_causal_and_sees_all_of_the_source(variant):
    """Which logits depend on which embedding, by the gradient."""
    model, params = model_and_params(VARIANTS[variant])

    def logits(source_table, target_table):
        """Each token has an embedding of its own, so that a gradient says which position it came from."""
        ids_S, ids_T = jnp.arange(5)[None], jnp.arange(5, 9)[None]
        changed = dict(params)
        for name in ("shared_embedding", "source_embedding", "target_embedding"):
            if name in params:
                table = jnp.concatenate([source_table, target_table, params[name]["embedding"][9:]])
                changed[name] = {"embedding": table}
        hidden = run(model, changed, ids_S, ids_T, NO_MASKS, deterministic=True)
        return hidden[0, :, 9:].sum(-1)  # scores of tokens whose embeddings are not varied

    rng = np.random.default_rng(0)
    tables = [jnp.asarray(rng.normal(size=(n, 14)), jnp.float32) for n in (5, 4)]
    by_source, by_target = jax.jit(jax.jacrev(logits, argnums=(0, 1)))(*tables)
    assert (np.abs(by_source).max(-1) > 0).all()
    seen = np.abs(by_target).max(-1) > 0
    np.testing.assert_array_equal(seen, np.tri(4, dtype=bool))


@pytest.mark.parametrize(
    "variant",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW_VARIANTS else ()) for name in VARIANTS],
)
def test_cached_decoding_equals_the_full_forward_pass(variant):
    """Tokens one at a time, after a first part at once, over sources of different lengths."""
    model, params = model_and_params(VARIANTS[variant])
    source, target = tokens(3, 5), tokens(3, 7, seed=1)
    lengths = jnp.array([5, 2, 4])
    own, cross = AttentionMask(query_lengths=lengths, key_lengths=lengths), AttentionMask(key_lengths=lengths)
    full = run(model, params, source, target, Seq2SeqMasks(own, AttentionMask(causal=True), cross), deterministic=True)
    encoded = run(model, params, source, own, method="encode")

    @jax.jit
    def step(cache, ids, positions):
        return run(
            model, params, ids, encoded, AttentionMask(causal=True), cross,
            positions_BT=positions, cache=cache, method="decode",
        )  # fmt: skip

    tolerance = 0.15 if VARIANTS[variant].dtype == "bfloat16" else 2e-5
    for first in (1, 3, 5):
        cache = init_cache(VARIANTS[variant], 3, 7)
        bounds = [0, *range(first, 8)]
        for start, stop in itertools.pairwise(bounds):
            logits, cache = step(cache, target[:, start:stop], jnp.arange(start, stop)[None])
            np.testing.assert_allclose(logits, full[:, start:stop], atol=tolerance)


def test_rows_of_a_cache_may_hold_prompts_of_different_lengths():
    """Left-padded prompts: padding has position -1, and slots are in nobody's order."""
    model, params = model_and_params()
    source, target = tokens(2, 5), tokens(2, 6, seed=1)
    full = run(model, params, source, target, NO_MASKS, deterministic=True)
    encoded = run(model, params, source, AttentionMask(), method="encode")
    cache = init_cache(CONFIG, 2, 6)
    prompts = jnp.stack([target[0, :4], jnp.concatenate([jnp.array([0, 0]), target[1, :2]])])
    positions = jnp.array([[0, 1, 2, 3], [-1, -1, 0, 1]])
    for ids, places, wanted in (
        (prompts, positions, (full[0, 3], full[1, 1])),
        (jnp.stack([target[0, 4:5], target[1, 2:3]]), jnp.array([[4], [2]]), (full[0, 4], full[1, 2])),
    ):
        logits, cache = run(
            model, params, ids, encoded, AttentionMask(causal=True), AttentionMask(),
            positions_BT=places, cache=cache, method="decode",
        )  # fmt: skip
        np.testing.assert_allclose(logits[:, -1], np.stack(wanted), atol=2e-5)


def test_the_end_of_the_cache_is_an_error():
    model, params = model_and_params()
    encoded = run(model, params, tokens(1, 3), AttentionMask(), method="encode")

    def decode(cache, ids, positions, apply=run):
        mask = AttentionMask(causal=True)
        options = {"positions_BT": positions, "cache": cache, "method": "decode"}
        return apply(model, params, ids, encoded, mask, AttentionMask(), **options)

    def eagerly(model, params, *arguments, **options):
        return model.apply({"params": params}, *arguments, **options)

    _, cache = decode(init_cache(CONFIG, 1, 2), tokens(1, 2), jnp.array([[0, 1]]))
    with pytest.raises(ValueError, match="holds 2 tokens a row; 2 are taken, 1 more do not fit"):
        decode(cache, tokens(1, 1), jnp.array([[2]]), eagerly)
    logits, _ = decode(cache, tokens(1, 1), jnp.array([[2]]))
    assert np.isnan(logits).all()


def packed_and_unpacked():
    """Three pairs: in rows of their own, and two of them in one row."""
    pairs = [(3, 2), (4, 3), (2, 4)]
    source, target = tokens(3, 7), tokens(3, 7, seed=1)

    def batch(layout, S, T):
        rows = len(layout)
        arrays = {name: np.zeros((rows, S if name.startswith("encoder") else T), np.int32)
                  for name in Seq2SeqBatch._fields}  # fmt: skip
        for row, members in enumerate(layout):
            s = t = 0
            for segment, pair in enumerate(members, 1):
                n, m = pairs[pair]
                arrays["encoder_input_tokens"][row, s : s + n] = source[pair, :n]
                arrays["encoder_segment_ids"][row, s : s + n] = segment
                arrays["encoder_positions"][row, s : s + n] = range(n)
                arrays["decoder_input_tokens"][row, t : t + m] = target[pair, :m]
                arrays["decoder_target_tokens"][row, t : t + m] = target[pair, 1 : m + 1]
                arrays["decoder_loss_weights"][row, t : t + m] = 1
                arrays["decoder_segment_ids"][row, t : t + m] = segment
                arrays["decoder_positions"][row, t : t + m] = range(m)
                s, t = s + n, t + m
        return Seq2SeqBatch(**jax.tree.map(jnp.asarray, arrays))

    return batch([[0], [1], [2]], 5, 6), batch([[0, 2], [1]], 7, 7), pairs


def test_packed_rows_equal_rows_of_one_pair():
    model, params = model_and_params()
    unpacked, packed, pairs = packed_and_unpacked()

    def logits(batch, is_packed):
        return run(
            model,
            params,
            batch.encoder_input_tokens,
            batch.decoder_input_tokens,
            make_masks(batch, is_packed),
            encoder_positions_BS=batch.encoder_positions if is_packed else None,
            decoder_positions_BT=batch.decoder_positions if is_packed else None,
            deterministic=True,
        )

    alone, together = logits(unpacked, False), logits(packed, True)
    for pair, (row, start) in enumerate([(0, 0), (1, 0), (0, pairs[0][1])]):
        size = pairs[pair][1]
        np.testing.assert_allclose(together[row, start : start + size], alone[pair, :size], atol=2e-5)


def test_dropout_is_on_sub_layers_and_embeddings_and_only_in_training():
    model, params = model_and_params(config(dropout_rate=0.5))
    source, target = tokens(2, 5), tokens(2, 4, seed=1)

    def logits(seed, deterministic=False):
        return run(
            model, params, source, target, NO_MASKS, deterministic=deterministic,
            rngs={"dropout": jax.random.key(seed)},
        )  # fmt: skip

    np.testing.assert_array_equal(logits(0, True), logits(1, True))
    np.testing.assert_array_equal(logits(0), logits(0))
    assert not np.allclose(logits(0), logits(1))
    jaxpr = str(jax.make_jaxpr(logits)(0))
    # Two sums of embeddings; two sub-layers in the encoder's scanned layer, three in the decoder's.
    assert jaxpr.count("random_bits[") == 7


def test_weights_are_sown_only_when_asked_for():
    model, params = model_and_params()
    source, target = tokens(2, 5), tokens(2, 4, seed=1)
    _, collected = run(model, params, source, target, NO_MASKS, deterministic=True, mutable=("intermediates",))
    layers = collected["intermediates"]["decoder"]["layers"]
    (weights,) = layers["cross_attention"]["attention_weights"]
    assert weights.shape == (3, 2, 2, 4, 5)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_every_activation_between_layers_is_pinned_to_the_mesh():
    """A constraint that is dropped in silence leaves a pod to the partitioner's guess."""
    model, params = model_and_params()

    def constraints():
        run = lambda: model.apply(  # noqa: E731
            {"params": params}, tokens(2, 5), tokens(2, 4), NO_MASKS, deterministic=True
        )
        return str(jax.make_jaxpr(run)()).count("sharding_constraint")

    assert constraints() == 0
    with jax.set_mesh(make_mesh(MeshConfig())), nn.logical_axis_rules(LOGICAL_AXES):
        # The table and what is looked up in it for each side, sub-layers of encoder and decoder, logits.
        assert constraints() == 2 * 2 + 2 + 3 + 1


def test_flops_are_those_that_xla_counts_without_a_scan():
    small = config(d_model=64, d_ff=96, num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.0)
    model, params = model_and_params(small, 211, 211)
    B, S, T = 3, 16, 12

    def logits(params):
        ids = jnp.zeros((B, S), jnp.int32), jnp.zeros((B, T), jnp.int32)
        return run(model, params, *ids, NO_MASKS, deterministic=True)

    counted = jax.jit(logits).lower(params).compile().cost_analysis()["flops"]
    assert counted == pytest.approx(seq2seq_forward_flops(small, 211, B, S, T), rel=0.1)
    deeper = dataclasses.replace(small, num_encoder_layers=3, num_decoder_layers=3)
    ends = B * 2 * T * 64 * 211
    ours, ours_deeper = (seq2seq_forward_flops(c, 211, B, S, T) - ends for c in (small, deeper))
    assert ours_deeper == pytest.approx(3 * ours)


def test_smaller_queries_and_keys_are_less_arithmetic():
    small = config(qk_head_dim=3)
    B, S, T = 3, 16, 12
    saved = [  # in each of the attentions: projections of queries and keys, and dot products, 4 of 7 components less
        layers * 2 * 2 * 4 * (queries * 14 + keys * 14 + queries * keys)
        for layers, queries, keys in ((2, S, S), (3, T, T), (3, T, S))
    ]
    found = [seq2seq_forward_flops(each, V, B, S, T) for each in (CONFIG, small)]
    assert found[0] - found[1] == B * sum(saved)
