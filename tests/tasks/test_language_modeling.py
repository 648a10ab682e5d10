"""Language modelling: nothing leaks between documents, every token is scored once, and a prompt is continued alone."""

import dataclasses
import functools
import itertools
import json
import logging
import math
import pathlib
import re
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import (
    Config,
    DataConfig,
    DecodingConfig,
    ModelConfig,
    TrainingConfig,
    default_config,
    from_config_dict,
)
from transformer.models.masks import AttentionMask
from transformer.tasks import make_task
from transformer.tasks.language_modeling import token_log_probs
from transformer.tasks.text_generator import TextGenerator
from transformer.training.loading import load
from transformer.training.partitioning import unbox
from transformer.training.trainer import train
from transformer.types import Candidate, Task, UserError

TRAIN = "\n\n".join(
    f"the number {n}\nand {n * n} too" + ", again" * (n % 4) if n % 2 else f"number {n}" for n in range(3, 41)
)
TEST = "the 🎉 number 17, " + "and again " * 12 + "\n\nthe\n\nnumber 5\nand 25 too"
LENGTH = 48  # of a row: all of TRAIN's documents fit, the first of TEST does not


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    folder = tmp_path_factory.mktemp("text")
    for name, text in (("train", TRAIN), ("val", TEST), ("test", TEST)):
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return Config(
        task="language_modeling",
        data=DataConfig(
            source="files",
            directory=str(folder),
            documents="blank_line",
            tokenizer_model="character",
            cache_directory=str(folder / "cache"),
            batching="pack",
            tokens_per_batch=5 * LENGTH,
            max_target_length=LENGTH,
            num_buckets=1,
        ),
        model=ModelConfig(
            variant="decoder_only",
            d_model=14,
            d_ff=17,
            num_heads=2,
            num_decoder_layers=2,
            position_encoding="rotary",
            rotary_fraction=6 / 7,
            norm_placement="pre",
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
            best_metric="bits_per_byte",
        ),
        decoding=DecodingConfig(
            method="greedy", max_extra_tokens=7, max_source_length=40, beam_size=3, tokens_per_batch=4 * 16
        ),
    )


def changed(config: Config, **sections) -> Config:
    """With keys of some sections replaced."""
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **keys) for name, keys in sections.items()}
    )


def fresh_params(task):
    """Random, and sharpened, so that outputs differ between prompts."""
    params = jax.tree.map(np.array, unbox(jax.jit(task.init)(jax.random.key(1))))
    params["embedding"]["embedding"] *= 3
    return params


@pytest.fixture(scope="module")
def task(config):
    return make_task(config)


@pytest.fixture(scope="module")
def params(task):
    return fresh_params(task)


def epoch_sums(config, params):
    """Nats and tokens of an epoch, by the loss."""
    task = make_task(config)
    loss = jax.jit(lambda params, batch: task.loss(params, batch, None)["nll"])
    pairs = [loss(params, task.batch(step)) for step in range(task.steps_per_epoch())]
    return np.sum(pairs, axis=0)


def test_packed_loss_is_unpacked_loss(config, task, params):
    packed, unpacked = (epoch_sums(changed(config, data={"batching": name}), params) for name in ("pack", "bucket"))
    np.testing.assert_allclose(packed, unpacked, rtol=1e-5)
    scores = task.evaluate(params, "train")
    assert packed[1] == scores["num_tokens"]
    assert packed[0] / packed[1] == pytest.approx(scores["nll_per_token"], rel=1e-5)


def test_a_packed_document_sees_no_other(task, params):
    batch = task.batch(0)
    assert batch.segment_ids.max() > 1
    loss = jax.jit(lambda params, batch: task.loss(params, batch, None)["nll"][0])
    second = batch._replace(loss_weights=batch.loss_weights * (batch.segment_ids == 2))
    other = second._replace(input_tokens=np.where(batch.segment_ids == 1, 5, batch.input_tokens))
    assert float(loss(params, second)) == pytest.approx(float(loss(params, other)), rel=1e-6)
    own = second._replace(input_tokens=np.where(batch.segment_ids == 2, 5, batch.input_tokens))
    assert float(loss(params, own)) != pytest.approx(float(loss(params, second)), rel=1e-3)


