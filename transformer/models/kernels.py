"""Which attention kernel a layer runs, and whether it can, found out before there is anything to compute."""

from typing import Any

from transformer.config import VARIANTS, Config, ModelConfig
from transformer.models.attention import choose
from transformer.models.attention.biases import Alibi, RelativeBias
from transformer.models.attention.request import Request, platform
from transformer.models.attention.splash import UNIT
from transformer.models.cache import layer_pattern
from transformer.models.masks import AttentionMask


def kernel_name(config: ModelConfig, *, crosses: bool = False) -> str:
    """What ``attend`` is asked for by a layer, of ``layer_pattern``, or by its attention over an encoder's output.

    ``local`` is for sliding windows: attention without one takes ``auto``.
    """
    name = config.attention_implementation
    return "auto" if name == "local" and (crosses or config.attention_window is None) else name


def require_kernels(config: Config) -> None:
    """See that the kernel which the config names can serve self-attention in training, whatever the rows' length.

    Raises:
      UserError: if it cannot on this platform, with this dtype, size of heads, dropout, cap, bias or mask; it says why,
        and which can.
    """
    model = config.model
    biases: dict[str, Any] = {"alibi": Alibi(None), "relative_bias": RelativeBias(None, False, 0)}
    fields: dict[str, Any] = {"prefix_lengths": 0 if model.prefix_lm else None}
    if config.data.batching == "pack":
        fields |= {"query_segment_ids": 0, "key_segment_ids": 0}
    for stack in VARIANTS[model.variant][1]:
        for layer in layer_pattern(model):
            mask = AttentionMask(causal=stack == "decoder", window=layer.attention_window, **fields)
            request = Request(
                platform=platform(),
                dtype=layer.dtype,
                num_queries=UNIT,
                num_keys=UNIT,
                head_dim=layer.head_size,
                mask=mask,
                bias=biases.get(layer.position_encoding),
                softcap=layer.attention_logit_softcap,
                dropout_rate=layer.attention_dropout_rate,
            )
            if kernel_name(layer) != "auto":
                choose(kernel_name(layer), request)
