"""How far position schemes carry beyond the length of training: "sinusoids do not extrapolate", as a figure.

    PYTHONPATH=. python benchmarks/length_extrapolation.py [--workdir=DIR] [--quick] [--plot=FILE.svg]

Trains configs/length_extrapolation.py, a character-level decoder-only model, in rows of 128 tokens, once for each of
six schemes and 4 million tokens each. Then all score the same held-out text, the validation and the test topics (by
which nothing is chosen), cut into rows of 128, 256, 512 and 1,024 tokens: each token once, and the longer the rows, the
more of the text a token can look back on. A scheme that carries has fewer nats in longer rows; one that does not has
more. Reported too: nats by position in rows of 1,024, where the first 128 positions are those of training. There the
columns hold different parts of the text, so they compare schemes, not positions.

learned          has 1,024 rows of which those from 128 on were never trained: they are as they were drawn
rotary + yarn    is the model ``rotary``, scored with model.rotary_scaling=yarn and a factor of length / 128

The two schemes that are nearest to each other in rows of 1,024 are trained with another seed too, which draws other
weights, another order of the text and other held-out topics. ``--quick`` trains half as long and no second seed.

Each model is kept in a folder of DIR, and the same command goes on where it was interrupted. The tables are markdown;
the last line is the same as one JSON object. ``--plot`` needs matplotlib. About an hour on two cores.
"""

import argparse
import importlib.util
import itertools
import json
import logging
import os
import pathlib
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import measure
import numpy as np

from transformer.config import Config, from_config_dict, to_config_dict
from transformer.data.cache import cache_folder
from transformer.data.documents import make_documents
from transformer.data.store import open_store
from transformer.tasks.language_modeling import token_log_probs
from transformer.training.loading import load
from transformer.training.trainer import train
from transformer.types import TokenBatch

CONFIG = pathlib.Path(__file__).resolve().parent.parent / "configs" / "length_extrapolation.py"
TRAINED_LENGTH = 128
LENGTHS = (128, 256, 512, 1_024)
TOKENS_AT_A_TIME = 8_192  # of text that is scored; a multiple of all lengths
BOUNDS = (0, 128, 256, 512, 1_024)  # of the positions in the second table
POSITIONS_A_POINT = 32  # of the plot

SCHEMES: dict[str, tuple[str, str]] = {
    "sinusoidal": ("sinusoidal", "none"),
    "learned": ("learned", "none"),
    "rotary": ("rotary", "none"),
    "rotary + yarn": ("rotary", "yarn"),
    "relative_bias": ("relative_bias", "none"),
    "alibi": ("alibi", "none"),
    "none": ("none", "none"),
}
"""What is reported: model.position_encoding in training, and model.rotary_scaling when scored."""

Found = dict[str, Any]
"""Of a scheme: ``nats`` per token by length of row, and ``by_position`` in rows of the greatest."""


def configure(position_encoding: str, seed: int, quick: bool) -> Config:
    """One run's config."""
    config = runpy.run_path(str(CONFIG))["get_config"]()
    config.seed = seed
    config.model.position_encoding = position_encoding
    if quick:
        config.training.num_steps //= 2
        config.training.decay_steps //= 2
        config.training.evaluate_every = config.training.num_steps
    return from_config_dict(config)


def measure_scheme(name: str, seed: int, folder: pathlib.Path, quick: bool) -> Found:
    """Train the scheme, where that is not done yet, and score it."""
    position_encoding, scaling = SCHEMES[name]
    config = configure(position_encoding, seed, quick)
    workdir = folder / f"{position_encoding}-{seed}{'-quick' if quick else ''}"
    code = train(config, workdir)
    if code:
        sys.exit(code)
    nats = {}
    for length in LENGTHS:
        values = to_config_dict(config)
        if length > TRAINED_LENGTH:
            values.model.rotary_scaling = scaling
            values.model.rotary_scaling_factor = length / TRAINED_LENGTH
        run = load(workdir, config=from_config_dict(values))
        nats[length] = score(run, length)
    seconds = run.checkpoint["metadata"]["seconds"]
    return {
        "nats": {length: float(found.mean()) for length, found in nats.items()},
        "by_position": nats[LENGTHS[-1]].reshape(-1, LENGTHS[-1]).mean(axis=0).tolist(),
        "tokens_scored": nats[LENGTHS[-1]].size,
        "minutes_of_training": seconds / 60,
        "tokens_per_second": config.training.num_steps * config.data.tokens_per_batch / seconds,
    }


