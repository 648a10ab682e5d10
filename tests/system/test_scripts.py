"""The scripts as a user runs them, in small: train, continue, evaluate, translate, and what they say to mistakes."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.system.scripts import ROOT, TRAIN, last_json, mistake, run

pytestmark = pytest.mark.xdist_group("scripts")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run("train.py", *TRAIN, f"--workdir={folder}", f"--config.data.cache_directory={folder}/cache")
    return folder


def test_the_workdir_holds_all_that_is_promised(workdir):
    names = {path.name for path in workdir.iterdir()}
    assert {"config.json", "tokenizer.model", "checkpoints", "metrics.jsonl", "tensorboard", "log.txt"} <= names
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    training = [line for line in lines if "loss" in line]
    assert [line["step"] for line in training] == [2, 4, 6, 8, 10, 12]
    assert {
        "loss", "nll_per_token", "perplexity", "learning_rate", "gradient_norm", "padding_share",
        "source_tokens_per_second", "target_tokens_per_second", "flops_per_second", "share_outside_step",
    } <= set(training[-1])  # fmt: skip
    assert lines[-1]["step"] == 12 and {"validation_bleu", "validation_nll_per_token"} <= set(lines[-1])
    assert "step 12:" in (workdir / "log.txt").read_text()
    card = json.loads((workdir / "card.json").read_text(encoding="utf-8"))
    assert card["run"]["config"] == "phrases_en_de.py" and card["run"]["state"] == "finished at update 12 of 12"
    assert card["training"]["updates"] == card["checkpoints"]["best_in_validation"]["step"] == 12


def test_the_card_can_be_had_at_any_time(workdir, tmp_path):
    shutil.copytree(workdir, tmp_path / "run", ignore=shutil.ignore_patterns("card.*"))
    command = [sys.executable, "-m", "transformer.report"]
    printed = subprocess.run([*command, "card", f"--workdir={tmp_path}/run"], cwd=ROOT, capture_output=True, check=True)
    assert printed.stdout == (tmp_path / "run" / "card.md").read_bytes() != b""
    assert (tmp_path / "run" / "card.json").exists()
    wrong = subprocess.run([*command, "crad", f"--workdir={tmp_path}"], cwd=ROOT, capture_output=True)
    assert wrong.returncode == 2 and b"did you mean card?" in wrong.stderr


def test_a_run_can_be_looked_into(workdir, tmp_path):
    attention = ("-m", "transformer.report", "attention", f"--workdir={workdir}", f"--output={tmp_path}/deep/page.html")
    result = run(*attention, "--input=twenty <one>", "--target=einundzwanzig")
    page = (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")
    assert b"page.html: 0." in result.stdout and '"output":"einundzwanzig"' in page and "twenty \\u003cone>" in page
    assert "task=translation looks at texts: give --input" in mistake(*attention, "--image=digit.png")


def test_the_same_command_again_has_nothing_to_do_and_more_steps_go_on(workdir, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(workdir, folder)
    again = run("train.py", *TRAIN, f"--workdir={folder}", f"--config.data.cache_directory={workdir}/cache")
    assert b"going on from step 12" in again.stderr and b"step 2:" not in again.stderr
    more = run(
        "train.py", *TRAIN, f"--workdir={folder}", f"--config.data.cache_directory={workdir}/cache",
        "--config.training.num_steps=14",
    )  # fmt: skip
    assert b"finished at step 14" in more.stderr


def test_another_experiment_in_the_workdir_is_refused(workdir):
    errors = mistake("train.py", *TRAIN, f"--workdir={workdir}", "--config.model.d_ff=32")
    assert "holds another experiment" in errors and "model.d_ff: 24 there, 32 now" in errors
    assert "training.log_every" in errors


def test_eval_scores_a_split(workdir):
    result = run("eval.py", f"--workdir={workdir}", "--split=validation", "--checkpoint=average:2", "--weights=ema")
    scores = last_json(result)
    assert {
        "split", "checkpoint", "steps", "num_examples", "nll_per_token", "perplexity", "bleu", "bleu_signature",
        "chrf", "chrf_signature", "exact_match", "num_truncated", "bleu_paper", "bleu_interval", "length_ratio",
    } <= set(scores)  # fmt: skip
    assert scores["steps"] == [8, 12] and scores["num_examples"] == 500
    outputs = {path.suffix: path for path in (workdir / "outputs").iterdir()}
    assert {path.name for path in outputs.values()} == {
        f"validation.average-2.ema.{e}" for e in ("txt", "jsonl", "html", "scores.json")
    }
    assert len(outputs[".txt"].read_bytes().split(b"\n")) == len(outputs[".jsonl"].read_bytes().split(b"\n")) == 501
    printed = result.stdout.decode()
    assert f"report in {outputs['.html']}\n" in printed and "The worst 20" in outputs[".html"].read_text(
        encoding="utf-8"
    )
    assert f"\nbleu_paper {scores['bleu_paper']:.6g}: the paper's way: " in printed
    card = json.loads((workdir / "card.json").read_text(encoding="utf-8"))
    (evaluation,) = card["evaluations"]
    assert evaluation["steps"] == [8, 12] and evaluation["scores"]["bleu_paper"] == scores["bleu_paper"]
    assert "### validation, average:2, ema weights" in (workdir / "card.md").read_text(encoding="utf-8")


def test_the_doctor_looks_at_a_run(workdir):
    result = run("eval.py", f"--workdir={workdir}", "--doctor", f"--config.data.cache_directory={workdir}/cache")
    found = last_json(result)
    lines = result.stdout.decode().splitlines()[:-1]
    assert found["ok"]["steps"].startswith("12 of 12 steps") and f"ok         steps: {found['ok']['steps']}" in lines
    assert found["recipe"] is None and "duplicates" in found["ok"] and "label smoothing" in found["not_known"]
    assert "it takes no --checkpoint" in mistake("eval.py", f"--workdir={workdir}", "--doctor", "--checkpoint=best")


def test_generate_gives_a_line_for_a_line(workdir):
    lines = b"the number seven\r\n\n  \nat noon\xc2\x85still the same line\nno newline at the end"
    result = run(
        "generate.py", f"--workdir={workdir}", "--num_best=2", "--scores", "--config.decoding.max_extra_tokens=3",
        stdin=lines,
    )  # fmt: skip
    outputs = result.stdout.decode().split("\n")
    assert len(outputs) == 2 * 5 + 1 and outputs[-1] == ""
    assert all(float(line.split("\t")[0]) <= 0 for line in outputs[:-1])
    assert outputs[2] == outputs[3] == outputs[4] == outputs[5] == "0.0000\t"


@pytest.mark.slow
def test_generate_in_jsonl(workdir, tmp_path):
    (tmp_path / "in").write_text('"two\\nlines"\n{"text": ""}\n')
    run("generate.py", f"--workdir={workdir}", f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--format=jsonl")
    values = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [value["line"] for value in values] == [1, 2] and values[1]["text"] == ""


def test_scores_of_text_without_a_model(tmp_path):
    (tmp_path / "h").write_text("l &apos; an 7 est un bon an\nzwei\n")
    (tmp_path / "r").write_text("l'an 7 est un bon an\ndrei\n")
    (tmp_path / "b").write_text("l &apos; an 7 est un bon an\ndrei\n")
    files = [f"--hypothesis={tmp_path}/h", f"--reference={tmp_path}/r"]
    result = run("eval.py", *files)
    scores = last_json(result)
    assert scores["exact_match"] == 0 and scores["num_examples"] == 2
    assert set(scores) == {
        "num_examples", "bleu", "bleu_signature", "bleu_interval", "bleu_interval_signature", "chrf", "chrf_signature",
        "length_ratio", "exact_match", "text_form",
    }  # fmt: skip
    assert b"no bleu_paper: give --target_language" in result.stdout
    result = run(
        "eval.py", *files, f"--baseline={tmp_path}/b", "--target_language=fr", "--config.decoding.detokenize"
    )  # fmt: skip
    scores = last_json(result)
    assert scores["exact_match"] == 0.5 and "(fr, sacremoses" in scores["bleu_paper_definition"]
    (row,) = scores["baselines"]
    assert row["bleu"] == pytest.approx(100) and row["bleu_difference"] < 0 and 0 < row["bleu_p_value"] <= 1
    assert f"over {tmp_path}/b (100.00): p = ".encode() in result.stdout
    assert "give --target_language" in mistake("eval.py", *files, "--config.decoding.detokenize")
    (tmp_path / "r").write_text("one\n")
    assert "2" in mistake("eval.py", *files)


@pytest.mark.slow
def test_log_probabilities_of_given_lines_and_what_a_damaged_run_says(workdir, tmp_path):
    (tmp_path / "s").write_text("the number seven\nat noon\n")
    (tmp_path / "h").write_text("die Zahl sieben\num 12 Uhr\n")
    files = f"--source={tmp_path}/s", f"--hypothesis={tmp_path}/h"
    result = run("eval.py", f"--workdir={workdir}", *files)
    scores = last_json(result)
    assert len(scores["log_probs"]) == 2 and all(value < 0 for value in scores["log_probs"])

    folder = tmp_path / "run"
    shutil.copytree(workdir, folder)
    arrays = [path for path in (folder / "checkpoints" / "12" / "params").rglob("*") if path.stat().st_size > 2000]
    data = bytearray(arrays[0].read_bytes())
    data[len(data) // 2] ^= 1  # one bit
    arrays[0].write_bytes(data)
    damaged = run("eval.py", f"--workdir={folder}", *files)
    assert last_json(damaged)["steps"] == [8]
    assert b"another checksum" in damaged.stderr
    errors = mistake("eval.py", f"--workdir={workdir}", f"--text={tmp_path}/s")
    assert "task=translation scores --split, --source with" in errors
    shutil.copy(ROOT / "LICENSE", folder / "tokenizer.model")
    assert "tokenizer.model" in mistake("eval.py", f"--workdir={folder}", *files)


@pytest.mark.slow
def test_a_language_model_from_text_to_continuations(tmp_path):
    lines = [f"number {number}, and number {number * number}" for number in range(3, 500)]
    (tmp_path / "input.txt").write_text("\n".join(lines))
    (tmp_path / "other.txt").write_text("number 5, and number 25\nnumber 6")
    run(
        "train.py", "--config=configs/shakespeare.py", f"--workdir={tmp_path}/run",
        f"--config.data.directory={tmp_path}", f"--config.data.cache_directory={tmp_path}/cache",
        "--config.data.documents=line", "--config.data.split=random", "--config.data.tokens_per_batch=512",
        "--config.data.max_target_length=64", "--config.model.d_model=32",
        "--config.model.num_decoder_layers=1", "--config.training.num_steps=40", "--config.training.decay_steps=10",
        "--config.training.warmup_steps=3", "--config.training.evaluate_every=40",
    )  # fmt: skip
    scores = last_json(run("eval.py", f"--workdir={tmp_path}/run", "--split=test"))
    assert 45 < scores["num_examples"] < 55 and 0 < scores["bits_per_byte"] < 8
    scores = last_json(run("eval.py", f"--workdir={tmp_path}/run", f"--text={tmp_path}/other.txt"))
    assert scores["num_examples"] == 2 and scores["num_tokens"] == 33 and scores["num_bytes"] == 31
    result = run(
        "generate.py", f"--workdir={tmp_path}/run", "--num_best=3", "--config.decoding.max_extra_tokens=20",
        "--config.decoding.repetition_penalty=1.3", "--config.decoding.min_p=0.1", "--config.decoding.stop=('e','7')",
        stdin=b"number 5\n\nnumb\n",
    )  # fmt: skip
    outputs = result.stdout.decode().split("\n")
    assert len(outputs) == 10 and outputs[3:6] == ["", "", ""] and any(outputs)
    assert not any("e" in line or "7" in line for line in outputs)


def test_a_signal_saves_and_exits_with_the_code_for_restarting(tmp_path):
    command = [sys.executable, "train.py", *TRAIN, f"--workdir={tmp_path}/run", "--config.training.num_steps=100000",
               "--config.training.evaluate_every=100000", "--config.training.checkpoint_every=100000"]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    log = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while not (log.exists() and log.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert b"the same command goes on from there" in process.stderr.read()
    (step,) = (int(path.parent.name) for path in (tmp_path / "run" / "checkpoints").glob("*/manifest.json"))
    assert step >= 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workdir={tmp}/w"], "--config"),
        (["--config={tmp}/none.py", "--workdir={tmp}/w"], "there is no such file"),
        ([*TRAIN, "--workdir={tmp}/w", "--config.model.d_modle=3"], "did you mean model.d_model?"),
        ([*TRAIN, "--workdir={tmp}/w", "--config.model.d_model=wide"], "config.model.d_model"),
    ],
)
def test_mistakes_on_the_command_line(arguments, message, tmp_path):
    assert message in mistake("train.py", *(argument.format(tmp=tmp_path) for argument in arguments))
    assert not (tmp_path / "w").exists()


def test_a_workdir_that_is_none(tmp_path):
    assert "config.json does not exist" in mistake("generate.py", f"--workdir={tmp_path}")
