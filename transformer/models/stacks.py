"""A stack: positions, dropout, then one layer or a pattern of layers, scanned along its parameters' axis ``layers``."""

from typing import Any, Optional

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig
from transformer.models import cache as caches
from transformer.models.dropout import dropout
from transformer.models.intermediates import keep
from transformer.models.layers import NORM_PLACEMENTS, BranchScales, Layer, Pattern, Shared, Turn
from transformer.models.masks import AttentionMask
from transformer.models.norms import norm
from transformer.models.positions import position_encoding
from transformer.models.sharding import constrain, count_shares, shared_over
from transformer.types import UserError, one_of

REMATERIALIZATION: dict[str, Any] = {
    "none": None,
    "attention": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "layer": jax.checkpoint_policies.nothing_saveable,
}
"""What of a layer is kept for the backward pass, by ``model.rematerialize``; None: what it needs. The rest is computed
again. Reference: Chen et al., Training Deep Nets with Sublinear Memory Cost (2016); ``attention`` as the selective
recomputation of Korthikanti et al. (2022), section 5, which keeps what linear maps give."""


def require_decoding(config: ModelConfig) -> None:
    """See that the model can decode token by token.

    Raises:
      UserError: for experts of limited capacity, which depends on how many tokens a row has in all.
    """
    if config.num_experts and config.expert_dispatch == "capacity":
        raise UserError(
            "model.expert_dispatch=capacity cannot decode token by token: what an expert takes depends on how many "
            "tokens there will be; use dropless"
        )


class Stack(nn.Module):
    """An encoder or a decoder, from embeddings to its last layer's output.

    num_layers: a multiple of the pattern's length, see ``layer_pattern``.
    bidirectional: whether its tokens see those after them; for the position scheme only, the mask is an argument.
    cross_attends: whether its layers look at an encoder's output.
    """

    config: ModelConfig
    num_layers: int
    bidirectional: bool
    cross_attends: bool = False
    scales: BranchScales = BranchScales()

    def setup(self) -> None:
        config = self.config
        self.position_encoding = position_encoding(config, bidirectional=self.bidirectional)
        pattern = caches.layer_pattern(config)
        turns = self.num_layers // len(pattern)
        broadcast = nn.broadcast
        options = {
            name: {
                "variable_axes": {"params": 0, "intermediates": 0, "sums": 0},
                "split_rngs": {"params": True, "dropout": True},
                "in_axes": in_axes,
                "length": turns,
                "unroll": min(config.scan_unroll, turns),
                "metadata_params": {nn.PARTITION_NAME: "layers"},
            }
            for name, in_axes in (("__call__", (0, 0, broadcast, broadcast)), ("project_encoded", (broadcast,)))
        }
        self.layers: Any
        if len(pattern) == 1:
            self.layers = nn.scan(self._kind(Layer), methods=options)(pattern[0], 0, self.cross_attends, self.scales)
        else:
            self.layers = nn.scan(self._kind(Pattern), methods=options)(pattern, self.cross_attends, self.scales)
        if config.embedding_norm:
            self.embedding_norm = norm(config)
        if NORM_PLACEMENTS[config.norm_placement].final:
            self.final_norm = norm(config)

    def _kind(self, kind: Any) -> Any:
        """A class of layers, with what ``model.rematerialize`` makes of it."""
        policy = one_of("model.rematerialize", self.config.rematerialize, REMATERIALIZATION)
        if policy is None:
            return kind
        deterministic = 5  # its place among the arguments of a layer, which is no array
        return nn.remat(kind, policy=policy, prevent_cse=False, static_argnums=(deterministic,))  # a scan prevents it

    def project_encoded(self, encoded_BSD: Float[Array, "B S D"]) -> tuple[Any, ...]:
        """Keys and values [L, B, S, G, K] of the encoder's output, for each layer of the pattern."""
        return self.layers.project_encoded(None, encoded_BSD)[1]

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        positions_BT: Optional[Int[Array, "#B T"]],
        mask: AttentionMask,
        *,
        encoded: Optional[tuple[Any, ...]] = None,
        cross_mask: Optional[AttentionMask] = None,
        cache: Optional[caches.Cache] = None,
        deterministic: bool,
    ) -> tuple[Float[Array, "B T D"], Optional[caches.Cache]]:
        """T tokens a row, given their embeddings; with a cache, after those in it, and the cache with them in it.

        Positions default to 0, 1, 2, ...; with a cache they must be given.
        """
        config, encoding = self.config, self.position_encoding
        shares, length = count_shares(shared_over("length")), x_BTD.shape[1]
        if length % shares and not self.is_initializing():
            raise UserError(
                f"rows of {length} tokens are no multiple of mesh.sequence={shares}, which shares them out; with "
                "data.batching=pack all rows have data.max_source_length and data.max_target_length"
            )
        if positions_BT is None:
            if cache is not None:
                raise ValueError("decoding with a cache needs the positions of its tokens")
            positions_BT = jnp.arange(x_BTD.shape[1])[None]
        x_BTD = encoding.add(x_BTD, positions_BT)
        if config.embedding_norm:
            x_BTD = self.embedding_norm(x_BTD)
        keep(self, "embedded", lambda: x_BTD)
        if config.dropout_rate and not deterministic:
            x_BTD = dropout(x_BTD, config.dropout_rate, self.make_rng("dropout"))
        x_BTD = constrain(x_BTD, "batch", "length", "features")
        shared = Shared(mask, encoding.rotation(positions_BT), encoding.bias(), cross_mask)
        stored = None
        if cache is not None:
            require_decoding(config)
            cache, slots = caches.reserve(cache, positions_BT, mask, config)
            shared = shared._replace(slots=slots)
            stored = tuple((layer.keys, layer.values) for layer in cache.layers)
        depths = jnp.arange(self.num_layers).reshape(-1, len(caches.layer_pattern(config)))
        drop_rates = config.stochastic_depth_rate * depths / max(self.num_layers - 1, 1)
        turns = Turn(jnp.arange(len(depths)), drop_rates)
        (x_BTD, stored), _ = self.layers((x_BTD, stored), encoded, turns, shared, deterministic)
        if cache is not None:
            pairs = zip(cache.layers, stored, strict=True)
            cache = cache._replace(layers=tuple(layer._replace(keys=k, values=v) for layer, (k, v) in pairs))
        return self.final_norm(x_BTD) if NORM_PLACEMENTS[config.norm_placement].final else x_BTD, cache
