"""Deviations from the paper's configs, each key once, and how scores lie to those published."""

import dataclasses
import importlib
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.config import HARMLESS_KEYS, Config, differences, flatten, from_config_dict
from transformer.report.reference import FILES, NEAREST, against_published, deviations, reference_of

VARIANTS = [(file, name) for file in FILES for name in importlib.import_module(f"configs.{file}").PUBLISHED]


def made(file: str, name: str) -> Config:
    return from_config_dict(importlib.import_module(f"configs.{file}").get_config(name))


def with_key(config: Config, key: str, value: Any) -> Config:
    section, dot, field = key.rpartition(".")
    if not dot:
        return dataclasses.replace(config, **{field: value})
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{field: value})})


BASE = made("wmt14_en_de", "base")
VALUES = dict(flatten(BASE))
ADDED = {int: 1, float: 1.0, str: " another"}


def another(key: str) -> Any:
    """Not what base has, of the same type, whether it can work or not."""
    section, _, field = key.rpartition(".")
    (kind, *_) = typing.get_args(hint := typing.get_type_hints(type(getattr(BASE, section, BASE)))[field]) or (hint,)
    if typing.get_origin(hint) is tuple:
        return (*VALUES[key], kind())
    return not VALUES[key] if kind is bool else (kind() if VALUES[key] is None else VALUES[key]) + ADDED[kind]


@pytest.mark.parametrize("key", VALUES)
def test_each_key_that_is_changed_is_one_deviation(key):
    changed = with_key(BASE, key, another(key))
    of_experiment, others = deviations(changed, BASE)
    assert [tuple(each) for each in of_experiment + others] == [(key, another(key), VALUES[key])]
    if key in differences(BASE, changed) and not others:
        return
    # What does not make another experiment of a run, and is not about what is scored, stands apart.
    scored = key.startswith("decoding.") or key == "training.num_steps" or key in HARMLESS_KEYS
    assert scored or key in (
        "seed", "model.attention_implementation", "model.scan_unroll", "training.accumulation_steps",
    ) or key.split(".")[0] in HARMLESS_KEYS  # fmt: skip


@pytest.mark.parametrize(
    ("key", "counts"),
    [
        ("model.dropout_rate", True), ("data.vocab_size", True), ("training.num_steps", True), ("model.dtype", True),
        ("decoding.beam_size", True), ("training.keep_checkpoints", True), ("training.checkpoint_every", True),
        ("data.directory", True), ("decoding.tokens_per_batch", False), ("seed", False), ("mesh.platform", False),
        ("data.cache_directory", False), ("training.max_tokens_per_device", False), ("training.log_every", False),
        ("model.scan_unroll", False), ("evaluation.beam_size", False),
    ],
)  # fmt: skip
def test_what_is_of_the_experiment_and_what_is_not(key, counts):
    changed = with_key(BASE, key, another(key))
    assert [len(each) for each in deviations(changed, BASE)] == [int(counts), int(not counts)]


def test_the_folder_of_text_files_is_a_path():
    here, there = (with_key(with_key(BASE, "data.source", "files"), "data.directory", name) for name in ("a", "b"))
    assert [len(each) for each in deviations(here, there)] == [0, 1]


@pytest.mark.parametrize(("file", "name"), VARIANTS)
def test_a_config_as_it_stands_deviates_only_where_its_variant_is_not_the_papers(file, name):
    config, reference = made(file, name), reference_of(f"{file}.py:{name}")
    assert reference.of_paper and reference.name == f"{file}.py:{NEAREST.get(name, name)}"
    of_experiment, others = deviations(config, reference.config)
    if name not in NEAREST:
        assert not of_experiment and not others
    else:
        assert {each.key for each in of_experiment} >= set(differences(reference.config, config))
    published = importlib.import_module(f"configs.{file}").PUBLISHED[name]
    assert published in reference.published.values()
    assert reference.flops in (published.flops, 3.3e18, 2.3e19)


