"""Shape letters, the batch types, the task protocol, and the error that is the user's to mend.

Arrays of rank two and up end in the letters of their axes (``query_BTHK``):

    B batch    T queries, target positions    S keys, source positions    D model width
    H heads    G key/value heads              K size of a head            F feed-forward width
    V vocabulary    W beam    L layers    N slots of a cache    E experts    J experts of one token
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

Params = Any  # a pytree of arrays, as flax gives it
Sums = Mapping[str, tuple[Any, Any]]  # name -> (sum, count): adds up over batches, devices and hosts


class UserError(Exception):
    """A mistake in what the user gave us: the scripts print the message and no traceback.

    The message names the place (path, line, dotted key), the value and the remedy.
    """


def one_of(key: str, value: str, table: Mapping[str, Any]) -> Any:
    """The entry of a table of named parts.

    Raises:
      UserError: for a name that is not there, with all that are and the nearest.
    """
    if value not in table:
        raise UserError(f"{key}={value} is not one of {', '.join(table)}{nearest(value, table)}")
    return table[value]


def nearest(name: str, names: Iterable[str]) -> str:
    """``; did you mean ...?`` where a name is near, else nothing."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""


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


class TokenBatch(NamedTuple):
    """One batch of text, in rows of a part of a document or of the stream of all, or of several documents (``pack``).

    input_tokens   [B, T]  int32, of each target the token before it; EOS, or start_id, before a document's first
    target_tokens  [B, T]  int32, a document's tokens and EOS; after the last, if the row has room, padding
    loss_weights   [B, T]  float32, 1 where a target counts, else 0
    segment_ids    [B, T]  int32, 1, 2, ... for the parts of documents in a row, 0 for padding
    positions      [B, T]  int32, start anew at 0 in every segment
    """

    input_tokens: Any
    target_tokens: Any
    loss_weights: Any
    segment_ids: Any
    positions: Any


class MaskedTokenBatch(NamedTuple):
    """One batch of text of which some tokens are to be guessed (masked_lm).

    input_tokens      [B, T]  int32, some of them replaced by the mask or by others; then padding
    segment_ids       [B, T]  int32, 1, 2, ... for the texts in a row, 0 for padding
    positions         [B, T]  int32, start anew at 0 in every segment
    masked_positions  [B, M]  int32, places in the row, ascending; then 0
    target_tokens     [B, M]  int32, what stood there
    loss_weights      [B, M]  float32, 1 where there is something to guess, else 0
    """

    input_tokens: Any
    segment_ids: Any
    positions: Any
    masked_positions: Any
    target_tokens: Any
    loss_weights: Any


class LabeledTextBatch(NamedTuple):
    """One batch of texts, or pairs of texts, one in a row, each with its label or with a label for some of its tokens.

    input_tokens  [B, T]  int32, then padding
    token_types   [B, T]  int32, 0 for a text, 1 for the second of a pair
    lengths       [B]     int32, real tokens of a row; 0 for a row that fills up the batch
    labels        [B] or [B, T]  int32
    loss_weights  [B] or [B, T]  float32, 1 where a label counts, else 0
    """

    input_tokens: Any
    token_types: Any
    lengths: Any
    labels: Any
    loss_weights: Any


class TextPairBatch(NamedTuple):
    """One batch of pairs of texts that mean the same, each text in a row of its own (sentence_embedding).

    first_tokens    [B, S]  int32, then padding
    first_lengths   [B]     int32
    second_tokens   [B, T]
    second_lengths  [B]
    loss_weights    [B]     float32, 0 for rows that fill up the batch
    """

    first_tokens: Any
    first_lengths: Any
    second_tokens: Any
    second_lengths: Any
    loss_weights: Any


class ImageBatch(NamedTuple):
    """One batch of images.

    images         [B, H, W, C]  float32, normalised
    label_weights  [B, classes]  float32, of each class its share; one of them is 1 but for images that are mixed
    loss_weights   [B]           float32, 0 for rows that fill up the batch
    """

    images: Any
    label_weights: Any
    loss_weights: Any


class TokenView(NamedTuple):
    """One sequence of tokens for each row of a batch, for people and checks to read.

    name          what it is in the batch
    tokens        int [B, T]
    segment_ids   int [B, T], 1, 2, ... for the texts of a row, 0 where nothing stands
    num_ids       that the model knows: the tokens are below it
    tokenizer     that decodes them; None for labels
    names         of labels
    positions     int [B, T]; None: 0, 1, 2, ...
    loss_weights  float [B, T]; None: nothing is predicted here
    first         what every text begins with; None: anything
    last          what every text ends with; None: anything
    most          a text of so many tokens was cut, and need not end with ``last``; None: none is cut
    inside        special ids that may stand elsewhere in a text
    """

    name: str
    tokens: Any
    segment_ids: Any
    num_ids: int
    tokenizer: Any
    names: Sequence[str] = ()
    positions: Any = None
    loss_weights: Any = None
    first: int | None = None
    last: int | None = None
    most: int | None = None
    inside: tuple[int, ...] = ()