def test_the_stream_has_neither_segments_nor_padding(config, params):
    stream = make_task(changed(config, data={"batching": "stream"}))
    batch = stream.batch(0)
    assert batch.target_tokens.shape == (5, LENGTH) and (batch.segment_ids == 1).all()
    nats, count = jax.jit(lambda params, batch: stream.loss(params, batch, None)["nll"])(params, batch)
    assert count == batch.loss_weights.sum()
    expected = -(np.asarray(token_log_probs(stream.model, params, batch)) * batch.loss_weights).sum()
    assert float(nats) == pytest.approx(float(expected), rel=1e-5)
    assert stream.work(batch)["target_tokens"] == count and stream.work(batch)["flops"] > 0


@pytest.mark.parametrize("batching", ["bucket", "stream"])
def test_the_prefix_is_seen_whole_and_not_predicted(config, params, batching):
    """Drawn by the seed and the step; what is predicted sees all of it, and nothing after itself."""
    plain = make_task(changed(config, data={"batching": batching}))
    task = make_task(changed(config, data={"batching": batching}, model={"prefix_lm": True}))
    shares = []
    for step in range(20):
        whole, batch = plain.batch(step), task.batch(step)
        np.testing.assert_array_equal(batch.input_tokens, whole.input_tokens)
        given = (whole.loss_weights > batch.loss_weights).sum(axis=1)
        np.testing.assert_array_equal(batch.loss_weights, whole.loss_weights * (batch.positions >= given[:, None]))
        real = batch.segment_ids.any(axis=1)
        assert (batch.loss_weights.sum(axis=1) > 0)[real].all()
        shares += (given[real] / whole.segment_ids.sum(axis=1)[real]).tolist()
    assert min(shares) < 0.15 and max(shares) > 0.85 and 0.4 < np.mean(shares) < 0.6
    np.testing.assert_array_equal(task.batch(3).loss_weights, task.batch(3).loss_weights)

    row = int(np.argmax(batch.loss_weights.sum(axis=1) * given))
    first = int(given[row])  # its target is the first that counts

    def scores(place):
        """Log-probabilities of the row's targets, with another input at this place."""
        tokens = np.array(batch.input_tokens)
        tokens[row, place] = 5 if tokens[row, place] != 5 else 6
        return np.asarray(token_log_probs(task.model, params, batch._replace(input_tokens=tokens)))[row]

    before = np.asarray(token_log_probs(task.model, params, batch))[row]
    assert (scores(first) != before)[0]  # the prefix ends with the input of the first target that counts
    changes = scores(first + 1) != before
    assert not changes[: first + 1].any() and changes[first + 1]


def beginning_after(config, start_id):
    """A task whose documents begin after this piece, or after nothing."""
    task = make_task(config)
    task.tokenizer.start_id = start_id
    return task


