"""The page of runs: what stands in it, and what is refused."""

import json
import re
import subprocess
import sys

import pytest

from tests.report.workdirs import AWKWARD, a_run, outputs
from transformer.report import card, card_facts, card_html, run_samples
from transformer.report.run_page import page
from transformer.report.runs import read_runs


@pytest.fixture
def workdirs(tmp_path):
    one, other = a_run(tmp_path / "a"), a_run(tmp_path / "b", dropout=0.3, seed=5)
    outputs(one, "test.130.raw", [130], ["das 0", "der 1", AWKWARD])
    outputs(one, "test.60.raw", [60], ["das das", "", "das"])
    outputs(other, "test.latest.raw", [60, 130], ["das 0"] * 3)
    return [one, other]


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text).group(1))


def test_the_page_holds_curves_restarts_and_differences(workdirs):
    text = page(read_runs(workdirs))
    data = data_of(text)
    training = data["runs"][1]["parts"]["training"]
    assert training["axes"]["steps"] == list(range(10, 131, 10)) and training["axes"]["tokens"][-1] == 18 * 60 + 36 * 70
    assert training["columns"]["loss"][:3] == [30, 15, 10] and training["columns"]["tokens_per_second"][0] == 180
    assert data["runs"][0]["restarts"] == [
        {
            "said": "A went on from step 60 after a kill; 13 updates or more were made again",
            "axes": {"steps": 60, "minutes": 3, "tokens": 1080},
        }
    ]
    of_experiment, others = re.search(
        r"<h3>Of the experiment</h3>(.*?)<h3>Others(.*?)</section>", text, re.DOTALL
    ).groups()
    row = "<tr><th scope=row>{}</th><td>{}</td><td><b>{}</b></td></tr>"
    assert row.format("model.dropout_rate", "0.1", "0.3") in of_experiment
    assert row.format("seed", "0", "5") in of_experiment
    assert row.format("data.directory", "&#x27;data/a&#x27;", "&#x27;data/b&#x27;") in others
    assert (of_experiment + others).count("<th scope=row>") == 3
    assert "1,234,567" in text and "bleu 10 at 100" in text


def test_texts_are_escaped_and_nothing_is_asked_from_elsewhere(workdirs):
    text = page(read_runs(workdirs))
    assert AWKWARD not in text and "&lt;/script&gt;&lt;b&gt;&amp;amp; שלום 🙂" in text
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", text)
    assert "{{" not in text


def test_outputs_for_the_same_lines_stand_together_by_step(workdirs):
    (found,) = run_samples.read_samples([("A", workdirs[0]), ("B", workdirs[1])])
    assert [run_samples.described(each) for each in found.evaluations] == [
        "A step 60; BLEU 60.0",
        "A step 130; BLEU 130.0",
        "B step 130; mean of 2 checkpoints; BLEU 130.0",
    ]
    html = "\n".join(run_samples.as_html(found))
    assert html.count("<article") == 3
    assert "<dd dir=auto><mark>der</mark> 1</dd>" in html and "<i>nothing</i>" in html


def test_outputs_of_other_lines_or_damaged_ones_do_not_mix(workdirs, caplog):
    outputs(workdirs[1], "test.60.raw", [60], ["das"] * 2)
    (workdirs[0] / "outputs" / "test.60.raw.jsonl").write_text('{"source": "a"}\n')
    found = run_samples.read_samples([("A", workdirs[0]), ("B", workdirs[1])])
    assert [[each.run for each in samples.evaluations] for samples in found] == [["A", "B"], ["B"]]
    assert "test.60.raw.jsonl is left out" in caplog.text


def test_the_card_keeps_its_tables_and_headings(workdirs):
    text = card.page(card_facts.facts(workdirs[0]))
    html = card_html.as_html(text + "\n| a \\| b | <i> |\n|---|---|\n| c | d\\|e |\n", 3)
    assert html.startswith("<h3>Experiment card: none.py</h3>") and "<h4>Interruptions</h4>" in html
    assert "<tr><th scope=row>parameters</th><td>1,234,567</td></tr>" in html
    assert "<th scope=col>a | b</th><th scope=col>&lt;i&gt;</th>" in html and "<td>d|e</td>" in html
    assert (
        html.count("<tr>") == len([line for line in text.split("\n") if line.startswith("| ") and line.strip("| ")]) + 2
    )


def test_the_command_writes_a_page(tmp_path):
    output = tmp_path / "pages" / "run.html"
    flags = [f"--workdir={a_run(tmp_path / name)}" for name in "ab"]
    command = [sys.executable, "-m", "transformer.report", "run", *flags, f"--output={output}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(f"{output}: 0.0"), done.stderr
    assert "<title>2 runs: a, b</title>" in output.read_text()
