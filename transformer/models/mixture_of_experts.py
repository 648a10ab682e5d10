"""A mixture of experts in place of the feed-forward: a router sends each token through a few of many networks.

Axes beside those of ``types.py``: E experts, J the experts of one token, C slots of an expert, R rows of any kind.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from transformer.config import ModelConfig
from transformer.models.dropout import dropout
from transformer.models.feed_forward import ACTIVATIONS, Activation, FeedForward
from transformer.models.sharding import constrain
from transformer.types import one_of

BIAS_UPDATE_SPEED = 0.001
"""The gamma of DeepSeek-V3, by which the bias of a sigmoid router moves against the load."""

ROUTERS: dict[str, Callable[[Any], Any]] = {"softmax": jax.nn.log_softmax, "sigmoid": jax.nn.log_sigmoid}
"""What a name in ``model.expert_router`` means: the logarithm of an expert's score from the router's logits."""


class Routing(NamedTuple):
    """Where each token goes, all but ``experts`` in float32.

    experts        [B, T, J]  numbers of the token's experts, the best first
    weights        [B, T, J]  of their outputs in the token's
    logits         [B, T, E]
    probabilities  [B, T, E]  the scores of all experts, divided by their sum
    bias           [E]        of the choice; None under softmax
    """

    experts: Any
    weights: Any
    logits: Any
    probabilities: Any
    bias: Any


class Weights(NamedTuple):
    """One matrix for each expert.

    kernel  [E, I, O]
    bias    [E, O] or None
    """

    kernel: Any
    bias: Any


class MixtureOfExperts(nn.Module):
    """y = sum of w_e FFN_e(x) over the few experts e that the router chooses for x, plus a shared FFN(x) if asked for.

    ``model.expert_router`` gives choice and weights, ``model.expert_dispatch`` brings the tokens to their experts:

    - ``softmax``: the J experts with the largest p = softmax(x W). Their weights are p divided by its sum over the J
      (Mixtral); for J = 1 the weight is p itself (Switch), through which alone the router learns then.
    - ``sigmoid``: the J experts with the largest s + b, s = sigmoid(x W). Their weights are s divided by its sum over
      the J, without b. See ``routing_sums`` for how b is trained.
    - ``dropless``: tokens sorted by expert, one ragged product a matrix. Nothing is dropped.
    - ``capacity``: see ``capacity_slots``. A token that finds its expert full gets zeros from it, and the weights of
      its other experts stay as they are.

    With one expert this is the plain feed-forward. The routing is float32 whatever the dtype. Padding has no part in
    it: it fills no capacity, enters no sum, and gives zeros.

    When the collection ``sums`` is mutable, the pairs of ``routing_sums`` are sown there.

    init_scale: factor on the standard deviation of the experts' initial weights.

    Reference: Fedus et al., Switch Transformers (2021), section 2; Jiang et al., Mixtral of Experts (2024), section
    2.1; DeepSeek-V3 (2024), section 2.1.2. Its groups of experts and its factor on the routed part are not here.
    """

    config: ModelConfig
    init_scale: float = 1.0

    @nn.compact
    def __call__(
        self, x_BTD: Float[Array, "B T D"], present_BT: Optional[Bool[Array, "#B #T"]], deterministic: bool
    ) -> Float[Array, "B T D"]:
        """Args: present_BT is False for padding; None: there is none."""
        config = self.config
        dtype = jnp.dtype(config.dtype)
        present_BT = jnp.broadcast_to(True if present_BT is None else present_BT, x_BTD.shape[:2])
        x_BTD = jnp.where(present_BT[..., None], x_BTD, 0)
        routing = Router(config, name="router")(x_BTD)
        x_BTD = x_BTD.astype(dtype)

        weights = Experts(config, self.init_scale, name="experts")()
        rng = self.make_rng("dropout") if config.activation_dropout_rate and not deterministic else None
        dispatch = one_of("model.expert_dispatch", config.expert_dispatch, DISPATCHES)
        y_BTJD, served_BTJ = dispatch(config, weights, x_BTD, routing.experts, present_BT, rng)
        y_BTD = jnp.einsum("BTJD,BTJ->BTD", y_BTJD.astype(jnp.float32), routing.weights).astype(dtype)
        if config.d_ff_shared:
            shared = FeedForward(config, d_ff=config.d_ff_shared, init_scale=self.init_scale, name="shared")
            y_BTD += shared(x_BTD, deterministic)

        if self.is_mutable_collection("sums") and not self.is_initializing():
            for name, pair in routing_sums(routing, present_BT, served_BTJ).items():
                self.sow("sums", name, pair, init_fn=lambda: (0.0, 0.0), reduce_fn=_add_pairs)
        return jnp.where(present_BT[..., None], y_BTD, 0)


class Router(nn.Module):
    """Scores every expert for every token, and chooses."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Routing:
        config = self.config
        log_score = one_of("model.expert_router", config.expert_router, ROUTERS)
        # No name on the axis of experts: each device needs the logits of all of them, and the matrix is small.
        initializer = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        kernel: Any = self.param(
            "kernel",
            nn.with_logical_partitioning(initializer, ("embed", None)),
            (config.d_model, config.num_experts),
            jnp.float32,
        )
        # Accelerators would round the factors of a float32 product.
        logits_BTE = jnp.einsum("BTD,DE->BTE", x_BTD.astype(jnp.float32), kernel, precision=lax.Precision.HIGHEST)
        log_scores_BTE = log_score(logits_BTE)
        bias: Any = None
        ranks_BTE = log_scores_BTE
        if config.expert_router == "sigmoid":
            zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), (None,))
            bias = self.param("bias", zeros, (config.num_experts,), jnp.float32)
            ranks_BTE = jnp.exp(log_scores_BTE) + bias
        _, experts_BTJ = lax.top_k(lax.stop_gradient(ranks_BTE), config.experts_per_token)
        chosen_BTJ = jnp.take_along_axis(log_scores_BTE, experts_BTJ, axis=-1)
        # A softmax of logarithms divides by the sum, and has no 0 / 0 where all scores underflow.
        switch = config.expert_router == "softmax" and config.experts_per_token == 1
        weights_BTJ = jnp.exp(chosen_BTJ) if switch else jax.nn.softmax(chosen_BTJ)
        return Routing(experts_BTJ, weights_BTJ, logits_BTE, jax.nn.softmax(log_scores_BTE), bias)


