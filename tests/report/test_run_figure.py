"""The curves of runs as a figure."""

import pytest

from tests.report.workdirs import a_run
from transformer.report.runs import read_runs
from transformer.types import UserError

pytest.importorskip("matplotlib", reason="no matplotlib; make browser installs it")

from transformer.report.run_figure import figure, write_figure


def test_a_chart_holds_the_lines_of_every_run_over_the_axis(tmp_path):
    runs = read_runs([a_run(tmp_path / "a"), a_run(tmp_path / "b")])
    made = figure(runs, "minutes")
    titles = [axes.get_title(loc="left") for axes in made.axes]
    assert titles[:3] == ["Loss", "Nats per token", "BLEU"] and len(titles) == 10
    nats = made.axes[1].get_lines()
    assert [(line.get_linestyle(), len(line.get_xdata())) for line in nats] == [
        ("-", 13), ("--", 2), (":", 2), ("-", 13), ("--", 2), (":", 2),
    ]  # fmt: skip
    assert list(nats[1].get_xdata()) == [2.5, 5.0] and nats[2].get_xdata()[0] == pytest.approx(3.0)
    assert nats[0].get_color() == nats[1].get_color() != nats[3].get_color()
    assert made.axes[-1].get_xlabel() == "minutes"


def test_a_picture_for_a_readme_is_small(tmp_path):
    path = tmp_path / "new" / "run.png"
    write_figure(path, read_runs([a_run(tmp_path / "a")]), "steps")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size < 150_000


def test_an_axis_that_a_run_does_not_know_is_refused(tmp_path):
    runs = read_runs([a_run(tmp_path / "a")])
    del runs[0].curves.training.axes["tokens"]
    with pytest.raises(UserError, match=r"--axis=tokens: not known of .*/a; --axis=steps"):
        figure(runs, "tokens")
