"""Scores of classes against the right ones, from counts that add up over batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def confusion_counts(targets: np.ndarray, predictions: np.ndarray, num_classes: int) -> np.ndarray:
    """How often each class (row) was taken for each class (column): int64 [classes, classes].

    The counts of parts of the data, added up, are the counts of the whole.
    """
    return np.bincount(targets * num_classes + predictions, minlength=num_classes**2).reshape(num_classes, num_classes)


def score(counts: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Accuracy and F1 of confusion counts.

    Args:
      counts: what :func:`confusion_counts` gives, at least one example in all.
      names: of the classes.

    Returns:
      num_examples; accuracy; f1_by_label, of each class that occurs, in the data or among the predictions, the harmonic
      mean of precision and recall; f1, their mean (macro-F1; not the harmonic mean of mean precision and mean recall,
      which goes by the same name).

    Reference: scikit-learn's ``f1_score``, of which ``average="macro"`` with no labels given is ``f1``; Opitz and
      Burst, Macro F1 and Macro F1 (2019), for the two definitions.
    """
    from sklearn.metrics import f1_score  # takes seconds to import, and most commands need none of it

    targets, predictions = np.nonzero(counts)
    classes = np.union1d(targets, predictions)
    f1 = f1_score(
        targets,
        predictions,
        labels=classes,
        average=None,
        sample_weight=counts[targets, predictions],
        zero_division=0.0,
    )
    return {
        "num_examples": int(counts.sum()),
        "accuracy": float(np.trace(counts) / counts.sum()),
        "f1": float(np.mean(f1)),
        "f1_by_label": {names[number]: float(value) for number, value in zip(classes, f1, strict=True)},
    }
