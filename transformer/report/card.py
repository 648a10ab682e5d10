"""The experiment card: what was run and what came of it, on one page, ``card.md``; for programs ``card.json``."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.paths import write_text
from transformer.report.card_facts import NOT_RECORDED, facts, unknown

PAGE, DATA = FILES = ("card.md", "card.json")

logger = logging.getLogger(__name__)


def update(workdir: Path) -> None:
    """Write the card as it is now; what goes wrong is a warning, for nothing else should fail with it."""
    try:
        write(workdir)
    except Exception as error:
        logger.warning("the experiment card of %s could not be written: %r", workdir, error)


def write(workdir: Path) -> str:
    """Write ``card.md`` and ``card.json``, and give the page."""
    found = facts(workdir)
    text = page(found)
    write_text(workdir / DATA, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    write_text(workdir / PAGE, text)
    return text


def page(card: Mapping[str, Any]) -> str:
    """The card as Markdown, of what :func:`facts` gives."""
    name = card["run"]["config"]
    title = card["run"]["task"] if isinstance(name, dict) else name
    lines = [
        f"# Experiment card: {title}",
        "",
        f"Written {card['written']} from the run's files. The same facts are in {DATA}; every key is in config.json.",
    ]
    for heading, section, notes in (
        ("Run", card["run"], ()),
        ("Model", card["model"], ()),
        ("Training", card["training"], (COUNTED,)),
        ("Cost", card["cost"], _cost_notes(card["cost"])),
        ("Data", card["data"], ()),
        ("Checkpoints", card["checkpoints"], ()),
    ):
        lines += ["", f"## {heading}", "", *_table(("", ""), section.items()), *_paragraphs(notes)]
    lines += ["", "## Scores", *_scores(card)]
    lines += ["", "## Deviations", *_deviations(card["deviations"])]
    interruptions = _table(("", ""), card["interruptions"].items())
    lines += ["", "## Interruptions", "", *interruptions, *_paragraphs((NON_FINITE,))]
    lines += ["", "## Environment"]
    for environment in card["environments"] or [unknown(NOT_RECORDED)]:
        lines += ["", *_table(("", ""), environment.items())]
    return "\n".join(lines) + "\n"


COUNTED = (
    "Counted up to the newest checkpoint; an update that was made again after an interruption counts once. Tokens are "
    "real ones, EOS included, without padding."
)
NON_FINITE = (
    "A step whose loss or gradient is not finite changes nothing and ends the process: none has gone into the "
    "parameters."
)
FLOPS = (
    "Training FLOPs are our count: the matrix products of the batches that were trained on, forward and backward, "
    "padding included."
)
FLOPS_OF_THE_PAPER = "The paper's are an estimate: hours times devices times their sustained speed."
HOURS = (
    "Hours in updates are with their data, compilation and checkpoints, but without validation. In all: of every start "
    "of train.py to its end, updates that were made again included; eval.py is not counted."
)
INCOMPLETE = "They are at least so many: a process that was killed, or trains still, counts up to its last report."


def _cost_notes(cost: Mapping[str, Any]) -> Iterator[str]:
    yield FLOPS + (f" {FLOPS_OF_THE_PAPER}" if "training_flops_of_the_paper" in cost else "")
    if "hours_are_complete" in cost:
        yield HOURS + ("" if cost["hours_are_complete"] else f" {INCOMPLETE}")


def _scores(card: Mapping[str, Any]) -> Iterator[str]:
    yield from _published(card["expected"])
    if not card["evaluations"]:
        yield from _paragraphs(("Nothing was scored by eval.py yet.",))
    for evaluation in card["evaluations"]:
        yield from _one_evaluation(evaluation)


def _published(expected: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = []
    for test_set, values in expected.items():
        low_high = values["bleu"] and f"{values['bleu'][0]:g} to {values['bleu'][1]:g}"
        row = (test_set, values["bleu_paper"], low_high, values["perplexity"])
        rows.append((*(("not known" if value is None else value) for value in row), values["averaged"]))
    if rows:
        yield ""
        yield "Published or to be expected:"
        yield ""
        yield from _table(("test set", "bleu_paper", "bleu", "perplexity", "checkpoints averaged"), rows)


def _one_evaluation(evaluation: Mapping[str, Any]) -> Iterator[str]:
    from transformer.evaluation.text_scores import definitions

    split, steps, scores = evaluation["split"], evaluation["steps"], evaluation["scores"]
    if isinstance(split, dict):
        split = " with ".join(Path(path).name for path in split.values())
    yield ""
    yield f"### {_escaped(split)}, {evaluation['checkpoint']}, {evaluation['weights']} weights"
    of_steps = f"the mean of checkpoints {_text(steps)}" if len(steps) > 1 else f"checkpoint {_text(steps)}"
    notes = [f"Scored {evaluation['scored']}: {of_steps}."]
    if evaluation["changed"]:
        notes.append(f"Other than in the run's config: {_text(evaluation['changed'])}.")
    if evaluation["decoding"] is not None:
        decoding = {name: evaluation["decoding"][name] for name in ("method", "beam_size", "length_penalty", "alpha")}
        notes.append(f"Decoding: {_text(decoding)}.")
    yield from _paragraphs((" ".join(notes),))
    yield ""
    defined = definitions(scores)
    numbers = {
        name: "not finite" if value is None else value
        for name, value in scores.items()
        if isinstance(value, int | float | None)
    }
    ordered = [name for name in defined if name in numbers] + [name for name in numbers if name not in defined]
    yield from _table(("score", "value", ""), ((name, numbers[name], defined.get(name, "")) for name in ordered))
    if evaluation.get("against_published"):
        yield from _paragraphs(_comparison(evaluation["against_published"]))


def _comparison(found: Mapping[str, Any]) -> Iterator[str]:
    """How it lies to what was published, in a sentence."""
    parts = []
    if each := found.get("bleu_paper"):
        place = _placed(each["difference"]) or "equal to"
        parts.append(f"bleu_paper {each['measured']:.2f} is {place} the published {each['published']:g}")
    if each := found.get("bleu"):
        low, high = each["expected"]
        place = _placed(each["difference"]) or "within"
        interval = "" if each["interval"] is None else f" (± {each['interval']:.2f})"
        parts.append(f"bleu {each['measured']:.2f}{interval} is {place} the expected {low:g} to {high:g}")
    if each := found.get("perplexity"):
        measured = "not finite" if each["measured"] is None else f"{each['measured']:.2f}"
        parts.append(f"perplexity {measured}, published {each['published']:.2f} (per piece, of other vocabularies)")
    said = "; ".join(parts) or "nothing was published of this variant"
    yield f"As {found['test_set']}, told by {found['told_by']}: {said}."


def _placed(difference: float) -> str:
    return "" if not difference else f"{abs(difference):.2f} {'above' if difference > 0 else 'below'}"


def _deviations(found: Mapping[str, Any]) -> Iterator[str]:
    yield from _paragraphs((f"{found['explained']}.",))
    for heading, key in (
        ("Of the experiment", "of_the_experiment"),
        ("Others (paths, cadence, how it is computed, seed)", "others"),
    ):
        yield from _paragraphs((f"{heading}: {'' if found[key] else 'none.'}".strip(),))
        if found[key]:
            yield ""
            rows = ((each["key"], repr(each["ours"]), repr(each["theirs"])) for each in found[key])
            yield from _table(("key", "here", found["reference"]), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for first, *others in rows:
        label = str(first) if any(head) else _label(first)
        yield f"| {' | '.join((_escaped(label), *(_escaped(_text(value)) for value in others)))} |"


def _paragraphs(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield ""
        yield text


def _label(name: str) -> str:
    """Keys of configs stay as they are."""
    return name if "." in name else name.replace("_", " ")


def _text(value: Any) -> str:
    """A value for people."""
    if isinstance(value, Mapping):
        if set(value) == {"unknown"}:
            return f"unknown: {value['unknown']}"
        return "; ".join(f"{_label(name)} {_text(each)}" for name, each in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1_000 <= abs(value) < 1e9 else f"{value:.4g}"
    return str(value)


def _escaped(text: str) -> str:
    """For a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
