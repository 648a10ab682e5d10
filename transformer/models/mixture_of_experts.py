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
from transformer.models.intermediates import keep
from transformer.models.sharding import count_shares, shared_over
from transformer.types import UserError, one_of

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
    """

    experts: Any
    weights: Any
    logits: Any
    probabilities: Any


class Statistics(NamedTuple):
    """Sums over the tokens of a layer that are no padding, in float32.

    count          []   of the tokens
    choices        [E]  how often each expert was chosen, before any choice was dropped
    probabilities  [E]
    z              []   of logsumexp(logits)^2
    entropy        []   of the probabilities, in nats
    dropped        []   choices of experts that were full
    """

    count: Any
    choices: Any
    probabilities: Any
    z: Any
    entropy: Any
    dropped: Any


class Weights(NamedTuple):
    """Of one linear map for each expert, or of the router.

    kernel  [E, I, O]; the router's [D, E]
    bias    [E, O] or None; the router's [E]
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
        present_BT = jnp.broadcast_to(True if present_BT is None else present_BT, x_BTD.shape[:2])
        x_BTD = jnp.where(present_BT[..., None], x_BTD, 0)
        router = Router(config, name="router")()
        keep(self, "routing", lambda: route(config, router, x_BTD)[:2])
        weights = Experts(config, self.init_scale, name="experts")()
        rng = self.make_rng("dropout") if config.activation_dropout_rate and not deterministic else None
        y_BTD, statistics = _on_each_device(config, router, weights, x_BTD, present_BT, rng)
        if config.d_ff_shared:
            shared = FeedForward(config, d_ff=config.d_ff_shared, init_scale=self.init_scale, name="shared")
            y_BTD += shared(x_BTD.astype(config.dtype), deterministic)

        if self.is_mutable_collection("sums") and not self.is_initializing():
            for name, pair in routing_sums(config, statistics, router.bias).items():
                self.sow("sums", name, pair, init_fn=lambda: (0.0, 0.0), reduce_fn=_add_pairs)
        return jnp.where(present_BT[..., None], y_BTD, 0)


