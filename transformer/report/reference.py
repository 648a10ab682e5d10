"""What an experiment is compared with: the paper's config of the same variant, and the scores published for it."""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer.config import Config, differences, flatten, from_config_dict

FILES = ("wmt14_en_de", "wmt14_en_fr", "wmt14_table3")
NEAREST = {"modern": "base", "t2t": "base", "fairseq": "big"}
"""Variants that are not the paper's, and which of its own they are compared with."""

TEST_SETS = {"newstest2014": 3_003, "newstest2013": 3_000}
"""Those of which scores are published, and their lines."""

WHAT_IS_SCORED = (
    "decoding",
    "training.num_steps",
    "training.checkpoint_every",  # the spacing of the checkpoints that are averaged; evaluations save some too
    "training.evaluate_every",
    "training.keep_checkpoints",
)
"""Keys that may change when a run goes on, and yet are a part of the experiment."""


SAME_EXPERIMENT = (
    "seed",
    "model.attention_implementation",
    "model.scan_unroll",
    "training.accumulation_steps",
    "decoding.tokens_per_batch",
)
"""Keys that no experiment is about: results differ by rounding, or by what is drawn."""


class Reference(NamedTuple):
    """What to compare with.

    name       of the config
    config     of the paper's variant; the defaults, where the run is none of the paper's experiments
    explained  why this one
    published  by test set, as the config's file has it (``configs.wmt14_en_de.Published``); none: no such experiment
    flops      of its training, as the paper estimates them; None: it does not
    """

    name: str
    config: Config
    explained: str
    published: Mapping[str, Any]
    flops: float | None

    @property
    def of_paper(self) -> bool:
        return bool(self.published)


class Deviation(NamedTuple):
    """A key that differs, its value in the run and in the reference."""

    key: str
    ours: Any
    theirs: Any


def reference_of(name: str | None) -> Reference:
    """What the run of a config is compared with.

    Args:
      name: of the config file and its variant, ``wmt14_en_de.py:base``; None: not known.
    """
    file, _, variant = (name or "").partition(":")
    file, variant = file.removesuffix(".py"), variant or "base"
    if file not in FILES:
        what = "The name of the config is not known" if name is None else f"{name} is no experiment of the paper"
        return _defaults(f"{what} (configs/wmt14_*.py)")
    try:
        german, table3 = (importlib.import_module(f"configs.{each}") for each in ("wmt14_en_de", "wmt14_table3"))
        module = importlib.import_module(f"configs.{file}")
    except ImportError as error:
        return _defaults(f"The paper's configs cannot be read here ({error})")
    if variant not in module.PUBLISHED:
        return _defaults(f"{name} is no variant of the config of that name")
    nearest = NEAREST.get(variant, variant)
    in_both = file != "wmt14_en_fr" and nearest in ("base", "big")
    published = {}
    if file != "wmt14_table3" or in_both:
        published["newstest2014"] = (module if file == "wmt14_en_fr" else german).PUBLISHED[variant]
    if (file == "wmt14_table3" or in_both) and nearest == variant:
        published["newstest2013"] = table3.PUBLISHED[variant]
    explained = f"{file}.py:{nearest} as it is in this version; its docstring says where that itself is not the paper's"
    if nearest != variant:
        explained = f"{variant} is not the paper's; the nearest of its own is {explained}"
    flops = german.PUBLISHED[nearest].flops if nearest in german.PUBLISHED else None
    config = from_config_dict(module.get_config(nearest))
    return Reference(f"{file}.py:{nearest}", config, explained, published, flops)


def _defaults(why: str) -> Reference:
    explained = f"{why}: no score is expected, and the config is compared with the defaults of transformer/config.py"
    return Reference("defaults", Config(), explained, {}, None)


def deviations(config: Config, reference: Config) -> tuple[list[Deviation], list[Deviation]]:
    """Every key that differs: those of the experiment, then the others (paths, cadence, how it is computed, seed)."""
    theirs = dict(flatten(reference))
    another = set(differences(reference, config))
    if config.data.source == reference.data.source == "tfds":
        another.add("data.directory")  # a name, not a path
    of_experiment: list[Deviation] = []
    others: list[Deviation] = []
    for key, ours in flatten(config):
        if ours != theirs[key]:
            scored = any(key == name or key.startswith(f"{name}.") for name in WHAT_IS_SCORED)
            counts = (scored or key in another) and key not in SAME_EXPERIMENT
            (of_experiment if counts else others).append(Deviation(key, ours, theirs[key]))
    return of_experiment, others


def against_published(reference: Reference, config: Config, scores: Mapping[str, Any]) -> dict[str, Any] | None:
    """How the scores of one evaluation lie to those published for a test set; None if it has none such, or not of text
    as it was given.

    Args:
      reference: with published scores.
      config: of the run.
      scores: of the evaluation.
    """
    languages = [(each.data.source_language, each.data.target_language) for each in (config, reference.config)]
    if scores.get("text_form") != "raw" or languages[0] != languages[1]:
        return None
    lines = scores["num_examples"]
    named = [name for name in reference.published if TEST_SETS[name] == lines]
    if not named:
        return None
    (name,) = named
    published = reference.published[name]
    data = [
        (each.data.source, each.data.directory, each.data.validation, each.data.test)
        for each in (config, reference.config)
    ]
    split = {"newstest2014": "test", "newstest2013": "validation"}[name]
    known = data[0] == data[1] and scores["split"] == split
    result: dict[str, Any] = {
        "test_set": name,
        "told_by": f"the split {split} of {config.data.directory}" if known else f"its {lines:,} lines alone",
    }
    if published.bleu is not None and "bleu_paper" in scores:
        result["bleu_paper"] = {
            "measured": scores["bleu_paper"],
            "published": published.bleu,
            "difference": scores["bleu_paper"] - published.bleu,
        }
    if published.sacrebleu is not None:
        low, high = published.sacrebleu
        result["bleu"] = {
            "measured": scores["bleu"],
            "interval": scores.get("bleu_interval"),
            "expected": [low, high],
            "difference": min(scores["bleu"] - low, 0.0) + max(scores["bleu"] - high, 0.0),
        }
    if published.perplexity is not None:
        result["perplexity"] = {"measured": scores["perplexity"], "published": published.perplexity}
    return result
