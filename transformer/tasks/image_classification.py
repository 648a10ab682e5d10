"""Image classification: images with a class each, a Vision Transformer, accuracy and F1, features for other uses."""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.config import Config, ModelConfig
from transformer.data.images import (
    ImageClasses,
    ImagePipeline,
    Images,
    ImageSource,
    Preparation,
    check_augmentations,
    read_image,
    read_images,
)
from transformer.evaluation.classification_scores import confusion_counts, score
from transformer.looks import Look, LookedAtImage, Piece
from transformer.models.flops import TRAINING_FACTOR, encoder_forward_flops
from transformer.models.vision import ImageClassifier, check_vision, num_tokens, patch_grid
from transformer.progress import progress
from transformer.tasks.base import BaseTask, best_labels, run_model
from transformer.tasks.by_rows import by_rows
from transformer.tasks.looking import predictions, require_no_target, run_and_look
from transformer.tasks.losses import add_auxiliary_losses
from transformer.types import BatchView, Candidate, ImageBatch, Params, Sums, UserError

PICTURE_SIZE = 16  # the longer side of a picture in characters
SHADES = " .:-=+*#%@"

logger = logging.getLogger(__name__)


class ImageClassificationTask(BaseTask):
    """See :class:`transformer.types.Task`. Training data is read when first asked for: a trained model needs none.

    All images are fitted to one shape, that of ``data.image_size`` or else of the first training image, in grey or
    colour as that is. A table of positions that ``model.position_grid`` does not size is as large as the images need,
    the longer side of rectangular ones; to go on from a run at another resolution, state that run's.

    A line of text to ``predict`` is the path of an image file.
    """

    name, variant, scores = "image_classification", "encoder_only", ("accuracy", "f1", "nll")
    of_tokens = False
    tokenizer = None

    def __init__(self, config: Config, assets: Optional[Path] = None):
        form = config.training.label_smoothing_form
        if form != "uniform":
            raise UserError(f"training.label_smoothing_form={form} is for tokens; images have uniform")
        super().__init__(config)
        check_augmentations(config.data)
        saved = None if assets is None else ImageClasses.load(assets)
        classes = self._source.classes() if saved is None else saved
        self.classes, size = classes, config.data.image_size
        if size is not None:
            self.classes = classes._replace(image_shape=(size, size, classes.image_shape[2]))
        self._preparation = Preparation(config.data, self.classes.image_shape)
        trained = self.classes if saved is None else saved  # whose table does not change with data.image_size
        grid = config.model.position_grid or max(patch_grid(config.model, *trained.image_shape[:2]))
        self.model = ImageClassifier(replace(config.model, position_grid=grid), len(classes.names))

    def _check_model(self, config: ModelConfig) -> None:
        check_vision(config)

    # Data

    @functools.cached_property
    def _source(self) -> ImageSource:
        return ImageSource(self.config.data, self.config.seed)

    def num_examples(self, split: str) -> int:
        return len(self._source.split(split))

    @functools.cached_property
    def _fingerprint(self) -> str:
        return self._source.split("train").fingerprint()

    def data_fingerprint(self) -> str:
        return self._fingerprint

    def assets_fingerprint(self) -> str:
        return "none"

    def data_facts(self) -> dict[str, Any]:
        images, shape = self._source.split("train"), list(self.classes.image_shape)
        return {**super().data_facts(), "images": len(images), "image_shape": shape, "classes": len(self.classes.names)}

    @functools.cached_property
    def _training(self) -> ImagePipeline:
        images, data = self._source.split("train"), self.config.data
        pipeline = ImagePipeline(images, self.classes.names, self._preparation, data, self.config.seed)
        logger.info(
            "training on %d images of %s in %d classes, %d batches an epoch",
            len(images),
            " x ".join(map(str, self.classes.image_shape)),
            len(self.classes.names),
            pipeline.num_batches,
        )
        return pipeline

    # Training

    def batch_size(self, step: int) -> tuple[int, int]:
        return self.config.data.examples_per_batch, self._num_tokens

    def size_of(self, batch: ImageBatch) -> tuple[int, int]:
        return len(batch.images), self._num_tokens

    @property
    def _num_tokens(self) -> int:
        """Of an image."""
        return num_tokens(self.config.model, *self.classes.image_shape[:2])

    def init(self, rng: Any) -> Params:
        images = jnp.zeros((1, *self.classes.image_shape), jnp.float32)
        return self.model.init(rng, images, deterministic=True)["params"]

    def loss(self, params: Params, batch: ImageBatch, rng: Any) -> Sums:
        # Experts must know which rows fill up a batch; without, fewer arrays are more kernels.
        present_B = batch.loss_weights > 0 if self.config.model.num_experts else None
        logits_BV, collected = run_model(self.model, params, rng, batch.images, present_B)
        smoothing = self.config.training.label_smoothing
        sums = mixed_cross_entropy(logits_BV, batch.label_weights, batch.loss_weights, label_smoothing=smoothing)
        return add_auxiliary_losses(sums, collected, self.config.model)

    def work(self, batch: ImageBatch) -> dict[str, float]:
        model, shape = self.config.model, self.classes.image_shape
        rows, length = self.size_of(batch)
        first_and_last = np.prod(shape) * model.d_model + model.d_model * len(self.classes.names)
        images = float(batch.loss_weights.sum())
        return {
            "images": images,
            "image_tokens": images * length,
            "positions": float(rows * length),
            "flops": TRAINING_FACTOR * (encoder_forward_flops(model, rows, length) + 2.0 * rows * first_and_last),
        }

    def view(self, batch: ImageBatch) -> BatchView:
        def notes(row: int) -> list[str]:
            image, shares = batch.images[row], batch.label_weights[row]
            classes = ", ".join(f"{self.classes.names[place]} {shares[place]:g}" for place in np.flatnonzero(shares))
            shape = " x ".join(map(str, image.shape))
            return [
                f"image {shape}, values {image.min():.3g} to {image.max():.3g}, mean {image.mean():.3g}",
                *picture(image),
                f"class {classes}; loss weight {batch.loss_weights[row]:g}",
            ]

        return BatchView((), {}, len(self.classes.names), notes)

    # Scores

    def evaluate(
        self,
        params: Params,
        data: str | Mapping[str, Path],
        *,
        during_training: bool = False,
        outputs: Optional[Path] = None,
    ) -> dict[str, Any]:
        """Accuracy, macro-F1, and nats per image, of images as they are: nothing is augmented.

        ``accuracy_of_majority`` is that of always guessing the class that the training split has most often. During
        training ``evaluation.max_examples`` are images at even distances, as files are often sorted by class.
        ``outputs``: the likeliest class of each image.
        """
        if isinstance(data, str):
            images = self._source.split(data)
        elif set(data) == {"text"}:
            images = read_images(data["text"])
        else:
            raise UserError(
                "task=image_classification scores a split, or one folder or file of images; it has no use for "
                f"{', '.join(data)}"
            )
        limit = self.config.evaluation.max_examples
        if during_training and limit is not None and limit < len(images):
            images = images.subset(np.arange(limit) * len(images) // limit)
        if not len(images):
            raise UserError(f"there is no image in the {data} split; raise data.validation_share or data.test_share")
        names = self.classes.names
        labels = images.labels(names)
        log_probs = self._in_batches(class_log_probs, params, images, len(names))
        found = log_probs.argmax(axis=1)
        if outputs is not None:
            outputs.write_text("".join(f"{names[number]}\n" for number in found), encoding="utf-8")
        scores = {
            **score(confusion_counts(labels, found, len(names)), names),
            "nll": float(-np.mean(log_probs[np.arange(len(labels)), labels])),
        }
        if self.classes.most_frequent is not None:
            scores["accuracy_of_majority"] = float(np.mean(labels == names.index(self.classes.most_frequent)))
        return scores

    # Inference

    def candidates(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        """The likeliest classes of the image that each line names, with their log-probabilities.

        A line of nothing but white space has no class.
        """
        names = self.classes.names

        def log_probs_of(numbers: list[int]) -> np.ndarray:
            return self._in_batches(class_log_probs, params, [lines[number] for number in numbers], len(names))

        return best_labels(lines, num_best, names, "classes", log_probs_of)

    def look(self, params: Params, line: str, target: Optional[str] = None) -> Look:
        """See :class:`transformer.looks.CanBeLookedInto`. The line is the path of an image."""
        require_no_target(self.name, target)
        model, pixels = self.config.model, self._preparation.pixels([read_image(Path(line))])
        inputs = jnp.asarray(self._preparation.normalized(pixels))
        logits_BV, attention, experts = run_and_look(self.model, params, inputs)
        outcomes = predictions(logits_BV, [-1], self.classes.names)[0].alternatives if self.classes.names else ()
        rows, columns = patch_grid(model, *pixels.shape[1:3])
        names = ["<class>"] * model.class_token + [f"<register {k + 1}>" for k in range(model.num_registers)]
        patches = [Piece(f"{row + 1},{column + 1}") for row in range(rows) for column in range(columns)]
        pieces = (*(Piece(name, special=True) for name in names), *patches)
        image = LookedAtImage(np.round(pixels[0] * 255).astype(np.uint8), rows, columns, len(names))
        output = outcomes[0][0] if outcomes else ""
        return Look(line, output, {"encoder": pieces}, attention, experts, {}, outcomes, image)

    def embed(self, params: Params, images: Images | Sequence[str] | np.ndarray) -> np.ndarray:
        """The pooled features of images, float32 [n, d_model]: what the classifier is given, for probes and search.

        Args:
          images: of a split (``read_images``, ``ImageSource.split``), paths of files, or uint8 [n, height, width,
            channels]; fitted and normalised as in training.
        """
        return self._in_batches(pooled_features, params, images, self.config.model.d_model)

    def save_assets(self, workdir: Path) -> None:
        self.classes.save(workdir)

    def _in_batches(
        self, function: Callable[..., Any], params: Params, images: Images | Sequence[str] | np.ndarray, width: int
    ) -> np.ndarray:
        """What a compiled function gives for each image, float32 [n, width]; all batches have one shape."""
        number = len(images)
        rows = max(min(self.config.decoding.tokens_per_batch // self._num_tokens, number), 1)
        results = np.zeros((number, width), np.float32)
        starts = range(0, number, rows)
        for start in progress(starts, "looking at images", len(starts), "batch"):
            batch = slice(start, min(start + rows, number))
            given = [images[place] for place in range(batch.start, batch.stop)]
            inputs = self._preparation([read_image(Path(one)) if isinstance(one, str) else one for one in given])
            filled = np.concatenate([inputs, np.zeros((rows - len(inputs), *inputs.shape[1:]), np.float32)])
            results[batch] = by_rows(function, self.model, params, (filled,))[: len(inputs)]
        return results


def picture(image: np.ndarray) -> list[str]:
    """An image [H, W, C] in characters, dark to bright; of a large one every second pixel, or fewer."""
    step = -(-max(image.shape[:2]) // PICTURE_SIZE)
    grey = image[::step, ::step].mean(axis=-1)
    spread = max(float(grey.max() - grey.min()), 1e-9)
    shades = ((grey - grey.min()) / spread * (len(SHADES) - 1)).astype(int)
    return ["".join(2 * SHADES[shade] for shade in line) for line in shades]


def mixed_cross_entropy(
    logits: Float[Array, "B V"],
    label_weights: Float[Array, "B V"],
    loss_weights: Float[Array, "B"],
    *,
    label_smoothing: float = 0.0,
) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
    """Weighted sums over rows, in float32: ``-sum_v q_v log softmax(logits)_v`` for targets that are shares of classes.

    Args:
      logits: unnormalised, of any float dtype.
      label_weights: of each class its share, which add up to 1.
      loss_weights: of each row, usually 1 or 0. Where it is 0 neither the sums nor the gradient see the logits.
      label_smoothing: e, at least 0 and below 1: ``q = (1 - e) label_weights + e / V``, ``uniform`` in
        ``LABEL_SMOOTHING_FORMS``.

    Returns:
      Pairs (sum, sum of the weights): ``loss``, to be minimised; ``nll``, the same without smoothing; ``accuracy``, 1
      where the argmax is the class with the largest share, the first of equal ones.
    """
    weighted = loss_weights != 0
    log_probs = jax.nn.log_softmax(jnp.where(weighted[:, None], logits.astype(jnp.float32), 0.0))
    nll = -jnp.sum(label_weights * log_probs, axis=-1)
    loss = (1 - label_smoothing) * nll - label_smoothing * jnp.mean(log_probs, axis=-1)
    correct = jnp.argmax(log_probs, axis=-1) == jnp.argmax(label_weights, axis=-1)
    loss_weights = loss_weights.astype(jnp.float32)
    count = jnp.sum(loss_weights)
    values = {"loss": loss, "nll": nll, "accuracy": correct.astype(jnp.float32)}
    return {name: (jnp.sum(of_rows * loss_weights), count) for name, of_rows in values.items()}


@functools.partial(jax.jit, static_argnames="model")
def class_log_probs(model: ImageClassifier, params: Params, images: Any) -> Any:
    """Log-probability [B, V] of each class for every image [B, H, W, C]."""
    logits_BV: Any = model.apply({"params": params}, images, deterministic=True)
    return jax.nn.log_softmax(logits_BV)


@functools.partial(jax.jit, static_argnames="model")
def pooled_features(model: ImageClassifier, params: Params, images: Any) -> Any:
    """The pooled vector [B, D] of every image [B, H, W, C]."""
    return model.apply({"params": params}, images, deterministic=True, method="embed")
