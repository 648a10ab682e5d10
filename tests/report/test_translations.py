"""The page, parsed: all text is there, escaped, in a direction of its own, and nothing comes from elsewhere."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.evaluation.text_scores import TEXT_FORMS, full_score
from transformer.report.translations import MAX_MARKED_WORDS, STYLE, Sentence, marked, page, write

VOID = {"meta"}


class Page(HTMLParser):
    """Elements with their attributes, and the text of each ``dd``, ``h2``, ``h3`` and ``td``."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict]] = []
        self.texts: dict[str, list[str]] = {name: [] for name in ("dd", "h2", "h3", "td", "th", "mark", "title", "p")}
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in {*self.open} & {*self.texts}:
            self.texts[tag][-1] += data


AWKWARD = [
    ("<i>a</i> < b &amp; \"c\" 'd'", "<script>alert(1)</script> &amp; ja", "<b>nein</b> &lt; ja"),
    ("שלום עולם", "مرحبا بالعالم", "مرحبا world"),
    ("two  spaces\tand a tab", "  zwei ", "zwei   "),
    ("a\u2028b\u0085c", "line one\nline two", ""),
    ("", "", ""),
]


def sentences(number: int = 60) -> list[Sentence]:
    found = [Sentence(i, *texts) for i, texts in enumerate(AWKWARD, start=1)]
    for i in range(len(found) + 1, number + 1):
        reference = " ".join(f"Wort{j}" for j in range(i))
        output = reference if i % 3 == 0 else reference.replace(f"Wort{i // 2}", "anders")
        found.append(Sentence(i, reference.replace("Wort", "word"), reference, output))
    return found


@pytest.fixture(scope="module")
def scores() -> dict:
    found = full_score([s.output for s in sentences()], [[s.reference for s in sentences()]], "de")
    return {"split": "test", "steps": [3], **found, "perplexity": 3.5, "num_truncated": 2}


@pytest.fixture(scope="module")
def parsed(scores) -> Page:
    return Page(page("run <1>: test", sentences(), scores))


def test_nothing_comes_from_elsewhere_and_nothing_runs(parsed):
    assert not {tag for tag, _ in parsed.elements} & {"script", "link", "img", "iframe", "object", "base", "form", "a"}
    assert not {name for _, attributes in parsed.elements for name in attributes} & {"src", "href", "style", "onclick"}
    assert "url(" not in STYLE and "@import" not in STYLE and "http" not in STYLE


def test_small_screens_and_dark_ones(parsed):
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in parsed.elements
    assert "color-scheme: light dark" in STYLE and "prefers-color-scheme: dark" in STYLE
    assert re.search(r"max-width: 45rem\) \{ dl \{ grid-template-columns: minmax\(0, 1fr\);", STYLE)
    assert not re.search(r"(?<!max-)width: [^1]", STYLE)  # nothing is wider than its parent
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")[:2]
    assert set(re.findall(r"(--\w+):", light)) == set(re.findall(r"(--\w+):", dark.split("}")[0]))
    assert set(re.findall(r"var\((--\w+)\)", STYLE)) == set(re.findall(r"(--\w+):", light))


def test_every_text_is_whole_and_has_a_direction_of_its_own(parsed):
    texts = [attributes for tag, attributes in parsed.elements if tag == "dd"]
    assert texts and all(attributes == {"dir": "auto"} for attributes in texts)
    by_number = {sentence.number: sentence for sentence in sentences()}
    shown = [int(re.match(r"Line (\d+), chrF ", title)[1]) for title in parsed.texts["h3"]]
    assert len(parsed.texts["dd"]) == 3 * len(shown)
    for place, number in enumerate(shown):
        assert tuple(parsed.texts["dd"][3 * place : 3 * place + 3]) == by_number[number][1:]
    assert parsed.texts["title"] == ["run <1>: test"]
    assert {1, 2, 3, 4} <= set(shown)


