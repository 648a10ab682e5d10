"""What tasks have in common: what they ask of a config, how they run a model in training, the plain parts of the
protocol."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Optional

import jax
import numpy as np

from transformer.config import Config, ModelConfig
from transformer.data.batching import ALL_ROWS, Plan, plan_facts
from transformer.data.cache import cache_folder
from transformer.data.cleaning import CleanedSource
from transformer.data.documents import DocumentList, DocumentSource, make_documents, read_documents
from transformer.data.pairs import ParallelSource
from transformer.data.store import Store, open_store
from transformer.data.tokenizer import Tokenizer
from transformer.data.vocabularies import load_tokenizers, make_tokenizer, save_tokenizers
from transformer.models.cache import layer_pattern
from transformer.models.masks import AttentionMask, visible
from transformer.models.named_parts import check_names
from transformer.models.stacks import require_decoding
from transformer.tasks.losses import LABEL_SMOOTHING_FORMS, add_auxiliary_losses, cross_entropy
from transformer.types import Candidate, Params, Sums, UserError, one_of


class BaseTask:
    """The parts of :class:`transformer.types.Task` that most tasks share.

    A subclass states what it needs, and has ``_source`` (with ``fingerprint_of`` and ``size``), ``_training`` (a
    pipeline with ``num_batches``, ``size``, ``batch`` and ``steps_of_shapes``), ``tokenizer``, ``model`` and
    ``candidates``.

    name       the value of ``task``
    variant    the value of ``model.variant``
    batchings  the values of ``data.batching``; () if it has no part in it
    scores     what ``training.best_metric`` may be
    decodes    whether the model must decode token by token
    of_tokens  whether what is predicted are tokens
    """

    name: ClassVar[str]
    variant: ClassVar[str]
    batchings: ClassVar[tuple[str, ...]] = ()
    scores: ClassVar[tuple[str, ...]]
    decodes: ClassVar[bool] = False
    of_tokens: ClassVar[bool] = True

    tokenizer: Any
    _source: Any
    _training: Any
    _plan: Optional[Plan] = None  # of training pairs, once the batches of training are asked for

    def __init__(self, config: Config):
        """
        Raises:
          UserError: for what the task cannot do, before any data is read.
        """
        self.config = config
        for key, value, allowed in (
            ("model.variant", config.model.variant, (self.variant,)),
            ("data.batching", config.data.batching, self.batchings or (config.data.batching,)),
        ):
            if value not in allowed:
                raise UserError(f"task={self.name} needs {key}={' or '.join(allowed)}, not {value}")
        if config.training.best_metric not in self.scores:
            raise UserError(
                f"training.best_metric={config.training.best_metric} is no score of task={self.name}; use one of "
                f"{', '.join(self.scores)}"
            )
        self._check_model(config.model)
        form = config.training.label_smoothing_form
        one_of("training.label_smoothing_form", form, LABEL_SMOOTHING_FORMS)
        if form == "without_padding" and not self.of_tokens:
            raise UserError(
                f"training.label_smoothing_form={form} leaves out the padding token, and task={self.name} predicts no "
                "tokens; use uniform or others"
            )

        self._stores: dict[str, Store] = {}

    def _check_model(self, config: ModelConfig) -> None:
        """Raise a ``UserError`` for keys of the model that have unknown names or do not go together."""
        check_names(config)
        if self.decodes:
            require_decoding(config)

    def data_fingerprint(self) -> str:
        fingerprint: str = self._source.fingerprint_of("train")
        return fingerprint

    def assets_fingerprint(self) -> str:
        """Of the tokenizers of all sides, each named once: tasks with one side and with two that are alike agree."""
        return " ".join(dict.fromkeys(tokenizer.fingerprint for tokenizer in self._side_tokenizers()))

    def steps_per_epoch(self) -> int:
        number: int = self._training.num_batches
        return number

    def data_facts(self) -> dict[str, Any]:
        tokenizers = () if self.tokenizer is None else self._side_tokenizers()
        sizes = {each.fingerprint: each.vocab_size for each in tokenizers}
        facts: dict[str, Any] = {
            "vocabulary_sizes": list(sizes.values()),
            "batches_per_epoch": self.steps_per_epoch(),
        }
        if isinstance(self._source, CleanedSource):
            facts |= self._source.facts()
        if "train" in self._stores:
            store = self._stores["train"]
            facts["pairs" if len(store.sides) == 2 else "documents"] = len(store)
        return facts if self._plan is None else {**facts, **plan_facts(self._plan)}

    def batch_size(self, step: int) -> tuple[int, int]:
        size: tuple[int, int] = self._training.size(step)
        return size

    def size_of(self, batch: Any) -> tuple[int, int]:
        num_rows, length = max((leaf.shape for leaf in batch if leaf.ndim == 2), key=lambda shape: shape[1])
        return num_rows, length

    def batch(self, step: int, rows: slice = ALL_ROWS) -> Any:
        return self._training.batch(step, rows)

    def steps_of_shapes(self) -> tuple[int, ...]:
        steps: tuple[int, ...] = self._training.steps_of_shapes()
        return steps

    def num_examples(self, split: str) -> int:
        number: int = self._source.size(split)
        return number

    def candidates(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list[Candidate]]:
        raise NotImplementedError

    def lower_decoding(self, params: Params) -> Any:
        return None

    def predict(self, params: Params, lines: Sequence[str]) -> list[str]:
        return [found[0].text for found in self.candidates(params, lines, 1)]

    def save_assets(self, workdir: Path) -> None:
        tokenizers = self._side_tokenizers()
        save_tokenizers(workdir, (tokenizers[0], tokenizers[-1]))

    def _side_tokenizers(self) -> tuple[Tokenizer, ...]:
        """Of each side of the data."""
        return (self.tokenizer,)

    def _store(self, source: ParallelSource | DocumentSource, split: str) -> Store:
        """The tokenised split of a source; those of the task's own are kept open."""
        if source is self._source and split in self._stores:
            return self._stores[split]
        data = self.config.data
        store = open_store(source, split, self._side_tokenizers(), cache_folder(data), data.processes)
        if source is self._source:
            self._stores[split] = store
        return store

    def _attention(self, name: str, mask: AttentionMask, length: int) -> dict[str, Callable[[int], np.ndarray]]:
        """Of self-attention what :class:`transformer.types.BatchView` says, once for each window that layers have."""
        windows = dict.fromkeys(layer.attention_window for layer in layer_pattern(self.config.model))
        named = {name if len(windows) == 1 else f"{name}, window {window}": window for window in windows}
        return {
            name: visible_in_row(dataclasses.replace(mask, window=window), length, length)
            for name, window in named.items()
        }

    def _sums(self, logits: Any, targets: Any, weights: Any, collected: Mapping[str, Any]) -> Sums:
        """What ``loss`` gives for logits of classes or tokens, and for what layers collected."""
        training = self.config.training
        sums = cross_entropy(
            logits,
            targets,
            weights,
            label_smoothing=training.label_smoothing,
            form=training.label_smoothing_form,
            padding_id=self.tokenizer.pad_id if self.of_tokens else None,
        )
        return add_auxiliary_losses(sums, collected, self.config.model)