def score(run: Any, length: int) -> np.ndarray:
    """Nats of each token of the held-out text, in rows of so many."""
    source = make_documents(run.config.data, run.config.seed)
    parts = [np.array([run.tokenizer.eos_id])]
    for split in ("validation", "test"):
        store = open_store(source, split, (run.tokenizer,), cache_folder(run.config.data))
        parts.append(store.sides[0].at(np.arange(store.sides[0].offsets[-1])))
    text = np.concatenate(parts).astype(np.int32)
    found = []
    for start in range(0, len(text) - TOKENS_AT_A_TIME, TOKENS_AT_A_TIME):
        rows = [text[start + shift :][:TOKENS_AT_A_TIME].reshape(-1, length) for shift in (0, 1)]
        ones = np.ones_like(rows[0])
        batch = TokenBatch(*rows, ones.astype(np.float32), ones, np.cumsum(ones, axis=1, dtype=np.int32) - 1)
        found.append(-np.asarray(token_log_probs(run.model, run.params, batch)))
    return np.concatenate([rows.ravel() for rows in found])


def nearest_pair(schemes: Mapping[str, Found]) -> tuple[str, str]:
    """The two schemes, differently trained, whose nats in the longest rows are nearest to each other."""

    def distance(pair: tuple[str, str]) -> float:
        one, other = (schemes[name]["nats"][LENGTHS[-1]] for name in pair)
        return abs(one - other)

    pairs = itertools.combinations(schemes, 2)
    return min((pair for pair in pairs if len({SCHEMES[name][0] for name in pair}) == 2), key=distance)


def print_table(title: str, heads: Sequence[str], rows: Mapping[str, Sequence[float]]) -> None:
    print(f"\n| {title} | " + " | ".join(heads) + " |")
    print("|---|" + "---:|" * len(heads))
    for name, numbers in rows.items():
        print(f"| {name} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |")


def plot(file: str, schemes: Mapping[str, Found]) -> None:
    """Nats by position in the longest rows."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    middles = np.arange(POSITIONS_A_POINT / 2, LENGTHS[-1], POSITIONS_A_POINT)
    for name, found in schemes.items():
        axes.plot(middles, np.reshape(found["by_position"], (-1, POSITIONS_A_POINT)).mean(axis=1), label=name)
    axes.axvline(TRAINED_LENGTH, color="gray", linestyle=":")
    axes.set_xlabel(f"position in rows of {LENGTHS[-1]:,} characters (trained on {TRAINED_LENGTH})")
    axes.set_ylabel("nats per character, held-out text")
    axes.set_ylim(top=min(axes.get_ylim()[1], 5.0))
    axes.grid(True, alpha=0.3)
    axes.legend()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=pathlib.Path, help="where the models are kept; default: nowhere")
    parser.add_argument("--quick", action="store_true", help="half the training, no second seed")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw nats by position")
    arguments = parser.parse_args()
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib, which is not installed: pip install matplotlib")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", force=True)
    logging.getLogger("transformer").setLevel(logging.INFO)

    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.workdir or pathlib.Path(temporary)
        schemes = {name: measure_scheme(name, 0, folder, arguments.quick) for name in SCHEMES}
        again = {}
        if not arguments.quick:
            again = {name: measure_scheme(name, 1, folder, False) for name in nearest_pair(schemes)}

    heads = [f"{length:,}" for length in LENGTHS]
    rows = {name: list(found["nats"].values()) for name, found in schemes.items()}
    print_table("nats per token in rows of", heads, rows)
    spans = list(itertools.pairwise(BOUNDS))
    rows = {
        name: [float(np.mean(found["by_position"][first:end])) for first, end in spans]
        for name, found in schemes.items()
    }
    print_table(f"by position in rows of {LENGTHS[-1]:,}", [f"{first + 1:,}-{end:,}" for first, end in spans], rows)
    if again:
        rows = {
            f"{name}, seed {seed}": list(found[name]["nats"].values())
            for name in again
            for seed, found in enumerate((schemes, again))
        }
        print_table("the nearest pair, in rows of", heads, rows)
    if arguments.plot:
        plot(arguments.plot, schemes)
    facts = {"cpu": measure.cpu_model(), "cores": os.cpu_count(), "jax": jax.__version__, "quick": arguments.quick}
    print(json.dumps({"benchmark": "length_extrapolation", **facts, "schemes": schemes, "second_seed": again}))


if __name__ == "__main__":
    main()
