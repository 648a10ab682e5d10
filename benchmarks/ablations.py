"""What each ingredient of training is worth on Multi30k: trains and scores configs/multi30k_ablations.py, all of it.

    PYTHONPATH=. python benchmarks/ablations.py --directory=DIR --workdir=DIR [--steps=N]

English to German with the full recipe and three seeds, English to French with one, and German with each ingredient
taken away once, seed 0. Averaging checkpoints and beam search are taken away from the full recipe without training.
All are scored on test_2016_flickr. The table is markdown; the last line is the same as one JSON object.

Seven trainings of about 45 minutes on two cores. Each model is kept in a folder of --workdir with its scores; the same
command goes on where it was interrupted. ``--steps`` makes them shorter, to see that all works.
"""

import argparse
import dataclasses
import json
import logging
import os
import pathlib
import statistics
import sys
from typing import Any, NamedTuple

import jax
import measure

from configs import multi30k_ablations
from transformer.config import Config, from_config_dict
from transformer.training.loading import load
from transformer.training.trainer import train

SEEDS = (0, 1, 2)  # of the full recipe
AVERAGED = 10  # checkpoints; they are 200 updates apart
SCORES = "ablations.json"  # in a model's folder


class Row(NamedTuple):
    """A line of the table: what was trained, with how many seeds, and how it is scored."""

    name: str
    variant: str
    language: str = "de"
    seeds: tuple[int, ...] = (0,)
    checkpoint: str = f"average:{AVERAGED}"
    method: str = "beam"


ROWS = (
    Row("full", "full", seeds=SEEDS),
    Row("no averaging", "full", seeds=SEEDS, checkpoint="latest"),
    Row("no beam search", "full", seeds=SEEDS, method="greedy"),
    Row("no label smoothing", "no_label_smoothing"),
    Row("no dropout", "no_dropout"),
    Row("no warm-up", "no_warmup"),
    Row("full, to French", "full", "fr"),
)


def configure(row: Row, seed: int, directory: str, steps: int | None) -> Config:
    """One training's config."""
    config = multi30k_ablations.get_config(f"{row.variant},{row.language}")
    config.seed = seed
    config.data.directory = directory
    if steps is not None:
        config.training.num_steps = config.training.evaluate_every = steps
        config.training.checkpoint_every = max(steps // AVERAGED, 1)
    return from_config_dict(config)


def scores_of(row: Row, config: Config, folder: pathlib.Path) -> dict[str, Any]:
    """Train, where that is not done yet, and score, where that is not.

    Raises:
      SystemExit: if training was interrupted, or has gone further there than is asked for.
    """
    workdir = folder / f"{row.variant}-{row.language}-{config.seed}"
    path = workdir / SCORES
    known = json.loads(path.read_text()) if path.exists() else {}
    key = f"{config.training.num_steps} {row.checkpoint} {row.method}"
    if key not in known:
        code = train(config, workdir)
        if code:
            sys.exit(code)
        decoding = dataclasses.replace(config.decoding, method=row.method)
        run = load(workdir, row.checkpoint, config=dataclasses.replace(config, decoding=decoding))
        newest = max(run.checkpoint["steps"])
        if newest != config.training.num_steps:
            sys.exit(f"{workdir} is at step {newest}, not {config.training.num_steps}; give another --workdir")
        found = run.task.evaluate(run.params, "test")
        minutes = run.checkpoint["metadata"]["seconds"] / 60
        known[key] = {**found, "minutes_of_training": minutes, "steps": run.checkpoint["steps"]}
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(known, indent=2) + "\n")
        os.replace(partial, path)
    scores: dict[str, Any] = known[key]
    return scores


def print_table(rows: dict[str, list[dict[str, Any]]]) -> None:
    print("\n| | seeds | steps | BLEU | to full | BLEU, the paper's way | chrF | perplexity a piece | minutes |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    full = mean(rows[ROWS[0].name], "bleu")
    for row in ROWS:
        found = rows[row.name]
        bleu = [scores["bleu"] for scores in found]
        spread = f" ({min(bleu):.1f} - {max(bleu):.1f})" if len(bleu) > 1 else ""
        change = f"{mean(found, 'bleu') - full:+.1f}" if row.language == ROWS[0].language else ""
        steps = f"{max(found[0]['steps']):,}"
        digits = {"bleu_paper": 1, "chrf": 1, "perplexity": 2, "minutes_of_training": 0}
        others = (f"{mean(found, name):.{places}f}" for name, places in digits.items())
        cells = (row.name, str(len(bleu)), steps, f"{mean(found, 'bleu'):.1f}{spread}", change, *others)
        print(f"| {' | '.join(cells)} |")
    scores = rows[ROWS[0].name][0]
    print(f"\nBLEU {scores['bleu_signature']}; the mean of the seeds (the lowest - the highest)")
    print(f"BLEU, the paper's way: {scores['bleu_paper_definition']}")


def mean(found: list[dict[str, Any]], name: str) -> float:
    return statistics.fmean(scores[name] for scores in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", required=True, help="of Multi30k's files")
    parser.add_argument("--workdir", type=pathlib.Path, required=True, help="where the models are kept")
    parser.add_argument("--steps", type=int, help="updates of each training, if not those of the config")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", force=True)
    logging.getLogger("transformer").setLevel(logging.INFO)

    rows: dict[str, list[dict[str, Any]]] = {row.name: [] for row in ROWS}
    for row in ROWS:
        for seed in row.seeds:
            config = configure(row, seed, arguments.directory, arguments.steps)
            rows[row.name].append(scores_of(row, config, arguments.workdir))
    print_table(rows)
    facts = {"cpu": measure.cpu_model(), "cores": os.cpu_count(), "jax": jax.__version__}
    print(json.dumps({"benchmark": "ablations", **facts, "rows": rows}))


if __name__ == "__main__":
    main()
