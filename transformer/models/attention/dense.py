"""The readable reference: builds the whole T x S matrix."""

from typing import Any, Optional

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from transformer.models.attention.biases import Bias, finish_logits
from transformer.models.dropout import dropout
from transformer.models.masks import AttentionMask, visible


def dense(
    query_BTHK: Float[Array, "B T H K"],
    key_BSGK: Float[Array, "B S G K"],
    value_BSGK: Float[Array, "B S G K"],
    mask: AttentionMask,
    *,
    bias: Optional[Bias],
    scale: float,
    softcap: Optional[float],
    dropout_rate: float,
    dropout_rng: Optional[PRNGKeyArray],
) -> Float[Array, "B T H K"]:
    """Attention as the equation says it; see ``attend``."""
    weights_BHTS = dense_weights(query_BTHK, key_BSGK, mask, bias=bias, scale=scale, softcap=softcap)
    weights_BHTS = dropout(weights_BHTS, dropout_rate, dropout_rng).astype(value_BSGK.dtype)
    groups = value_BSGK.shape[2]
    weights_BGRTS = weights_BHTS.reshape(weights_BHTS.shape[0], groups, -1, *weights_BHTS.shape[2:])
    return jnp.einsum("BGRTS,BSGK->BTGRK", weights_BGRTS, value_BSGK).reshape(query_BTHK.shape)


def dense_weights(
    query_BTHK: Float[Array, "B T H K"],
    key_BSGK: Float[Array, "B S G K"],
    mask: AttentionMask,
    *,
    bias: Optional[Bias],
    scale: float,
    softcap: Optional[float],
) -> Float[Array, "B H T S"]:
    """The softmax in float32 over the visible keys; all zeros where a query sees none."""
    B, T, H, K = query_BTHK.shape
    S, G = key_BSGK.shape[1:3]
    query_BTGRK = (query_BTHK * scale).reshape(B, T, G, H // G, K)
    logits_BGRTS = jnp.einsum("BTGRK,BSGK->BGRTS", query_BTGRK, key_BSGK, preferred_element_type=jnp.float32)
    spans = (0, T), (0, S)
    logits_BHTS = finish_logits(logits_BGRTS.reshape(B, H, T, S), mask, *spans, bias=bias, softcap=softcap)
    visible_BHTS = visible(mask, *spans)[:, None]
    logits_BHTS = jnp.where(visible_BHTS, logits_BHTS, jnp.finfo(jnp.float32).min)
    return jnp.where(visible_BHTS, jax.nn.softmax(logits_BHTS, axis=-1), 0)


def refusal(request: Any) -> Optional[str]:
    """``dense`` serves everything."""
    return None
