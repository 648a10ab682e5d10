"""The run report as a page: curves of runs over each other, how their configs differ, their outputs and their cards."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from transformer.config import differences, flatten
from transformer.report import card, card_facts, card_html, run_samples
from transformer.report.page import assemble
from transformer.report.run_charts import Charts, charts, column, parts, titled
from transformer.report.run_curves import Curves, place_at
from transformer.report.runs import LETTERS, Run

SCRIPTS = ("scales.js", "line_chart.js", "run.js")
ROUNDED = 6  # digits of the values on the page


def page(runs: Sequence[Run]) -> str:
    """The page as HTML."""
    found = charts([run.curves for run in runs])
    facts = [card_facts.facts(run.workdir) for run in runs]
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(run.name for run in runs)}"
    return assemble(
        "run",
        title,
        SCRIPTS,
        {
            "runs": [_run_data(run, found) for run in runs],
            "charts": [
                {"title": chart.title, "note": chart.note, "lines": chart.lines, "main": chart in found.main}
                for chart in (*found.main, *found.others)
            ],
        },
        heading=escape(title),
        runs="\n".join(_overview(runs, facts)),
        constants="\n".join(_constants(runs, found)),
        differences="\n".join(_differences(runs)),
        samples="\n".join(_samples(runs)),
        cards="\n".join(_cards(runs, facts)),
    )


def _run_data(run: Run, found: Charts) -> dict[str, Any]:
    """What the curves of a run are drawn from."""
    lines = {line for chart in (*found.main, *found.others) for line in chart.lines}
    training = run.curves.training
    return {
        "letter": run.letter,
        "name": run.name,
        "parts": {
            name: {
                "axes": {
                    axis: _whole(values) if axis != "minutes" else _numbers(values)
                    for axis, values in rows.axes.items()
                },
                "columns": {
                    line.name: _numbers(values)
                    for line in lines
                    if line.part == name and (values := column(run.curves, line)) is not None
                },
            }
            for name, rows in parts(run.curves)
        },
        "restarts": [
            {
                "said": f"{run.letter} went on from step {each.step:,} after {each.ended}"
                + (f"; {each.again:,} updates or more were made again" if each.again else ""),
                "axes": {axis: place_at(training, each.step, axis) for axis in training.axes},
            }
            for each in run.curves.restarts or ()
        ],
    }


def _numbers(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.{ROUNDED}g}") if np.isfinite(value) else None for value in values]


def _whole(values: np.ndarray) -> list[int]:
    return [round(value) for value in values.tolist()]


def _overview(runs: Sequence[Run], facts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each run: what it is and how far it came."""
    names = ("", "task", "state", "parameters", "steps", "minutes", "best in validation", "went on from step")
    yield f"<thead><tr>{''.join(f'<th scope=col>{name}</th>' for name in names)}</tr></thead>"
    for run, known in zip(runs, facts, strict=True):
        last = {axis: values[-1] for axis, values in run.curves.training.axes.items() if len(values)}
        cells = [
            escape(known["run"]["task"]),
            escape(_known(known["run"]["state"])),
            _known(known["model"]["parameters"]),
            f"{last['steps']:,.0f}" if last else "none",
            f"{last['minutes']:,.1f}" if "minutes" in last else "not known",
            escape(_best(known["checkpoints"]["best_in_validation"])),
            _restarts(run.curves),
        ]
        letter = f'<span class="run" style="--run: var(--run-{colour(run)})">{run.letter}</span>'
        name = f'<b title="{escape(str(run.workdir))}">{escape(run.name)}</b>'
        yield f"<tr><th scope=row>{letter} {name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def colour(run: Run) -> int:
    """The number, from 1, of a run's colour in the style; there are eight."""
    return LETTERS.index(run.letter) % 8 + 1


def _best(known: Mapping[str, Any]) -> str:
    """The best score of the validation split and its step, of what the card says."""
    if "step" not in known:
        return "none"
    (score,) = (f"{name} {value:.4g}" for name, value in known.items() if name != "step")
    return f"{score} at {known['step']:,}"


def _known(value: Any) -> str:
    if isinstance(value, Mapping):
        return "not known"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _restarts(curves: Curves) -> str:
    if curves.restarts is None:
        return "not recorded"
    return ", ".join(f"{each.step:,}" for each in curves.restarts) or "none"


def _constants(runs: Sequence[Run], found: Charts) -> Iterator[str]:
    """Numbers that no curve is needed for."""
    if not found.constants:
        return
    yield "<h3>The same at each validation</h3>"
    rows = (
        (
            titled(each.line).removeprefix("Validation: "),
            ["" if value is None else f"{value:,.6g}" for value in each.values],
        )
        for each in found.constants
    )
    yield from _table("", runs, rows)


def _differences(runs: Sequence[Run]) -> Iterator[str]:
    """Every key in which the configs of the runs are not all the same."""
    if len(runs) == 1:
        yield "<p class=note>There is one run. Its card has the keys that are not the defaults, or not the paper's.</p>"
        return
    of_experiment: list[tuple[str, list[str]]] = []
    others: list[tuple[str, list[str]]] = []
    another = {key for run in runs[1:] for key in differences(runs[0].config, run.config)}
    for every in zip(*(flatten(run.config) for run in runs), strict=True):
        key, values = every[0][0], [value for _, value in every]
        if any(value != values[0] for value in values):
            (of_experiment if key in another else others).append((key, [repr(value) for value in values]))
    for heading, rows in (
        ("Of the experiment", of_experiment),
        ("Others (paths, cadence, decoding, how it is computed)", others),
    ):
        yield f"<h3>{heading}</h3>"
        if rows:
            yield from _table("key", runs, rows)
        else:
            yield "<p class=note>None.</p>"


def _table(corner: str, runs: Sequence[Run], rows: Any) -> Iterator[str]:
    """A column for each run; what is not as in the first is marked."""
    heads = "".join(f"<th scope=col>{run.letter} {escape(run.name)}</th>" for run in runs)
    yield f'<div class=wide><table class="plain values"><thead><tr><th scope=col>{corner}</th>{heads}</tr></thead>'
    for name, (first, *others) in rows:
        cells = "".join(
            f"<td>{escape(value) if value == first else f'<b>{escape(value)}</b>'}</td>" for value in (first, *others)
        )
        yield f"<tr><th scope=row>{escape(name)}</th>{cells}</tr>"
    yield "</table></div>"


def _samples(runs: Sequence[Run]) -> Iterator[str]:
    """Outputs that were kept, or why there are none."""
    found = run_samples.read_samples([(run.letter, run.workdir) for run in runs])
    if not found:
        yield (
            "<p class=note>None were kept. eval.py keeps outputs with their sources for translation; those of an "
            "earlier step with --checkpoint=STEP, while its checkpoint is there.</p>"
        )
    for samples in found:
        yield from run_samples.as_html(samples)


def _cards(runs: Sequence[Run], facts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for run, known in zip(runs, facts, strict=True):
        opened = " open" if len(runs) == 1 else ""
        yield f"<details{opened}><summary>{run.letter} {escape(run.name)}</summary><div class=card>"
        yield f"{card_html.as_html(card.page(known), 3)}</div></details>"
