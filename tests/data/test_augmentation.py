"""Augmentations keep shapes, labels and what an image is made of, and are pure functions of (seed, step)."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.config import DataConfig
from transformer.data.augmentation import AUGMENTATIONS, augment, crop, flip, mixup, rng_of

B, H, W = 13, 5, 7
IMAGES = np.random.default_rng(0).random((B, H, W, 3), np.float32)
LABELS = np.eye(11, dtype=np.float32)[np.arange(B) % 11]


@given(seed=st.integers(0, 2**31), step=st.integers(0, 2**40))
def test_the_same_seed_and_step_give_the_same(seed, step):
    config = DataConfig(augmentations=tuple(AUGMENTATIONS), crop_padding=2, mixup_alpha=0.7)
    images, labels = augment(IMAGES, LABELS, rng_of(seed, step), config)
    again, labels_again = augment(IMAGES, LABELS, rng_of(seed, step), config)
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(labels, labels_again)
    assert images.shape == IMAGES.shape and images.dtype == labels.dtype == np.float32
    np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-6)
    for other in (rng_of(seed + 1, step), rng_of(seed, step + 1), np.random.default_rng([seed, step])):
        assert not np.array_equal(images, augment(IMAGES, LABELS, other, config)[0])


def test_nothing_is_changed_without_a_name_and_nothing_in_place():
    before = IMAGES.copy(), LABELS.copy()
    images, labels = augment(IMAGES, LABELS, rng_of(0, 0), DataConfig())
    assert images is IMAGES and labels is LABELS
    augment(IMAGES, LABELS, rng_of(0, 0), DataConfig(augmentations=tuple(AUGMENTATIONS)))
    np.testing.assert_array_equal(IMAGES, before[0])
    np.testing.assert_array_equal(LABELS, before[1])


def test_flipped_twice_is_as_before():
    once = flip(IMAGES, np.random.default_rng(5))
    np.testing.assert_array_equal(flip(once, np.random.default_rng(5)), IMAGES)
    turned = [np.array_equal(got, image[:, ::-1]) for got, image in zip(once, IMAGES, strict=True)]
    stayed = [np.array_equal(got, image) for got, image in zip(once, IMAGES, strict=True)]
    assert 0 < sum(turned) < B and sum(turned) + sum(stayed) == B
    many = flip(np.tile(IMAGES[:1], (2_000, 1, 1, 1)), np.random.default_rng(0))
    assert abs((many == IMAGES[0]).all(axis=(1, 2, 3)).mean() - 0.5) < 0.05


def test_a_crop_without_a_border_is_the_image():
    np.testing.assert_array_equal(crop(IMAGES, np.random.default_rng(0), 0), IMAGES)


@pytest.mark.parametrize("padding", [1, 4])
def test_a_crop_is_the_image_moved_over_black(padding):
    """Every place is drawn, rows and columns apart, and rows of a batch apart."""
    number = 1_000
    images = np.tile(IMAGES[:1], (number, 1, 1, 1))
    cropped = crop(images, np.random.default_rng(1), padding)
    padded = np.zeros((H + 2 * padding, W + 2 * padding, 3), np.float32)
    padded[padding : padding + H, padding : padding + W] = IMAGES[0]
    counts = [
        (cropped == padded[top : top + H, left : left + W]).all(axis=(1, 2, 3)).sum()
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    ]
    assert sum(counts) == number and min(counts) > 0


def test_mixed_images_and_labels_have_the_same_shares():
    images, labels = mixup(IMAGES, LABELS, np.random.default_rng(3), alpha=0.8)
    shares = set()
    for row in range(B):
        # Which other image, and how much of it, from the images alone.
        fits = []
        for other in range(B):
            if other == row:
                continue
            direction = (IMAGES[other] - IMAGES[row]).ravel()
            share = direction @ (images[row] - IMAGES[row]).ravel() / (direction @ direction)
            if np.allclose(images[row], IMAGES[row] + share * (IMAGES[other] - IMAGES[row]), atol=1e-5):
                fits.append((share, other))
        assert fits
        share, other = fits[0]
        assert -1e-5 <= share <= 1 + 1e-5
        np.testing.assert_allclose(labels[row], (1 - share) * LABELS[row] + share * LABELS[other], atol=1e-4)
        shares.add(round(float(share), 4))
    assert len(shares) > B // 2


def test_mixup_is_alone_a_matter_of_alpha():
    """The smaller, the nearer to whole images; the variance of Beta(a, a) is 1 / (8 a + 4)."""
    labels = np.eye(2, dtype=np.float32)[np.arange(4_000) % 2]
    pixels = labels[:, None, None, :]
    for alpha in (0.2, 3.0):
        mixed, weights = mixup(pixels, labels, np.random.default_rng(0), alpha)
        np.testing.assert_array_equal(mixed[:, 0, 0], weights)
        between = (weights[:, 0] > 0) & (weights[:, 0] < 1)
        assert weights[between, 0].var() == pytest.approx(1 / (8 * alpha + 4), rel=0.1)


def test_settings_come_from_the_config():
    config = dataclasses.replace(DataConfig(), crop_padding=0, mixup_alpha=1e-3)
    np.testing.assert_array_equal(AUGMENTATIONS["crop"](IMAGES, LABELS, rng_of(0, 0), config)[0], IMAGES)
    _, labels = AUGMENTATIONS["mixup"](IMAGES, LABELS, rng_of(0, 0), config)
    assert np.isin(labels.round(3), (0, 1)).all()
