"""From lines to lines: nothing lost, nothing mixed up, and the scores are the model's."""

import dataclasses
import json
import logging
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sacremoses import MosesTokenizer

from tests.models.small import run
from transformer.config import Config, DataConfig, DecodingConfig, EvaluationConfig, ModelConfig
from transformer.data.pairs import PairList
from transformer.evaluation.moses import detokenizer
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2SeqMasks
from transformer.tasks import make_task
from transformer.tasks.searching import group_by_length
from transformer.tasks.translation import log_direction
from transformer.tasks.translator import Translator, search
from transformer.training.partitioning import unbox
from transformer.types import Candidate, UserError

AWKWARD = [
    "the number seven",
    "",
    "   \t ",
    "at 6:45 PM, and then in 28 weeks, on Tuesday, March 3, 1987, for 37 minutes and 12 seconds",
    "a\x85b c",
    "emoji 🎉 and עברית",
    "<s> </s> <pad> <0x41> ▁",
    "\tleading",
    "7 " * 40,
    "the number seven",
]


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    return Config(
        data=DataConfig(
            num_phrases=300,
            vocab_size=400,
            cache_directory=str(tmp_path_factory.mktemp("cache")),
            tokens_per_batch=256,
            max_source_length=64,
            max_target_length=64,
        ),
        model=ModelConfig(
            d_model=16, d_ff=24, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.0
        ),
        decoding=DecodingConfig(beam_size=3, max_extra_tokens=4, max_source_length=64),
        evaluation=EvaluationConfig(beam_size=1, max_examples=5),
    )


@pytest.fixture(scope="module")
def task(config):
    return make_task(config)


@pytest.fixture(scope="module")
def params(task):
    """Random, and sharpened, so that hypotheses end at different lengths and differ between sources."""
    params = jax.tree.map(np.array, unbox(jax.jit(task.init)(jax.random.key(1))))
    params["shared_embedding"]["embedding"] *= 3
    return params


def translate(task, params, lines, num_best=1, **changes):
    decoding = dataclasses.replace(task.config.decoding, **changes)
    translator = Translator(task.model, (task.source_tokenizer, task.tokenizer), decoding)
    return list(translator(params, lines, num_best)), translator


def test_as_many_lines_out_as_in_and_in_their_order(task, params):
    outputs, _ = translate(task, params, AWKWARD)
    assert len(outputs) == len(AWKWARD)
    assert outputs[1] == outputs[2] == [Candidate("", 0.0)]
    assert outputs[0] == outputs[-1]
    alone = [translate(task, params, [line])[0][0] for line in AWKWARD[:4]]
    for together, single in zip(outputs, alone, strict=False):
        assert together[0].text == single[0].text
        assert together[0].score == pytest.approx(single[0].score, abs=1e-4)


def test_no_line_depends_on_its_batch_mates(task, params):
    lines = [f"the number {n}" for n in range(70)]
    forward, _ = translate(task, params, lines, num_best=2)
    backward, _ = translate(task, params, lines[::-1], num_best=2)
    for a, b in zip(forward, backward[::-1], strict=True):
        assert [found.text for found in a] == [found.text for found in b]
        np.testing.assert_allclose([found.score for found in a], [found.score for found in b], atol=1e-4)
    assert len({found[0].text for found in forward}) > 1, "the model should tell sources apart"


def test_n_best_is_sorted_and_its_best_is_the_best(task, params):
    lines = ["the number seven", "in 28 weeks"]
    one, _ = translate(task, params, lines)
    three, _ = translate(task, params, lines, num_best=3)
    for best, found in zip(one, three, strict=True):
        assert best[0].text == found[0].text
        assert len({candidate.score for candidate in found}) == 3
        assert [c.score for c in found] == sorted((c.score for c in found), reverse=True)


WINDOWS = {
    "attention_window": 2,
    "attention_pattern": ("local", "global"),
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "position_encoding": "alibi",
}


