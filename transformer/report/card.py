"""The experiment card: what was run and what came of it, on one page, ``card.md``; for programs ``card.json``.

It is made from the files of a workdir alone, whatever stopped the run: the config, the newest checkpoint's metadata,
``run.json``, ``metrics.jsonl`` and the records of evaluations. What these do not say is said to be unknown, with the
reason.
"""

import datetime
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import TASKS_OF_PAIRS, Config
from transformer.paths import write_text
from transformer.report import scores as evaluations
from transformer.report.reference import Reference, against_published, deviations, reference_of
from transformer.training.checkpoints import Checkpoints
from transformer.training.record import RECORD, read_record
from transformer.training.workdir import LOWER_IS_BETTER, checkpoints_folder, read_config
from transformer.types import UserError

PAGE, DATA = FILES = ("card.md", "card.json")
SESSION = ("started", "from_step", "to_step", "seconds", "training_seconds", "ended", "non_finite_step")
"""What ``run.json`` has of each session beside its environment."""
NOT_RECORDED = f"{RECORD} does not say"

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


class _Run(NamedTuple):
    """What a workdir holds.

    steps     of the checkpoints that are there
    step      of the newest that can be read, with its metadata; None: there is none
    record    see :mod:`transformer.training.record`
    """

    config: Config
    steps: list[int]
    step: int | None
    metadata: dict[str, Any]
    record: dict[str, Any]
    sessions: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    reference: Reference


def _read(workdir: Path) -> _Run:
    config, record = read_config(workdir), read_record(workdir)
    checkpoints = Checkpoints(checkpoints_folder(workdir))
    steps = checkpoints.steps()
    newest, metadata = None, {}
    for step in reversed(steps):
        try:
            newest, metadata = step, checkpoints.metadata(step)
            break
        except UserError as error:
            logger.warning("%s", error)
    return _Run(
        config,
        steps,
        newest,
        metadata,
        record,
        record.get("sessions", []),
        evaluations.read(workdir),
        list(_validation(workdir / "metrics.jsonl")),
        reference_of(record.get("config")),
    )


