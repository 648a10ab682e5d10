"""``model.attention_implementation``: what a model runs under each name, and what is refused before there is data."""

import dataclasses
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import Config, DataConfig, ModelConfig
from transformer.models import attention
from transformer.models.attention import KERNELS, best, choose, request
from transformer.models.attention.biases import Alibi
from transformer.models.attention.request import Request
from transformer.models.causal_lm import CausalLM
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2Seq, Seq2SeqMasks
from transformer.tasks import check_training
from transformer.training.partitioning import unbox
from transformer.training.trainer import train
from transformer.types import UserError

T = 24
CONFIG = ModelConfig(
    variant="decoder_only",
    d_model=14,
    d_ff=17,
    num_heads=2,
    num_encoder_layers=2,
    num_decoder_layers=2,
    attention_window=3,
    attention_pattern=("local", "global"),
    position_encoding="none",
    dropout_rate=0.0,
)


@pytest.fixture
def calls(monkeypatch):
    """Names of the kernels that are traced, each with the window of its mask; rows count as long from 8 queries on."""
    found = []

    def watched(name, function):
        def call(query, key, value, mask, **options):
            found.append((name, mask.window))
            return function(query, key, value, mask, **options)

        return call

    for name, kernel in KERNELS.items():
        monkeypatch.setitem(KERNELS, name, kernel._replace(function=watched(name, kernel.function)))
    monkeypatch.setattr(attention, "LONG", 8)
    return found


@pytest.fixture(scope="module")
def params():
    ids = jnp.zeros((1, 1), jnp.int32)
    init = jax.jit(lambda key: CausalLM(CONFIG, 23).init(key, ids, AttentionMask(causal=True), deterministic=True))
    return unbox(init(jax.random.key(0)))["params"]


@pytest.mark.parametrize(
    ("name", "local", "other"),
    [
        ("dense", "dense", "dense"),
        ("blockwise", "blockwise", "blockwise"),
        ("local", "local", "blockwise"),
        ("auto", "local", "blockwise"),
    ],
)
def test_a_decoder_runs_the_kernel_that_the_config_names(calls, params, name, local, other):
    ids = jnp.asarray(np.random.default_rng(0).integers(4, 23, (2, T)))

    def logits(name):
        model = CausalLM(dataclasses.replace(CONFIG, attention_implementation=name), 23)
        run = jax.jit(lambda params: model.apply({"params": params}, ids, AttentionMask(True), deterministic=True)[0])
        return run(params)

    expected = logits("dense")
    calls.clear()
    np.testing.assert_allclose(logits(name), expected, atol=2e-5)
    assert set(calls) == {(local, 3), (other, None)}


def test_local_in_an_encoder_decoder_leaves_the_rest_to_auto(calls):
    model = Seq2Seq(dataclasses.replace(CONFIG, variant="encoder_decoder", attention_implementation="local"), 23, 23)
    ids = jnp.zeros((1, T), jnp.int32)
    masks = Seq2SeqMasks(AttentionMask(), AttentionMask(causal=True), AttentionMask())
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), ids[:, :1], ids[:, :1], masks, deterministic=True))
    calls.clear()
    jax.eval_shape(lambda params: model.apply(params, ids, ids, masks, deterministic=True), unbox(params))
    assert set(calls) == {("local", 3), ("blockwise", None)}  # the latter also from decoder to encoder


def asked(platform="cpu", queries=4_096, keys=None, dtype="float32", **options) -> Request:
    mask = options.pop("mask", AttentionMask(causal=True))
    return Request(
        platform=platform,
        dtype=dtype,
        num_queries=queries,
        num_keys=keys or queries,
        head_dim=64,
        mask=mask,
        bias=options.get("bias"),
        softcap=options.get("softcap"),
        dropout_rate=options.get("dropout_rate", 0.0),
    )


