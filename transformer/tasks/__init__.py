"""What ties a model, its data, its loss, its scores and its inference together: one file a task, one line here."""

from pathlib import Path

from transformer.config import Config
from transformer.models.kernels import require_kernels
from transformer.tasks.by_rows import before_each_batch
from transformer.tasks.image_classification import ImageClassificationTask
from transformer.tasks.language_modeling import LanguageModelingTask
from transformer.tasks.masked_lm import MaskedLMTask
from transformer.tasks.sentence_embedding import SentenceEmbeddingTask
from transformer.tasks.span_corruption import SpanCorruptionTask
from transformer.tasks.text_classification import TextClassificationTask
from transformer.tasks.token_classification import TokenClassificationTask
from transformer.tasks.translation import TranslationTask
from transformer.types import Task, one_of

__all__ = ["TASKS", "before_each_batch", "check_training", "make_task"]

TASKS: dict[str, type[Task]] = {
    "translation": TranslationTask,
    "language_modeling": LanguageModelingTask,
    "masked_lm": MaskedLMTask,
    "span_corruption": SpanCorruptionTask,
    "text_classification": TextClassificationTask,
    "token_classification": TokenClassificationTask,
    "sentence_embedding": SentenceEmbeddingTask,
    "image_classification": ImageClassificationTask,
}


def check_training(config: Config) -> None:
    """Raise a ``UserError`` for what the model could not do in training, whatever the data, before these are read."""
    require_kernels(config)


def make_task(config: Config, assets: Path | None = None) -> Task:
    """The task that ``config.task`` names.

    Args:
      config: all of it.
      assets: a workdir that holds what an earlier ``save_assets`` wrote; None: made from the data.
    """
    return one_of("task", config.task, TASKS)(config, assets)