@pytest.mark.parametrize(
    ("stride", "window", "start_id", "prefix_lm"),
    [
        (5, None, 2, False),
        (24, None, 1, False),
        (48, None, 2, False),
        (None, 31, 2, False),
        (7, 53, None, False),
        (13, 29, 2, True),
    ],
)
def test_every_token_is_scored_once_in_its_window(config, params, stride, window, start_id, prefix_lm):
    """Against windows that are cut and scored one by one."""
    options = {"evaluation": {"stride": stride, "window": window}}
    if prefix_lm:
        options |= {"model": {"prefix_lm": True}, "data": {"batching": "bucket"}}
    task = beginning_after(changed(config, **options), start_id)
    scores = task.evaluate(params, "test")
    window, stride = window or LENGTH, stride or 15
    start = [] if start_id is None else [start_id]
    total, count = 0.0, 0
    for text in TEST.split("\n\n"):
        ids = [*start, *task.tokenizer.encode(text), task.tokenizer.eos_id]
        for token in range(1, len(ids)):
            first = 0 if token <= window else -(-(token - window) // stride) * stride
            prefix = 1 + (window - stride if first else 0) if prefix_lm else 0
            total -= float(next_token_log_probs(task.model, params, ids[first:token], prefix=prefix)[ids[token]])
            count += 1
    assert scores["num_tokens"] == count == sum(len(text) + len(start) for text in TEST.split("\n\n"))
    assert scores["nll_per_token"] == pytest.approx(total / count, rel=1e-5)
    assert scores["bits_per_byte"] == pytest.approx(
        total / math.log(2) / len(TEST.replace("\n\n", "").encode()), rel=1e-5
    )
    assert (scores["window"], scores["stride"]) == (window, stride)


def test_a_document_of_one_token_scores_nothing_where_nothing_stands_before_it(config, params, monkeypatch):
    task = beginning_after(config, None)
    assert task.evaluate(params, "test")["num_tokens"] == len(TEST.replace("\n\n", ""))
    monkeypatch.setattr(task.tokenizer, "encode_batch", lambda lines: [[] for _ in lines])
    monkeypatch.setattr(task.tokenizer, "fingerprint", "of one that drops everything")
    with pytest.raises(UserError, match="nothing of validation can be scored: each document is one token"):
        task.evaluate(params, "validation")


@functools.partial(jax.jit, static_argnames="model")
def forward(model, params, tokens, prefix):
    mask = AttentionMask(causal=True, prefix_lengths=jnp.array([prefix]))
    logits, _ = model.apply({"params": params}, tokens, mask, deterministic=True)
    return logits


def next_token_logits(model, params, ids, prefix):
    """Logits [V] of the token after these, without a cache, in one padded shape."""
    tokens = np.zeros((1, 64), np.int32)
    tokens[0, : len(ids)] = ids
    return np.array(forward(model, params, tokens, prefix)[0, len(ids) - 1])


def next_token_log_probs(model, params, ids, penalty=1.0, start=1, prefix=0):
    """Log-probabilities [V] of the token after these.

    The first ``start`` of them are no text; the first ``prefix`` are seen from everywhere.
    """
    logits = next_token_logits(model, params, ids, prefix)
    for token in set(ids[start:]):
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    return logits - np.logaddexp.reduce(logits)


def test_bits_per_byte_by_hand(task, params, tmp_path):
    uniform = jax.tree.map(np.zeros_like, params)
    scores = task.evaluate(uniform, "test", outputs=tmp_path / "outputs.txt")
    texts = TEST.split("\n\n")
    num_tokens = sum(len(text) + 1 for text in texts)
    num_bytes = sum(len(text.encode()) for text in texts)
    assert num_bytes == sum(map(len, texts)) + 3  # a party popper has four bytes
    assert scores["nll_per_token"] == pytest.approx(math.log(task.tokenizer.vocab_size))
    assert scores["perplexity"] == pytest.approx(task.tokenizer.vocab_size)
    assert scores["bits_per_byte"] == pytest.approx(num_tokens * math.log2(task.tokenizer.vocab_size) / num_bytes)
    assert (scores["num_examples"], scores["num_tokens"], scores["num_bytes"]) == (3, num_tokens, num_bytes)
    assert scores["num_unknown"] == 1  # the popper
    log_probs = [float(line) for line in (tmp_path / "outputs.txt").read_text().splitlines()]
    assert -sum(log_probs) == pytest.approx(num_tokens * math.log(task.tokenizer.vocab_size), rel=1e-5)


def test_a_text_is_scored_as_a_split_is(config, task, params, tmp_path):
    (tmp_path / "other.txt").write_text(TEST, encoding="utf-8")
    assert task.evaluate(params, {"text": tmp_path / "other.txt"}) == task.evaluate(params, "test")
    message = "task=language_modeling scores --split or --text, not --source with --reference"
    with pytest.raises(UserError, match=message):
        task.evaluate(params, {"source": tmp_path, "reference": tmp_path})


def test_the_quick_scores_of_training_are_of_the_first_documents(config, params):
    task = make_task(changed(config, evaluation={"max_examples": 2}))
    scores = task.evaluate(params, "validation", during_training=True)
    assert scores["num_examples"] == 2 and scores["stride"] == LENGTH
    assert scores["num_tokens"] == sum(len(text) + 1 for text in TEST.split("\n\n")[:2])


# Continuations

PROMPTS = ["the number 7", "t", "", "and 16 too, aga", "  ", "a\tb", "the number 7", "number"]


def continued(task, params, lines, num_best=1, **changes):
    generator = TextGenerator(task.model, task.tokenizer, dataclasses.replace(task.config.decoding, **changes))
    return list(generator(params, lines, num_best)), generator


VARIANTS = {
    "rotary": {},
    "learned, ring": {
        "position_encoding": "learned",
        "max_positions": 64,
        "attention_window": 5,
        "attention_pattern": ("local", "global"),
    },
    "prefix": {"prefix_lm": True, "position_encoding": "relative_bias", "num_kv_heads": 1},
}


@pytest.mark.parametrize(
    ("variant", "start_id", "penalty"),
    [("rotary", 2, 1.0), ("rotary", None, 1.7), ("learned, ring", 1, 0.6), ("prefix", 2, 1.0), ("prefix", None, 1.0)],
)
def test_prompts_of_different_lengths_are_continued_as_without_a_cache(config, variant, start_id, penalty):
    """With a repetition penalty too, that of CTRL, section 4.1: a piece that has occurred has a worse logit."""
    options = {"model": VARIANTS[variant], "decoding": {"repetition_penalty": penalty}, "data": {"batching": "bucket"}}
    config = changed(config, **options)
    task = beginning_after(config, start_id)
    params = fresh_params(task)
    model, tokenizer = task.model, task.tokenizer
    start = [] if start_id is None else [start_id]
    found, _ = continued(task, params, PROMPTS)
    assert len(found) == len(PROMPTS) and found[2] == found[4] == [Candidate("", 0.0)] and found[0] == found[6]
    assert task.predict(params, PROMPTS) == [candidate.text for [candidate] in found]
    for prompt, [candidate] in zip(PROMPTS, found, strict=True):
        if not prompt.strip():
            continue
        before = [*start, *tokenizer.encode(prompt)]
        ids, score = list(before), 0.0
        for _ in range(task.config.decoding.max_extra_tokens):
            prefix = len(before) if config.model.prefix_lm else 0
            log_probs = next_token_log_probs(model, params, ids, penalty, len(start), prefix)
            log_probs[[tokenizer.pad_id, tokenizer.bos_id]] = -np.inf
            ids.append(int(log_probs.argmax()))
            score += float(log_probs[ids[-1]])
            if ids[-1] == tokenizer.eos_id:
                break
        assert candidate.text == tokenizer.decode(ids[len(before) :])
        assert candidate.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("options", [{"method": "sample", "repetition_penalty": 1.4, "min_p": 0.1}, {"method": "beam"}])
def test_no_prompt_depends_on_its_batch_mates(task, params, options):
    together, _ = continued(task, params, PROMPTS, num_best=3, **options)
    for number, prompt in enumerate(PROMPTS[:4]):
        alone, _ = continued(task, params, [""] * number + [prompt], num_best=3, **options)
        assert [one.text for one in alone[-1]] == [one.text for one in together[number]]
        np.testing.assert_allclose([o.score for o in alone[-1]], [o.score for o in together[number]], atol=1e-4)
    assert len({candidate.text for candidate in together[0]}) > 1


@pytest.mark.parametrize(
    ("variant", "options", "penalty"),
    [
        ("learned, ring", {"method": "sample", "top_k": 9, "temperature": 1.5}, 1.0),
        ("learned, ring", {"method": "beam", "beam_size": 4, "length_penalty": "none"}, 1.8),
        ("prefix", {"method": "beam", "beam_size": 4, "length_penalty": "none"}, 1.0),
    ],
)
def test_hypotheses_of_a_prompt_have_the_scores_of_teacher_forcing(config, variant, options, penalty):
    """Side by side over one row of keys and values, also where that row is a ring; with what has occurred in each."""
    task = make_task(changed(config, model=VARIANTS[variant], data={"batching": "bucket"}))
    params = fresh_params(task)
    options = {**options, "repetition_penalty": penalty}
    found, _ = continued(task, params, ["the number 7", "t"], num_best=4, **options)
    tokenizer = task.tokenizer
    for prompt, candidates in zip(["the number 7", "t"], found, strict=True):
        assert len({candidate.text for candidate in candidates}) > 1
        for candidate in candidates:
            ids = [tokenizer.eos_id, *tokenizer.encode(prompt)]
            prefix = len(ids) if task.config.model.prefix_lm else 0
            new = tokenizer.encode(candidate.text)
            if len(new) < task.config.decoding.max_extra_tokens:
                new.append(tokenizer.eos_id)
            score = 0.0
            for token in new:
                score += float(next_token_log_probs(task.model, params, ids, penalty, prefix=prefix)[token])
                ids.append(token)
            assert candidate.score == pytest.approx(score, abs=1e-3)


def test_samples_depend_on_the_seed(task, params):
    lines = ["the number 7"] * 3
    found = [continued(task, params, lines, num_best=3, method="sample", seed=seed)[0] for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert len({candidates[0].text for candidates in found[0]}) > 1


def test_the_text_ends_before_the_first_stop_string(task, params):
    prompts, options = ["the number 7", "t"], {"num_best": 3, "method": "sample"}
    whole, _ = continued(task, params, prompts, **options)
    stop = (whole[0][0].text[4:6], whole[0][1].text[2], whole[1][2].text[3:5], "never", prompts[0][-4:])
    assert "" not in stop
    cut, _ = continued(task, params, prompts, stop=stop, **options)
    num_cut = 0
    for candidate, found in zip(itertools.chain(*whole), itertools.chain(*cut), strict=True):
        assert candidate.text.startswith(found.text) and not any(string in found.text for string in stop)
        rest = candidate.text[len(found.text) :]
        assert rest.startswith(stop) or not rest
        num_cut += bool(rest)
        assert candidate.score == found.score
    assert num_cut >= 3


def test_rows_of_the_embedding_without_a_piece_are_never_produced(config):
    task = make_task(changed(config, model={"vocab_size": 67, "output_bias": True}))
    params = fresh_params(task)
    num_pieces = task.tokenizer.vocab_size
    assert params["embedding"]["embedding"].shape == (67, 14) and 20 < num_pieces < 60
    params["output"]["bias"][num_pieces:] = 5
    found, _ = continued(task, params, ["the number 7", "t"], num_best=3, method="beam")
    assert all(len(candidate.text) > 0 and candidate.score > -100 for candidates in found for candidate in candidates)


def test_long_prompts_lose_their_start(task, params, caplog):
    long = "x" * 50 + "and 16 too, again, and 25 too, again,"
    found, generator = continued(task, params, [long], max_source_length=17)
    assert generator.num_truncated == 1
    assert "line 1 has 88 tokens; only the last decoding.max_source_length=17" in caplog.text
    same, _ = continued(task, params, ["y" * 90 + long[-17:]], max_source_length=17)
    assert found == same


def test_continuations_of_pieces_keep_their_spaces(config, tmp_path):
    data = {"tokenizer_model": "bpe", "vocab_size": 320, "cache_directory": str(tmp_path)}
    task = make_task(changed(config, data=data))
    generator = TextGenerator(task.model, task.tokenizer, task.config.decoding)
    ids = task.tokenizer.encode("the number 17, and\nagain")
    for cut in range(1, len(ids)):
        before = task.tokenizer.decode(ids[:cut])
        assert before + generator._text(ids[:cut], ids[cut:]) == "the number 17, and\nagain"


# The task as a whole


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"model": {"variant": "encoder_decoder"}},
            "language_modeling needs model.variant=decoder_only, not encoder_d",
        ),
        ({"training": {"best_metric": "bleu"}}, "best_metric=bleu is no score .* use one of nll_per_token, perplex"),
        ({"data": {"source": "phrases"}}, "data.source=phrases is not one of files, topics"),
        ({"model": {"vocab_size": 11}}, r"model\.vocab_size=11 is less than the \d+ pieces of the tokenizer"),
        (
            {"model": {"position_encoding": "learned", "max_positions": 50}, "evaluation": {"window": 51}},
            r"evaluation\.window=51 is more than model\.max_positions=50",
        ),
        ({"model": {"activation": "rellu"}}, r"did you mean relu\?"),
    ],
)
def test_what_does_not_go_with_the_task_is_said_at_once(config, sections, message):
    with pytest.raises(UserError, match=message):
        make_task(changed(config, **sections))


