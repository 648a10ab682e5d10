"""Scores of lines against references: sacreBLEU's and the paper's, how sure they are, and comparisons."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import sacrebleu
from sacrebleu.metrics.bleu import BLEUScore
from sacrebleu.significance import PairedTest

from transformer.evaluation.moses import paper_tokens, rules_of
from transformer.types import UserError

NUM_RESAMPLES = 1_000
MAX_RESAMPLED_LINES = 20_000  # resampling holds about 50 kB a line for BLEU, 80 kB for chrF

TEST_SETS = {
    ("de", 2737): "newstest2014 as sacreBLEU's wmt14 has it, without 266 lines that papers score (wmt14/full)",
    ("de", 3003): "newstest2014 in full (sacreBLEU's wmt14/full), but also newstest2011 and newstest2012",
    ("fr", 3003): "newstest2014 in full, but also newstest2011 and newstest2012",
}
"""Target language and number of lines -> the test sets from English that have as many."""

TEXT_FORMS = {
    "raw": "the lines as they are",
    "detokenised": "outputs and references made text from Moses' tokens",
    "tokenised": "tokens, which is no score of text",
}
"""What is scored: text as it was given, text from tokens, or tokens that spaces separate; and what definitions say."""

logger = logging.getLogger(__name__)


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]], text_form: str = "raw") -> dict[str, Any]:
    """BLEU, chrF and exact match of lines of text; the numbers of the ``sacrebleu`` command on the same files.

    BLEU is sacreBLEU's default: over the corpus, cased, 13a tokens, up to 4-grams, ``exp`` smoothing. chrF is chrF2: up
    to 6 characters, no words. Neither is the score that the paper of 2017 prints: see :func:`paper_score`.

    Args:
      hypotheses: one a line, as a reader would see it: no subwords, no tokenisation.
      references: one list for each set of references, with a line for each hypothesis.
      text_form: one of ``TEXT_FORMS``. BLEU of what is tokenised is :func:`multi_bleu`'s.

    Returns:
      num_examples; bleu and chrf, from 0 to 100, with sacreBLEU's own bleu_signature and chrf_signature; length_ratio,
      13a tokens of the hypotheses to those of the references; exact_match, the share of lines, from 0 to 1, that equal
      one of their references; text_form.

    Raises:
      UserError: for no lines, no references, or a set of references with another number of lines.

    Reference: Post, A Call for Clarity in Reporting BLEU Scores (2018); Popovic, chrF (2015).
    """
    if not references:
        raise UserError("there is no reference to score against; give at least one")
    for number, lines in enumerate(references, start=1):
        if len(lines) != len(hypotheses):
            raise UserError(
                f"{len(hypotheses)} hypotheses but {len(lines)} lines in reference {number} of {len(references)}; "
                "every hypothesis needs its line in every reference"
            )
    if not hypotheses:
        raise UserError("there is nothing to score: 0 hypotheses")
    bleu, chrf = _bleu(text_form, force=False), sacrebleu.CHRF()
    bleu_score = bleu.corpus_score(hypotheses, references)
    chrf_score = chrf.corpus_score(hypotheses, references).score
    exact = sum(hypothesis in of_line for hypothesis, *of_line in zip(hypotheses, *references, strict=True))
    return {
        "num_examples": len(hypotheses),
        "bleu": bleu_score.score,
        "bleu_signature": str(bleu.get_signature()),
        "length_ratio": bleu_score.ratio,
        "chrf": chrf_score,
        "chrf_signature": str(chrf.get_signature()),
        "exact_match": exact / len(hypotheses),
        "text_form": text_form,
    }


def _bleu(text_form: str, *, force: bool) -> sacrebleu.BLEU:
    """``force``: without sacreBLEU's warning of text that looks tokenised."""
    if text_form == "tokenised":
        return sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    return sacrebleu.BLEU(force=force)


def multi_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> BLEUScore:
    """BLEU of lines of tokens as Moses' multi-bleu.perl counts it: cased, no smoothing, 0 if no 4-gram is right."""
    return _bleu("tokenised", force=True).corpus_score(hypotheses, references)


def paper_score(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], target_language: str
) -> dict[str, float | str]:
    """``bleu_paper``, BLEU as the paper of 2017 counts it, of raw lines, and ``bleu_paper_definition`` in one line.

    It differs from sacreBLEU's of the same lines mainly where words have hyphens or one side has other quotation marks:
    by -0.2 to +1.0 for 16 systems on newstest2017, mostly +0.05 to +0.4; the references have ASCII quotation marks.
    """
    tokens = [paper_tokens(lines, target_language) for lines in (hypotheses, *references)]
    return {
        "bleu_paper": multi_bleu(tokens[0], tokens[1:]).score,
        "bleu_paper_definition": (
            f"both sides: Unicode punctuation made ASCII, Moses tokens ({rules_of(target_language)}), words split at "
            "hyphens; cased, multi-bleu.perl's arithmetic, no smoothing"
        ),
    }


