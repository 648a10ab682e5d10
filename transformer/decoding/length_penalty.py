"""Length penalties: what the log-probability of n tokens is divided by.

Here n counts the generated tokens, the closing EOS included and BOS not, as in fairseq and in Flax's WMT example. An
output that was cut at its limit has no EOS, and n is its length. Other codebases leave EOS out or count the prompt;
their scores differ from ours for the same alpha.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from transformer.types import UserError

LENGTH_PENALTIES: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    # Wu et al. 2016, "Google's Neural Machine Translation System", equation 14, without its coverage penalty.
    "gnmt": lambda n, alpha: ((5.0 + n) / 6.0) ** alpha,
    # fairseq's --lenpen; alpha 1 compares the mean log-probability of a token.
    "power": lambda n, alpha: n**alpha,
    "none": lambda n, alpha: np.ones_like(n),
}


def length_penalties(name: str, alpha: float, max_length: int) -> Float[np.ndarray, "N"]:
    """The penalties of outputs of 1, 2, ..., ``max_length`` tokens.

    Args:
      name: ``gnmt``, ``power`` or ``none``.
      alpha: strength. Above 0 it favours long outputs, below 0 short ones, 0 is the same as ``none``.
      max_length: largest number of tokens, EOS included.

    Raises:
      UserError: for an unknown name, or an alpha under which a penalty leaves the range of float32.
    """
    if name not in LENGTH_PENALTIES:
        raise UserError(f"length_penalty={name} is not one of {', '.join(LENGTH_PENALTIES)}")
    with np.errstate(over="ignore", under="ignore"):
        penalties = LENGTH_PENALTIES[name](np.arange(1.0, max_length + 1), alpha).astype(np.float32)
    tiny, huge = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    if not np.all((penalties >= tiny) & (penalties <= huge)):
        raise UserError(f"alpha={alpha} is out of range for outputs of {max_length} tokens; use one nearer to 0")
    return penalties
