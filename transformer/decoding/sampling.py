"""Greedy decoding and sampling: outputs that grow token by token, each on its own."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from transformer.decoding.hypotheses import Hypotheses, Step, no_hypotheses
from transformer.decoding.top_k import k_largest
from transformer.types import UserError


def greedy(
    step: Step,
    state: Any,
    *,
    batch_size: int,
    bos_id: int,
    eos_id: int,
    max_steps: int,
    limits_B: Int[Array, "B"],
) -> Hypotheses:
    """The likeliest token at every step, the lowest id among equals: beam search with a beam of 1 and no penalty.

    Args: as for :func:`transformer.decoding.beam_search.beam_search`.

    Returns:
      One output for each sentence; the score is the log-probability.
    """

    def choose(log_probs_BWV: Array, index: Array) -> Array:
        return k_largest(log_probs_BWV, 1)[1][..., 0]  # a quarter of the time of argmax on a CPU

    return _generate(step, state, choose, batch_size, 1, bos_id, eos_id, max_steps, limits_B)


def sample(
    step: Step,
    state: Any,
    *,
    batch_size: int,
    num_samples: int,
    keys_B: Key[Array, "B"],
    bos_id: int,
    eos_id: int,
    max_steps: int,
    limits_B: Int[Array, "B"],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Hypotheses:
    """Outputs drawn at random.

    The token at position t of sample w of sentence b is drawn with the key
    ``fold_in(fold_in(keys_B[b], w), t)``: it depends neither on the other sentences nor on ``num_samples``.
    For a corpus, ``keys_B[b] = fold_in(key(seed), line_number)``.

    Args:
      step, state, batch_size, bos_id, eos_id, max_steps, limits_B: as for
        :func:`transformer.decoding.beam_search.beam_search`, with W = ``num_samples``.
      num_samples: independent outputs of a sentence; the same one may come twice.
      keys_B: typed PRNG keys, one for each sentence.
      temperature: above 0; the distribution is proportional to ``p^(1 / temperature)``.
      top_k: draw from the k likeliest tokens only (Fan et al. 2018); 0: from all.
      top_p: then draw from the smallest set of likeliest tokens whose share of what temperature and ``top_k`` left is
        at least this (Holtzman et al. 2020); above 0, at most 1. At least one token stays.
      min_p: of these only tokens that have, after temperature, at least this share of the likeliest one's probability
        (Nguyen et al. 2024); 0 to 1.

    Returns:
      ``num_samples`` outputs for each sentence in the order of their index. Score and log-probability are those of the
      model, before temperature, ``top_k``, ``top_p`` and ``min_p``.

    Raises:
      UserError: if ``num_samples``, ``temperature``, ``top_k``, ``top_p`` or ``min_p`` is out of range.
    """
    if num_samples < 1:
        raise UserError(f"num_samples={num_samples} must be at least 1")
    if not 0 < temperature < float("inf"):
        raise UserError(f"temperature={temperature} must be above 0 and finite; use greedy decoding instead of 0")
    if top_k < 0:
        raise UserError(f"top_k={top_k} must be at least 0, which means all tokens")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p={top_p} must lie above 0 and at most at 1")
    if not 0 <= min_p <= 1:
        raise UserError(f"min_p={min_p} must lie in 0 to 1")
    fold_in_each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    keys_BW = jax.vmap(fold_in_each, in_axes=(0, None))(keys_B, jnp.arange(num_samples))

    def choose(log_probs_BWV: Array, index: Array) -> Array:
        vocab_size = log_probs_BWV.shape[-1]
        # The largest of log p + Gumbel noise is a draw from p. The noise belongs to the token, not to its rank.
        noise_BWV = jax.vmap(jax.vmap(lambda key: jax.random.gumbel(jax.random.fold_in(key, index), (vocab_size,))))(
            keys_BW
        )
        if top_k == 0:
            return k_largest(_likely(log_probs_BWV / temperature, top_p, min_p) + noise_BWV, 1)[1][..., 0]
        log_probs_BWK, tokens_BWK = k_largest(log_probs_BWV, min(top_k, vocab_size))
        log_probs_BWK = _likely(log_probs_BWK / temperature, top_p, min_p)
        drawn_BW = jnp.argmax(log_probs_BWK + jnp.take_along_axis(noise_BWV, tokens_BWK, axis=-1), axis=-1)
        return jnp.take_along_axis(tokens_BWK, drawn_BW[..., None], axis=-1)[..., 0]

    return _generate(step, state, choose, batch_size, num_samples, bos_id, eos_id, max_steps, limits_B)


def _likely(log_probs_BWK: Float[Array, "B W K"], top_p: float, min_p: float) -> Float[Array, "B W K"]:
    """-inf outside the set that ``top_p`` leaves, and for those with less than ``min_p`` of the largest probability."""
    log_probs_BWK = _nucleus(log_probs_BWK, top_p)
    if min_p == 0:
        return log_probs_BWK
    least_BW1 = jnp.max(log_probs_BWK, axis=-1, keepdims=True) + math.log(min_p)
    return jnp.where(log_probs_BWK >= least_BW1, log_probs_BWK, -jnp.inf)


def _nucleus(log_probs_BWK: Float[Array, "B W K"], top_p: float) -> Float[Array, "B W K"]:
    """-inf outside the smallest set with a share of at least ``top_p``; of equal ones the first belong to it.

    The smallest share in the set is found by bisection, since sorting 8,000 tokens takes milliseconds a row on a CPU.
    The bits of floats from 0 up, read as integers, are in the order of the floats.
    """
    if top_p == 1:
        return log_probs_BWK
    shares_BWK = jax.nn.softmax(log_probs_BWK)
    bits_BWK = lax.bitcast_convert_type(shares_BWK, jnp.int32)

    def share_from(least_BW1: Array) -> Array:
        return jnp.sum(jnp.where(bits_BWK >= least_BW1, shares_BWK, 0.0), axis=-1, keepdims=True)

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        enough_BW1, too_high_BW1 = bounds
        middle_BW1 = enough_BW1 + (too_high_BW1 - enough_BW1) // 2
        is_enough_BW1 = share_from(middle_BW1) >= top_p
        return jnp.where(is_enough_BW1, middle_BW1, enough_BW1), jnp.where(is_enough_BW1, too_high_BW1, middle_BW1)

    lowest_BW1 = jnp.zeros_like(bits_BWK[..., :1])
    bits_of_two = 2**30
    least_BW1, _ = lax.fori_loop(0, 30, halve, (lowest_BW1, jnp.full_like(lowest_BW1, bits_of_two)))
    smallest_BW1 = jnp.maximum(lax.bitcast_convert_type(least_BW1, jnp.float32), jnp.finfo(jnp.float32).tiny)
    equals_BWK = bits_BWK == least_BW1
    equals_needed_BW1 = jnp.ceil((top_p - share_from(least_BW1 + 1)) / smallest_BW1)
    kept_BWK = (bits_BWK > least_BW1) | (equals_BWK & (jnp.cumsum(equals_BWK, axis=-1) <= equals_needed_BW1))
    return jnp.where(kept_BWK, log_probs_BWK, -jnp.inf)


class _Generation(NamedTuple):
    """Between two calls of the step.

    num_tokens   scalar  calls so far
    state                of the step
    last_tokens  [B, W]  BOS at first
    open         [B, W]  bool, neither ended nor at the limit
    outputs              so far, without scores
    """

    num_tokens: Array
    state: Any
    last_tokens: Array
    open: Array
    outputs: Hypotheses


def _generate(
    step: Step,
    state: Any,
    choose: Callable[[Array, Array], Array],
    batch_size: int,
    width: int,
    bos_id: int,
    eos_id: int,
    max_steps: int,
    limits_B: Int[Array, "B"],
) -> Hypotheses:
    """Outputs that grow by what ``choose(log_probs_BWV, index)`` takes, until all have ended or are at their limits."""
    limits_B = jnp.minimum(limits_B, max_steps)
    places = jnp.broadcast_to(jnp.arange(width), (batch_size, width))

    def extend(generation: _Generation) -> _Generation:
        index, outputs = generation.num_tokens, generation.outputs
        log_probs_BWV, state = step(generation.state, places, generation.last_tokens)
        log_probs_BWV = log_probs_BWV.astype(jnp.float32)
        tokens = jnp.where(generation.open, choose(log_probs_BWV, index), eos_id)
        chosen = jnp.take_along_axis(log_probs_BWV, tokens[..., None], axis=-1)[..., 0]
        # `where`, since a sentence that has ended may give NaN.
        log_probs = outputs.log_probs + jnp.where(generation.open, chosen, 0.0)
        ended = generation.open & (tokens == eos_id)
        grown = generation.open & (tokens != eos_id)
        return _Generation(
            num_tokens=index + 1,
            state=state,
            last_tokens=tokens,
            open=grown & (index + 1 < limits_B)[:, None] & (log_probs > -jnp.inf),
            outputs=outputs._replace(
                tokens=lax.dynamic_update_index_in_dim(outputs.tokens, tokens, index, axis=2),
                lengths=outputs.lengths + grown,
                log_probs=log_probs,
                finished=outputs.finished | ended,
            ),
        )

    nothing = no_hypotheses(batch_size, width, max_steps, eos_id)
    open_at_first = jnp.broadcast_to((limits_B > 0)[:, None], (batch_size, width))
    generation = _Generation(
        num_tokens=jnp.zeros((), jnp.int32),
        state=state,
        last_tokens=jnp.full_like(places, bos_id),
        open=open_at_first,
        outputs=nothing._replace(log_probs=jnp.where(open_at_first, 0.0, -jnp.inf)),
    )
    outputs = lax.while_loop(lambda generation: jnp.any(generation.open), extend, generation).outputs
    outputs = outputs._replace(scores=outputs.log_probs)
    # Where every token was forbidden there is no output.
    exists = outputs.log_probs > -jnp.inf
    return jax.tree.map(
        lambda array, empty: jnp.where(exists.reshape(exists.shape + (1,) * (array.ndim - 2)), array, empty),
        outputs,
        nothing,
    )
