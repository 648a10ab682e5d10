"""What curves are read from a workdir, whatever is missing or damaged in it."""

import json
import logging

import numpy as np
import pytest

from tests.report.workdirs import a_run, training_line
from transformer.report.run_charts import Line, charts, column, points
from transformer.report.run_curves import place_at, read_curves, restarts
from transformer.types import UserError


def test_steps_minutes_and_tokens_of_each_line(tmp_path):
    curves = read_curves(a_run(tmp_path / "a"))
    steps = np.arange(10, 131, 10)
    np.testing.assert_array_equal(curves.training.axes["steps"], steps)
    np.testing.assert_allclose(curves.training.axes["minutes"], steps / 20)
    # Exact at the checkpoints of steps 60 and 130, in proportion between them.
    expected = np.where(steps <= 60, 18 * steps, 18 * 60 + 36 * (steps - 60))
    np.testing.assert_allclose(curves.training.axes["tokens"], expected)
    np.testing.assert_array_equal(curves.validation.axes["steps"], [50, 100])
    np.testing.assert_allclose(curves.validation.axes["minutes"], [2.5, 5])
    np.testing.assert_allclose(curves.validation.columns["bleu"], [5, 10])
    assert list(points(curves, Line("validation", "bleu"), "tokens")) == [(900, 5), (2520, 10)]


def test_restarts_are_those_of_the_record(tmp_path):
    curves = read_curves(a_run(tmp_path / "a"))
    assert curves.restarts == [(60, "a kill", 13)]
    assert place_at(curves.training, 65, "minutes") == pytest.approx(3.25)
    (tmp_path / "a" / "run.json").unlink()
    assert read_curves(tmp_path / "a").restarts is None


def test_a_start_of_a_finished_run_is_no_restart():
    sessions = [
        {"from_step": 0, "to_step": 70, "ended": "a signal"},
        {"from_step": 70, "to_step": 70, "ended": None},  # killed before its first report
        {"from_step": 70, "to_step": 90, "ended": "finished"},
        {"from_step": 90, "to_step": 90, "ended": "finished"},
    ]
    assert restarts(sessions) == [(70, "a signal", 0), (70, "a kill", 0)]


def test_damaged_lines_are_left_out_with_a_warning(tmp_path, caplog):
    workdir = a_run(tmp_path / "a")
    whole = read_curves(workdir)
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write('[1, 2]\n{"loss": 3.0}\n\n{"step": 140, "loss": 2.')
    with caplog.at_level(logging.WARNING):
        curves = read_curves(workdir)
    for name, values in whole.training.columns.items():
        np.testing.assert_array_equal(curves.training.columns[name], values)
    assert len(caplog.records) == 3 and "metrics.jsonl:16 is left out" in caplog.text


def test_what_is_not_finite_or_missing_is_a_gap_and_the_later_line_of_a_step_counts(tmp_path):
    workdir = a_run(tmp_path / "a", steps=30)
    with (workdir / "metrics.jsonl").open("a") as file:
        for step, changed in ((20, {"loss": None}), (30, {"loss": 7.0, "new": 2.0})):
            file.write(json.dumps({**training_line(step, 10), **changed}) + "\n")
    columns = read_curves(workdir).training.columns
    np.testing.assert_array_equal(columns["loss"], [30, np.nan, 7])
    np.testing.assert_array_equal(columns["new"], [np.nan, np.nan, 2])


def test_without_checkpoints_tokens_are_not_known(tmp_path):
    workdir = a_run(tmp_path / "a")
    for manifest in workdir.glob("checkpoints/*/manifest.json"):
        manifest.write_text("{")
    assert "tokens" not in read_curves(workdir).training.axes


@pytest.mark.parametrize(
    ("text", "message"), [(None, "metrics.jsonl does not exist; --workdir must be"), ('{"st', "has no whole line yet")]
)
def test_without_a_line_the_path_and_the_remedy_are_named(tmp_path, text, message):
    path = a_run(tmp_path / "a") / "metrics.jsonl"
    path.unlink()
    if text:
        path.write_text(text)
    with pytest.raises(UserError, match=message) as found:
        read_curves(tmp_path / "a")
    assert str(path) in str(found.value)


def test_charts_are_chosen_by_name(tmp_path):
    curves = read_curves(a_run(tmp_path / "a"))
    found = charts([curves])
    titles = [chart.title for chart in found.main]
    assert titles == [
        "Loss", "Nats per token", "BLEU", "Accuracy", "Learning rate", "Gradient norm", "Tokens a second", "Padding",
        "Time outside the step", "Expert load",
    ]  # fmt: skip
    assert found.main[1].lines == (("training", "nll_per_token"), ("validation", "nll_per_token"))
    np.testing.assert_allclose(
        column(curves, Line("training", "tokens_per_second")), 18 * curves.training.axes["steps"]
    )
    assert [chart.title for chart in found.others] == ["Source tokens a second", "Target tokens a second"]
    assert found.constants == [(("validation", "num_examples"), (17.0,))]


def test_scores_of_labels_stand_beside_what_training_calls_them(tmp_path):
    workdir = a_run(tmp_path / "a", steps=20)
    with (workdir / "metrics.jsonl").open("a") as file:
        scores = {"nll": 0.5, "f1": 0.25, "accuracy": 0.5, "mean_reciprocal_rank": 0.75, "accuracy_of_majority": 0.125}
        file.write(json.dumps({"step": 20} | {f"validation_{name}": value for name, value in scores.items()}))
    found = charts([read_curves(workdir)])
    by_title = {chart.title: chart.lines for chart in found.main}
    assert by_title["Nats per label"] == (("training", "nll_per_token"), ("validation", "nll"))
    assert by_title["Accuracy"] == (("training", "accuracy"), ("validation", "accuracy"))
    assert by_title["Mean reciprocal rank"] == (("validation", "mean_reciprocal_rank"),)
    assert "Macro-F1" in by_title
    assert found.constants == [(("validation", "accuracy_of_majority"), (0.125,))]


def test_a_run_without_a_chart_is_left_out_of_it(tmp_path):
    one, other = a_run(tmp_path / "a"), a_run(tmp_path / "b")
    lines = [line for line in (other / "metrics.jsonl").read_text().split("\n") if "validation" not in line]
    (other / "metrics.jsonl").write_text("\n".join(lines))
    runs = [read_curves(one), read_curves(other)]
    found = charts(runs)
    assert "BLEU" in [chart.title for chart in found.main]
    assert list(points(runs[1], Line("validation", "bleu"), "steps")) == []
    assert found.constants == [(("validation", "num_examples"), (17.0, None))]
