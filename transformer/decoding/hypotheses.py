"""What goes into a search and what comes out of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

Step = Callable[[Any, Array, Array], tuple[Array, Any]]
"""``step(state, parents_BW, tokens_BW) -> (log_probs_BWV, state)``: one token further.

Args:
  state: any pytree of arrays; what the step returns has the same structure, shapes and dtypes.
  parents_BW: int32, the hypothesis of the previous call (0 to W - 1) that each hypothesis continues. The step
    reorders its own state. At the first call 0, 1, ..., W - 1.
  tokens_BW: int32, the last token of each hypothesis: BOS at the first call.

Returns:
  ``log_probs_BWV``, natural logarithms of the probabilities of the next token: at most 0, and -inf for a token that is
  forbidden; and the new state. What it returns for sentences that have ended is ignored, NaN included.
"""


class Hypotheses(NamedTuple):
    """R outputs for each of B sentences.

    tokens     [B, R, N]  int32, without BOS; from ``length`` on filled with EOS
    lengths    [B, R]     int32, tokens without EOS
    scores     [B, R]     float32, what the outputs are compared by: the log-probability divided by the length penalty
    log_probs  [B, R]     float32, natural log-probability of all tokens, the closing EOS included
    finished   [B, R]     bool, closed by EOS; False for an output that was cut at the limit

    A sentence with limit 0, or with fewer than R outputs of positive probability, has in the places that are left
    score and log-probability -inf, length 0 and finished False.
    """

    tokens: Array
    lengths: Array
    scores: Array
    log_probs: Array
    finished: Array


def no_hypotheses(batch_size: int, num_outputs: int, max_steps: int, eos_id: int) -> Hypotheses:
    """All places empty."""
    shape = (batch_size, num_outputs)
    return Hypotheses(
        tokens=jnp.full((*shape, max_steps), eos_id, jnp.int32),
        lengths=jnp.zeros(shape, jnp.int32),
        scores=jnp.full(shape, -jnp.inf, jnp.float32),
        log_probs=jnp.full(shape, -jnp.inf, jnp.float32),
        finished=jnp.zeros(shape, bool),
    )