def _validation(path: Path) -> Iterator[dict[str, Any]]:
    """The scores of the validation split during training, by step."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue  # cut short when the process was killed
        scores = {
            name.removeprefix("validation_"): value for name, value in values.items() if name[:11] == "validation_"
        }
        if scores:
            yield {"step": values["step"], **scores}


def unknown(reason: str) -> dict[str, str]:
    """What stands for a value that is not known."""
    return {"unknown": reason}


def facts(workdir: Path) -> dict[str, Any]:
    """All that the card says, in what JSON can hold.

    Raises:
      UserError: if the workdir has no config that can be read.
    """
    run = _read(workdir)
    of_experiment, apart = deviations(run.config, run.reference.config)
    return {
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "run": _identity(run),
        "model": _model(run),
        "training": _training(run),
        "cost": _cost(run),
        "data": _data(run),
        "checkpoints": _checkpoints(run),
        "evaluations": [_evaluation(run, record) for record in run.evaluations],
        "expected": _expected(run),
        "deviations": {
            "reference": run.reference.name,
            "explained": run.reference.explained,
            "of_the_experiment": [each._asdict() for each in of_experiment],
            "others": [each._asdict() for each in apart],
        },
        "interruptions": _interruptions(run),
        "environments": _environments(run),
    }


def _identity(run: _Run) -> dict[str, Any]:
    config = run.config
    found: dict[str, Any] = {"config": run.record.get("config") or unknown(f"{RECORD} does not name it")}
    found["task"] = config.task
    if config.task in TASKS_OF_PAIRS:
        found["direction"] = f"{config.data.source_language} to {config.data.target_language}"
    return {**found, "seed": config.seed, "state": _state(run)}


def _state(run: _Run) -> str | dict[str, str]:
    if not run.sessions:
        return unknown(NOT_RECORDED)
    ended, step, planned = run.sessions[-1]["ended"], run.sessions[-1]["to_step"], run.config.training.num_steps
    place = f"update {step:,} of {planned:,}"
    if ended is None:
        return f"in training, or killed, at {place} or later"
    return f"finished at {place}" if ended == "finished" else f"stopped at {place} by {ended}"


def _model(run: _Run) -> dict[str, Any]:
    parameters = run.record.get("parameters", unknown(NOT_RECORDED))
    found = {"parameters": parameters}
    if run.record.get("active_parameters", parameters) != parameters:
        found["parameters_active_for_a_token"] = run.record["active_parameters"]
    sizes = run.record.get("data", {}).get("vocabulary_sizes")
    if sizes is None:
        found["vocabulary"] = unknown(NOT_RECORDED)
    elif sizes:
        found["vocabulary"] = {"source": sizes[0], "target": sizes[1]} if len(sizes) > 1 else sizes[0]
    return {**found, "dtype_of_computation": run.config.model.dtype, "dtype_of_parameters": "float32"}


def _training(run: _Run) -> dict[str, Any]:
    training, step = run.config.training, run.step
    highest = run.record.get("peak_learning_rate", {"rate": unknown(NOT_RECORDED), "update": unknown(NOT_RECORDED)})
    schedule = {
        "schedule": training.schedule,
        "peak_learning_rate": highest["rate"],
        "peak_learning_rate_at_update": highest["update"],
    }
    found: dict[str, Any] = {"updates": step or 0, "updates_planned": training.num_steps}
    if not step:
        why = unknown("there is no checkpoint yet" if step is None else "the parameters were trained elsewhere")
        return {**found, "tokens_seen": why, **schedule, "peak_learning_rate_reached": why}
    work = dict(run.metadata["work"])
    positions, _ = work.pop("positions"), work.pop("flops")
    tokens = sum(value for name, value in work.items() if name.endswith("_tokens"))
    batches = run.record.get("data", {}).get("batches_per_epoch")
    return {
        **found,
        "epochs": unknown(NOT_RECORDED) if batches is None else step / batches,
        **{f"{name}_seen": round(value) for name, value in work.items()},
        **{f"{name}_per_update": value / step for name, value in work.items()},
        "padding_share": 1 - tokens / positions,
        **schedule,
        "peak_learning_rate_reached": run.metadata["peak_learning_rate"],
    }


def _cost(run: _Run) -> dict[str, Any]:
    flops = run.metadata["work"]["flops"] if run.step else unknown("no checkpoint has an update")
    found: dict[str, Any] = {"training_flops": flops}
    if run.reference.of_paper:
        found["training_flops_of_the_paper"] = run.reference.flops or unknown("it gives none for this variant")
    if not run.sessions:
        return {**found, "device_hours_in_all": unknown(NOT_RECORDED)}
    in_updates: Counter[str] = Counter()
    in_all: Counter[str] = Counter()
    for session in run.sessions:
        in_updates[_device(session)] += session["devices"] * session["training_seconds"] / 3600
        in_all[_device(session)] += session["devices"] * session["seconds"] / 3600
    return {
        **found,
        "devices": list(dict.fromkeys(f"{session['devices']} x {_device(session)}" for session in run.sessions)),
        "hours": sum(session["seconds"] for session in run.sessions) / 3600,
        "device_hours_in_updates": dict(in_updates),
        "device_hours_in_all": dict(in_all),
        "hours_are_complete": all(session["ended"] for session in run.sessions) and not run.sessions[0]["from_step"],
    }


def _device(session: Mapping[str, Any]) -> str:
    """Its kind; of CPUs the model, for theirs is ``cpu``."""
    return session["processor"] if session["platform"] == "cpu" else session["device_kind"]


def _data(run: _Run) -> dict[str, Any]:
    data = run.config.data
    found: dict[str, Any] = {"source": data.source}
    if data.directory is not None:
        found["directory"] = data.directory
    if data.source in ("files", "tfds"):
        found |= {"train": list(data.train), "validation": data.validation, "test": data.test}
    if run.config.task in TASKS_OF_PAIRS:
        limits = {"max_words": data.cleaning_max_words, "max_ratio": data.cleaning_max_ratio}
        given = [f"{name} {limit:g}" for name, limit in limits.items() if limit is not None]
        found["cleaning"] = [*data.cleaning, *given]
    recorded = dict(run.record.get("data", {"training_data": unknown(NOT_RECORDED)}))
    recorded.pop("vocabulary_sizes", None)
    if recorded.get("left_out_by_cleaning", ...) is None:
        recorded["left_out_by_cleaning"] = unknown("the tokenised text was there already, and the counts were not")
    no_checkpoint = unknown("there is no checkpoint yet")
    return {**found, **recorded, "fingerprint": run.metadata.get("data_fingerprint", no_checkpoint)}


def _checkpoints(run: _Run) -> dict[str, Any]:
    metric = run.config.training.best_metric
    found: dict[str, Any] = {"available": run.steps}
    measured = [scores for scores in run.validation if scores.get(metric) is not None]
    if not measured:
        why = unknown(f"no {metric} of the validation split was taken during training")
        return {**found, "best_in_validation": why}
    sign = -1 if metric in LOWER_IS_BETTER else 1
    best = max(measured, key=lambda scores: (sign * scores[metric], scores["step"]))
    last, limit = measured[-1], run.config.evaluation.max_examples
    result = {
        **found,
        "best_in_validation": {"step": best["step"], metric: best[metric]},
        "last_in_validation": {"step": last["step"], metric: last[metric]},
    }
    if limit is not None:
        result["validation_examples"] = f"the first {limit}, where predictions are scored"
    if "bleu" in last:
        result["validation_beam_size"] = run.config.evaluation.beam_size
    return result


def _evaluation(run: _Run, record: Mapping[str, Any]) -> dict[str, Any]:
    scores = dict(record["scores"])
    place = {name: scores.pop(name) for name in ("split", "checkpoint", "weights", "steps")}
    result = {
        "name": record["name"],
        "scored": record["scored"],
        "code": record["code"],
        **place,
        "averaged": len(place["steps"]),
        "changed": record["changed"],
        "decoding": record["decoding"] if "bleu" in scores else None,
        "scores": scores,
    }
    if run.reference.of_paper:
        result["against_published"] = against_published(run.reference, run.config, record["scores"])
    return result


def _expected(run: _Run) -> dict[str, Any]:
    """By test set, what was published."""
    return {
        name: {
            "bleu_paper": published.bleu,
            "bleu": None if published.sacrebleu is None else list(published.sacrebleu),
            "perplexity": published.perplexity,
            "averaged": run.reference.config.training.keep_checkpoints if name == "newstest2014" else 1,
        }
        for name, published in run.reference.published.items()
    }


def _interruptions(run: _Run) -> dict[str, Any]:
    if not run.sessions:
        return unknown(NOT_RECORDED)
    *earlier, last = run.sessions
    ended = Counter(session["ended"] or "a kill" for session in earlier)
    if last["ended"] is not None:
        ended[last["ended"]] += 1
    again = [max(one["to_step"] - after["from_step"], 0) for one, after in pairwise(run.sessions)]
    found = {
        "starts": len(run.sessions),
        "ended_by": dict(ended),
        "updates_made_again": sum(again),
        "non_finite_steps": [each["non_finite_step"] for each in run.sessions if each["non_finite_step"] is not None],
    }
    if run.sessions[0]["from_step"] > 0:
        found["not_recorded"] = f"what was before update {run.sessions[0]['from_step']:,}"
    return found


def _environments(run: _Run) -> list[dict[str, Any]]:
    """Each with the numbers of the starts that were in it, from 1."""
    found: dict[str, dict[str, Any]] = {}
    for number, session in enumerate(run.sessions, start=1):
        environment = {name: value for name, value in session.items() if name not in SESSION}
        key = json.dumps(environment, sort_keys=True)
        found.setdefault(key, {"starts": [], **environment})["starts"].append(number)
    return list(found.values())


# The page


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