def test_the_worst_come_first_without_those_that_are_right_and_the_sample_is_seeded(parsed, scores):
    assert parsed.texts["h2"][2:] == ["The worst 20", "20 drawn at random"]
    found = [re.match(r"Line (\d+), chrF ([\d.]+)", title).groups() for title in parsed.texts["h3"]]
    worst, drawn = found[:20], found[20:]
    right = {sentence.number for sentence in sentences() if sentence.output == sentence.reference}
    assert 5 in right and not {int(number) for number, _ in worst} & right
    assert [float(chrf) for _, chrf in worst] == sorted(float(chrf) for _, chrf in worst)
    others = {int(number) for number, _ in drawn} - {int(number) for number, _ in worst}
    assert others & right and [int(number) for number, _ in drawn] == sorted({int(number) for number, _ in drawn})
    assert page("t", sentences(), scores) == page("t", sentences(), scores)


def test_every_score_has_a_row_and_every_line_is_in_one_bucket(parsed, scores):
    cells = parsed.texts["td"]
    assert parsed.texts["th"][:3] == ["bleu", "bleu_interval", "bleu_paper"]
    assert {"perplexity", "num_truncated", "length_ratio", "num_examples", "chrf"} <= set(parsed.texts["th"])
    assert "split" not in parsed.texts["th"] and f"{scores['bleu']:.4g}" in cells
    assert any("tok:13a" in cell for cell in cells) and any("sacremoses" in cell for cell in cells)
    rows = [i for i, name in enumerate(parsed.texts["th"]) if re.fullmatch(r"\d+ (to \d+|and more)", name)]
    assert len(rows) == 6 and parsed.texts["th"][rows[-1]] == "50 and more"
    counts = cells[-4 * len(rows) :: 4]
    assert sum(map(int, counts)) == 60 and counts[1:] == ["10", "10", "10", "10", "11"]


def test_the_table_by_length_scores_tokens_as_tokens():
    some = [Sentence(1, "a", "b c d e .", "b c d e.")]
    found = {form: page("t", some, full_score(["b c d e."], [["b c d e ."]], "de", form)) for form in TEXT_FORMS}
    for form, row in (("raw", "100.0"), ("detokenised", "100.0"), ("tokenised", "0.0")):
        assert f"<tr><th scope=row>0 to 9</th><td class=number>1</td><td class=number>{row}</td>" in found[form]
    assert "Lengths are 13a tokens of" in found["raw"] and "Lengths are tokens of" in found["tokenised"]


@given(*[st.text("ab <>&\"'\u0085\u2028ש\n", max_size=12)] * 2)
def test_marking_changes_no_text_and_marks_what_differs(reference, output):
    for text, html in zip((reference, output), marked(reference, output), strict=True):
        found = Page(f"<dd>{html}</dd>")
        assert found.texts["dd"] == [text]
        unmarked = len(text.split(" ")) - sum(len(part.split(" ")) for part in found.texts["mark"])
        assert unmarked >= 0 and (reference != output or not found.texts["mark"])


def test_the_marks_of_a_known_pair():
    assert marked("der Hund & die Katze", "ein Hund & die Maus da") == (
        "<mark>der</mark> Hund &amp; die <mark>Katze</mark>",
        "<mark>ein</mark> Hund &amp; die <mark>Maus da</mark>",
    )
    assert marked("", "ja") == ("", "<mark>ja</mark>")


def test_lines_too_long_to_be_marked_are_shown_whole_and_that_is_said():
    long = "a " * MAX_MARKED_WORDS + "<"
    for html in marked(long, "b"):
        assert "<mark>" not in html and "differences are not marked" in html
    assert marked(long, "b")[0].startswith("a a") and "&lt;" in marked(long, "b")[0]


def test_it_is_written_beside_the_outputs(tmp_path, scores):
    outputs = tmp_path / "test.average-5.raw.txt"
    records = [dict(zip(("source", "reference", "output"), s[1:], strict=True)) for s in sentences()]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (tmp_path / "test.average-5.raw.jsonl").write_text(text, encoding="utf-8")
    path = write(outputs, "run <1>: test", scores)
    assert path == tmp_path / "test.average-5.raw.html"
    assert path.read_text(encoding="utf-8") == page("run <1>: test", sentences(), scores)


def test_few_sentences_are_all_shown(scores):
    found = Page(page("t", [Sentence(1, "a", "b", "b"), Sentence(2, "a", "b", "c")], scores))
    assert found.texts["h2"][2:] == ["The worst 1", "2 drawn at random"]
