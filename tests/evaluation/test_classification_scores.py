"""Scores of classes: by hand, and the same for the whole as for its parts added up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from transformer.evaluation.classification_scores import confusion_counts, score

NAMES = ("a", "b", "c", "d", "e")


def test_f1_by_hand():
    """a: 2 of 3 found, 2 of 4 right; b: 1 of 2 found, 1 of 1 right; c: none of 1 found, never guessed; d, e: absent."""
    targets = np.array([0, 0, 0, 1, 1, 2])
    found = np.array([0, 0, 1, 0, 1, 0])
    counts = confusion_counts(targets, found, 5)
    assert counts.tolist() == [[2, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0] * 5, [0] * 5]
    scores = score(counts, NAMES)
    of_a, of_b = 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4), 2 * (1 / 2) * (1 / 2) / (1 / 2 + 1 / 2)
    assert scores["f1_by_label"] == pytest.approx({"a": of_a, "b": of_b, "c": 0})
    assert scores["f1"] == pytest.approx((of_a + of_b) / 3)
    assert scores["accuracy"] == pytest.approx(3 / 6) and scores["num_examples"] == 6


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=31), st.integers(0, 31))
def test_counts_of_parts_add_up_to_the_scores_of_the_whole(pairs, cut):
    targets, found = np.array(pairs).T
    parts = [confusion_counts(targets[part], found[part], 5) for part in (slice(cut), slice(cut, None))]
    scores = score(sum(parts), NAMES)
    assert scores["accuracy"] == pytest.approx(accuracy_score(targets, found))
    assert scores["f1"] == pytest.approx(f1_score(targets, found, average="macro", zero_division=0.0))
    assert set(scores["f1_by_label"]) == {NAMES[number] for number in {*targets.tolist(), *found.tolist()}}
