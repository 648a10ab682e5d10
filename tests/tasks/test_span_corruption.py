"""Span corruption: packed texts are as if alone, each is scored once with the same spans, typed sentinels are read."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig
from transformer.data.tokenizer import Tokenizer
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2SeqMasks
from transformer.tasks.span_corruption import SpanCorruptionTask, TypedSentinels
from transformer.training.loading import load
from transformer.training.partitioning import unbox
from transformer.training.trainer import train
from transformer.types import Task, UserError

TRAIN = "\n\n".join(f"the number {n} is less than {n + 1}" + ", and more" * (n % 3) for n in range(11, 47))
TEST = "the number 17 is less than 18,\nand 19 is more\n\nb\n\n" + "and 23 is more, " * 3
LENGTH = 37  # of a text, EOS included


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    folder = tmp_path_factory.mktemp("text")
    for name, text in (("train", TRAIN), ("val", TEST), ("test", TEST)):
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return Config(
        task="span_corruption",
        data=DataConfig(
            source="files",
            directory=str(folder),
            documents="blank_line",
            tokenizer_model="character",
            extra_ids=2,
            cache_directory=str(folder / "cache"),
            batching="pack",
            tokens_per_batch=7 * LENGTH,
            max_source_length=LENGTH,
            max_target_length=13,
            num_buckets=1,
        ),
        model=ModelConfig(
            vocab_size=43,  # more rows than there are pieces
            d_model=14,
            d_ff=17,
            num_heads=2,
            num_encoder_layers=1,
            num_decoder_layers=1,
            norm="rms_norm",
            norm_placement="pre",
            position_encoding="relative_bias",
            activation="geglu",
            attention_biases=(),
            feed_forward_bias=False,
            scale_attention=False,
            scale_embeddings=False,
            shared_embeddings="inputs",
            dropout_rate=0.0,
        ),
        training=TrainingConfig(
            num_steps=4,
            schedule="constant",
            learning_rate=1e-2,
            label_smoothing=0.0,
            log_every=2,
            evaluate_every=4,
            checkpoint_every=4,
            best_metric="nll_per_token",
        ),
        decoding=DecodingConfig(method="greedy", max_extra_tokens=3, tokens_per_batch=LENGTH),
    )


def changed(config: Config, **sections) -> Config:
    """With keys of some sections replaced."""
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **keys) for name, keys in sections.items()}
    )


@pytest.fixture(scope="module")
def task(config):
    return SpanCorruptionTask(config)


@pytest.fixture(scope="module")
def params(task):
    """Random, and sharpened, so that outputs differ between inputs."""
    params = jax.tree.map(np.array, unbox(jax.jit(task.init)(jax.random.key(1))))
    params["shared_embedding"]["embedding"] *= 3
    params["output"]["kernel"] *= 3
    return params


@functools.partial(jax.jit, static_argnames="model")
def padded_forward(model, params, source, source_length, target):
    """Log-probabilities [T, V] of one pair in one padded shape."""
    own = AttentionMask(query_lengths=source_length, key_lengths=source_length)
    masks = Seq2SeqMasks(own, AttentionMask(causal=True), AttentionMask(key_lengths=source_length))
    return jax.nn.log_softmax(model.apply({"params": params}, source, target, masks, deterministic=True))[0]


def forward(task, params, source, shifted):
    """Log-probabilities [T, V] of what follows the tokens of a target, BOS first."""
    sources, targets = np.zeros((1, 41), np.int32), np.zeros((1, 41), np.int32)
    sources[0, : len(source)], targets[0, : len(shifted)] = source, shifted
    length = jnp.array([len(source)])
    return np.array(padded_forward(task.model, params, sources, length, targets))[: len(shifted)]


def test_the_loss_of_a_packed_batch_is_that_of_its_texts(task, params):
    batch = task.batch(1)
    assert batch.encoder_segment_ids.max() > 1 and batch.decoder_target_tokens.shape[1] == 13
    nats = correct = count = 0
    for row in range(len(batch.encoder_input_tokens)):
        for segment in range(1, batch.encoder_segment_ids[row].max() + 1):
            source = batch.encoder_input_tokens[row][batch.encoder_segment_ids[row] == segment]
            inside = batch.decoder_segment_ids[row] == segment
            target = batch.decoder_target_tokens[row, inside]
            log_probs = forward(task, params, source, batch.decoder_input_tokens[row, inside])
            nats -= log_probs[np.arange(len(target)), target].sum()
            correct += (log_probs.argmax(axis=1) == target).sum()
            count += len(target)
    sums = jax.jit(lambda params, batch: task.loss(params, batch, None))(params, batch)
    assert sums["nll"][0] == pytest.approx(nats, rel=1e-4) and sums["nll"][1] == count
    assert sums["accuracy"][0] == correct
    work = task.work(batch)
    assert work["target_tokens"] == count and work["flops"] > 0
    assert work["source_tokens"] == (batch.encoder_segment_ids > 0).sum()


def test_every_text_is_scored_once_with_the_same_spans_whatever_the_batch(config, task, params, tmp_path):
    scores = task.evaluate(params, "test", outputs=tmp_path / "outputs.txt")
    assert scores == task.evaluate(params, "test", outputs=tmp_path / "again.txt")
    log_probs = [float(line) for line in (tmp_path / "outputs.txt").read_text().splitlines()]
    sizes = [len(document[i : i + 36]) for document in TEST.split("\n\n") for i in range(0, len(document), 36)]
    assert sizes == [36, 9, 1, 36, 12]
    assert scores["num_examples"] == len(log_probs) == 5
    # Cut out of 36: 5 in 2 spans; of 9 and of 1: 1; of 12: 2 in 1 span; and EOS.
    assert scores["num_tokens"] == 8 + 3 + 3 + 8 + 4
    assert -sum(log_probs) / scores["num_tokens"] == pytest.approx(scores["nll_per_token"], abs=1e-5)
    other = SpanCorruptionTask(changed(config, decoding={"tokens_per_batch": 3 * LENGTH}, data={"batching": "bucket"}))
    same = other.evaluate(params, "test", outputs=tmp_path / "other.txt")
    assert same == pytest.approx(scores, rel=1e-5)
    found = [float(line) for line in (tmp_path / "other.txt").read_text().splitlines()]
    np.testing.assert_allclose(found, log_probs, atol=1e-4)

    (tmp_path / "text.txt").write_text(TEST, encoding="utf-8")
    assert task.evaluate(params, {"text": tmp_path / "text.txt"}) == pytest.approx(scores, rel=1e-6)
    with pytest.raises(UserError, match="source"):
        task.evaluate(params, {"source": tmp_path, "reference": tmp_path})
    quick = SpanCorruptionTask(changed(config, evaluation={"max_examples": 2}))
    assert quick.evaluate(params, "validation", during_training=True)["num_examples"] == 3


def test_typed_sentinels_are_read_and_written(task, params):
    tokenizer = task.tokenizer
    first, second = tokenizer.sentinel_ids
    lines = ["the <extra_id_0>er 7 is<extra_id_1> than 8", "", "number 17 <extra_id_2>"]
    found = task.predict(params, lines)
    assert found[1] == ""
    sources = [
        [*tokenizer.encode("the "), first, *tokenizer.encode("er 7 is"), second, *tokenizer.encode(" than 8")],
        None,
        tokenizer.encode("number 17 <extra_id_2>"),
    ]
    for source, text in zip(sources, found, strict=True):
        if source is None:
            continue
        source, ids = [*source, tokenizer.eos_id], [tokenizer.bos_id]
        while len(ids) <= len(source) + 3:
            log_probs = forward(task, params, source, ids)[-1]
            log_probs[[tokenizer.pad_id, tokenizer.bos_id, *range(tokenizer.vocab_size, 43)]] = -np.inf
            ids.append(int(log_probs.argmax()))
            if ids[-1] == tokenizer.eos_id:
                break
        assert text == tokenizer.decode(ids[1:])
    assert tokenizer.decode([first, 5, second]).startswith("<extra_id_0>")


def test_typed_sentinels_are_all_that_differs_from_the_tokenizer(task, tmp_path):
    tokenizer, typed = task.tokenizer, TypedSentinels(task.tokenizer)
    assert isinstance(typed, Tokenizer)
    for name in ("vocab_size", "pad_id", "bos_id", "eos_id", "unk_id", "mask_id", "sentinel_ids", "fingerprint"):
        assert getattr(typed, name) == getattr(tokenizer, name)
    assert typed.encode("the number") == tokenizer.encode("the number")
    assert typed.decode(typed.encode("<extra_id_0>a<extra_id_1>")) == "<extra_id_0>a<extra_id_1>"


# The task as a whole


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"variant": "encoder_only"}}, r"needs model\.variant=encoder_decoder, not encoder_only"),
        ({"data": {"batching": "stream"}}, r"data\.batching=bucket or pack, not stream"),
        ({"data": {"joint_vocabulary": False}}, r"data\.joint_vocabulary=False: task=span_corruption has one"),
        (
            {"data": {"extra_ids": 1}},
            r"a text of .* loses 2 spans, and the tokenizer has 1 sentinels: set data.extra_ids=2",
        ),
        ({"data": {"max_target_length": 7}}, r"max_target_length=7 has no room .* set it to 8 or more"),
        ({"training": {"best_metric": "bleu"}}, "best_metric=bleu is no score .* use one of nll_per_token, perplex"),
        ({"model": {"vocab_size": 7}}, r"model\.vocab_size=7 is less than the \d+ pieces"),
        ({"model": {"activation": "rellu"}}, r"did you mean relu\?"),
    ],
)
def test_what_does_not_go_with_the_task_is_said_at_once(config, sections, message):
    with pytest.raises(UserError, match=message):
        SpanCorruptionTask(changed(config, **sections))


@pytest.mark.slow
def test_from_training_to_scores(config, tmp_path, monkeypatch):
    """The loop and the loading know nothing of it but the protocol, and it learns."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # leave the user's cache alone
    assert isinstance(SpanCorruptionTask(config), Task)
    training = {"num_steps": 600, "evaluate_every": 300, "checkpoint_every": 300, "log_every": 300}
    config = changed(config, training=training, model={"d_model": 28, "d_ff": 37})
    assert train(config, tmp_path / "run") == 0
    run = load(tmp_path / "run", "latest")
    scores = run.task.evaluate(run.params, "validation")
    logged = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert logged["validation_nll_per_token"] == pytest.approx(scores["nll_per_token"], rel=1e-5)
    assert run.task.evaluate(run.params, "train")["accuracy"] > 0.7