@pytest.mark.parametrize(("method", "changes"), [("beam", {}), ("sample", {}), ("beam", WINDOWS)])
def test_reported_scores_are_those_of_teacher_forcing(config, task, params, method, changes):
    """Hypotheses change places many times over the one row of slots that they share; the sums must still be right."""
    if changes:
        task = make_task(dataclasses.replace(config, model=dataclasses.replace(config.model, **changes)))
        params = jax.tree.map(np.array, unbox(jax.jit(task.init)(jax.random.key(1))))
    tokenizer = task.tokenizer
    inputs = [[*tokenizer.encode(f"the number {n}"), tokenizer.eos_id] for n in (3, 17, 81)]
    lengths = np.array([len(ids) for ids in inputs], np.int32)
    tokens = np.array([ids + [0] * (12 - len(ids)) for ids in inputs], np.int32)
    decoding = dataclasses.replace(task.config.decoding, method=method, beam_size=5, alpha=1.0, length_penalty="power")
    special_ids = tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id
    numbers = np.arange(3, dtype=np.int32)
    found = search(
        task.model, params, tokens, lengths, numbers,
        decoding=decoding, num_best=4, special_ids=special_ids,
    )  # fmt: skip
    own = AttentionMask(query_lengths=lengths, key_lengths=lengths)
    masks = Seq2SeqMasks(own, AttentionMask(causal=True), AttentionMask(key_lengths=lengths))
    for place in range(4):
        targets = np.asarray(found.tokens[:, place])
        inputs = np.concatenate([np.full((3, 1), tokenizer.bos_id, np.int32), targets[:, :-1]], axis=1)
        logits = run(task.model, params, jnp.asarray(tokens), jnp.asarray(inputs), masks, deterministic=True)
        log_probs = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), targets[..., None], -1)[..., 0]
        sizes = np.asarray(found.lengths[:, place] + found.finished[:, place])
        sums = np.where(np.arange(targets.shape[1]) < sizes[:, None], log_probs, 0).sum(1)
        np.testing.assert_allclose(found.log_probs[:, place], sums, rtol=1e-4, atol=1e-4)
        if method == "beam":
            np.testing.assert_allclose(found.scores[:, place], sums / sizes, rtol=1e-4, atol=1e-4)


def test_the_limit_is_the_sentences_own(task, params):
    flat = jax.tree.map(np.zeros_like, params)  # every piece equally likely: nothing ends before its limit
    lines = ["the number seven", "in 28 weeks and in 29 weeks"]
    outputs, _ = translate(task, flat, lines, method="sample", max_extra_tokens=4)
    sizes = [len(task.source_tokenizer.encode(line)) + 1 + 4 for line in lines]
    texts = [len(task.tokenizer.encode(found[0].text)) for found in outputs]
    assert all(got <= 3 * size for got, size in zip(texts, sizes, strict=True))
    assert not any(found[0].finished for found in outputs)


def test_an_output_that_was_cut_is_said_to_be_so(task, params):
    """With more room a finished output stays what it is, and one that was cut goes on."""
    flat = jax.tree.map(np.zeros_like, params)
    lines = [f"the number {n}" for n in range(40)]
    outputs, wider = (translate(task, flat, lines, method="sample", max_extra_tokens=n)[0] for n in (60, 80))
    for (found,), (longer,) in zip(outputs, wider, strict=True):
        assert found.finished == (found.text == longer.text)
        assert longer.finished or not found.finished
    assert {found.finished for (found,) in outputs} == {False, True}


def test_sampling_depends_on_seed_and_line_number_only(task, params):
    lines = ["the number seven"] * 6 + ["in 28 weeks"] * 3
    first, _ = translate(task, params, lines, method="sample")
    again, _ = translate(task, params, lines[:6], method="sample")
    assert [found[0].text for found in first[:6]] == [found[0].text for found in again]
    assert len({found[0].text for found in first[:6]}) > 1
    others, _ = translate(task, params, lines[:6], method="sample", seed=1)
    assert [found[0].text for found in others] != [found[0].text for found in again]
    several, _ = translate(task, params, lines[:2], num_best=3, method="sample")
    assert [found[0].text for found in several] == [found[0].text for found in first[:2]]


