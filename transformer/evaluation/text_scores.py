"""Scores of text against references, by sacreBLEU on raw lines."""

from collections.abc import Sequence

import sacrebleu

from transformer.types import UserError


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float | int | str]:
    """BLEU, chrF and exact match of lines of text; the numbers of the ``sacrebleu`` command on the same files.

    BLEU is sacreBLEU's default: over the corpus, cased, 13a tokens, up to 4-grams, ``exp`` smoothing. chrF is chrF2: up
    to 6 characters, no words. Neither is the tokenised score that the paper of 2017 prints.

    Args:
      hypotheses: one a line, as a reader would see it: no subwords, no tokenisation.
      references: one list for each set of references, with a line for each hypothesis.

    Returns:
      num_examples; bleu and chrf, from 0 to 100, with sacreBLEU's own bleu_signature and chrf_signature; exact_match,
      the share of lines, from 0 to 1, that equal one of their references.

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
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    bleu_score = bleu.corpus_score(hypotheses, references).score
    chrf_score = chrf.corpus_score(hypotheses, references).score
    exact = sum(hypothesis in of_line for hypothesis, *of_line in zip(hypotheses, *references, strict=True))
    return {
        "num_examples": len(hypotheses),
        "bleu": bleu_score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf": chrf_score,
        "chrf_signature": str(chrf.get_signature()),
        "exact_match": exact / len(hypotheses),
    }