class Experts(nn.Module):
    """The experts' parameters: those of ``FeedForward``, by the same names, with a first axis ``expert``."""

    config: ModelConfig
    init_scale: float = 1.0

    @nn.compact
    def __call__(self) -> dict[str, Weights]:
        config = self.config
        E, D, F = config.num_experts, config.d_model, config.d_ff
        inward = ((E, D, F), ("expert", "embed", "mlp"))
        outward = ((E, F, D), ("expert", "mlp", "embed"))
        matrices = {"up": inward, "gate": inward, "down": outward}
        if not _activation(config).gated:
            del matrices["gate"]
        return {
            name: ExpertLinear(*matrix, config.feed_forward_bias, self.init_scale, name=name)()
            for name, matrix in matrices.items()
        }


class ExpertLinear(nn.Module):
    """Kernel and bias of one linear map for each expert, initialised each like ``Linear``."""

    shape: tuple[int, int, int]
    axes: tuple[str, str, str]
    use_bias: bool
    init_scale: float = 1.0

    @nn.compact
    def __call__(self) -> Weights:
        initializer = nn.initializers.variance_scaling(
            self.init_scale**2, "fan_avg", "uniform", in_axis=1, out_axis=2, batch_axis=0
        )
        kernel = self.param("kernel", nn.with_logical_partitioning(initializer, self.axes), self.shape, jnp.float32)
        if not self.use_bias:
            return Weights(kernel, None)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), (self.axes[0], self.axes[2]))
        return Weights(kernel, self.param("bias", zeros, (self.shape[0], self.shape[2]), jnp.float32))