def test_greedy_is_a_beam_of_one_without_penalty(task, params):
    lines = ["the number seven", "in 28 weeks", "at noon"]
    greedy, _ = translate(task, params, lines, method="greedy")
    beam, _ = translate(task, params, lines, beam_size=1, length_penalty="none")
    assert [found[0].text for found in greedy] == [found[0].text for found in beam]


def test_long_inputs_are_cut_counted_and_named(task, params, caplog):
    outputs, translator = translate(task, params, ["short", "7 " * 200], max_source_length=16)
    assert len(outputs) == 2 and translator.num_truncated == 1
    assert "line 2 has" in caplog.text and "decoding.max_source_length=16" in caplog.text


def test_too_many_hypotheses_are_refused(task, params):
    with pytest.raises(UserError, match="num_best=4 needs"):
        translate(task, params, ["a"], num_best=4)
    with pytest.raises(UserError, match="greedy finds one output"):
        translate(task, params, ["a"], num_best=2, method="greedy")


def test_files_in_roles_that_it_does_not_know_are_refused(task, params, tmp_path):
    message = "task=translation scores --split, --source with --reference or --source with --hypothesis, not --text"
    with pytest.raises(UserError, match=message):
        task.evaluate(params, {"text": tmp_path / "text"})
    with pytest.raises(UserError, match=r"not --source$"):
        task.evaluate(params, {"source": tmp_path / "text"})


@pytest.mark.parametrize("changes", [{"repetition_penalty": 1.2}, {"stop": (".",)}])
def test_what_is_for_continuations_is_refused(task, params, changes):
    with pytest.raises(UserError, match=r"decoding\.repetition_penalty=.* are for continuations of text"):
        translate(task, params, ["a"], **changes)


def test_rows_of_the_embedding_without_a_piece_are_never_produced(config):
    model = dataclasses.replace(config.model, vocab_size=433, output_bias=True)
    task = make_task(dataclasses.replace(config, model=model))
    params = jax.tree.map(np.array, unbox(jax.jit(task.init)(jax.random.key(1))))
    assert params["shared_embedding"]["embedding"].shape == (433, 16) and task.tokenizer.vocab_size == 400
    params["output"]["bias"][400:] = 9
    outputs, _ = translate(task, params, ["the number seven"], num_best=3)
    assert all(candidate.text and candidate.score > -100 for candidate in outputs[0])


def test_few_shapes_and_every_line_once():
    rng = np.random.default_rng(0)
    inputs = [[5] * size for size in rng.integers(1, 200, 1000)]
    lines = ["x" if rng.random() < 0.9 else " " for _ in inputs]
    groups = list(group_by_length(lines, inputs, tokens_per_batch=2048))
    assert sorted(n for numbers, _, _ in groups for n in numbers) == [n for n, line in enumerate(lines) if line.strip()]
    assert len({(length, rows) for _, length, rows in groups}) <= 2 * 5
    for numbers, length, rows in groups:
        assert len(numbers) <= rows and max(len(inputs[n]) for n in numbers) <= length
        assert rows * length <= 2048 or rows <= 4


def test_evaluation_counts_every_example_once(task, params, config):
    scores = task.evaluate(params, "validation", during_training=True)
    assert scores["num_examples"] == 500
    wider = make_task(dataclasses.replace(config, decoding=dataclasses.replace(config.decoding, tokens_per_batch=333)))
    log_probs, counts = wider._log_probs(params, wider._source, "validation")
    assert scores["nll_per_token"] == pytest.approx(-log_probs.sum() / counts.sum(), rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(scores["nll_per_token"]))
    assert {"bleu", "chrf", "exact_match", "bleu_signature", "num_truncated"} <= set(scores)


