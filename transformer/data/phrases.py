"""Generated phrases and their translations: numbers, dates, times, money and measures, by num2words and Babel.

This is synthetic text. It needs no download, its answers are unambiguous (a source phrase has one target), and its
grammar is real: German puts units before tens and writes numerals as one word, "12 days ago" asks for the dative,
French counts in twenties, the decimal point becomes a comma.

A phrase is a *value* (a number, a date, an amount) in one of the *forms* of its kind. The split is by value: a hash
of kind and value alone says whether all phrases of the value belong to training, validation or test. Hence no seed
and no size of the training split ever shows a model a value that it is tested on in the same kind.
"""

import datetime
import functools
import hashlib
import re
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

import numpy as np
from babel.dates import format_date, format_time, format_timedelta
from babel.lists import format_list
from babel.numbers import format_currency
from babel.units import format_unit
from num2words import num2words

from transformer.types import UserError

SOURCE_LANGUAGE = "en"
TARGET_LANGUAGES = ("de", "fr")
NUM_VALIDATION = 500
NUM_TEST = 1_000
SHARES = {"test": (0.0, 0.1), "validation": (0.1, 0.15), "train": (0.15, 1.0)}
"""From where to where in (0, 1) the hash of a value lies, by split."""


class Phrase(NamedTuple):
    """A phrase, its translation, and the name of its kind."""

    kind: str
    source: str
    target: str


class Kind(NamedTuple):
    """All phrases of one kind.

    values       [number of values] int64 codes of the values
    log_uniform  whether values are drawn with probability proportional to 1 / value, else uniformly
    num_forms    in how many forms each value can be put
    render       (value, form, language) -> text; the same value and form in two languages are translations. A text
                 has at least two words, so that no vocabulary piece, which never crosses a space, can hold a phrase
    """

    values: np.ndarray
    log_uniform: bool
    num_forms: int
    render: Callable[[int, int, str], str]


def generate(split: str, target_language: str, num_phrases: int, seed: int) -> list[Phrase]:
    """The phrases of a split, all different, in shuffled order: a pure function of its arguments.

    The kinds have equal shares; where one has too few phrases, the others share what it lacks. Training phrases are
    drawn by ``seed``, and a larger ``num_phrases`` only adds phrases. Validation (500 phrases) and test (1,000) are
    the same for every seed, so that runs can be compared.

    Args:
      split: "train", "validation" or "test".
      target_language: "de" or "fr"; the source is English.
      num_phrases: size of the training split.
      seed: of the training split.

    Raises:
      UserError: for another split or language, or more phrases than there are.
    """
    if target_language not in TARGET_LANGUAGES:
        raise UserError(
            f"data.target_language={target_language} is not among the languages of the generated phrases "
            f"({', '.join(TARGET_LANGUAGES)}); bring your own text with data.source=files"
        )
    sizes = {"train": num_phrases, "validation": NUM_VALIDATION, "test": NUM_TEST}
    if split not in sizes:
        raise UserError(f"the generated phrases have no split {split}; there are {', '.join(sizes)}")
    draw = f"train {seed}" if split == "train" else split

    values = {name: _of_split(split, name, kind.values) for name, kind in KINDS.items()}
    available = [len(values[name]) * kind.num_forms for name, kind in KINDS.items()]
    if sizes[split] > sum(available):
        raise UserError(f"data.num_phrases={num_phrases} is more than the {sum(available)} phrases that there are")

    phrases, places = [], []
    for (name, kind), count in zip(KINDS.items(), _equal_shares(sizes[split], available), strict=True):
        codes = _sample(kind, values[name], count, f"{draw} {name}")
        for code in codes.tolist():
            value, form = divmod(code, kind.num_forms)
            phrases.append(
                Phrase(name, kind.render(value, form, SOURCE_LANGUAGE), kind.render(value, form, target_language))
            )
        places.append(_uniform(codes, f"{draw} {name} place"))
    return [phrases[i] for i in np.argsort(np.concatenate(places), kind="stable")]


