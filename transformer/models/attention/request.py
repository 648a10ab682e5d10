"""What is asked of an attention kernel, as far as it decides which kernels can serve."""

from typing import Any, NamedTuple, Optional

import jax

from transformer.models.attention.biases import Bias
from transformer.models.masks import AttentionMask
from transformer.models.sharding import count_shares, shared_over


class Request(NamedTuple):
    """Everything here is known when a program is traced.

    platform       where it will run: cpu, gpu, tpu
    dtype          name of the queries' dtype
    num_queries    T
    num_keys       S
    head_dim       K
    mask           which of its fields are set
    bias           which one, or None
    softcap        None: none
    dropout_rate   0: no dropout
    length_shares  how many devices share the length of a row
    """

    platform: str
    dtype: str
    num_queries: int
    num_keys: int
    head_dim: int
    mask: AttentionMask
    bias: Optional[Bias]
    softcap: Optional[float]
    dropout_rate: float
    length_shares: int = 1

    @classmethod
    def of(
        cls, query_BTHK: Any, key_BSGK: Any, mask: AttentionMask, bias: Any, softcap: Any, dropout_rate: float
    ) -> "Request":
        return cls(
            platform(),
            str(query_BTHK.dtype),
            query_BTHK.shape[1],
            key_BSGK.shape[1],
            query_BTHK.shape[3],
            mask,
            bias,
            softcap,
            dropout_rate,
            count_shares(shared_over("length")) if query_BTHK.shape[1] > 1 else 1,
        )

    def fields(self, *names: str) -> list[str]:
        """Those of the mask's fields that are set, in words."""
        return [name.replace("_", " ") for name in names if getattr(self.mask, name) is not None]


def platform() -> str:
    """Where the program that is being traced will run, cpu, gpu or tpu: the mesh's devices, if one is entered."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    name = jax.default_backend() if device is None else device.platform
    return "gpu" if name in ("cuda", "rocm") else name
