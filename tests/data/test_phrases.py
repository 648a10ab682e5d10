"""Generated phrases: split by value, one target for a source, real German and French."""

import collections
import datetime

import numpy as np
import pytest

from transformer.data import phrases
from transformer.types import UserError

NUM_PHRASES = 4_001


@pytest.fixture(scope="module", params=phrases.TARGET_LANGUAGES)
def splits(request):
    return {name: phrases.generate(name, request.param, NUM_PHRASES, 0) for name in ("train", "validation", "test")}


def test_sizes_and_shares_of_kinds(splits):
    assert {name: len(split) for name, split in splits.items()} == {
        "train": NUM_PHRASES,
        "validation": 500,
        "test": 1_000,
    }
    assert len(phrases.KINDS) >= 8
    counts = collections.Counter(phrase.kind for phrase in splits["test"])
    assert set(counts) == set(phrases.KINDS)
    assert min(counts.values()) >= 100


def test_every_phrase_is_new_and_has_one_target(splits):
    everything = [phrase for split in splits.values() for phrase in split]
    assert len({phrase.source for phrase in everything}) == len(everything)


def test_every_text_has_two_words_and_plain_spaces(splits):
    for split in splits.values():
        for phrase in split:
            for text in (phrase.source, phrase.target):
                assert len(text.split(" ")) >= 2 and text == " ".join(text.split())
                assert "\xa0" not in text and "\u202f" not in text


@pytest.mark.parametrize("name", phrases.KINDS)
def test_no_value_is_in_two_splits_for_any_seed(name, monkeypatch):
    kind = phrases.KINDS[name]
    text_of_value = kind._replace(render=lambda value, form, language: f"{value} {form}")
    monkeypatch.setattr(phrases, "KINDS", {name: text_of_value})
    monkeypatch.setattr(phrases, "NUM_VALIDATION", 211)
    monkeypatch.setattr(phrases, "NUM_TEST", 307)
    values = {
        split: {phrase.source.split()[0] for seed in (0, 1) for phrase in phrases.generate(split, "de", 601, seed)}
        for split in ("train", "validation", "test")
    }
    for one in values:
        for other in values:
            assert one == other or not values[one] & values[other]


def test_shares_of_values_hold_and_do_not_depend_on_their_order():
    values = np.arange(1, 20_001)
    shuffled = np.random.default_rng(0).permutation(values)
    parts = [phrases._of_split(split, "any", values) for split in phrases.SHARES]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), values)
    for split, part in zip(phrases.SHARES, parts, strict=True):
        first, end = phrases.SHARES[split]
        assert abs(len(part) / len(values) - (end - first)) < 0.01
        np.testing.assert_array_equal(np.sort(phrases._of_split(split, "any", shuffled)), part)


def test_seed_decides_training_only():
    one, same, other = (phrases.generate("train", "de", 211, seed) for seed in (3, 3, 4))
    assert one == same
    assert len(set(one) & set(other)) < 100
    assert phrases.generate("validation", "de", 211, 3) == phrases.generate("validation", "de", 997, 4)


def test_more_phrases_only_add():
    small, large = (set(phrases.generate("train", "fr", count, 0)) for count in (301, 467))
    assert small < large


def test_kinds_are_shuffled():
    kinds = [phrase.kind for phrase in phrases.generate("train", "de", 900, 0)]
    assert min(kinds[:300].count(kind) for kind in phrases.KINDS) > 15


@pytest.mark.parametrize(
    ("total", "available", "shares"),
    [(10, [9, 9, 9], [3, 3, 4]), (10, [1, 9, 9], [1, 4, 5]), (19, [1, 9, 9], [1, 9, 9]), (2, [5, 5, 5], [0, 1, 1])],
)
def test_what_one_kind_lacks_the_others_share(total, available, shares):
    assert sorted(phrases._equal_shares(total, available)) == sorted(shares)
    assert all(share <= most for share, most in zip(phrases._equal_shares(total, available), available, strict=True))


def test_cardinals_are_log_uniform():
    numbers = phrases._sample(phrases.KINDS["cardinals"], np.arange(1, 1_000_000), 300, "some seed")
    digits = np.bincount(np.log10(numbers).astype(int), minlength=6)
    assert digits[2:].min() > 40 and numbers.max() < 1_000_000


def render(kind, value, form=0):
    return tuple(phrases.KINDS[kind].render(value, form, language) for language in ("en", "de", "fr"))