def _of_split(split: str, kind: str, values: np.ndarray) -> np.ndarray:
    """Those of the values of a kind that belong to a split."""
    first, end = SHARES[split]
    share = _uniform(values, f"{kind} split")
    return values[(first <= share) & (share < end)]


def _sample(kind: Kind, values: np.ndarray, count: int, name: str) -> np.ndarray:
    """``count`` different codes ``value * num_forms + form``, drawn without replacement.

    The smallest of exponential variables with rates w are a weighted sample without replacement.

    Reference: Efraimidis and Spirakis 2006, Weighted random sampling with a reservoir.
    """
    codes = (values[:, None] * kind.num_forms + np.arange(kind.num_forms)).reshape(-1)
    arrivals = -np.log(_uniform(codes, name))
    if kind.log_uniform:
        arrivals *= codes // kind.num_forms
    chosen = np.argpartition(arrivals, count)[:count] if count < len(codes) else slice(None)
    return np.sort(codes[chosen])


def _equal_shares(total: int, available: list[int]) -> list[int]:
    """``total`` in shares as equal as ``available`` allows."""
    shares = [0] * len(available)
    left = total
    for done, index in enumerate(sorted(range(len(available)), key=available.__getitem__)):
        shares[index] = min(available[index], left // (len(available) - done))
        left -= shares[index]
    return shares


def _uniform(values: np.ndarray, name: str) -> np.ndarray:
    """A number in (0, 1) for each value: the same for a name and a value on every machine and NumPy version.

    Reference: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators (SplitMix64).
    """
    salt = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    bits = (values.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.array([salt], np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


@functools.cache
def _words(number: int, to: str, language: str) -> str:
    text = num2words(number, to=to, lang=language)
    if language == "fr" and to != "cardinal":
        # "cent" and "vingt" take no plural s in a rank or a year: deux centième, en mille neuf cent quatre-vingt.
        text = re.sub(r"(cent|vingt)s(ième)?$", r"\1\2", text)
    return text


@functools.cache
def _unit(number: int | float, unit: str, language: str) -> str:
    return _plain(format_unit(number, unit, locale=language))


def _plain(text: str) -> str:
    """Ordinary spaces: Babel joins some numbers and units by no-break spaces, and others not."""
    return text.replace("\xa0", " ").replace("\u202f", " ")


_NUMBER = {"en": "the number", "de": "die Zahl", "fr": "le nombre"}
_ARTICLE = {"en": "the", "de": "der", "fr": "le"}
_YEAR = {
    "en": ("in", "since", "before", "after", "until", "around"),
    "de": ("im Jahr", "seit", "vor", "nach", "bis", "um"),
    "fr": ("en", "depuis", "avant", "après", "jusqu'en", "vers"),
}
_DATE = {
    "en": ("EEEE, MMMM d, y", "MMMM d, y", "'on' EEEE, MMMM d, y", "'since' MMMM d, y"),
    "de": ("EEEE, d. MMMM y", "d. MMMM y", "'am' EEEE, 'dem' d. MMMM y", "'seit dem' d. MMMM y"),
    "fr": ("EEEE d MMMM y", "d MMMM y", "'le' EEEE d MMMM y", "'depuis le' d MMMM y"),
}
_TIME = {
    "en": ("at", "from", "until", "before", "after", "around"),
    "de": ("um", "ab", "bis", "vor", "nach", "gegen"),
    "fr": ("à", "à partir de", "jusqu'à", "avant", "après", "vers"),
}
_CLOCK = {"en": "h:mm a", "de": "H:mm 'Uhr'", "fr": "H 'h' mm"}
_CURRENCIES = ("EUR", "USD", "GBP", "CHF")
_NO_CENTS = {"en": " and zero cents", "de": " und null Cent", "fr": " et zéro cents"}
_DURATIONS = (  # a number of the first unit up to the first limit, and of the second up to the second
    ("year", 99, "month", 11),
    ("week", 51, "day", 6),
    ("day", 99, "hour", 23),
    ("hour", 47, "minute", 59),
    ("minute", 59, "second", 59),
)
_INTERVALS = {  # in seconds, as Babel counts them
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 604_800,
    "month": 2_592_000,
    "year": 31_536_000,
}
_UNITS = (
    "length-meter",
    "length-kilometer",
    "length-mile",
    "mass-gram",
    "mass-kilogram",
    "volume-liter",
    "volume-cubic-meter",
    "area-square-meter",
    "area-hectare",
    "temperature-celsius",
    "speed-kilometer-per-hour",
    "concentr-percent",
)


def _cardinal(value: int, form: int, language: str) -> str:
    return f"{_NUMBER[language]} {_words(value, 'cardinal', language)}"


def _ordinal(value: int, form: int, language: str) -> str:
    return f"{_ARTICLE[language]} {_words(value, 'ordinal', language)}"


def _year(value: int, form: int, language: str) -> str:
    return f"{_YEAR[language][form]} {_words(value, 'year', language)}"


def _date(value: int, form: int, language: str) -> str:
    text = format_date(datetime.date.fromordinal(value), _DATE[language][form], locale=language)
    return re.sub(r"(?<!\d)1 (?=\D)", "1er ", text) if language == "fr" else text


def _time(value: int, form: int, language: str) -> str:
    clock = format_time(datetime.time(*divmod(value, 60)), _CLOCK[language], locale=language)
    return f"{_TIME[language][form]} {clock}"


def _money(value: int, form: int, language: str) -> str:
    """Cents of a currency by its name, in figures; the last form is dollars in words."""
    amount = Decimal(value) / 100
    if form < len(_CURRENCIES):
        return _plain(format_currency(amount, _CURRENCIES[form], locale=language, format_type="name"))
    separator = {"separator": " and"} if language == "en" else {}
    text = num2words(amount, to="currency", currency="USD", lang=language, **separator)
    return text.removesuffix(_NO_CENTS[language])


def _duration(value: int, form: int, language: str) -> str:
    row, numbers = divmod(value, 10_000)
    first, _, second, _ = _DURATIONS[row]
    parts = [_unit(numbers // 100, f"duration-{first}", language), _unit(numbers % 100, f"duration-{second}", language)]
    return format_list(parts, locale=language)


def _interval(value: int, form: int, language: str) -> str:
    index, past = divmod(form, 2)
    unit, seconds = list(_INTERVALS.items())[index]
    delta = datetime.timedelta(seconds=-value * seconds if past else value * seconds)
    text = format_timedelta(delta, unit, threshold=float("inf"), add_direction=True, locale=language)  # type: ignore[arg-type]
    return _plain(text)


def _measure(value: int, form: int, language: str) -> str:
    """Tenths of a unit."""
    return _unit(value / 10 if value % 10 else value // 10, _UNITS[form], language)


def _duration_values() -> np.ndarray:
    """Codes row * 10,000 + first number * 100 + second number."""
    return np.array(
        [
            row * 10_000 + first * 100 + second
            for row, (_, most_first, _, most_second) in enumerate(_DURATIONS)
            for first in range(1, most_first + 1)
            for second in range(1, most_second + 1)
        ],
        np.int64,
    )


def _dates(first_year: int, last_year: int) -> np.ndarray:
    """Days since the year 1, as datetime counts them."""
    return np.arange(datetime.date(first_year, 1, 1).toordinal(), datetime.date(last_year, 12, 31).toordinal() + 1)


KINDS = {
    "cardinals": Kind(np.arange(1, 1_000_000), True, 1, _cardinal),
    "ordinals": Kind(np.arange(1, 10_000), True, 1, _ordinal),
    "years": Kind(np.arange(1_100, 2_100), False, len(_YEAR["en"]), _year),
    "dates": Kind(_dates(1900, 2100), False, len(_DATE["en"]), _date),
    "times": Kind(np.arange(24 * 60), False, len(_TIME["en"]), _time),
    "money": Kind(np.arange(200, 300_000), True, len(_CURRENCIES) + 1, _money),
    "durations": Kind(_duration_values(), False, 1, _duration),
    "intervals": Kind(np.arange(1, 1_000), True, 2 * len(_INTERVALS), _interval),
    "units": Kind(np.arange(2, 100_000), True, len(_UNITS), _measure),
}
"""Every kind by name. Years begin at 1100, from where English and German both count them in hundreds."""
