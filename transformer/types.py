"""Shape letters, the batch types, the task protocol, and the error that is the user's to mend.

Arrays of rank two and up end in the letters of their axes (``query_BTHK``):

    B batch    T queries, target positions    S keys, source positions    D model width
    H heads    G key/value heads              K size of a head            F feed-forward width
    V vocabulary    W beam    L layers    N slots of a cache
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

Params = Any  # a pytree of arrays, as flax gives it
Sums = Mapping[str, tuple[Any, Any]]  # name -> (sum, count): adds up over batches, devices and hosts


class UserError(Exception):
    """A mistake in what the user gave us: the scripts print the message and no traceback.

    The message names the place (path, line, dotted key), the value and the remedy.
    """


class Seq2SeqBatch(NamedTuple):
    """One batch of pairs, in rows that hold one pair (``bucket``) or several (``pack``). All int32 but the weights.

    encoder_input_tokens   [B, S]  source tokens and EOS, then padding
    encoder_segment_ids    [B, S]  1, 2, ... for the pairs of a row, 0 for padding
    encoder_positions      [B, S]  start anew at 0 in every segment
    decoder_input_tokens   [B, T]  the targets shifted right within their segment, BOS first
    decoder_target_tokens  [B, T]  target tokens and EOS, then padding
    decoder_loss_weights   [B, T]  float32, 1 where a target token is real, else 0
    decoder_segment_ids    [B, T]
    decoder_positions      [B, T]
    """

    encoder_input_tokens: Any
    encoder_segment_ids: Any
    encoder_positions: Any
    decoder_input_tokens: Any
    decoder_target_tokens: Any
    decoder_loss_weights: Any
    decoder_segment_ids: Any
    decoder_positions: Any


class Task(Protocol):
    """What the training loop and the scripts know of a task: they know no translation.

    A task owns its data, its tokenizer, its model, its loss, its scores and its inference.
    """

    fingerprint: str
    """Names the training data and the tokenizer; a checkpoint made from others is refused."""
    steps_per_epoch: int

    def batch(self, split: str, step: int) -> NamedTuple:
        """Batch number ``step`` (from 0, across epochs) as NumPy arrays: a pure function of (seed, step)."""
        ...

    def init(self, rng: Any) -> Params:
        """Fresh float32 parameters, boxed with the names of their logical axes."""
        ...

    def loss(self, params: Params, batch: Any, rng: Any) -> Sums:
        """Pairs (sum, count). ``loss`` is minimised; ``nll`` is in unsmoothed nats per real token.

        ``rng`` None means no dropout. Traced under jit.
        """
        ...

    def work(self, batch: Any) -> Mapping[str, float]:
        """What one training batch amounts to, to be added up and divided by seconds.

        ``*_tokens``: real tokens by side; ``positions``: all positions, padding included; ``flops``: of the model's
        own formula, forward and backward.
        """
        ...

    def evaluate(self, params: Params, split: str) -> Mapping[str, Any]:
        """Every score of a split, each example counted once."""
        ...

    def predict(self, params: Params, lines: Sequence[str]) -> list[str]:
        """One output for each input line, in order."""
        ...

    def save_assets(self, workdir: Any) -> None:
        """Write into the workdir what prediction will need beside parameters and config: the tokenizer."""
        ...


def is_batch_array(value: Any) -> bool:
    """Whether a leaf of a batch is an array with rows."""
    return isinstance(value, np.ndarray) and value.ndim > 0
