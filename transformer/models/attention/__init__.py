"""``attend``: one wrapper over a table of attention kernels.

A kernel is one file with two functions, and one line in ``KERNELS``: the kernel itself, with the signature of
``dense``, and ``refusal``, which says why it cannot serve a request, if it cannot. What no kernel should repeat is done
here, once.
"""

import functools
import logging
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from transformer.models.attention import blockwise, dense, fused, local, sequence, splash
from transformer.models.attention.biases import Bias, bias_block
from transformer.models.attention.request import Request
from transformer.models.masks import AttentionMask, key_present, query_present, visible
from transformer.types import UserError, one_of

logger = logging.getLogger(__name__)


class Kernel(NamedTuple):
    """An implementation.

    function       itself
    refusal        why it cannot serve a request; None: it can
    partitionable  whether XLA can partition it over rows and heads
    over_sequence  itself where devices share the length of the rows; None: it cannot be
    """

    function: Callable[..., Any]
    refusal: Callable[[Request], Optional[str]]
    partitionable: bool = True
    over_sequence: Optional[Callable[..., Any]] = None

    def against(self, request: Request) -> Optional[str]:
        """Why it cannot serve; None: it can."""
        if request.length_shares > 1 and self.over_sequence is None:
            return f"mesh.sequence={request.length_shares} shares out the length of the rows"
        return self.refusal(request)


KERNELS: dict[str, Kernel] = {
    "dense": Kernel(dense.dense, dense.refusal, over_sequence=dense.dense),
    "blockwise": Kernel(blockwise.blockwise, blockwise.refusal, over_sequence=sequence.over_sequence),
    "local": Kernel(local.local, local.refusal),
    "fused": Kernel(fused.fused, fused.refusal),
    "splash": Kernel(splash.splash, splash.refusal, partitionable=False),
}

IMPLEMENTATIONS: Mapping[str, Any] = ChainMap(cast(dict[str, Any], KERNELS), {"auto": None})
"""What ``model.attention_implementation`` may be."""

LONG = 1_024  # queries from which on `auto` avoids the T x S matrix
NARROW = (
    2 * local.BLOCK
)  # windows up to which `local` is about as fast as `blockwise` or faster; its memory grows with them


def attend(
    query_BTHK: Float[Array, "B T H K"],
    key_BSGK: Float[Array, "B S G K"],
    value_BSGK: Float[Array, "B S G K"],
    mask: AttentionMask,
    *,
    bias: Optional[Bias] = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    dropout_rate: float = 0.0,
    dropout_rng: Optional[PRNGKeyArray] = None,
    implementation: str = "dense",
) -> Float[Array, "B T H K"]:
    """Scaled dot-product attention: softmax(scale * Q K^T) V over the keys that the mask lets each query see.

    Args:
      query_BTHK: H heads; H is a multiple of G, the number of key/value heads.
      mask: what each query may see.
      bias: added to the logits; its heads are those of the queries.
      scale: on the dot products; None: 1 / sqrt(K).
      softcap: the logits become ``softcap * tanh(logits / softcap)``, before the bias; None: they stay.
      dropout_rate: of the attention weights, in [0, 1).
      dropout_rng: None: no dropout.
      implementation: a name in ``KERNELS``, or ``auto``: the best of them for the platform and the request.

    Returns:
      The weighted sums of the values. Queries that are padding or see nothing give zeros. Whatever stands in padding,
      NaN included, reaches neither an output nor a gradient.

    Raises:
      UserError: for an unknown implementation, or one that cannot serve; it says why, and which can.
      ValueError: if the heads do not group.

    Reference: Vaswani et al. 2017, section 3.2.1. Unlike there, a masked weight is exactly 0 in every dtype.
    """
    if query_BTHK.shape[2] % key_BSGK.shape[2]:
        raise ValueError(f"{query_BTHK.shape[2]} query heads do not group over {key_BSGK.shape[2]} key/value heads")
    dropout_rate = 0.0 if dropout_rng is None else dropout_rate
    request = Request.of(query_BTHK, key_BSGK, mask, bias, softcap, dropout_rate)
    kernel = choose(implementation, request)
    query_BTHK, key_BSGK, value_BSGK = without_padding(query_BTHK, key_BSGK, value_BSGK, mask)
    function: Callable[..., Any] = functools.partial(
        kernel.over_sequence if request.length_shares > 1 and kernel.over_sequence else kernel.function,
        bias=bias,
        scale=query_BTHK.shape[-1] ** -0.5 if scale is None else scale,
        softcap=softcap,
        dropout_rate=dropout_rate,
        dropout_rng=dropout_rng,
    )
    if not kernel.partitionable:
        function = on_each_device(function)
    return function(query_BTHK, key_BSGK, value_BSGK, mask)