@pytest.mark.parametrize(
    ("config_of", "message"),
    [
        ({"model": ModelConfig(variant="decoder_only")}, r"task=translation needs model\.variant=encoder_decoder"),
        ({"data": DataConfig(batching="stream")}, r"task=translation needs data\.batching=bucket or pack, not stream"),
    ],
)
def test_translation_refuses_what_is_for_language_models(config_of, message):
    with pytest.raises(UserError, match=message):
        make_task(Config(**config_of))


def test_the_config_is_checked_as_the_model_needs_it():
    """No source side, text files, and no stride that leaves tokens out."""
    config = default_config()
    config.update_from_flattened_dict(
        {"task": "language_modeling", "model.variant": "decoder_only", "data.max_target_length": 64}
    )
    config.data.tokens_per_batch = 64  # less than data.max_source_length
    assert from_config_dict(config).evaluation.stride is None
    config.evaluation.stride = 65
    with pytest.raises(UserError, match=r"evaluation\.stride=65 must lie in 1 to the window of 64 tokens"):
        from_config_dict(config)
    config.evaluation.stride = 64
    config.data.source = "files"
    with pytest.raises(
        UserError, match=r"give the folder that holds the files of train: --config\.data\.directory=DIR"
    ):
        from_config_dict(config)


@pytest.mark.parametrize(("name", "number"), [("gpt2_small", 124_439_808), ("llama_small", 134_515_008)])
def test_published_sizes(name, number):
    path = pathlib.Path(__file__).parents[2] / "configs" / f"{name}.py"
    task = make_task(from_config_dict(runpy.run_path(str(path))["get_config"]()))
    shapes = jax.tree.leaves(unbox(jax.eval_shape(task.init, jax.random.key(0))))
    assert sum(math.prod(leaf.shape) for leaf in shapes) == number


@pytest.mark.slow
def test_from_training_to_scores(config, tmp_path, monkeypatch, caplog):
    """The loop and the loading know nothing of it but the protocol."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # leave the user's cache alone
    experts = {"num_experts": 3, "experts_every": 2, "expert_router": "sigmoid"}
    config = changed(config, data={"batching": "stream"}, evaluation={"stride": 48}, model=experts)
    assert isinstance(make_task(config), Task)
    with caplog.at_level(logging.INFO, "transformer"):
        assert train(config, tmp_path / "run") == 0
    assert re.search(r"[\d,]+ parameters \([\d,]+ active for a token\)", caplog.text)
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["expert_load_max"] >= 1 and first["router_entropy"] > 0 and "router_bias" in first
    run = load(tmp_path / "run", "best")
    assert run.tokenizer.fingerprint == make_task(config).tokenizer.fingerprint
    scores = run.task.evaluate(run.params, "validation")
    logged = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert logged["validation_bits_per_byte"] == pytest.approx(scores["bits_per_byte"], rel=1e-5)
