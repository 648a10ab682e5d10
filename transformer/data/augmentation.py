"""What training makes of an image before the model sees it: one function a kind, one line in ``AUGMENTATIONS``.

Images are float32 [B, H, W, C] with pixels in 0 to 1, before they are normalised. All randomness is that of ``rng``:
batch number n is augmented by :func:`rng_of` the seed and n, so that a batch is the same whoever builds it, and when.
"""

from collections.abc import Callable

import numpy as np

from transformer.config import DataConfig

Augmented = tuple[np.ndarray, np.ndarray]
STREAM = 1  # apart from the numbers that draw the order of an epoch, which are (seed, epoch)


def rng_of(seed: int, step: int) -> np.random.Generator:
    """The random numbers of a training batch."""
    return np.random.default_rng([seed, step, STREAM])


def flip(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each image with left and right exchanged, or as it is, with equal probability."""
    flipped = rng.random(len(images)) < 0.5
    return np.where(flipped[:, None, None, None], images[:, :, ::-1], images)


def crop(images: np.ndarray, rng: np.random.Generator, padding: int) -> np.ndarray:
    """A part of the size of the image, from a random place of the image with a black border of ``padding`` pixels.

    So the image is moved by up to ``padding`` pixels in each direction. Reference: He et al., ResNet (2016), section
    4.2; the border is 0 before the normalisation, which for digits is the background.
    """
    number, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    top, left = rng.integers(2 * padding + 1, size=(2, number))
    rows, columns = top[:, None] + np.arange(height), left[:, None] + np.arange(width)
    return padded[np.arange(number)[:, None, None], rows[:, :, None], columns[:, None, :]]


def mixup(images: np.ndarray, label_weights: np.ndarray, rng: np.random.Generator, alpha: float) -> Augmented:
    """Of each image a share m of its own and 1 - m of another of the batch, the labels likewise; m from Beta(a, a).

    Each row draws its own share, as in the paper's equation 1; its published code draws one for the batch.

    Args:
      label_weights: float32 [B, classes].
      alpha: a, above 0; the smaller, the nearer the shares are to 0 and 1.

    Reference: Zhang et al., mixup: Beyond Empirical Risk Minimization (2018).
    """
    shares = rng.beta(alpha, alpha, len(images)).astype(np.float32)
    other = rng.permutation(len(images))

    def mixed(values: np.ndarray) -> np.ndarray:
        own = shares.reshape(-1, *[1] * (values.ndim - 1))
        return own * values + (1 - own) * values[other]

    return mixed(images), mixed(label_weights)


AUGMENTATIONS: dict[str, Callable[[np.ndarray, np.ndarray, np.random.Generator, DataConfig], Augmented]] = {
    "flip": lambda images, label_weights, rng, config: (flip(images, rng), label_weights),
    "crop": lambda images, label_weights, rng, config: (crop(images, rng, config.crop_padding), label_weights),
    "mixup": lambda images, label_weights, rng, config: mixup(images, label_weights, rng, config.mixup_alpha),
}
"""What a name in ``data.augmentations`` does to images and the shares [B, classes] of their labels."""


def augment(images: np.ndarray, label_weights: np.ndarray, rng: np.random.Generator, config: DataConfig) -> Augmented:
    """All of ``data.augmentations``, in their order."""
    for name in config.augmentations:
        images, label_weights = AUGMENTATIONS[name](images, label_weights, rng, config)
    return images, label_weights