def dropless(
    config: ModelConfig,
    weights: dict[str, Weights],
    x_BTD: Float[Array, "B T D"],
    experts_BTJ: Int[Array, "B T J"],
    present_BT: Bool[Array, "B T"],
    rng: Optional[PRNGKeyArray],
) -> tuple[Float[Array, "B T J D"], Bool[Array, "B T J"]]:
    """The output of each expert that a token chose: rows sorted by expert, one ragged product a matrix.

    Padding goes through its experts like any token, as it does through a plain feed-forward: so the groups cover all
    rows, and no row is left to what a platform does outside of them.

    Reference: Gale et al., MegaBlocks (2023).
    """

    def run(weights: Any, x_BTD: Any, experts_BTJ: Any, rng: Any) -> Any:
        expert_R = experts_BTJ.reshape(-1)
        order_R = jnp.argsort(expert_R)
        expert_R = expert_R[order_R]
        sizes_E = jnp.bincount(expert_R, length=config.num_experts)

        def linear(x_RI: Any, weights: Weights) -> Any:
            y_RO = lax.ragged_dot(x_RI, weights.kernel.astype(x_RI.dtype), sizes_E)
            return y_RO if weights.bias is None else y_RO + weights.bias.astype(x_RI.dtype)[expert_R]

        rows_RD = x_BTD.reshape(-1, config.d_model)[order_R // config.experts_per_token]
        y_RD = _feed_forward(config, weights, rows_RD, linear, rng)
        return y_RD[jnp.argsort(order_R)].reshape(*experts_BTJ.shape, config.d_model)

    y_BTJD = _on_each_device(run, weights, x_BTD, experts_BTJ, rng)
    return y_BTJD, jnp.broadcast_to(present_BT[..., None], experts_BTJ.shape)


def capacity(
    config: ModelConfig,
    weights: dict[str, Weights],
    x_BTD: Float[Array, "B T D"],
    experts_BTJ: Int[Array, "B T J"],
    present_BT: Bool[Array, "B T"],
    rng: Optional[PRNGKeyArray],
) -> tuple[Float[Array, "B T J D"], Bool[Array, "B T J"]]:
    """The output of each expert that a token chose, zeros where it was full: C slots of each expert in each row.

    All shapes are static, and the experts are a batch dimension of plain products.
    """
    B, T, _ = x_BTD.shape
    slot_BTJ, slots = capacity_slots(config, experts_BTJ, present_BT)

    @jax.vmap
    def to_experts(x_TD: Any, experts_TJ: Any, slot_TJ: Any) -> Any:
        token_TJ = jnp.broadcast_to(jnp.arange(T)[:, None], experts_TJ.shape)
        empty_EC = jnp.full((config.num_experts, slots), T)
        token_EC = empty_EC.at[experts_TJ, slot_TJ].set(token_TJ, mode="drop")
        return x_TD.at[token_EC].get(mode="fill", fill_value=0)

    @jax.vmap
    def to_tokens(y_ECD: Any, experts_TJ: Any, slot_TJ: Any) -> Any:
        return y_ECD.at[experts_TJ, slot_TJ].get(mode="fill", fill_value=0)

    def linear(x_ERI: Any, weights: Weights) -> Any:
        y_ERO = jnp.einsum("ERI,EIO->ERO", x_ERI, weights.kernel.astype(x_ERI.dtype))
        return y_ERO if weights.bias is None else y_ERO + weights.bias.astype(x_ERI.dtype)[:, None]

    x_EBCD = to_experts(x_BTD, experts_BTJ, slot_BTJ).swapaxes(0, 1)
    x_EBCD = constrain(x_EBCD, "expert", "batch", "length", "embed")
    y_ERD = _feed_forward(config, weights, x_EBCD.reshape(config.num_experts, B * slots, -1), linear, rng)
    y_EBCD = constrain(y_ERD.reshape(x_EBCD.shape), "expert", "batch", "length", "embed")
    return to_tokens(y_EBCD.swapaxes(0, 1), experts_BTJ, slot_BTJ), slot_BTJ < slots


DISPATCHES: dict[str, Callable[..., Any]] = {"dropless": dropless, "capacity": capacity}
"""What a name in ``model.expert_dispatch`` means."""


def capacity_slots(
    config: ModelConfig, experts_BTJ: Int[Array, "B T J"], present_BT: Bool[Array, "B T"]
) -> tuple[Int[Array, "B T J"], int]:
    """The slot of each token in each of its experts, and the number C of slots there are; a token without has slot C.

    An expert takes ``ceil(expert_capacity_factor * n * J / E)`` of the n tokens of a row that are no padding, those
    that come first: a token's last choice goes before a later token's first one, so that no token displaces an earlier
    one. Of the tokens after it a token learns only n, never what they are; of the other rows, nothing.

    Reference: Lepikhin et al., GShard (2020), algorithm 1, and Fedus et al. 2021, section 2.2. Both count over a group
    of several rows, and GShard serves all first choices before any second one.
    """
    T = experts_BTJ.shape[1]
    numbers = np.arange(T + 1)
    share = config.expert_capacity_factor * numbers * config.experts_per_token / config.num_experts
    capacities = np.minimum(np.ceil(share.round(6)), numbers).astype(np.int32)  # rounded: 1.1 * 10 is above 11
    slots = int(capacities[-1])
    capacity_B = jnp.asarray(capacities)[present_BT.sum(axis=1)]
    chosen_BTE = jax.nn.one_hot(experts_BTJ, config.num_experts, dtype=jnp.int32).sum(axis=2) * present_BT[..., None]
    earlier_BTE = jnp.cumsum(chosen_BTE, axis=1) - chosen_BTE
    slot_BTJ = jnp.take_along_axis(earlier_BTE, experts_BTJ, axis=-1)
    served_BTJ = present_BT[..., None] & (slot_BTJ < capacity_B[:, None, None])
    return jnp.where(served_BTJ, slot_BTJ, slots), slots


def routing_sums(
    routing: Routing, present_BT: Bool[Array, "B T"], served_BTJ: Bool[Array, "B T J"]
) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
    """Losses and statistics of one layer as pairs (sum, count), over the tokens that are no padding.

    With n such tokens, f_e the share of expert e in their n J choices, made before any was dropped, and P_e the mean of
    its probability, the pairs are

    - ``load_balancing``: (n E sum_e f_e P_e, n). 1 if f or P is even, E if all tokens go to one expert and J = 1. It
      is no sum over tokens: parts of a batch give the mean of theirs, not that of the whole.
    - ``router_z``: (sum of logsumexp(logits)^2, n).
    - ``router_bias``, sigmoid only: (0, n), with gradient n gamma sign(f_e - 1 / E) for the bias of expert e. Any
      optimizer then lowers the bias of an expert above the mean load and raises one below.
    - ``expert_load_max``: (n E max_e f_e, n). 1 is even, E / J the worst.
    - ``dropped_share``: (choices dropped, n J).
    - ``router_entropy``: (sum of the entropies of the probabilities in nats, n). At most log E.

    The last three have no gradient. Sums of pairs over layers and batches weight each by its tokens.

    Reference: load balancing as Fedus et al. 2021, equation 4, which is for J = 1; with sigmoid, P is of the scores
    divided by their sum, as DeepSeek-V3, equation 19. Zoph et al., ST-MoE (2022), equation 5 (router_z). DeepSeek-V3,
    section 2.1.2 (router_bias), which adds gamma sign itself after the step: here momentum, learning rate and schedule
    have their part in it; Adam and Lion undo the gamma, which keeps the signs out of the norm that clipping sees.
    """
    E, J = routing.logits.shape[-1], routing.experts.shape[-1]
    present_BT1 = present_BT[..., None]
    count = jnp.sum(present_BT, dtype=jnp.float32)
    divisor = jnp.maximum(count, 1)
    choices_E = jnp.sum(jax.nn.one_hot(routing.experts, E) * present_BT1[..., None], axis=(0, 1, 2))
    share_E = lax.stop_gradient(choices_E / (divisor * J))
    probability_E = jnp.sum(routing.probabilities * present_BT1, axis=(0, 1)) / divisor
    z_BT = jnp.square(jax.nn.logsumexp(routing.logits, axis=-1))
    entropy_BT = jnp.sum(jax.scipy.special.entr(lax.stop_gradient(routing.probabilities)), axis=-1)
    dropped = jnp.sum(present_BT1 & ~served_BTJ, dtype=jnp.float32)
    sums = {
        "load_balancing": (count * E * jnp.sum(share_E * probability_E), count),
        "router_z": (jnp.sum(z_BT * present_BT), count),
        "expert_load_max": (count * E * jnp.max(share_E), count),
        "dropped_share": (dropped, count * J),
        "router_entropy": (jnp.sum(entropy_BT * present_BT), count),
    }
    if routing.bias is not None:
        overload_E = BIAS_UPDATE_SPEED * jnp.sign(choices_E * E - count * J)
        # Less its own value: the reported loss does not contain it.
        sums["router_bias"] = (count * jnp.sum(overload_E * (routing.bias - lax.stop_gradient(routing.bias))), count)
    return sums


def _activation(config: ModelConfig) -> Activation:
    return one_of("model.activation", config.activation, ACTIVATIONS)


def _feed_forward(
    config: ModelConfig, weights: dict[str, Weights], x: Any, linear: Callable[..., Any], rng: Optional[Any]
) -> Any:
    """``FeedForward`` over rows that ``linear`` multiplies each by the matrix of its expert."""
    activation = _activation(config)
    hidden = linear(x, weights["up"])
    if activation.gated:
        hidden *= activation.function(linear(x, weights["gate"]))
    else:
        hidden = activation.function(hidden)
    return linear(dropout(hidden, config.activation_dropout_rate, rng), weights["down"])


def _on_each_device(run: Callable[..., Any], weights: Any, x_BTD: Any, experts_BTJ: Any, rng: Any) -> Any:
    """``run`` on each device's own rows of the batch.

    Left to the partitioner, one sort over the tokens of all devices would bring every token to every device.
    """
    mesh = jax.sharding.get_abstract_mesh()
    spec: Any = nn.logical_to_mesh_axes(("batch",))
    axis = spec[0]
    if mesh.empty or axis is None or x_BTD.shape[0] % mesh.shape[axis]:
        return run(weights, x_BTD, experts_BTJ, rng)

    def run_shard(weights: Any, x_BTD: Any, experts_BTJ: Any, rng: Any) -> Any:
        return run(weights, x_BTD, experts_BTJ, None if rng is None else jax.random.fold_in(rng, lax.axis_index(axis)))

    rows, whole = PartitionSpec(axis), PartitionSpec()
    return jax.shard_map(run_shard, in_specs=(whole, rows, rows, whole), out_specs=rows, axis_names={axis})(
        weights, x_BTD, experts_BTJ, rng
    )


def _add_pairs(old: tuple[Any, Any], new: tuple[Any, Any]) -> tuple[Any, Any]:
    return old[0] + new[0], old[1] + new[1]
