"""A model on text that was made up, so that a plan needs no data: only sizes count, and they follow from the config."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

from transformer.config import Config, DataConfig
from transformer.types import UserError

NUM_BATCHES = 8  # of an epoch, which reads one example over and over: the size of a batch is met on average


def stand_in(config: Config, folder: Path) -> Config:
    """A config of the same model and batches, whose text is made up: an example as long as the config allows.

    The embedding has as many rows as ``model.vocab_size`` says, or ``data.vocab_size`` with the extra ids.

    Args:
      config: of the run.
      folder: where the text is written.

    Raises:
      UserError: for a task whose model depends on data, such as the names of labels.
    """
    if config.task not in TEXTS:
        raise UserError(
            f"task={config.task}: how many labels there are is a matter of the data, so there is no plan without it; "
            f"what can be planned: {', '.join(TEXTS)}"
        )
    TEXTS[config.task](config.data, folder)
    rows = config.model.vocab_size or config.data.vocab_size + config.data.extra_ids
    shortest = min(config.data.max_source_length, config.data.max_target_length)
    data = dataclasses.replace(
        config.data,
        source="files",
        directory=str(folder),
        train=("train",),
        train_weights=(max(NUM_BATCHES * config.data.tokens_per_batch // shortest, 1),),
        split="files",
        documents="line",
        cleaning=(),
        cleaning_max_words=None,
        cleaning_max_ratio=None,
        tokenizer=None,
        tokenizer_model="character",
        cache_directory=str(folder / "cache"),
        processes=1,
    )
    model = dataclasses.replace(config.model, vocab_size=rows)
    training = dataclasses.replace(config.training, initialize_from=None)
    return dataclasses.replace(config, data=data, model=model, training=training)


def write_pairs(data: DataConfig, folder: Path, num_special: int = 1) -> None:
    """A letter for each token that is not special; two languages have two, so that their vocabularies may be two."""
    sides = ((data.source_language, "a", data.max_source_length), (data.target_language, "b", data.max_target_length))
    for language, letter, length in sides:
        line = letter * (length - num_special) + "\n"
        (folder / f"train.{language}").write_text(line, encoding="utf-8")


def write_documents(data: DataConfig, folder: Path) -> None:
    """The same for documents, which are longer than any row of theirs."""
    line = "a" * (2 * max(data.max_source_length, data.max_target_length)) + "\n"
    (folder / "train.txt").write_text(line, encoding="utf-8")


TEXTS: dict[str, Callable[[DataConfig, Path], None]] = {
    "translation": write_pairs,
    "sentence_embedding": functools.partial(write_pairs, num_special=2),
    "language_modeling": write_documents,
    "masked_lm": write_documents,
    "span_corruption": write_documents,
}
"""By task, what writes the text."""
