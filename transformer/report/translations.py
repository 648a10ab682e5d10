"""A page about the translations of one checkpoint: scores, where they are low, and sentences side by side."""

import difflib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from transformer.evaluation.text_scores import definitions, score, sentence_chrf

SHOWN = 20  # sentences of each sample
SEED = 0  # of the random sample
BUCKETS = (0, 10, 20, 30, 40, 50)  # words of the source, from which on a row of the table begins
MAX_MARKED_WORDS = 1_000  # of reference and output: beyond, looking for differences takes too long

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --pale: #595959; --line: #d0d0d0; --mark: #fff0b3; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #e4e4e4; --pale: #a6a6a6; --line: #3d4147;
  --mark: #55460f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; margin: 0; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .5rem .25rem 0; text-align: left; vertical-align: top; }
th { white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.lengths { max-width: 32rem; }
p, .definition { color: var(--pale); } .definition { font-size: .85rem; }
article { border-top: 1px solid var(--line); padding: .5rem 0; }
dl { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .25rem 1rem; margin: .25rem 0; }
dt { color: var(--pale); font-size: .85rem; } dd { margin: 0; white-space: pre-wrap; }
mark { background: var(--mark); color: inherit; text-decoration: underline; }
@media (max-width: 45rem) { dl { grid-template-columns: minmax(0, 1fr); gap: 0; } }
"""


class Sentence(NamedTuple):
    """One line of the test set; ``number`` counts from 1."""

    number: int
    source: str
    reference: str
    output: str


def write(outputs: Path, title: str, scores: Mapping[str, Any]) -> Path:
    """The page beside the outputs that a translation task wrote, ``.html`` for their ``.txt``, and where it is.

    Args:
      outputs: one a line; its ``.jsonl`` has an object with ``source``, ``reference`` and ``output`` for each.
      title: what was scored.
      scores: of the outputs, as ``transformer.evaluation.text_scores.full_score`` gives them, and others.
    """
    lines = outputs.with_suffix(".jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    records = map(json.loads, lines)
    sentences = [
        Sentence(number, record["source"], record["reference"], record["output"])
        for number, record in enumerate(records, start=1)
    ]
    path = outputs.with_suffix(".html")
    path.write_text(page(title, sentences, scores), encoding="utf-8")
    return path


def page(title: str, sentences: Sequence[Sentence], scores: Mapping[str, Any]) -> str:
    """The whole page as HTML that needs nothing from elsewhere."""
    chrf = sentence_chrf([sentence.output for sentence in sentences], [sentence.reference for sentence in sentences])
    different = [i for i, sentence in enumerate(sentences) if sentence.output != sentence.reference]
    worst = sorted(different, key=lambda i: chrf[i])[:SHOWN]
    drawn = sorted(random.Random(SEED).sample(range(len(sentences)), min(SHOWN, len(sentences))))
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>",
            "<h2>Scores</h2>",
            *_score_table(scores),
            "<h2>By length of the source</h2>",
            f"<p>Words are what spaces separate. Lengths are {escape(definitions(scores)['length_ratio'])}.</p>",
            *_length_table(sentences, scores["text_form"]),
            f"<h2>The worst {len(worst)}</h2>",
            "<p>By chrF2 of the sentence, those that equal their reference left out. <mark>Marked</mark> are words "
            "that only the reference or only the output has there.</p>",
            *(_article(sentences[i], chrf[i]) for i in worst),
            f"<h2>{len(drawn)} drawn at random</h2>",
            f"<p>With seed {SEED}, in the order of the test set.</p>",
            *(_article(sentences[i], chrf[i]) for i in drawn),
            "</body>\n</html>\n",
        ]
    )


def _score_table(scores: Mapping[str, Any]) -> Iterator[str]:
    """Every score that is one number, with its definition where there is one."""
    defined = definitions(scores)
    others = (key for key, value in scores.items() if isinstance(value, int | float) and key not in defined)
    yield "<table>"
    for key in (*defined, *others):
        value = f"{scores[key]:.4g}" if isinstance(scores[key], float) else str(scores[key])
        cells = f"<td class=number>{value}</td><td class=definition>{escape(defined.get(key, ''))}</td>"
        yield f"<tr><th scope=row>{escape(key)}</th>{cells}</tr>"
    yield "</table>"


def _length_table(sentences: Sequence[Sentence], text_form: str) -> Iterator[str]:
    names = "".join(f"<th scope=col class=number>{name}</th>" for name in ("Lines", "BLEU", "chrF", "Length"))
    yield f"<table class=lengths>\n<tr><th scope=col>Words</th>{names}</tr>"
    for low, high in zip(BUCKETS, (*BUCKETS[1:], None), strict=True):
        inside = [
            sentence
            for sentence in sentences
            if low <= len(sentence.source.split()) and (high is None or len(sentence.source.split()) < high)
        ]
        if inside:
            outputs, references = [sentence.output for sentence in inside], [sentence.reference for sentence in inside]
            scores = score(outputs, [references], text_form)
            values = f"{scores['bleu']:.1f}", f"{scores['chrf']:.1f}", f"{scores['length_ratio']:.3f}"
            cells = "".join(f"<td class=number>{value}</td>" for value in (len(inside), *values))
            words = f"{low} and more" if high is None else f"{low} to {high - 1}"
            yield f"<tr><th scope=row>{words}</th>{cells}</tr>"
    yield "</table>"


def _article(sentence: Sentence, chrf: float) -> str:
    reference, output = marked(sentence.reference, sentence.output)
    texts = {"Source": escape(sentence.source), "Reference": reference, "Output": output}
    parts = "".join(f"<div><dt>{name}</dt><dd dir=auto>{text}</dd></div>" for name, text in texts.items())
    return f"<article>\n<h3>Line {sentence.number}, chrF {chrf:.1f}</h3>\n<dl>{parts}</dl>\n</article>"


def marked(reference: str, output: str) -> tuple[str, str]:
    """Both as HTML; words in ``mark`` are not in the other at that place."""
    words, found = reference.split(" "), output.split(" ")
    if max(len(words), len(found)) > MAX_MARKED_WORDS:
        note = f" [more than {MAX_MARKED_WORDS} words: differences are not marked]"
        return escape(reference) + note, escape(output) + note
    steps = difflib.SequenceMatcher(None, words, found, autojunk=False).get_opcodes()
    return (
        " ".join(_runs((name == "equal", words[start:end]) for name, start, end, _, _ in steps)),
        " ".join(_runs((name == "equal", found[start:end]) for name, _, _, start, end in steps)),
    )


def _runs(parts: Iterable[tuple[bool, Sequence[str]]]) -> Iterator[str]:
    for same, words in parts:
        if words:
            text = escape(" ".join(words))
            yield text if same or not text else f"<mark>{text}</mark>"
