"""Scores of text: the published ones of 21 systems, the sacrebleu command's, and what must hold for any text."""

import csv
import gzip
import json
import pathlib
import subprocess
import sys

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from tests.shared_data import shared_data
from transformer.evaluation.text_scores import score
from transformer.types import UserError


def read_lines(path: pathlib.Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")


def read_table(folder: pathlib.Path) -> dict[str, dict[str, str]]:
    with open(folder / "scores.tsv", encoding="utf-8", newline="") as file:
        return {row["system"]: row for row in csv.DictReader(file, delimiter="\t")}


def all_but_first_slow(names: str) -> list:
    first, *others = names.split()
    return [first, *(pytest.param(name, marks=pytest.mark.slow) for name in others)]


WMT17 = (
    "FBK.4870 C-3MA.4959 KIT.4950 LIUM-NMT.4900 LMU-nmt-reranked.4934 LMU-nmt-single.4893 PROMT-Rule-based.4735 "
    "RWTH-nmt-ensemble.4921 SYSTRAN.4847 TALP-UPC.4834 online-A.0 online-B.0 online-F.0 online-G.0 uedin-nmt.4722 "
    "xmu.4910"
)
WMT21 = "VolcTrans-AT Facebook-AI Online-G UF happypoet"


@pytest.mark.parametrize("system", all_but_first_slow(WMT17))
def test_published_scores_of_wmt17_english_german(system):
    folder = shared_data("wmt17-ende-systems")
    published = read_table(folder)[system]
    scores = score(read_lines(folder / published["file"]), [read_lines(folder / "newstest2017.ref.de.gz")])
    assert scores["num_examples"] == 3004
    assert round(scores["bleu"], 2) == float(published["bleu_mteval13a"])
    if published["chrf"]:
        assert round(scores["chrf"], 4) == float(published["chrf"])


@pytest.mark.parametrize("system", all_but_first_slow(WMT21))
def test_published_scores_of_wmt21_german_english_with_one_and_two_references(system):
    folder = shared_data("wmt21-deen-systems")
    published = read_table(folder)[system]
    hypotheses = read_lines(folder / published["file"])
    references = {name: read_lines(folder / f"newstest2021.ref.{name}.en.gz") for name in "AB"}
    for name, lists in {
        **{name: [lines] for name, lines in references.items()},
        "all": list(references.values()),
    }.items():
        scores = score(hypotheses, lists)
        assert scores["bleu"] == pytest.approx(float(published[f"bleu-{name}"]), rel=1e-12)
        assert scores["chrf"] == pytest.approx(float(published[f"chrf-{name}"]), rel=1e-12)
        assert scores["bleu_signature"].startswith(f"nrefs:{len(lists)}|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_the_systems_named_here_are_those_of_the_tables():
    assert set(WMT17.split()) == set(read_table(shared_data("wmt17-ende-systems")))
    assert set(WMT21.split()) == set(read_table(shared_data("wmt21-deen-systems")))


def test_equals_the_sacrebleu_command(tmp_path):
    hypotheses = [
        "A man sleeps in a green room on a couch .",
        "Zwei Hunde – spielen\u2028im Schnee!",
        "  ",
        "1,000 km/h",
    ]
    references = [
        ["A man sleeps in a green room on the couch.", "Zwei Hunde spielen im Schnee\u0085.", "Nichts", "1,000 km/h"],
        ["a man is sleeping on a couch", "Zwei Hunde – spielen\u2028im Schnee!", "etwas", "1000 km/h"],
    ]
    files = []
    for number, lines in enumerate([hypotheses, *references]):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", *files[1:], "-i", files[0], "-m", "bleu", "chrf", "-w", "12"]
    bleu, chrf = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    scores = score(hypotheses, references)
    assert scores["bleu"] == pytest.approx(bleu["score"], abs=1e-10) and 0 < scores["bleu"] < 100
    assert scores["chrf"] == pytest.approx(chrf["score"], abs=1e-10) and 0 < scores["chrf"] < 100
    assert scores["bleu_signature"] == bleu["signature"]
    assert scores["chrf_signature"] == chrf["signature"]
    assert scores["exact_match"] == 0.5


def test_signatures_name_the_release_and_the_metric():
    scores = score(["ein Satz"], [["ein Satz"]])
    version = sacrebleu.__version__
    assert scores["bleu_signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    assert scores["chrf_signature"] == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}"


text = st.lists(st.text("abAB .\u0085\u2028ü", max_size=9), min_size=1, max_size=7)


@given(lines=text, seed=st.randoms(use_true_random=False))
def test_the_order_of_the_lines_does_not_matter(lines, seed):
    pairs = list(zip(lines, reversed(lines), strict=True))
    shuffled = seed.sample(pairs, len(pairs))
    scores, again = (score([a for a, _ in some], [[b for _, b in some]]) for some in (pairs, shuffled))
    assert scores == again


@given(lines=text)
def test_exact_match_is_the_share_of_lines_equal_to_any_reference_and_cased(lines):
    other = [line + "x" for line in lines]
    assert score(lines, [other])["exact_match"] == 0
    assert score(lines, [other, lines])["exact_match"] == 1
    upper = [line.upper() for line in lines]
    wanted = sum(a == b for a, b in zip(lines, upper, strict=True)) / len(lines)
    assert score(lines, [upper])["exact_match"] == wanted


def test_unequal_counts_and_nothing_to_score():
    with pytest.raises(UserError, match="2 hypotheses but 3 lines in reference 2 of 2"):
        score(["a", "b"], [["a", "b"], ["a", "b", "c"]])
    with pytest.raises(UserError, match="0 hypotheses"):
        score([], [[]])
    with pytest.raises(UserError, match="no reference"):
        score(["a"], [])
