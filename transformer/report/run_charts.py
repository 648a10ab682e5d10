"""Which charts the curves of runs are shown in: those that most look at, the rest, and numbers that never change."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from transformer.report.run_curves import Curves, Rows

TRAINING, VALIDATION = "training", "validation"


class Line(NamedTuple):
    """A column of the part of the curves with that name."""

    part: str
    name: str


class Chart(NamedTuple):
    """Lines of one unit, of every run that has them."""

    title: str
    note: str
    lines: tuple[Line, ...]


class Constant(NamedTuple):
    """What is the same in each line of a run, as the size of the data; of runs that have no such number None."""

    line: Line
    values: tuple[float | None, ...]


class Charts(NamedTuple):
    main: list[Chart]
    others: list[Chart]
    constants: list[Constant]


TOKENS_PER_SECOND = "tokens_per_second"
KNOWN = {
    "loss": ("Loss", "what training minimises: with label smoothing and auxiliary losses, where there are any"),
    "nll_per_token": ("Nats per token", "unsmoothed, per real token"),
    "bleu": ("BLEU", "of the validation split, with the beam that validation has"),
    "chrf": ("chrF", "of the validation split"),
    "exact_match": ("Exact match", "the share of lines that equal a reference"),
    "accuracy": ("Accuracy", "the share that was guessed right; in training with dropout"),
    "f1": ("Macro-F1", "the mean of the classes' F1"),
    "bits_per_byte": ("Bits per byte", "of the validation split"),
    "learning_rate": ("Learning rate", ""),
    "gradient_norm": ("Gradient norm", "of all parameters, before it is clipped"),
    TOKENS_PER_SECOND: ("Tokens a second", "real ones of all sides, in the time without compiling"),
    "padding_share": ("Padding", "the share of positions that hold no token"),
    "share_outside_step": ("Time outside the step", "the share spent waiting for data, saving and logging"),
    "expert_load_max": ("Expert load", "the share of the busiest expert times the number of experts: 1 is even"),
    "dropped_share": ("Dropped by experts", "the share of choices beyond an expert's capacity"),
    "router_entropy": ("Router entropy", "in nats; at most the logarithm of the number of experts"),
    "mfu": ("Model FLOPs utilisation", "of the device's peak"),
}
"""Title and note of the main charts, in their order. Scores of validation that are not among them come after BLEU's."""
LABELS = ("Nats per label", "unsmoothed")
REDUNDANT = ("perplexity", "nll")
"""They say what nats say. ``nll``, of labels, is drawn with ``nll_per_token``, which training calls it."""
ABOUT_THE_DATA = ("num_", "window", "stride")
BASELINES = ("_of_majority", "_of_most_frequent")


def charts(runs: Sequence[Curves]) -> Charts:
    """What there is to draw of the runs. Columns without a single number are left out."""
    found = dict.fromkeys(
        Line(part, name)
        for run in runs
        for part, rows in parts(run)
        for name in rows.columns
        if _has_numbers(rows, name)
    )
    scores = [line.name for line in found if line.part == VALIDATION and _is_score(line.name)]
    scores = [name for name in scores if name not in REDUNDANT]
    order = list(KNOWN)
    place = order.index("bits_per_byte") + 1
    order[place:place] = [name for name in dict.fromkeys(scores) if name not in KNOWN]
    main = [chart for name in order if (chart := _chart(name, found))]
    drawn = {line for chart in main for line in chart.lines}
    others, constants = [], []
    for line in (line for line in found if line not in drawn):
        values = tuple(_constant(run, line) for run in runs)
        if _is_score(line.name) or any(value is not None and np.isnan(value) for value in values):
            others.append(Chart(titled(line), "", (line,)))
        else:
            constants.append(Constant(line, values))
    return Charts(main, others, constants)


def parts(run: Curves) -> tuple[tuple[str, Rows], ...]:
    return (TRAINING, run.training), (VALIDATION, run.validation)


def column(run: Curves, line: Line) -> np.ndarray | None:
    """The numbers of a line, in the order of its rows; None if the run has none."""
    rows = run.training if line.part == TRAINING else run.validation
    if line.name != TOKENS_PER_SECOND or line.part != TRAINING:
        return rows.columns.get(line.name)
    sides = [values for name, values in rows.columns.items() if name.endswith(f"_{TOKENS_PER_SECOND}")]
    return np.sum(sides, axis=0) if sides else None


def titled(line: Line) -> str:
    """What a line is called where it stands alone."""
    name = line.name.replace("per_second", "a second").replace("_", " ")
    return f"Validation: {name}" if line.part == VALIDATION else name.capitalize()


def _chart(name: str, found: dict[Line, None]) -> Chart | None:
    """The chart of a number in training, validation or both; None if there is none."""
    names = (name, "nll") if name == "nll_per_token" else (name,)
    lines = tuple(line for line in found if line.name in names)
    if name == TOKENS_PER_SECOND and any(line.name.endswith(f"_{TOKENS_PER_SECOND}") for line in found):
        lines = (Line(TRAINING, TOKENS_PER_SECOND),)
    if not lines:
        return None
    title, note = KNOWN.get(name, (name.replace("_", " ").capitalize(), "of the validation split"))
    if name == "nll_per_token" and Line(VALIDATION, "nll") in lines:
        title, note = LABELS if Line(VALIDATION, name) not in lines else (f"{title} or label", note)
    return Chart(title, note, lines)


def _is_score(name: str) -> bool:
    return not name.startswith(ABOUT_THE_DATA) and not name.endswith(BASELINES)


def _has_numbers(rows: Rows, name: str) -> bool:
    return bool(np.isfinite(rows.columns[name]).any())


def _constant(run: Curves, line: Line) -> float | None:
    """The one value; NaN if there are several; None if the run has no such number."""
    values = column(run, line)
    if values is None:
        return None
    different = np.unique(values[np.isfinite(values)])
    if len(different) == 0:
        return None
    return float(different[0]) if len(different) == 1 else float("nan")


def points(run: Curves, line: Line, axis: str) -> Iterator[tuple[float, float]]:
    """Points (place on the axis, value) of a line, without those that are not finite."""
    rows = run.training if line.part == TRAINING else run.validation
    values = column(run, line)
    if values is not None and axis in rows.axes:
        yield from ((x, y) for x, y in zip(rows.axes[axis], values, strict=True) if np.isfinite(y))
