"""What ties a model, its data, its loss, its scores and its inference together: one file a task, one line here."""

from pathlib import Path

from transformer.config import Config
from transformer.tasks.language_modeling import LanguageModelingTask
from transformer.tasks.translation import TranslationTask
from transformer.types import Task, one_of

TASKS: dict[str, type[Task]] = {
    "translation": TranslationTask,
    "language_modeling": LanguageModelingTask,
}


def make_task(config: Config, assets: Path | None = None) -> Task:
    """The task that ``config.task`` names.

    Args:
      config: all of it.
      assets: a workdir that holds what an earlier ``save_assets`` wrote; None: made from the data.
    """
    return one_of("task", config.task, TASKS)(config, assets)