class BatchView(NamedTuple):
    """What a batch holds, for people and checks to read.

    tokens       in the order to be read
    attention    who sees whom, by the name of the attention: the row's number -> bool [T, S]
    num_choices  outcomes of a prediction: a fresh model, which knows nothing, loses ln of it; None: it may lose less
    notes        what else a row holds, such as its label: the row's number -> lines
    """

    tokens: tuple[TokenView, ...]
    attention: Mapping[str, Callable[[int], Any]]
    num_choices: int | None
    notes: Callable[[int], list[str]] = lambda row: []


class Candidate(NamedTuple):
    """An output for a line.

    text
    score     what it was compared by with others for the same input, higher is better
    finished  False for an output that was cut at its limit, without EOS
    """

    text: str
    score: float
    finished: bool = True


@runtime_checkable
class Task(Protocol):
    """What the training loop and the scripts know of a task: they know no translation.

    It is made by ``(config, assets)``. ``assets`` is a folder that holds what ``save_assets`` wrote, or of that only
    the tokenizer's files, ``tokenizer*``. What is not there is made from the training data; with None, all of it.

    A task owns its data, its tokenizer, its model, its loss, its scores and its inference.
    """

    tokenizer: Any
    model: Any
    """The flax module."""

    def data_fingerprint(self) -> str:
        """Names the training data; a run is not continued on other data."""
        ...

    def assets_fingerprint(self) -> str:
        """Names what ``save_assets`` saves; parameters are not used with another tokenizer."""
        ...

    def steps_per_epoch(self) -> int:
        """Batches that go once through the training data."""
        ...

    def data_facts(self) -> Mapping[str, Any]:
        """What is to be said of the training data in a report on the run, by name, in what JSON can hold: how many
        examples there are, how many were left out and why, sizes of vocabularies. It is of data that training reads
        anyway."""
        ...

    def batch_size(self, step: int) -> tuple[int, int]:
        """Rows of training batch number ``step``, and positions of their longer side, without building it."""
        ...

    def size_of(self, batch: Any) -> tuple[int, int]:
        """The same of a batch that is there, or of some rows of one."""
        ...

    def batch(self, step: int, rows: slice = ...) -> Any:
        """Training batch number ``step`` (from 0, across epochs) in NumPy: a pure function of (seed, step).

        Args:
          rows: which of it, in steps of 1; all, if not given. A host builds those of its devices.
        """
        ...

    def steps_of_shapes(self) -> tuple[int, ...]:
        """Of each shape that a training batch can have the first step with it, ascending."""
        ...

    def num_examples(self, split: str) -> int:
        """Of a split, which is read to count them: a missing or broken file is a ``UserError`` here."""
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

    def view(self, batch: Any) -> BatchView:
        """What a training batch, or some rows of one, holds; for a dry run."""
        ...

    def evaluate(
        self,
        params: Params,
        data: str | Mapping[str, Path],
        *,
        during_training: bool = False,
        outputs: Path | None = None,
    ) -> dict[str, Any]:
        """Every score of ``data``, each example counted once.

        Args:
          data: the name of a split, or files by role: ``source`` and ``reference``, ``source`` and ``hypothesis``, or
            ``text``, a file (or for images a folder) such as the task reads its splits from.
          during_training: with what ``config.evaluation`` says, which is quicker.
          outputs: where the predictions are written, one a line; what reports need goes beside it, with another suffix.
        """
        ...

    def candidates(self, params: Params, lines: Sequence[str], num_best: int) -> Iterator[list["Candidate"]]:
        """``num_best`` outputs for each line, best first, in the order of the lines."""
        ...

    def predict(self, params: Params, lines: Sequence[str]) -> list[str]:
        """One output for each input line, in order."""
        ...

    def lower_decoding(self, params: Params) -> Any:
        """The program that finds one output for each row of a full batch of the longest inputs, lowered, for a plan.

        Args:
          params: abstract, each where it lies on the mesh that is entered.

        Returns:
          What ``jax.jit`` gives when it lowers; None for a task that decodes nothing step by step.
        """
        ...

    def save_assets(self, workdir: Path) -> None:
        """Write into the workdir what prediction will need beside parameters and config: the tokenizer."""
        ...