def test_base_and_big_have_both_test_sets_and_the_papers_flops():
    for file in ("wmt14_en_de", "wmt14_table3"):
        for name, bleu, dev, flops in (("base", 27.3, 25.8, 3.3e18), ("big", 28.4, 26.4, 2.3e19)):
            found = reference_of(f"{file}.py:{name}")
            assert {each: value.bleu for each, value in found.published.items()} == {
                "newstest2014": bleu,
                "newstest2013": dev,
            }
            assert found.flops == flops
    for file, name, nearest, flops in (
        ("wmt14_en_fr.py", "modern", "base", 3.3e18),
        ("wmt14_en_fr.py", "t2t", "base", 3.3e18),
        ("wmt14_en_de.py", "fairseq", "big", 2.3e19),
    ):
        found = reference_of(f"{file}:{name}")
        assert found.name == f"{file}:{nearest}" and found.flops == flops and name in found.explained
    assert reference_of("wmt14_en_fr.py:fairseq").name == "defaults"  # no variant of French
    assert reference_of("wmt14_en_de.py").name == "wmt14_en_de.py:base"  # as the config takes it
    assert set(reference_of("wmt14_en_fr.py:big").published) == {"newstest2014"}
    assert set(reference_of("wmt14_table3.py:A1").published) == {"newstest2013"}
    assert reference_of("wmt14_table3.py:A1").flops is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (None, "The name of the config is not known"),
        ("multi30k_en_de.py", "multi30k_en_de.py is no experiment of the paper"),
        ("wmt14_en_de.py:bass", "wmt14_en_de.py:bass is no variant"),
    ],
)
def test_other_experiments_are_compared_with_the_defaults(name, why):
    found = reference_of(name)
    assert not found.of_paper and found.config == Config() and found.explained.startswith(why)


def scores(**values: Any) -> dict[str, Any]:
    found = {"split": "test", "num_examples": 3_003, "bleu": 26.4, "bleu_paper": 27.3, "perplexity": 5.0}
    return {**found, "text_form": "raw", **values}


@given(bleu=st.floats(0, 100), paper=st.floats(0, 100))
def test_where_a_score_lies(bleu, paper):
    found = against_published(reference_of("wmt14_en_de.py:base"), BASE, scores(bleu=bleu, bleu_paper=paper))
    assert found["test_set"] == "newstest2014" and found["told_by"] == "the split test of wmt14_translate/de-en"
    assert found["bleu_paper"]["difference"] == pytest.approx(paper - 27.3)
    difference = found["bleu"]["difference"]
    assert (difference == 0) == (26.3 <= bleu <= 26.6)
    assert not difference or bleu == pytest.approx((26.3 if difference < 0 else 26.6) + difference)


def test_only_what_can_be_compared_is_compared():
    reference = reference_of("wmt14_en_de.py:base")
    backwards = with_key(with_key(BASE, "data.source_language", "de"), "data.target_language", "en")
    files = with_key(with_key(BASE, "data.source", "files"), "data.directory", "somewhere")
    assert against_published(reference, BASE, scores(num_examples=2_737)) is None
    assert against_published(reference, BASE, {"split": "test", "num_examples": 3_003, "perplexity": 5.0}) is None
    assert against_published(reference, backwards, scores()) is None
    assert against_published(reference, BASE, scores(text_form="tokenised")) is None
    assert against_published(reference, files, scores())["told_by"] == "its 3,003 lines alone"
    other_split = against_published(reference, BASE, scores(split="train[:3003]"))
    assert other_split["told_by"] == "its 3,003 lines alone"
    development = against_published(reference, BASE, scores(split="validation", num_examples=3_000))
    assert development["test_set"] == "newstest2013" and development["perplexity"]["published"] == 4.92
    assert set(against_published(reference_of("wmt14_en_de.py:t2t"), BASE, scores())) == {"test_set", "told_by"}
