"""``attend``: one wrapper over a table of attention kernels.

A kernel is one file with one function ``(query_BTHK, key_BSGK, value_BSGK, mask, *, scale, dropout_rate, dropout_rng)
-> output_BTHK``, and one line in ``KERNELS``. What no kernel should repeat is done here, once.
"""

from collections.abc import Callable
from typing import Any, Optional

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from transformer.config import one_of
from transformer.models.attention.dense import dense, dense_weights
from transformer.models.masks import AttentionMask, key_present, query_present

KERNELS: dict[str, Callable[..., Any]] = {"dense": dense}


def attend(
    query_BTHK: Float[Array, "B T H K"],
    key_BSGK: Float[Array, "B S G K"],
    value_BSGK: Float[Array, "B S G K"],
    mask: AttentionMask,
    *,
    scale: Optional[float] = None,
    dropout_rate: float = 0.0,
    dropout_rng: Optional[PRNGKeyArray] = None,
    implementation: str = "dense",
) -> Float[Array, "B T H K"]:
    """Scaled dot-product attention: softmax(scale * Q K^T) V over the keys that the mask lets each query see.

    Args:
      query_BTHK: H heads; H is a multiple of G, the number of key/value heads.
      mask: what each query may see.
      scale: on the dot products; None: 1 / sqrt(K).
      dropout_rate: of the attention weights, in [0, 1).
      dropout_rng: None: no dropout.
      implementation: a name in ``KERNELS``.

    Returns:
      The weighted sums of the values. Queries that are padding or see nothing give zeros. Whatever stands in padding,
      NaN included, reaches neither an output nor a gradient.

    Raises:
      UserError: for an unknown implementation.
      ValueError: if the heads do not group.

    Reference: Vaswani et al. 2017, section 3.2.1. Unlike there, a masked weight is exactly 0 in every dtype.
    """
    if query_BTHK.shape[2] % key_BSGK.shape[2]:
        raise ValueError(f"{query_BTHK.shape[2]} query heads do not group over {key_BSGK.shape[2]} key/value heads")
    kernel = one_of("model.attention_implementation", implementation, KERNELS)
    query_BTHK, key_BSGK, value_BSGK = without_padding(query_BTHK, key_BSGK, value_BSGK, mask)
    return kernel(
        query_BTHK,
        key_BSGK,
        value_BSGK,
        mask,
        scale=query_BTHK.shape[-1] ** -0.5 if scale is None else scale,
        dropout_rate=0.0 if dropout_rng is None else dropout_rate,
        dropout_rng=dropout_rng,
    )


def attention_weights(
    query_BTHK: Float[Array, "B T H K"],
    key_BSGK: Float[Array, "B S G K"],
    mask: AttentionMask,
    *,
    scale: Optional[float] = None,
) -> Float[Array, "B H T S"]:
    """The weights that ``attend`` gives the keys, in float32, whatever implementation computes its output."""
    query_BTHK, key_BSGK, _ = without_padding(query_BTHK, key_BSGK, key_BSGK, mask)
    return dense_weights(query_BTHK, key_BSGK, mask, scale=query_BTHK.shape[-1] ** -0.5 if scale is None else scale)


def without_padding(query_BTHK: Any, key_BSGK: Any, value_BSGK: Any, mask: AttentionMask) -> tuple[Any, Any, Any]:
    """Zeros in place of padding: 0 * NaN would be NaN in a kernel's sums and in its gradient."""
    if mask.query_lengths is not None or mask.query_segment_ids is not None:
        present_BT = query_present(mask, (0, query_BTHK.shape[1]))
        query_BTHK = jnp.where(present_BT[..., None, None], query_BTHK, 0)
    if mask.key_lengths is not None or mask.key_segment_ids is not None or mask.key_positions is not None:
        present_BS = key_present(mask, (0, key_BSGK.shape[1]))
        key_BSGK = jnp.where(present_BS[..., None, None], key_BSGK, 0)
        value_BSGK = jnp.where(present_BS[..., None, None], value_BSGK, 0)
    return query_BTHK, key_BSGK, value_BSGK
