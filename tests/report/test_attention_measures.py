"""Numbers of heads, on matrices for which they are known."""

import numpy as np
import pytest

from transformer.looks import LookedAtImage
from transformer.report.attention_measures import (
    alignment,
    diagonality,
    distances,
    entropy,
    hidden,
    mean_distance,
    rollout,
    share_on,
    word_starts,
)

UNIFORM = np.full((5, 5), 0.2, np.float32)
SELF = np.eye(5, dtype=np.float32)
PREVIOUS = np.eye(5, k=-1, dtype=np.float32)  # the first query sees nothing
BACKWARDS = SELF[::-1].copy()
FIRST = np.zeros((5, 5), np.float32)
FIRST[:, 0] = 1
HEADS = np.stack([UNIFORM, SELF, PREVIOUS, BACKWARDS, FIRST])


def test_entropy_is_that_of_queries_that_see_something():
    np.testing.assert_allclose(entropy(HEADS), [np.log(5), 0, 0, 0, 0], atol=1e-6)


def test_distances_in_a_text_across_sides_and_in_an_image():
    np.testing.assert_allclose(mean_distance(HEADS, distances(5, 5)), [1.6, 0, 1, 2.4, 2])
    across = distances(3, 5)  # from corner to corner
    np.testing.assert_allclose(np.diag(across[:, [0, 2, 4]]), 0)
    assert across[0, 4] == 4
    image = LookedAtImage(None, rows=2, columns=3, first_patch=1)
    apart = distances(7, 7, image)
    assert apart[1, 6] == pytest.approx(np.sqrt(1 + 4)) and apart[1, 2] == 1 and apart[1, 4] == 1
    assert not apart[0].any() and not apart[:, 0].any()


def test_diagonality_is_a_correlation():
    np.testing.assert_allclose(diagonality(HEADS), [0, 1, 1, -1, 0], atol=1e-6)


def test_the_share_on_some_keys():
    keys = np.array([True, False, False, False, True])
    np.testing.assert_allclose(share_on(HEADS, keys), [0.4, 0.4, 0.25, 0.4, 1], atol=1e-6)


def test_rollout_multiplies_what_goes_through_attention_and_around_it():
    rng = np.random.default_rng(0)
    weights = [rng.dirichlet(np.ones(4), size=(3, 4)) for _ in range(3)]
    mixed = [0.5 * of_layer.mean(axis=0) + 0.5 * np.eye(4) for of_layer in weights]
    found = rollout(weights)
    np.testing.assert_allclose(found[2], mixed[2] @ mixed[1] @ mixed[0])
    np.testing.assert_allclose(found[2].sum(axis=1), 1)


def test_hidden_keys_and_what_is_left():
    keys = np.array([True, False, False, False, False])
    np.testing.assert_allclose(hidden(UNIFORM, keys, renormalise=False).sum(axis=1), 0.8, atol=1e-6)
    np.testing.assert_allclose(hidden(UNIFORM, keys, renormalise=True), 0.25)
    assert not hidden(FIRST, keys, renormalise=True).any()


def test_words_begin_with_spaces_and_marks_stand_alone():
    texts = ["<bos>", "▁A", "▁bi", "cycle", ".", "▁", "x", "<eos>"]
    special = [True, *[False] * 6, True]
    assert word_starts(texts, special) == [0, 1, 2, 2, 3, 4, 4, 5]


def test_alignment_adds_over_what_is_read_and_averages_over_what_is_written():
    rng = np.random.default_rng(1)
    weights = [rng.dirichlet(np.ones(5), size=(2, 4)) for _ in range(3)]
    found = alignment(weights, queries=[0, 0, 1, 2], keys=[0, 1, 1, 2, 3], heads={1: [0], 2: [0, 1]})
    mean = (weights[1][0] + weights[2][0] + weights[2][1]) / 3
    assert found.shape == (3, 4)
    assert found[0, 1] == pytest.approx((mean[0, 1] + mean[0, 2] + mean[1, 1] + mean[1, 2]) / 2)
    np.testing.assert_allclose(found.sum(axis=1), 1)
