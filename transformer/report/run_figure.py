"""The curves of runs as a figure, by matplotlib, for a README or a paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.report.figures import empty_figure, save
from transformer.report.run_charts import VALIDATION, Chart, charts, points
from transformer.report.run_curves import AXES, place_at
from transformer.report.runs import Run
from transformer.types import UserError, one_of

COLOURS = ("#0b5cad", "#d06a00", "#612424", "#7900ff", "#c27992", "#553d61", "#92310c", "#aa9261")
"""As in the light style of the page."""
COLUMNS = 3
WIDTH, HEIGHT = 3.1, 2.0  # inches of a chart
MARKED = 40  # points of validation, up to which each has a mark


def write_figure(path: Path, runs: Sequence[Run], axis: str) -> None:
    """The main charts of the page, as the suffix of the path says.

    Raises:
      UserError: if no run knows the axis; if there is no matplotlib; if the file cannot be written.
    """
    save(path, figure(runs, axis), dpi=100)


def figure(runs: Sequence[Run], axis: str = "steps") -> Any:
    """The main charts over one of ``steps``, ``minutes`` and ``tokens``, as a matplotlib figure.

    Raises:
      UserError: if a run does not know the axis, or there is no matplotlib.
    """
    one_of("--axis", axis, dict.fromkeys(AXES))
    without = [str(run.workdir) for run in runs if axis not in run.curves.training.axes]
    if without:
        raise UserError(f"--axis={axis}: not known of {', '.join(without)}; --axis=steps always is")
    shown = charts([run.curves for run in runs]).main
    rows = -(-len(shown) // COLUMNS)
    made = empty_figure(WIDTH * min(COLUMNS, len(shown)), HEIGHT * rows + 0.3)
    every = made.subplots(rows, min(COLUMNS, len(shown)), squeeze=False).reshape(-1)
    for place, chart in zip(every, shown, strict=False):
        _draw(place, chart, runs, axis)
    for place in every[len(shown) :]:
        place.remove()
    for place in every[max(0, len(shown) - COLUMNS) : len(shown)]:
        place.set_xlabel(axis, fontsize=8)
    handles = [_key(COLOURS[i % len(COLOURS)], "-") for i in range(len(runs))]
    names = [_named(run, runs) for run in runs]
    if any(len({line.part for line in chart.lines}) > 1 for chart in shown):
        handles += [_key("#59626d", "-"), _key("#59626d", "--")]
        names += ["training", "validation"]
    if any(run.curves.restarts for run in runs):
        handles.append(_key("#59626d", ":"))
        names.append("restart")
    made.legend(handles, names, loc="outside upper left", ncols=6, fontsize=8, frameon=False)
    return made


def _named(run: Run, runs: Sequence[Run]) -> str:
    """In the key; the letter is at the end of the run's lines too, for those who cannot tell the colours apart."""
    name = run.name.replace("$", r"\$")  # or it would begin a formula
    return name if len(runs) == 1 else f"{run.letter} {name}"


def _key(colour: str, style: str) -> Any:
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {"color": colour, "linestyle": style, "linewidth": 1.4}
    return Line2D([], [], **look)


def _draw(place: Any, chart: Chart, runs: Sequence[Run], axis: str) -> None:
    parts = {line.part for line in chart.lines}
    for run, colour in zip(runs, COLOURS * (len(runs) // len(COLOURS) + 1), strict=False):
        for line in chart.lines:
            xs, ys = [list(each) for each in zip(*points(run.curves, line, axis), strict=True)] or ([], [])
            validation = line.part == VALIDATION
            style = "--" if validation and len(parts) > 1 else "-"
            marker = "." if (validation and len(xs) <= MARKED) or len(xs) == 1 else ""
            place.plot(xs, ys, color=colour, linestyle=style, marker=marker, markersize=4, linewidth=1.2)
            if len(runs) > 1 and xs and style == "-":
                place.annotate(
                    run.letter, (xs[-1], ys[-1]), (3, -2), textcoords="offset points", color=colour, fontsize=7
                )
        for restart in run.curves.restarts or ():
            where = place_at(run.curves.training, restart.step, axis)
            place.axvline(where, color=colour, linestyle=":", linewidth=0.9)
    place.set_title(chart.title, fontsize=9, loc="left")
    place.tick_params(labelsize=7)
    place.grid(axis="y", color="#d4d9df", linewidth=0.6)
    place.spines[["top", "right"]].set_visible(False)
    place.set_xlim(left=0)