def on_each_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel run by each device of the mesh on its own rows and heads, or as it is where no mesh is entered.

    Which axes of the mesh hold rows and heads stands in the table of logical axes that is entered; without a table
    every device does all the work.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    queries, keys = (nn.logical_to_mesh_axes(("batch", "length", heads, "head_dim")) for heads in ("heads", "kv_heads"))
    rows = nn.logical_to_mesh_axes(("batch",))
    return jax.shard_map(  # A Pallas call does not say over which axes its results vary, so this cannot be checked.
        function, in_specs=(queries, keys, keys, rows), out_specs=queries, check_vma=False
    )


def choose(implementation: str, request: Request) -> Kernel:
    """The kernel of that name if it can serve, or the best that can.

    Raises:
      UserError: for an unknown name, or one that cannot serve; it says why, and which can.
    """
    if implementation == "auto":
        name, reason = best(request)
        _log_choice(name, reason, request.platform)
        return KERNELS[name]
    kernel: Kernel = one_of("model.attention_implementation", implementation, IMPLEMENTATIONS)
    against = kernel.against(request)
    if against is not None:
        able = [name for name, other in KERNELS.items() if other.against(request) is None]
        raise UserError(
            f"model.attention_implementation={implementation} cannot serve here: {against}; "
            f"use auto, or one of {', '.join(able)}"
        )
    return kernel


def best(request: Request) -> tuple[str, str]:
    """What ``auto`` takes, and why."""
    short = max(request.num_queries, request.num_keys) < LONG or request.num_queries == 1
    accelerated = {"gpu": "fused", "tpu": "splash"}.get(request.platform)
    against = None
    if accelerated is not None:
        against = KERNELS[accelerated].against(request)
        if against is None and not short:
            return accelerated, f"the kernel of this platform, for rows of {LONG} and more"
    after = f"; {accelerated} cannot: {against}" if against is not None else ""
    if request.length_shares > 1 and KERNELS["blockwise"].against(request) is None:
        return "blockwise", "the length of the rows is shared out"
    if short:
        return "dense", f"rows shorter than {LONG}, or single queries{after}"
    if (request.mask.window or LONG) <= NARROW and KERNELS["local"].against(request) is None:
        return "local", f"a window of {NARROW} or less in rows of {LONG} and more{after}"
    if KERNELS["blockwise"].against(request) is None:
        return "blockwise", f"rows of {LONG} and more{after}"
    return "dense", f"{KERNELS['blockwise'].against(request)}{after}"


@functools.cache
def _log_choice(name: str, reason: str, platform: str) -> None:
    logger.info("attention on %s: %s (%s)", platform, name, reason)


def attention_weights(
    query_BTHK: Float[Array, "B T H K"],
    key_BSGK: Float[Array, "B S G K"],
    mask: AttentionMask,
    *,
    bias: Optional[Bias] = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
) -> Float[Array, "B H T S"]:
    """The weights that ``attend`` gives the keys, in float32, whatever implementation computes its output."""
    query_BTHK, key_BSGK, _ = without_padding(query_BTHK, key_BSGK, key_BSGK, mask)
    scale = query_BTHK.shape[-1] ** -0.5 if scale is None else scale
    return dense.dense_weights(query_BTHK, key_BSGK, mask, bias=bias, scale=scale, softcap=softcap)


class Inside(NamedTuple):
    """What one attention is made of: ``weights = softmax(cap(scale query . key) + bias)`` over what is visible.

    query    [B, T, H, K]    turned by their positions where these are rotary, as the keys are; zeros for padding
    key      [B, S, G, K]
    value    [B, S, G, K]
    weights  [B, H, T, S]    float32
    visible  [B, T, S]       bool
    bias     [B, H, T, S]    float32; None: none is added
    scale    []              float32
    softcap  []              float32; None: no cap
    window   []              int32; None: no window
    """

    query: Any
    key: Any
    value: Any
    weights: Any
    visible: Any
    bias: Any
    scale: Any
    softcap: Any
    window: Any


def look_inside(
    query_BTHK: Float[Array, "B T H K"],
    key_BSGK: Float[Array, "B S G K"],
    value_BSGK: Float[Array, "B S G K"],
    mask: AttentionMask,
    *,
    bias: Optional[Bias],
    scale: float,
    softcap: Optional[float],
) -> Inside:
    """All that ``attend`` goes by, for people to look at."""
    weights = attention_weights(query_BTHK, key_BSGK, mask, bias=bias, scale=scale, softcap=softcap)
    spans = (0, query_BTHK.shape[1]), (0, key_BSGK.shape[1])
    return Inside(
        *without_padding(query_BTHK, key_BSGK, value_BSGK, mask),
        weights=weights,
        visible=jnp.broadcast_to(visible(mask, *spans), (weights.shape[0], *weights.shape[2:])),
        bias=None if bias is None else jnp.broadcast_to(bias_block(bias, mask, *spans), weights.shape),
        scale=jnp.float32(scale),
        softcap=None if softcap is None else jnp.float32(softcap),
        window=None if mask.window is None else jnp.int32(mask.window),
    )


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