class Router(nn.Module):
    """The router's parameters: a matrix [D, E], and under ``sigmoid`` a bias [E].

    Both lie whole on every device: each needs the logits of all experts, and the matrix is small.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self) -> Weights:
        config = self.config
        initializer = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        kernel = self.param(
            "kernel",
            nn.with_logical_partitioning(initializer, ("features", None)),
            (config.d_model, config.num_experts),
            jnp.float32,
        )
        if config.expert_router != "sigmoid":
            return Weights(kernel, None)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), (None,))
        return Weights(kernel, self.param("bias", zeros, (config.num_experts,), jnp.float32))


def route(config: ModelConfig, router: Weights, x_BTD: Float[Array, "B T D"]) -> Routing:
    """Score every expert for every token, and choose."""
    log_score = one_of("model.expert_router", config.expert_router, ROUTERS)
    # Accelerators would round the factors of a float32 product.
    logits_BTE = jnp.einsum("BTD,DE->BTE", x_BTD.astype(jnp.float32), router.kernel, precision=lax.Precision.HIGHEST)
    log_scores_BTE = log_score(logits_BTE)
    ranks_BTE = log_scores_BTE if router.bias is None else jnp.exp(log_scores_BTE) + router.bias
    _, experts_BTJ = lax.top_k(lax.stop_gradient(ranks_BTE), config.experts_per_token)
    chosen_BTJ = jnp.take_along_axis(log_scores_BTE, experts_BTJ, axis=-1)
    # A softmax of logarithms divides by the sum, and has no 0 / 0 where all scores underflow.
    switch = config.expert_router == "softmax" and config.experts_per_token == 1
    weights_BTJ = jnp.exp(chosen_BTJ) if switch else jax.nn.softmax(chosen_BTJ)
    return Routing(experts_BTJ, weights_BTJ, logits_BTE, jax.nn.softmax(log_scores_BTE))


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
        axes = (self.axes[0], "features" if self.axes[2] == "embed" else self.axes[2])
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), axes)
        return Weights(kernel, self.param("bias", zeros, (self.shape[0], self.shape[2]), jnp.float32))


class MeshAxes(NamedTuple):
    """Along which axes of the mesh a function is run by each device on its own part; none: on the whole, by all.

    rows     share the rows of a batch
    length   share the length of each row
    experts  share the experts; these are among those of the rows
    hidden   share the hidden units of each expert
    """

    rows: tuple[str, ...] = ()
    length: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


def dropless(
    config: ModelConfig,
    weights: dict[str, Weights],
    x_BTD: Float[Array, "B T D"],
    routing: Routing,
    present_BT: Bool[Array, "B T"],
    rng: Optional[PRNGKeyArray],
    axes: MeshAxes,
) -> tuple[Float[Array, "B T D"], Bool[Array, "B T J"]]:
    """What a token's experts give, by their weights: rows sorted by expert, one ragged product a matrix.

    Padding goes through its experts like any token, as it does through a plain feed-forward: so on one device the
    groups cover all rows. Where devices share the experts, each is given the tokens of all of them, computes those that
    chose its own, and their sums go back.

    Reference: Gale et al., MegaBlocks (2023).
    """
    served_BTJ = jnp.broadcast_to(present_BT[..., None], routing.experts.shape)
    experts_BTJ, weights_BTJ = routing.experts, routing.weights
    number = config.num_experts
    if axes.experts:
        x_BTD, experts_BTJ, weights_BTJ = (
            lax.all_gather(array, axes.experts, tiled=True) for array in (x_BTD, experts_BTJ, weights_BTJ)
        )
        number //= lax.axis_size(axes.experts)
        experts_BTJ = experts_BTJ - lax.axis_index(axes.experts) * number

    expert_R = experts_BTJ.reshape(-1)
    expert_R = jnp.where((expert_R >= 0) & (expert_R < number), expert_R, number)  # another device's: behind the last
    order_R = jnp.argsort(expert_R)
    expert_R = expert_R[order_R]
    sizes_E = jnp.bincount(expert_R, length=number)
    here_R1 = expert_R[:, None] < number

    def linear(x_RI: Any, weights: Weights, summed: tuple[str, ...] = ()) -> Any:
        y_RO = _summed(lax.ragged_dot(x_RI, weights.kernel.astype(x_RI.dtype), sizes_E), summed)
        return y_RO if weights.bias is None else y_RO + weights.bias.astype(x_RI.dtype)[expert_R]

    # What stands outside of all groups is up to the platform: it is kept out on both ways.
    rows_RD = jnp.where(here_R1, x_BTD.reshape(-1, config.d_model)[order_R // config.experts_per_token], 0)
    y_RD = jnp.where(here_R1, _feed_forward(config, weights, rows_RD, linear, rng, axes), 0)
    y_BTJD = y_RD[jnp.argsort(order_R)].reshape(*experts_BTJ.shape, config.d_model)
    y_BTD = _weighted(y_BTJD, weights_BTJ)
    if axes.experts:
        y_BTD = lax.psum_scatter(y_BTD, axes.experts, tiled=True)
    return y_BTD, served_BTJ


def capacity(
    config: ModelConfig,
    weights: dict[str, Weights],
    x_BTD: Float[Array, "B T D"],
    routing: Routing,
    present_BT: Bool[Array, "B T"],
    rng: Optional[PRNGKeyArray],
    axes: MeshAxes,
) -> tuple[Float[Array, "B T D"], Bool[Array, "B T J"]]:
    """What a token's experts give, by their weights, zeros where one was full: C slots of each expert in each row.

    All shapes are static, and the experts are a batch dimension of plain products. Devices that share the experts
    exchange the slots of all rows.
    """
    if axes.length:
        raise UserError(
            "model.expert_dispatch=capacity counts over whole rows, which mesh.sequence shares; use dropless"
        )
    T, experts_BTJ = x_BTD.shape[1], routing.experts
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

    def linear(x_ERI: Any, weights: Weights, summed: tuple[str, ...] = ()) -> Any:
        y_ERO = _summed(jnp.einsum("ERI,EIO->ERO", x_ERI, weights.kernel.astype(x_ERI.dtype)), summed)
        return y_ERO if weights.bias is None else y_ERO + weights.bias.astype(x_ERI.dtype)[:, None]

    x_EBCD = to_experts(x_BTD, experts_BTJ, slot_BTJ).swapaxes(0, 1)
    if axes.experts:  # from all experts for the own rows to the own experts for all rows
        x_EBCD = lax.all_to_all(x_EBCD, axes.experts, 0, 1, tiled=True)
    rows_ERD = x_EBCD.reshape(x_EBCD.shape[0], -1, config.d_model)
    y_EBCD = _feed_forward(config, weights, rows_ERD, linear, rng, axes).reshape(x_EBCD.shape)
    if axes.experts:
        y_EBCD = lax.all_to_all(y_EBCD, axes.experts, 1, 0, tiled=True)
    y_BTJD = to_tokens(y_EBCD.swapaxes(0, 1), experts_BTJ, slot_BTJ)
    return _weighted(y_BTJD, routing.weights), slot_BTJ < slots


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


def statistics_of(routing: Routing, present_BT: Bool[Array, "B T"], served_BTJ: Bool[Array, "B T J"]) -> Statistics:
    """Of some rows; those of more are their sum."""
    E = routing.logits.shape[-1]
    present_BT1 = present_BT[..., None]
    entropy_BT = jnp.sum(jax.scipy.special.entr(lax.stop_gradient(routing.probabilities)), axis=-1)
    return Statistics(
        count=jnp.sum(present_BT, dtype=jnp.float32),
        choices=jnp.sum(jax.nn.one_hot(routing.experts, E) * present_BT1[..., None], axis=(0, 1, 2)),
        probabilities=jnp.sum(routing.probabilities * present_BT1, axis=(0, 1)),
        z=jnp.sum(jnp.square(jax.nn.logsumexp(routing.logits, axis=-1)) * present_BT),
        entropy=jnp.sum(entropy_BT * present_BT),
        dropped=jnp.sum(present_BT1 & ~served_BTJ, dtype=jnp.float32),
    )


def routing_sums(
    config: ModelConfig, statistics: Statistics, bias_E: Optional[Float[Array, "E"]]
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
    E, J = config.num_experts, config.experts_per_token
    count, choices_E, probabilities_E, z, entropy, dropped = statistics
    divisor = jnp.maximum(count, 1)
    share_E = lax.stop_gradient(choices_E / (divisor * J))
    sums = {
        "load_balancing": (count * E * jnp.sum(share_E * probabilities_E / divisor), count),
        "router_z": (z, count),
        "expert_load_max": (count * E * jnp.max(share_E), count),
        "dropped_share": (dropped, count * J),
        "router_entropy": (entropy, count),
    }
    if bias_E is not None:
        overload_E = BIAS_UPDATE_SPEED * jnp.sign(choices_E * E - count * J)
        # Less its own value: the reported loss does not contain it.
        sums["router_bias"] = (count * jnp.sum(overload_E * (bias_E - lax.stop_gradient(bias_E))), count)
    return sums


def _activation(config: ModelConfig) -> Activation:
    return one_of("model.activation", config.activation, ACTIVATIONS)


def _feed_forward(
    config: ModelConfig,
    weights: dict[str, Weights],
    x: Any,
    linear: Callable[..., Any],
    rng: Optional[Any],
    axes: MeshAxes,
) -> Any:
    """``FeedForward`` over rows that ``linear`` multiplies each by the matrix of its expert."""
    activation = _activation(config)
    hidden = linear(x, weights["up"])
    if activation.gated:
        hidden *= activation.function(linear(x, weights["gate"]))
    else:
        hidden = activation.function(hidden)
    return linear(dropout(hidden, config.activation_dropout_rate, rng), weights["down"], axes.hidden)


def _summed(products: Any, axes: tuple[str, ...]) -> Any:
    return lax.psum(products, axes) if axes else products


def _weighted(y_BTJD: Any, weights_BTJ: Any) -> Any:
    return jnp.einsum("BTJD,BTJ->BTD", y_BTJD.astype(jnp.float32), weights_BTJ).astype(y_BTJD.dtype)


def _mixture(
    config: ModelConfig,
    router: Weights,
    weights: dict[str, Weights],
    x_BTD: Any,
    present_BT: Any,
    rng: Any,
    axes: MeshAxes,
) -> tuple[Any, Statistics]:
    """What the experts give for some rows, and the statistics of the whole batch."""
    routing = route(config, router, x_BTD)
    dispatch = one_of("model.expert_dispatch", config.expert_dispatch, DISPATCHES)
    y_BTD, served_BTJ = dispatch(config, weights, x_BTD.astype(config.dtype), routing, present_BT, rng, axes)
    statistics = statistics_of(routing, present_BT, served_BTJ)
    return y_BTD, jax.tree.map(lambda leaf: _summed(leaf, (*axes.rows, *axes.length)), statistics)


def _on_each_device(
    config: ModelConfig, router: Weights, weights: dict[str, Weights], x_BTD: Any, present_BT: Any, rng: Any
) -> tuple[Any, Statistics]:
    """``_mixture`` by each device on its own rows, experts and hidden units; as it is where no mesh is entered.

    Left to the partitioner, one sort over the tokens of all devices would bring every token to every device, and the
    weights of all experts too.
    """
    axes = MeshAxes(*(shared_over(name) for name in ("batch", "length", "expert", "mlp")))
    if not any(axes) or x_BTD.shape[0] % count_shares(axes.rows):
        return _mixture(config, router, weights, x_BTD, present_BT, rng, MeshAxes())

    def run(router: Weights, weights: Any, x_BTD: Any, present_BT: Any, rng: Any) -> Any:
        if rng is not None:
            rng = jax.random.fold_in(rng, lax.axis_index((*axes.rows, *axes.length, *axes.hidden)))
        return _mixture(config, router, weights, x_BTD, present_BT, rng, axes)

    rows, whole = PartitionSpec(axes.rows, axes.length), PartitionSpec()
    inward = Weights(PartitionSpec(axes.experts, None, axes.hidden), PartitionSpec(axes.experts, axes.hidden))
    outward = Weights(PartitionSpec(axes.experts, axes.hidden), PartitionSpec(axes.experts))
    places = {name: outward if name == "down" else inward for name in weights}
    if not config.feed_forward_bias:
        places = {name: place._replace(bias=None) for name, place in places.items()}
    return jax.shard_map(run, in_specs=(whole, places, rows, rows, whole), out_specs=(rows, whole))(
        router, weights, x_BTD, present_BT, rng
    )


def _add_pairs(old: tuple[Any, Any], new: tuple[Any, Any]) -> tuple[Any, Any]:
    return old[0] + new[0], old[1] + new[1]