def full_score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    target_language: Optional[str],
    text_form: str = "raw",
) -> dict[str, Any]:
    """What :func:`score` gives and what takes longer.

    Args:
      hypotheses: see :func:`score`.
      references: see :func:`score`.
      target_language: a code, as ``de``; None: there is no bleu_paper.
      text_form: see :func:`score`; of what is tokenised there is no bleu_paper, which tokenises text.

    Returns:
      Also bleu_interval, half the width of the 95% interval of bleu by bootstrap resampling (sacreBLEU's), and
      bleu_interval_signature, with the number of resamples and the seed; what :func:`paper_score` gives; looks_like,
      where the number of lines is that of a known test set.

    Reference: Koehn, Statistical Significance Tests for Machine Translation Evaluation (2004).
    """
    scores = score(hypotheses, references, text_form)
    if len(hypotheses) <= MAX_RESAMPLED_LINES:
        metrics = {"BLEU": _bleu(text_form, force=True)}
        signatures, systems = _paired_bootstrap([("", hypotheses)], references, metrics)
        scores |= {"bleu_interval": float(systems["BLEU"][0].ci), "bleu_interval_signature": str(signatures["BLEU"])}
    else:
        logger.info("no bleu_interval: %d lines are more than %d", len(hypotheses), MAX_RESAMPLED_LINES)
    if target_language is not None and text_form != "tokenised":
        scores |= paper_score(hypotheses, references, target_language)
    if found := TEST_SETS.get((target_language or "", len(hypotheses))):
        scores["looks_like"] = found
    return scores


def compare(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], baselines: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Whether hypotheses are better than other systems', by paired bootstrap resampling (sacreBLEU's).

    Args:
      hypotheses: see :func:`score`.
      references: see :func:`score`.
      baselines: name -> the same lines by another system.

    Returns:
      Of each baseline: baseline, its name; bleu and chrf; bleu_interval and chrf_interval, as in :func:`full_score`;
      bleu_difference and chrf_difference, above 0 where the hypotheses are better; bleu_p_value and chrf_p_value,
      two-sided: how likely so large a difference is where there is none. That is 1 for equal scores, for which
      sacreBLEU gives its smallest. bleu_signature and chrf_signature have the number of resamples and the seed.

    Raises:
      UserError: for another number of lines, or too many to be resampled.

    Reference: Koehn (2004), section 4; Riezler and Maxwell, On Some Pitfalls in Automatic Evaluation (2005), for the
      p-value.
    """
    for name, lines in baselines.items():
        if len(lines) != len(hypotheses):
            raise UserError(f"{len(hypotheses)} hypotheses but {len(lines)} lines in the baseline {name}")
    if len(hypotheses) > MAX_RESAMPLED_LINES:
        raise UserError(f"{len(hypotheses)} lines are too many to be resampled; compare at most {MAX_RESAMPLED_LINES}")
    metrics = {"BLEU": sacrebleu.BLEU(force=True), "chrF2": sacrebleu.CHRF()}
    signatures, systems = _paired_bootstrap([("", hypotheses), *baselines.items()], references, metrics)
    rows: list[dict[str, Any]] = [{"baseline": name} for name in baselines]
    for key, name in (("bleu", "BLEU"), ("chrf", "chrF2")):
        ours, *others = systems[name]
        for row, other in zip(rows, others, strict=True):
            difference = ours.score - other.score
            row[key] = other.score
            row[f"{key}_interval"] = float(other.ci)
            row[f"{key}_difference"] = difference
            row[f"{key}_p_value"] = other.p_value if difference else 1.0
            row[f"{key}_signature"] = str(signatures[name])
    return rows


def _paired_bootstrap(
    systems: list[tuple[str, Sequence[str]]], references: Sequence[Sequence[str]], metrics: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Signature, and results of the systems in their order, of each metric."""
    return PairedTest(systems, metrics, references, test_type="bs", n_samples=NUM_RESAMPLES)()


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF2 of each line, from 0 to 100."""
    chrf = sacrebleu.CHRF()
    return [chrf.sentence_score(line, [wanted]).score for line, wanted in zip(hypotheses, references, strict=True)]


def definitions(scores: Mapping[str, Any]) -> dict[str, str]:
    """What the scores of :func:`full_score` are, one line each, by their keys; nothing where others are given."""
    if "text_form" not in scores:
        return {}
    form = TEXT_FORMS[scores["text_form"]]
    bleu, tokens = f"sacreBLEU on {form}, cased, 13a tokens", "13a tokens"
    if scores["text_form"] == "tokenised":
        bleu, tokens = f"multi-bleu.perl's arithmetic on {form}; cased, no smoothing", "tokens"
    lines = {
        "bleu": f"{bleu}: {{bleu_signature}}",
        "bleu_interval": "half of bleu's 95% interval by bootstrap resampling: {bleu_interval_signature}",
        "bleu_paper": "the paper's way: {bleu_paper_definition}",
        "chrf": f"sacreBLEU on {form}: {{chrf_signature}}",
        "length_ratio": f"{tokens} of the outputs to those of the references",
        "exact_match": "the share of lines that equal a reference",
        "num_examples": "lines, as many as {looks_like}" if "looks_like" in scores else "lines scored",
    }
    return {key: line.format_map(scores) for key, line in lines.items() if key in scores}


def describe(scores: Mapping[str, Any]) -> list[str]:
    """The scores of :func:`full_score` for people: a line each, with its definition, then comparisons."""
    return [
        *(f"{key} {scores[key]:.6g}: {definition}" for key, definition in definitions(scores).items()),
        *(
            f"{key} {row[f'{key}_difference']:+.2f} over {row['baseline']} ({row[key]:.2f}): p = "
            f"{row[f'{key}_p_value']:.4f}, paired bootstrap ({row[f'{key}_signature']})"
            for row in scores.get("baselines", [])
            for key in ("bleu", "chrf")
        ),
    ]
