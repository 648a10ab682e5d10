"""cuDNN's attention on NVIDIA GPUs, through ``jax.nn.dot_product_attention``: no T x S array in memory."""

import functools
from typing import Optional

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from transformer.models.attention.biases import Bias
from transformer.models.attention.request import Request
from transformer.models.masks import AttentionMask

HOPPER = 9  # CUDA compute capability from which on heads may have 256 numbers instead of 128


def fused(
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
    """Attention by one cuDNN kernel forward and one backward; see ``attend``, and ``refusal`` for what it leaves out.

    ``causal``, the window and the lengths are passed as such: a boolean matrix would become a T x S bias.

    What cuDNN gives a query that sees no key is not defined. Such queries come last in their row, so they are passed
    as padding; zeros then take the place of their outputs, which stops their gradients too. No row is passed as empty.
    """
    B, T = query_BTHK.shape[:2]
    S = key_BSGK.shape[1]
    attention = functools.partial(
        jax.nn.dot_product_attention,
        query_BTHK,
        key_BSGK,
        value_BSGK,
        scale=scale,
        is_causal=mask.causal,
        local_window_size=None if mask.window is None else (mask.window - 1, 0),
        implementation="cudnn",
    )
    if mask.causal and mask.query_lengths is None and mask.key_lengths is None:
        return attention()
    # Without `causal` full lengths are better than none: without a padding mask the backward kernels of some cuDNN
    # versions give NaN for strongly negative logits (https://github.com/NVIDIA/cudnn-frontend/issues/1072).
    key_lengths_B = jnp.full(B, S) if mask.key_lengths is None else jnp.asarray(mask.key_lengths)
    seeing_B = seeing_queries(mask, T, key_lengths_B)
    output_BTHK = attention(
        query_seq_lengths=jnp.maximum(seeing_B, 1).astype(jnp.int32),
        key_value_seq_lengths=jnp.maximum(key_lengths_B, 1).astype(jnp.int32),
    )
    return jnp.where((jnp.arange(T) < seeing_B[:, None])[..., None, None], output_BTHK, 0)


def seeing_queries(mask: AttentionMask, num_queries: int, key_lengths_B: Int[Array, " B"]) -> Int[Array, " B"]:
    """How many queries of each row see some key: those before this one do, those from there on see none."""
    seeing_B = jnp.full_like(key_lengths_B, num_queries)
    if mask.query_lengths is not None:
        seeing_B = jnp.minimum(seeing_B, mask.query_lengths)
    if mask.window is not None:  # the last query that sees the last key is window - 1 further on
        seeing_B = jnp.minimum(seeing_B, key_lengths_B + mask.window - 1)
    return jnp.where(key_lengths_B > 0, seeing_B, 0)


def refusal(request: Request) -> Optional[str]:
    """Why cuDNN, or JAX's interface to it, cannot serve."""
    mask = request.mask
    capability = compute_capability()
    if request.platform != "gpu":
        return f"it runs on NVIDIA GPUs, and this is for {request.platform}"
    if capability is not None and capability.startswith("gfx"):
        return "it runs on NVIDIA GPUs, and this one is AMD's"
    if request.dtype not in ("bfloat16", "float16"):
        return f"it computes in bfloat16 or float16, not {request.dtype} (model.dtype=bfloat16)"
    if fields := request.fields("query_segment_ids", "key_segment_ids"):
        return f"it takes no {' and '.join(fields)}; rows that hold one example each (data.batching=bucket) need none"
    if fields := request.fields("query_positions", "key_positions", "prefix_lengths", "matrix"):
        return f"it takes no {' and '.join(fields)}"
    if request.bias is not None:
        return f"it adds no bias to the logits ({type(request.bias).__name__})"
    if request.softcap is not None:
        return "it has no softcap"
    if request.dropout_rate:
        return "it has no attention dropout"
    if mask.window is not None and not mask.causal:
        return "it has a window for causal masks only"
    if mask.causal and request.num_queries != request.num_keys:
        return (
            f"its causal mask starts at the first key: right for as many queries as keys, not for "
            f"{request.num_queries} and {request.num_keys}"
        )
    largest = largest_head_dim(capability)
    if request.head_dim % 8 or request.head_dim > largest:
        return f"the size of a head must be a multiple of 8 up to {largest} here, not {request.head_dim}"
    return None


def compute_capability() -> Optional[str]:
    """Of this process' first GPU: 9.0 is Hopper, gfx... is AMD's. None without one, as when compiling for another."""
    return jax.local_devices()[0].compute_capability if jax.default_backend() == "gpu" else None


def largest_head_dim(capability: Optional[str]) -> int:
    """What JAX's own check lets through: 256 from Hopper on, else 128, also where the device is not known."""
    return 256 if capability is not None and int(capability.split(".")[0]) >= HOPPER else 128