@pytest.mark.parametrize(
    ("request_", "name", "reason"),
    [
        (asked(), "blockwise", "rows of 1024 and more"),
        (asked(queries=1_023), "dense", "rows shorter than 1024"),
        (asked(queries=1, keys=9_000), "dense", "single queries"),
        (asked(queries=7, keys=9_000), "blockwise", "rows of 1024"),
        (asked(dropout_rate=0.1), "dense", "it has no attention dropout"),
        (asked(mask=AttentionMask(causal=True, window=256)), "local", "a window of 256 or less"),
        (asked(mask=AttentionMask(causal=True, window=257)), "blockwise", "rows of 1024"),
        (asked(mask=AttentionMask(causal=True, window=9, prefix_lengths=0)), "blockwise", "rows of 1024"),
        (asked("gpu", dtype="bfloat16"), "fused", "the kernel of this platform"),
        (asked("gpu"), "blockwise", "rows of 1024 and more; fused cannot: it computes in bfloat16 or float16"),
        (asked("gpu", dtype="bfloat16", queries=512), "dense", "rows shorter than 1024"),
        (asked("gpu", dtype="bfloat16", mask=AttentionMask(causal=True, query_segment_ids=0)), "blockwise", "segment"),
        (asked("tpu", dtype="bfloat16", mask=AttentionMask(causal=True, window=9)), "splash", "of this platform"),
        (asked("tpu", bias=Alibi(None)), "blockwise", r"splash cannot: it adds no bias to the logits \(Alibi\)"),
    ],
)
def test_auto_takes_the_best_that_serves(request_, name, reason):
    found, why = best(request_)
    assert found == name
    assert KERNELS[name].refusal(request_) is None
    assert re.search(reason, why), why


def test_auto_says_once_what_it_took_and_why(caplog):
    attention._log_choice.cache_clear()
    with caplog.at_level(logging.INFO, "transformer"):
        for _ in range(3):
            choose("auto", asked())
    assert [record.message for record in caplog.records] == ["attention on cpu: blockwise (rows of 1024 and more)"]


def with_kernel(name, platform="cpu", batching="bucket", **changes):
    model = dataclasses.replace(CONFIG, attention_implementation=name, **changes)
    return platform, Config(task="language_modeling", model=model, data=DataConfig(batching=batching))


NO_WINDOW = {"attention_window": None, "attention_pattern": ("local",)}


@pytest.mark.parametrize(
    ("asked_for", "reason"),
    [
        (with_kernel("blockwise", attention_dropout_rate=0.1), "blockwise cannot serve here: it has no attention drop"),
        (with_kernel("fused"), "it runs on NVIDIA GPUs, and this is for cpu"),
        (with_kernel("fused", "gpu"), r"not float32 \(model.dtype=bfloat16\)"),
        (with_kernel("fused", "gpu", dtype="bfloat16", position_encoding="alibi"), r"no bias to the logits \(Alibi\)"),
        (with_kernel("fused", "gpu", dtype="bfloat16", attention_logit_softcap=3.0), "it has no softcap"),
        (with_kernel("fused", "gpu", "pack", dtype="bfloat16", head_dim=8), r"takes no query segment ids"),
        (with_kernel("fused", "gpu", dtype="bfloat16", prefix_lm=True, **NO_WINDOW), "it takes no prefix lengths"),
        (with_kernel("fused", "gpu", dtype="bfloat16", head_dim=12), "multiple of 8 up to 128 here, not 12"),
        (
            with_kernel("fused", "gpu", dtype="bfloat16", head_dim=8, variant="encoder_decoder"),
            "a window for causal masks only",
        ),
        (with_kernel("splash", "tpu", position_encoding="relative_bias"), r"\(RelativeBias\)"),
    ],
)
def test_what_a_kernel_cannot_do_in_training_is_said_at_once(monkeypatch, tmp_path, asked_for, reason):
    platform, config = asked_for
    monkeypatch.setattr(request, "platform", lambda: platform)
    monkeypatch.setattr("transformer.models.kernels.platform", lambda: platform)
    with pytest.raises(UserError, match=reason):
        check_training(config)
    if platform == "cpu":  # before the data, which are not there
        data = DataConfig(source="files", directory=str(tmp_path))
        with pytest.raises(UserError, match=reason):
            train(dataclasses.replace(config, data=data), tmp_path / "run")


@pytest.mark.parametrize(
    "asked_for",
    [
        with_kernel("auto", attention_dropout_rate=0.1),
        with_kernel("local", position_encoding="alibi"),
        with_kernel("local", **NO_WINDOW),
        with_kernel("blockwise", prefix_lm=True, **NO_WINDOW),
        with_kernel("fused", "gpu", dtype="bfloat16", head_dim=8),
        with_kernel("splash", "tpu", "pack"),
    ],
)
def test_what_can_be_trained_passes(monkeypatch, asked_for):
    platform, config = asked_for
    monkeypatch.setattr("transformer.models.kernels.platform", lambda: platform)
    check_training(config)
