"""What must hold for every batch, whatever the task is."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from transformer.types import BatchView, TokenView

MOST_UNKNOWN = 0.05  # of all tokens; more of them mean a vocabulary that was made for other text


class Check(NamedTuple):
    """A check, and the figure it was decided by or the first fault it found."""

    name: str
    passed: bool
    found: str


def check_special_ids(view: BatchView) -> Check:
    """Special pieces are in the vocabulary, and that in the embedding; EOS is like no other; none decodes to text."""
    faults, seen = [], []
    for tokens in view.tokens:
        tokenizer = tokens.tokenizer
        if tokenizer is None:
            continue
        ids = {"pad": tokenizer.pad_id, "bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "unk": tokenizer.unk_id}
        ids |= {"mask": tokenizer.mask_id} | {f"sentinel {k}": i for k, i in enumerate(tokenizer.sentinel_ids)}
        shown = ", ".join(f"{name} {i}" for name, i in list(ids.items())[:4])
        seen.append(f"{shown}; {tokenizer.vocab_size} pieces, {tokens.num_ids} rows of the embedding")
        for name, i in ids.items():
            none = i is None or (name == "unk" and i == -1)  # a vocabulary that has pieces for everything
            if not none and not 0 <= i < tokenizer.vocab_size:
                faults.append(f"{name} is {i}, and the vocabulary has {tokenizer.vocab_size} pieces")
        if tokenizer.vocab_size > tokens.num_ids:
            faults.append(f"{tokenizer.vocab_size} pieces, but {tokens.num_ids} rows of the embedding ({tokens.name})")
        if tokenizer.eos_id in (tokenizer.pad_id, tokenizer.bos_id):
            faults.append(f"EOS is {tokenizer.eos_id}, and so is padding or BOS: no output would end where it should")
        faults += [
            f"{name} {ids[name]} decodes to {text!r}"
            for name in ("pad", "bos", "eos")
            if 0 <= ids[name] < tokenizer.vocab_size and (text := tokenizer.decode([ids[name]]))
        ]
    return Check("special ids", not faults, faults[0] if faults else " | ".join(dict.fromkeys(seen)) or "no tokens")


class BatchChecks:
    """Checks of the tokens of many batches; the first fault of each is kept."""

    def __init__(self) -> None:
        self._faults: dict[str, str] = {}
        self._num_batches = 0
        self._largest = 0
        self._texts = {"begin": 0, "end": 0}
        self._tokens = self._unknown = 0

    def add(self, number: int, view: BatchView) -> None:
        """Look at a batch.

        Args:
          number: of the batch, for messages.
        """
        self._num_batches += 1
        for tokens in view.tokens:
            self._check_ids(number, tokens)
            self._check_weights(number, tokens)
            if tokens.tokenizer is not None:
                self._check_text(number, tokens)

    def results(self) -> list[Check]:
        """Of all batches so far."""
        share = self._unknown / max(self._tokens, 1)
        unknown = f"{self._unknown:,} of {self._tokens:,} tokens ({share:.2%})"
        if share > MOST_UNKNOWN:
            self._faults["unknown pieces"] = f"{unknown}; the vocabulary was made for other text"
        good = {
            "ids in range": f"the largest is {self._largest}",
            "texts begin as they must": f"{self._texts['begin']:,} texts",
            "EOS at every end": f"{self._texts['end']:,} texts",
            "no padding, BOS or EOS within a text": f"{self._tokens:,} tokens",
            "unknown pieces": unknown,
            "loss on real tokens only, and on some": f"{self._num_batches} batches",
        }
        return [Check(name, name not in self._faults, self._faults.get(name, found)) for name, found in good.items()]

    def _check_ids(self, number: int, view: TokenView) -> None:
        self._largest = max(self._largest, int(view.tokens.max(initial=0)))
        num_pieces = view.num_ids if view.tokenizer is None else view.tokenizer.vocab_size
        limits = np.where(view.segment_ids != 0, num_pieces, view.num_ids)  # padding need only be in the embedding
        why = f"there are {num_pieces} pieces and {view.num_ids} rows of the embedding"
        self._note("ids in range", (view.tokens < 0) | (view.tokens >= limits), number, view, why)

    def _check_weights(self, number: int, view: TokenView) -> None:
        if view.loss_weights is None:
            return
        name = "loss on real tokens only, and on some"
        self._note(name, (view.loss_weights != 0) & (view.segment_ids == 0), number, view, "padding has a loss weight")
        if not np.any(view.loss_weights):
            self._faults.setdefault(name, f"batch {number}: {view.name} has no weight at all")

    def _check_text(self, number: int, view: TokenView) -> None:
        tokenizer, tokens, segments = view.tokenizer, view.tokens, view.segment_ids
        present = segments != 0
        edge = np.zeros((len(segments), 1), segments.dtype)
        begins = present & (segments != np.hstack([edge, segments[:, :-1]]))
        ends = present & (segments != np.hstack([segments[:, 1:], edge]))
        self._tokens += int(present.sum())
        self._unknown += int((present & (tokens == tokenizer.unk_id)).sum())
        within = present
        if view.first is not None:
            self._texts["begin"] += int(begins.sum())
            wrong = begins & (tokens != view.first)
            self._note("texts begin as they must", wrong, number, view, f"{view.first} should stand there")
            within = within & ~begins
        if view.last is not None:
            self._texts["end"] += int(ends.sum())
            cut = np.zeros_like(ends)
            if view.most is not None:  # begins and ends come in pairs, row by row
                lengths = np.flatnonzero(ends) - np.flatnonzero(begins) + 1
                cut[ends] = lengths == view.most
            wrong = ends & ~cut & (tokens != view.last)
            self._note("EOS at every end", wrong, number, view, f"{view.last} should stand there")
            within = within & ~ends
        special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id} - set(view.inside)
        wrong = within & np.isin(tokens, list(special))
        self._note("no padding, BOS or EOS within a text", wrong, number, view, "a special piece within a text")

    def _note(self, name: str, bad: Any, number: int, view: TokenView, why: str) -> None:
        """Keep the first fault."""
        if name not in self._faults and bad.any():
            row, column = np.argwhere(bad)[0].tolist()
            self._faults[name] = (
                f"batch {number}, row {row}, column {column} of {view.name}: id {view.tokens[row, column]}; {why}"
                f" ({int(bad.sum())} in this batch)"
            )


def check_loss(nll: float, num_choices: int, d_model: int) -> Check:
    """The first loss of fresh parameters is about that of a model that knows nothing, ln(number of choices).

    It is above where the softmax weights are the embeddings: the model first of all expects the token that it has just
    read, the more so the less its layers do to their input. With vectors of length 1 and outputs of length
    sqrt(d_model) that costs less than sqrt(d_model).
    """
    chance = float(np.log(num_choices))
    passed = 0.5 * chance <= nll <= chance + 1 + d_model**0.5
    found = f"{nll:.3f} nats a prediction, ln {num_choices:,} = {chance:.3f}"
    if not passed:
        found += "; targets that the model can see make it too low, wrong scales too high"
    return Check("loss at the start", passed, found)


def failed(checks: Iterable[Check]) -> list[str]:
    """Their names."""
    return [check.name for check in checks if not check.passed]
