"""How far a linear classifier gets on features of a trained or imported model that stays as it is.

    PYTHONPATH=. python benchmarks/linear_probe.py --workdir=DIR --source=npz --directory=DIR [--test=validation] \
        [--image_size=224]
    PYTHONPATH=. python benchmarks/linear_probe.py --workdir=DIR --source=files --directory=DIR [--test=validation]

The workdir's task is image_classification (its pooled vectors are the features; ``--source`` as data.source) or
sentence_embedding (labelled texts; see text_classification). scikit-learn's logistic regression is fitted on the
training split, features scaled to unit variance, its strength chosen by cross-validation within that split; then it is
scored once on another. The last line is one JSON object.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import transformer
from transformer.config import DataConfig, check
from transformer.data.images import ImageSource
from transformer.data.labeled_text import make_labeled_texts
from transformer.training.workdir import read_config

STRENGTHS = np.logspace(-4, 1, 6)  # inverse regularisation
FOLDS = 5


def images(config: DataConfig, split: str) -> tuple[Any, Sequence[str]]:
    found = ImageSource(config, seed=0).split(split)
    return found, found.class_names


def texts(config: DataConfig, split: str) -> tuple[Any, Sequence[str]]:
    examples = make_labeled_texts(config, seed=0).examples(split)
    return [example.texts[0] for example in examples], [example.label for example in examples]


READERS = {"image_classification": images, "sentence_embedding": texts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--train", default="train", help="stems of the training split, with commas between")
    parser.add_argument("--validation", default="val", help="the stem of the validation split")
    parser.add_argument("--test", default="test", help="the split that is scored")
    parser.add_argument("--image_size", type=int, help="pixels a side, if not those of the workdir")
    arguments = parser.parse_args()

    config = read_config(Path(arguments.workdir))
    if arguments.image_size:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, image_size=arguments.image_size))
        check(config)
    run = transformer.load(arguments.workdir, config=config)
    if run.config.task not in READERS:
        parser.error(f"{arguments.workdir} has task={run.config.task}; features come from {' or '.join(READERS)}")
    stems: dict[str, Any] = {"train": tuple(arguments.train.split(",")), "validation": arguments.validation}
    data = dataclasses.replace(
        run.config.data, source=arguments.source, directory=arguments.directory, split="files", **stems
    )
    features, labels, seconds = {}, {}, {}
    for split in ("train", arguments.test):
        examples, labels[split] = READERS[run.config.task](data, split)
        since = time.monotonic()
        features[split] = run.task.embed(run.params, examples)
        seconds[split] = time.monotonic() - since
    probe = make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=STRENGTHS, cv=FOLDS, max_iter=2_000))
    probe.fit(features["train"], labels["train"])
    report = {
        "num_examples": len(labels[arguments.test]),
        "num_training_examples": len(labels["train"]),
        "dimensions": features["train"].shape[1],
        "accuracy": float(probe.score(features[arguments.test], labels[arguments.test])),
        "accuracy_on_training": float(probe.score(features["train"], labels["train"])),
        "seconds_of_features": sum(seconds.values()),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
