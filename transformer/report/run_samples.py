"""Outputs of several checkpoints, and of several runs, for the same lines: what ``eval.py`` kept, over time."""

import json
import logging
import random
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from transformer.report import scores as evaluations
from transformer.report.translations import marked
from transformer.training.workdir import OUTPUTS

SHOWN = 8  # lines of each split
SEED = 0  # of the draw

logger = logging.getLogger(__name__)


class Outputs(NamedTuple):
    """Of one evaluation, for each line of a split."""

    run: str
    evaluation: dict[str, Any]
    outputs: list[str]


class Samples(NamedTuple):
    """Evaluations of the same lines, by run and then by step."""

    split: str
    sources: list[str]
    references: list[str]
    evaluations: list[Outputs]


def read_samples(workdirs: Sequence[tuple[str, Path]]) -> list[Samples]:
    """What workdirs have kept of outputs with their sources, which are translations.

    Args:
      workdirs: each after what its run is called.
    """
    found: dict[Any, Samples] = {}
    for run, workdir in workdirs:
        for evaluation in sorted(evaluations.read(workdir), key=lambda each: max(each["scores"]["steps"], default=0)):
            path = workdir / OUTPUTS / f"{evaluation['name']}.jsonl"
            if not path.exists():
                continue
            try:
                records = [json.loads(line) for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
                sources, references, outputs = (
                    tuple(record[name] for record in records) for name in ("source", "reference", "output")
                )
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.warning("%s is left out: %r", path, error)
                continue
            split = _split(evaluation["scores"]["split"])
            samples = found.setdefault(
                (split, sources, references), Samples(split, list(sources), list(references), [])
            )
            samples.evaluations.append(Outputs(run, evaluation, list(outputs)))
    return list(found.values())


def _split(split: Any) -> str:
    return split if isinstance(split, str) else " with ".join(Path(path).name for path in split.values())


def as_html(samples: Samples) -> Iterator[str]:
    """Some lines, each with what every evaluation made of it."""
    number = len(samples.sources)
    chosen = sorted(random.Random(SEED).sample(range(number), min(SHOWN, number)))
    yield f"<h3>{escape(samples.split)}</h3>"
    yield (
        f"<p class=note>{len(chosen)} of {number:,} lines, drawn with seed {SEED}. <mark>Marked</mark> are words that "
        "the reference does not have there.</p>"
    )
    for line in chosen:
        reference = samples.references[line]
        yield f"<article class=sample><h4>Line {line + 1}</h4><dl>"
        yield _row("Source", escape(samples.sources[line]))
        yield _row("Reference", escape(reference))
        for each in samples.evaluations:
            yield _row(described(each), marked(reference, each.outputs[line])[1])
        yield "</dl></article>"


def _row(name: str, html: str) -> str:
    return f"<div><dt>{escape(name)}</dt><dd dir=auto>{html or '<i>nothing</i>'}</dd></div>"


def described(outputs: Outputs) -> str:
    """Which run at which step, and the score that the whole split got."""
    scores = outputs.evaluation["scores"]
    steps = scores["steps"]
    words = [f"{outputs.run} step {steps[-1]:,}" if steps else f"{outputs.run} as imported"]
    if len(steps) > 1:
        words.append(f"mean of {len(steps)} checkpoints")
    if scores["weights"] != "raw":
        words.append(scores["weights"])
    if outputs.evaluation["changed"]:
        words.append(", ".join(f"{key}={value}" for key, value in outputs.evaluation["changed"].items()))
    return "; ".join([*words, f"BLEU {scores['bleu']:.1f}"] if scores.get("bleu") is not None else words)