def day(year, month, day_of_month):
    return datetime.date(year, month, day_of_month).toordinal()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            render("cardinals", 235),
            (
                "the number two hundred and thirty-five",
                "die Zahl zweihundertfünfunddreißig",
                "le nombre deux cent trente-cinq",
            ),
        ),
        (render("cardinals", 80), ("the number eighty", "die Zahl achtzig", "le nombre quatre-vingts")),
        (
            render("cardinals", 200_001),
            (
                "the number two hundred thousand and one",
                "die Zahl zweihunderttausendeins",
                "le nombre deux cent mille un",
            ),
        ),
        (render("ordinals", 1), ("the first", "der erste", "le premier")),
        (render("ordinals", 80), ("the eightieth", "der achtzigste", "le quatre-vingtième")),
        (render("ordinals", 200), ("the two hundredth", "der zweihundertste", "le deux centième")),
        (render("ordinals", 103), ("the one hundred and third", "der einhundertdritte", "le cent troisième")),
        (
            render("years", 1988),
            (
                "in nineteen eighty-eight",
                "im Jahr neunzehnhundertachtundachtzig",
                "en mille neuf cent quatre-vingt-huit",
            ),
        ),
        (render("years", 1900, 4), ("until nineteen hundred", "bis neunzehnhundert", "jusqu'en mille neuf cent")),
        (
            render("years", 1980, 1),
            ("since nineteen eighty", "seit neunzehnhundertachtzig", "depuis mille neuf cent quatre-vingt"),
        ),
        (
            render("dates", day(1988, 5, 3)),
            ("Tuesday, May 3, 1988", "Dienstag, 3. Mai 1988", "mardi 3 mai 1988"),
        ),
        (render("dates", day(1988, 5, 1), 1), ("May 1, 1988", "1. Mai 1988", "1er mai 1988")),
        (
            render("dates", day(1905, 8, 21), 2),
            ("on Monday, August 21, 1905", "am Montag, dem 21. August 1905", "le lundi 21 août 1905"),
        ),
        (render("times", 15 * 60 + 5), ("at 3:05 PM", "um 15:05 Uhr", "à 15 h 05")),
        (render("times", 5, 2), ("until 12:05 AM", "bis 0:05 Uhr", "jusqu'à 0 h 05")),
        (render("money", 123_450), ("1,234.50 euros", "1.234,50 Euro", "1 234,50 euros")),
        (render("money", 250, 2), ("2.50 British pounds", "2,50 Britische Pfund", "2,50 livres sterling")),
        (
            render("money", 2_101, 4),
            ("twenty-one dollars and one cent", "einundzwanzig Dollar und ein Cent", "vingt et un dollars et un cent"),
        ),
        (
            render("money", 10_100, 4),
            ("one hundred and one dollars", "einhundertein Dollar", "cent un dollars"),
        ),
        (render("durations", 10_302), ("3 weeks and 2 days", "3 Wochen und 2 Tage", "3 semaines et 2 jours")),
        (render("durations", 101), ("1 year and 1 month", "1 Jahr und 1 Monat", "1 an et 1 mois")),
        (render("intervals", 12, 7), ("12 days ago", "vor 12 Tagen", "il y a 12 jours")),
        (render("intervals", 1, 12), ("in 1 year", "in 1 Jahr", "dans 1 an")),
        (render("units", 12_345, 1), ("1,234.5 kilometers", "1.234,5 Kilometer", "1 234,5 kilomètres")),
        (render("units", 15, 2), ("1.5 miles", "1,5 Meilen", "1,5 mile")),
    ],
)
def test_the_languages(texts, expected):
    assert texts == expected


def test_ranges_of_the_kinds():
    kinds = phrases.KINDS
    assert kinds["cardinals"].values.max() == 999_999
    assert kinds["ordinals"].values.max() == 9_999
    assert render("dates", int(kinds["dates"].values[0]), 1)[0] == "January 1, 1900"
    assert render("dates", int(kinds["dates"].values[-1]), 1)[0] == "December 31, 2100"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "es", 10, 0), ["data.target_language=es", "de, fr", "data.source=files"]),
        (("tst", "de", 10, 0), ["tst", "train, validation, test"]),
        (("train", "de", 10**9, 0), ["data.num_phrases=1000000000"]),
    ],
)
def test_what_cannot_be_generated_is_the_users_error(arguments, words):
    with pytest.raises(UserError) as error:
        phrases.generate(*arguments)
    assert all(word in str(error.value) for word in words)
