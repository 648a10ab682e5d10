"""Moses' tokens, by sacremoses: what the paper's BLEU counts, and the way back from tokens to text."""

import functools
import re
from collections.abc import Callable, Iterable
from importlib.metadata import version

# On bytes, as Perl does it without being told of UTF-8: a letter between two hyphens stands for one match only, but not
# if it has two bytes. So ``c-à-d`` is split twice and ``c-a-d`` once.
_HYPHEN = re.compile(rb"(\S)-(\S)")
_SPLIT_HYPHEN = " ##AT##-##AT## "

# What loses its last vowel before another in French, as tokens that an apostrophe follows.
_ELIDED = r"(?:[cdjlmnst]|(?:jus|lors|pres|puis|quel|quoi)?qu|aujourd|entr)"
_ELISION_IN_TOKENS = re.compile(rf"(?<!\S)({_ELIDED}) ?(['’]) (?=\S)", re.IGNORECASE)
_ELISION_IN_TEXT = re.compile(rf"(?<!\w)({_ELIDED}['’]) (?=\S)", re.IGNORECASE)


def paper_tokens(lines: Iterable[str], language: str) -> list[str]:
    """The tokens of lines of text, separated by spaces, of which the paper of 2017 counts n-grams.

    First Unicode's punctuation becomes ASCII's, then Moses' tokenizer goes over the line, then words are split at their
    hyphens: ``rich-text`` becomes ``rich ##AT##-##AT## text``.

    Args:
      lines: raw, as a reader would see them.
      language: a code, as ``de``; see :func:`rules_of`.

    Reference: get_ende_bleu.sh of Tensor2Tensor, which does these three steps (early versions the last two) to the
      output and the last to a reference that was tokenised before, with all quotation marks made ASCII's by hand
      (issue 317). Here both sides go the same way; „ is therefore replaced too, which Moses'
      replace-unicode-punctuation leaves alone. compound_split_bleu.sh of fairseq splits hyphens in text as it was
      tokenised for training. sacremoses has the tokenizer as it was when the paper was written: later versions
      of Moses (from 9fc964d) always cut off a line's last full stop. It lacks Moses' own rules for fi, sv, ca and ga.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    replace = MosesPunctNormalizer().replace_unicode_punct
    tokenizer = MosesTokenizer(_base(language))

    def tokens(line: str) -> str:
        words: str = tokenizer.tokenize(replace(line).replace("„", '"'), return_str=True)
        return _HYPHEN.sub(rb"\1" + _SPLIT_HYPHEN.encode() + rb"\2", words.encode()).decode()

    return [tokens(line) for line in lines]


def detokenizer(language: str) -> Callable[[str], str]:
    """What turns a line of Moses' tokens into text; hyphens split as by :func:`paper_tokens` are joined.

    sacremoses joins French elisions only before a letter and only with the ASCII apostrophe: ``qu ' 11`` becomes
    ``qu '11``, and ``l ’ homme`` stays. Here both become one word. What the tokens do not tell stays as Moses has it:
    the spaces of ``10 : 30`` and web addresses, which sacreBLEU's 13a tokens do not see, and on which side of a
    straight quotation mark the space was if its partner is missing.
    """
    from sacremoses import MosesDetokenizer

    moses = MosesDetokenizer(_base(language))
    french = _base(language) == "fr"

    def detokenize(line: str) -> str:
        line = moses.unescape_xml(line.replace(_SPLIT_HYPHEN, "-"))
        if french:
            line = _ELISION_IN_TOKENS.sub(r"\1\2 ", line)
        text: str = moses.detokenize(line.split(), unescape=False)
        return _ELISION_IN_TEXT.sub(r"\1", text) if french else text

    return detokenize


@functools.cache
def rules_of(language: str) -> str:
    """Which rules the tokenizer has for a language: its own, or those that sacremoses falls back on."""
    from sacremoses.corpus import NonbreakingPrefixes

    name = f"sacremoses {version('sacremoses')}"
    if _base(language) in NonbreakingPrefixes().available_langs:
        return f"{language}, {name}"
    return f"{language}, for which {name} has no rules and takes the English abbreviations"


def _base(language: str) -> str:
    """``pt`` for ``pt_BR``."""
    return re.split("[-_]", language)[0].lower()
