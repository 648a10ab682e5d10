"""Beam search over an opaque step, with live and finished hypotheses kept apart."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from transformer.decoding.hypotheses import Hypotheses, Step, no_hypotheses
from transformer.decoding.length_penalty import length_penalties
from transformer.decoding.top_k import k_largest
from transformer.types import UserError


class _Search(NamedTuple):
    """Between two calls of the step.

    num_tokens      scalar     generated so far, by every live hypothesis
    state                      of the step
    parents         [B, W]     of the live hypotheses, among those of the call before
    last_tokens     [B, W]     of the live hypotheses; BOS at first
    live_tokens     [B, W, N]  all their tokens, filled with EOS from num_tokens on
    live_log_probs  [B, W]     best first; -inf: there is no such hypothesis
    finished                   the num_best best so far
    """

    num_tokens: Array
    state: Any
    parents: Array
    last_tokens: Array
    live_tokens: Array
    live_log_probs: Array
    finished: Hypotheses


def beam_search(
    step: Step,
    state: Any,
    *,
    batch_size: int,
    beam_size: int,
    bos_id: int,
    eos_id: int,
    max_steps: int,
    limits_B: Int[Array, "B"],
    length_penalty: str,
    alpha: float,
    num_best: int = 1,
) -> Hypotheses:
    """The outputs with the best scores that a beam of ``beam_size`` hypotheses comes across.

    Every call of the step extends the W live hypotheses of a sentence by all tokens. Of these W V candidates the best
    W by log-probability count: those among them that end in EOS are finished. The best W that do not end in EOS stay
    live. (This is fairseq's rule. Flax's WMT example also finishes what ends in EOS at places W + 1 to 2 W, with which
    a beam of 1 is not greedy.) At the sentence's limit the best W candidates are finished as they are, cut where they
    lack EOS. Finished hypotheses compete by score, the earlier first among equals; live ones by log-probability.

    A sentence is done when no live hypothesis can have a descendant with a score above the worst of its ``num_best``
    finished ones. Log-probabilities only fall, so the best that a descendant of n tokens can reach is the present
    log-probability over the penalty of n; what counts is the best over all n that are left. This loses nothing, under
    any alpha. (fairseq stops at W finished hypotheses; others use the penalty of the greatest length, which is wrong
    for a negative alpha.) What a sentence gets is therefore independent of the others in its batch, and its best n
    outputs do not depend on ``num_best``.

    To be called under ``jax.jit``; everything but ``state`` and ``limits_B`` is static.

    Args:
      step: see :data:`transformer.decoding.hypotheses.Step`.
      state: of the step, before the first token.
      batch_size: B, sentences.
      beam_size: W, live hypotheses of a sentence. May exceed the vocabulary.
      bos_id: the token that every hypothesis starts from; not part of the output.
      eos_id: the token that ends an output.
      max_steps: N, the largest number of generated tokens.
      limits_B: largest number of generated tokens of each sentence, EOS included; above ``max_steps`` it is
        ``max_steps``. 0 marks a padding row, which gets no output and which nobody waits for.
      length_penalty: ``gnmt``, ``power`` or ``none``; see :mod:`transformer.decoding.length_penalty`.
      alpha: of the length penalty.
      num_best: outputs of a sentence, 1 to ``beam_size``.

    Returns:
      ``num_best`` different outputs for each sentence, best score first.

    Raises:
      UserError: if ``num_best``, ``length_penalty`` or ``alpha`` is out of range.
    """
    if not 1 <= num_best <= beam_size:
        raise UserError(f"num_best={num_best} must lie in 1 to beam_size={beam_size}; ask for fewer or widen the beam")
    penalties_N = jnp.asarray(length_penalties(length_penalty, alpha, max_steps))
    lengths_N = jnp.arange(1, max_steps + 1)
    limits_B = jnp.minimum(limits_B, max_steps)

    def unfinished(search: _Search) -> Array:
        return jnp.any(search.live_log_probs > -jnp.inf)

    def extend(search: _Search) -> _Search:
        index = search.num_tokens  # of the token that is chosen now
        length = index + 1
        log_probs_BWV, state = step(search.state, search.parents, search.last_tokens)
        log_probs, parents, tokens = _candidates(search.live_log_probs, log_probs_BWV.astype(jnp.float32))
        histories = lax.dynamic_update_index_in_dim(_pick(search.live_tokens, parents), tokens, index, axis=2)
        ended = tokens == eos_id

        best = slice(0, beam_size)
        at_limit = (length == limits_B)[:, None]
        new = Hypotheses(
            tokens=histories[:, best],
            lengths=length - ended[:, best].astype(jnp.int32),
            scores=jnp.where(ended | at_limit, log_probs / penalties_N[index], -jnp.inf)[:, best],
            log_probs=log_probs[:, best],
            finished=ended[:, best],
        )
        finished = _best(search.finished, new, num_best)

        live_log_probs, live = lax.top_k(jnp.where(ended, -jnp.inf, log_probs), beam_size)
        left_BN = (lengths_N > length) & (lengths_N <= limits_B[:, None])
        reachable_B = jnp.max(jnp.where(left_BN, live_log_probs[:, :1] / penalties_N, -jnp.inf), axis=1)
        open_B = reachable_B > finished.scores[:, -1]
        return _Search(
            num_tokens=length,
            state=state,
            parents=_pick(parents, live),
            last_tokens=_pick(tokens, live),
            live_tokens=_pick(histories, live),
            live_log_probs=jnp.where(open_B[:, None], live_log_probs, -jnp.inf),
            finished=finished,
        )

    places = jnp.broadcast_to(jnp.arange(beam_size), (batch_size, beam_size))
    # All W hypotheses are the same at first: only one of them may have descendants.
    start = jnp.where((places == 0) & (limits_B > 0)[:, None], 0.0, -jnp.inf)
    search = _Search(
        num_tokens=jnp.zeros((), jnp.int32),
        state=state,
        parents=places,
        last_tokens=jnp.full_like(places, bos_id),
        live_tokens=jnp.full((batch_size, beam_size, max_steps), eos_id, jnp.int32),
        live_log_probs=start,
        finished=no_hypotheses(batch_size, num_best, max_steps, eos_id),
    )
    return lax.while_loop(unfinished, extend, search).finished


def _candidates(
    live_log_probs_BW: Float[Array, "B W"], log_probs_BWV: Float[Array, "B W V"]
) -> tuple[Float[Array, "B C"], Int[Array, "B C"], Int[Array, "B C"]]:
    """Log-probabilities, parents and tokens of continuations, best first, equal ones by parent and token.

    There are at most 2 W. Among them are, in this order, the best W of all, and the best W without EOS: no hypothesis
    has more than one continuation by EOS, so neither can need more than the best W + 1 of each.
    """
    batch_size, beam_size, vocab_size = log_probs_BWV.shape
    k = min(beam_size + 1, vocab_size)
    log_probs_BWK, tokens_BWK = k_largest(log_probs_BWV, k)
    # `where`, since a sentence that has ended may give NaN.
    exists_BW1 = live_log_probs_BW[:, :, None] > -jnp.inf
    sums_BWK = jnp.where(exists_BW1, live_log_probs_BW[:, :, None] + log_probs_BWK, -jnp.inf)
    log_probs, places = lax.top_k(sums_BWK.reshape(batch_size, -1), min(2 * beam_size, beam_size * k))
    return log_probs, places // k, _pick(tokens_BWK.reshape(batch_size, -1), places)


def _best(old: Hypotheses, new: Hypotheses, number: int) -> Hypotheses:
    """The hypotheses with the best scores, best first, the old first among equals."""
    both = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), old, new)
    _, places = lax.top_k(both.scores, number)
    return jax.tree.map(lambda array: _pick(array, places), both)


def _pick(array: Array, places: Int[Array, "B R"]) -> Array:
    """``array[b, places[b, r]]``."""
    return jnp.take_along_axis(array, places.reshape(places.shape + (1,) * (array.ndim - 2)), axis=1)