class DocumentTask(BaseTask):
    """A task over documents, which are read when first asked for."""

    def __init__(self, config: Config, assets: Optional[Path] = None):
        super().__init__(config)
        self.tokenizer: Tokenizer = (
            make_tokenizer(config.data, self._source) if assets is None else load_tokenizers(assets)[1]
        )

    @functools.cached_property
    def _source(self) -> DocumentSource:
        return make_documents(self.config.data, self.config.seed)

    def _given(self, data: str | Mapping[str, Path]) -> tuple[DocumentSource, str]:
        """The documents of ``evaluate``'s argument: a source, and the split of it."""
        if isinstance(data, str):
            return self._source, data
        require_roles(self.name, data, ("text",))
        return DocumentList(list(read_documents(data["text"], self.config.data.documents))), "given"


def best_labels(
    lines: Sequence[str],
    num_best: int,
    names: Sequence[str],
    noun: str,
    log_probs_of: Callable[[list[int]], np.ndarray],
) -> Iterator[list[Candidate]]:
    """The likeliest labels of each line, with their log-probabilities; a line of nothing but white space has none.

    Args:
      names: of the labels.
      noun: what they are called in messages.
      log_probs_of: from the numbers of lines to the log-probability of each label, [lines, labels].

    Raises:
      UserError: if there are fewer labels than ``num_best``.
    """
    if num_best > len(names):
        raise UserError(f"num_best={num_best} is more than there are {noun}: {len(names)}")
    filled = [number for number, line in enumerate(lines) if line.strip()]
    log_probs = log_probs_of(filled)
    order = np.argsort(-log_probs, axis=1, kind="stable")[:, :num_best]
    found = iter(zip(log_probs, order, strict=True))
    for line in lines:
        if line.strip():
            values, best = next(found)
            yield [Candidate(names[label], float(values[label])) for label in best]
        else:
            yield [Candidate("", 0.0)] * num_best


def visible_in_row(mask: AttentionMask, num_queries: int, num_keys: int) -> Callable[[int], np.ndarray]:
    """Which keys each query of a row may see: the row's number -> bool [T, S]."""

    def of_row(row: int) -> np.ndarray:
        own = jax.tree.map(lambda leaf: leaf[row : row + 1], mask)
        seen = jax.jit(visible, static_argnums=(1, 2))(own, (0, num_queries), (0, num_keys))[0]
        return np.broadcast_to(seen, (num_queries, num_keys))

    return of_row


def segments_of(lengths: np.ndarray, length: int) -> np.ndarray:
    """int32 [B, T]: 1 where a row of one text has a token, 0 where it is padding."""
    return (np.arange(length) < lengths[:, None]).astype(np.int32)


def run_model(model: Any, params: Params, rng: Any, *inputs: Any, **options: Any) -> tuple[Any, Mapping[str, Any]]:
    """What a model gives for inputs, and the sums that its layers collect; see ``add_auxiliary_losses``.

    Args:
      rng: of dropout; None: no dropout.
    """
    outputs, collected = model.apply(
        {"params": params},
        *inputs,
        deterministic=rng is None,
        rngs=None if rng is None else {"dropout": rng},
        mutable=("sums",),
        **options,
    )
    return outputs, collected


def require_roles(task: str, files: Mapping[str, Path], *known: Sequence[str]) -> None:
    """Raise a ``UserError`` unless files that are to be scored have roles that the task knows.

    Args:
      task: its name.
      files: by role, as :meth:`transformer.types.Task.evaluate` gets them.
      known: the sets of roles that it can score, each in the order in which a message names them.
    """
    if set(files) in map(set, known):
        return
    ways = [" with ".join(f"--{role}" for role in roles) for roles in (("split",), *known)]
    given = " with ".join(f"--{role}" for role in files)
    raise UserError(f"task={task} scores {', '.join(ways[:-1])} or {ways[-1]}, not {given}")