def test_the_papers_score_and_the_interval_are_not_of_training(task, params, tmp_path, monkeypatch):
    (tmp_path / "source").write_text("the number seven\nat noon\n", encoding="utf-8")
    (tmp_path / "reference").write_text("die Zahl sieben\nmittags\u2028\n", encoding="utf-8")
    files = {"source": tmp_path / "source", "reference": tmp_path / "reference"}
    outputs = tmp_path / "outputs.txt"
    scores = task.evaluate(params, files, outputs=outputs)
    added = {"bleu_paper", "bleu_paper_definition", "bleu_interval", "bleu_interval_signature"}
    assert added <= set(scores) and "Moses tokens (de, sacremoses" in scores["bleu_paper_definition"]
    records = [json.loads(line) for line in outputs.with_suffix(".jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert [record["source"] for record in records] == ["the number seven", "at noon"]
    assert [record["reference"] for record in records] == ["die Zahl sieben", "mittags\u2028"]
    assert "".join(record["output"] + "\n" for record in records) == outputs.read_text(encoding="utf-8")
    expected, _ = translate(task, params, ["the number seven", "at noon"])
    assert [record["finished"] for record in records] == [found[0].finished for found in expected]
    assert scores["num_unfinished"] == sum(not found[0].finished for found in expected)
    monkeypatch.setitem(sys.modules, "sacremoses", None)  # importing it is an error from here on
    assert not added & set(task.evaluate(params, files, during_training=True))


def test_outputs_of_a_run_on_tokens_are_text(task, params, config, monkeypatch):
    monkeypatch.setattr(type(task.tokenizer), "decode", lambda self, ids: "l &apos; an 7 , c&apos; est tout .")
    assert task.predict(params, ["the number seven", ""]) == ["l &apos; an 7 , c&apos; est tout .", ""]
    french = dataclasses.replace(config.data, target_language="fr")
    decoding = dataclasses.replace(config.decoding, detokenize=True)
    task.config = dataclasses.replace(config, data=french, decoding=decoding)
    try:
        assert task.predict(params, ["the number seven", ""]) == ["l'an 7, c'est tout.", ""]
    finally:
        task.config = config


def test_unsmoothed_nats_in_training_are_those_of_evaluation(task, params):
    batch = task.batch(0)
    total, count = jax.jit(lambda p, b: task.loss(p, b, None))(params, batch)["nll"]
    from transformer.tasks.translation import row_log_probs

    rows = row_log_probs(task.model, params, batch)
    assert float(total) == pytest.approx(-float(np.sum(rows)), rel=1e-5)
    assert count == batch.decoder_loss_weights.sum()


def test_a_mixture_of_experts_trains_and_reports_its_load(config):
    """Its losses are in the loss, its statistics beside it, and padding is in neither."""
    experts = {"num_experts": 3, "experts_per_token": 2, "position_encoding": "rotary", "activation": "swiglu"}
    task = make_task(dataclasses.replace(config, model=dataclasses.replace(config.model, **experts)))
    params = unbox(jax.jit(task.init)(jax.random.key(0)))
    batch = task.batch(0)
    sums, gradients = jax.jit(
        lambda p, b: (lambda loss: jax.value_and_grad(loss, has_aux=True)(p))(
            lambda p: (lambda sums: (sums["loss"][0], sums))(task.loss(p, b, None))
        )
    )(params, batch)
    (total, sums) = sums
    tokens = (batch.encoder_segment_ids != 0).sum() + (batch.decoder_segment_ids != 0).sum()
    assert float(sums["load_balancing"][1]) == tokens
    mean = {name: float(value / count) for name, (value, count) in sums.items()}
    assert 1 <= mean["expert_load_max"] <= 3 and mean["dropped_share"] == 0
    assert 0 < mean["router_entropy"] <= math.log(3) + 1e-6
    assert float(total / sums["loss"][1]) > mean["nll"] * 0.9
    router = gradients["decoder"]["layers"]["feed_forward"]["router"]["kernel"]
    assert (np.abs(router).max(axis=(1, 2)) > 0).all()


def test_work_counts_real_tokens(task):
    batch = task.batch(0)
    work = task.work(batch)
    assert work["target_tokens"] == batch.decoder_loss_weights.sum()
    assert work["source_tokens"] + work["target_tokens"] < work["positions"]
    assert work["flops"] > 0


def test_names_of_parts_are_checked_before_the_text_is_read(config):
    wrong = dataclasses.replace(config, model=dataclasses.replace(config.model, activation="rellu"))
    with pytest.raises(UserError, match=r"model.activation=rellu is not one of relu, .*did you mean relu\?"):
        make_task(wrong)
    limited = dataclasses.replace(config.model, num_experts=2, expert_dispatch="capacity")
    with pytest.raises(UserError, match=r"capacity cannot decode token by token.*use dropless"):
        make_task(dataclasses.replace(config, model=limited))


def test_the_direction_is_said_with_two_pairs(caplog):
    caplog.set_level(logging.INFO)
    long = "word " * 99
    log_direction(DataConfig(target_language="fr"), PairList([("one", "un"), (long, ""), ("three", "trois")]))
    assert caplog.messages[:4] == [
        "translating from en to fr; the first two training pairs:",
        "  en: one",
        "  fr: un",
        f"  en: {'word ' * 39}...",
    ]
    assert caplog.messages[4:] == ["  fr: "]


def test_references_in_pieces_are_joined_as_outputs_are(config, tmp_path):
    pieces = ["a", "b@@", "c", "d@@", "e"]
    (tmp_path / "pieces").write_text("\n".join(pieces))
    for stem in ("train", "test"):
        for language in ("en", "de"):
            (tmp_path / f"{stem}.{language}").write_text("b@@ c d@@ e\na b@@ c\n")
    data = dataclasses.replace(
        config.data, source="files", directory=str(tmp_path), tokenizer=str(tmp_path / "pieces"), batching="bucket"
    )
    task = make_task(dataclasses.replace(config, data=data))
    task._translator = lambda decoding: Spoken(["bc de", "a bc"])
    params = jax.jit(lambda key: unbox(task.init(key)))(jax.random.key(0))
    scores = task.evaluate(params, "test")
    assert scores["exact_match"] == 1.0 and scores["num_examples"] == 2
    assert scores["text_form"] == "tokenised" and "bleu_paper" not in scores and "tok:none" in scores["bleu_signature"]


def test_references_of_a_split_in_tokens_become_text_as_outputs_do(config, tmp_path):
    """What the outputs are is said; a file of references has text already."""
    text = ["L'homme dit « oui » à 11 heures, n'est-ce pas ?", "Aujourd'hui, c'est tout & rien de plus."] * 2
    tokens = MosesTokenizer("fr").tokenize
    for stem, lines in {"train": tokens, "test": tokens, "raw": str}.items():
        for language in ("en", "fr"):
            lines_of_it = (lines(line, return_str=True) if lines is tokens else line for line in text)
            (tmp_path / f"{stem}.{language}").write_text("".join(f"{line}\n" for line in lines_of_it))
    assert "&apos;" in (tmp_path / "test.fr").read_text()
    data = dataclasses.replace(
        config.data, source="files", directory=str(tmp_path), validation="test", target_language="fr", vocab_size=300
    )
    decoding = dataclasses.replace(config.decoding, detokenize=True)
    task = make_task(dataclasses.replace(config, data=data, decoding=decoding))
    outputs = [detokenizer("fr")(line) for line in (tmp_path / "test.fr").read_text().splitlines()]
    task._translator = lambda decoding: Spoken(outputs)
    task._log_probs = lambda params, source, split: (-np.ones(4), np.ones(4))
    scores = task.evaluate({}, "test", outputs=tmp_path / "outputs.txt")
    assert scores["bleu"] == pytest.approx(100) and scores["exact_match"] == 1
    assert scores["text_form"] == "detokenised" and "tok:13a" in scores["bleu_signature"]
    files = {"source": tmp_path / "test.en", "reference": tmp_path / "raw.fr"}
    assert task.evaluate({}, files)["text_form"] == "raw"
    task.config = dataclasses.replace(task.config, evaluation=EvaluationConfig())
    assert task.evaluate({}, "validation", during_training=True)["bleu"] == pytest.approx(100)


class Spoken:
    """A translator that says what it is told to."""

    num_truncated = 0

    def __init__(self, lines):
        self.lines = lines

    def __call__(self, params, lines, num_best):
        return ([Candidate(line, 0.0)] for line in self.lines)
