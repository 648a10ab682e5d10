"""Mixture of experts: equal to a loop over tokens, causal, blind to batch mates and padding; what it reports."""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import MeshConfig, ModelConfig
from transformer.models.feed_forward import FeedForward
from transformer.models.mixture_of_experts import MixtureOfExperts, capacity_slots
from transformer.training.partitioning import LOGICAL_AXES, ROW_AXES, make_mesh, unbox
from transformer.training.state import count_active_parameters

B, T, D, F, E, SHARED = 4, 11, 7, 13, 5, 17  # 4 rows: as many as devices
CONFIG = ModelConfig(
    d_model=D, d_ff=F, num_experts=E, experts_per_token=2, d_ff_shared=SHARED, expert_capacity_factor=0.7
)
DISPATCHES, ROUTERS = ("dropless", "capacity"), ("softmax", "sigmoid")
PAIRS = tuple(zip(DISPATCHES, ROUTERS, strict=True))
PRESENT = np.arange(T) < np.array([[11], [7], [1], [0]])
EVERYWHERE = np.ones((B, T), bool)
LOSSES = ("load_balancing", "router_z", "router_bias")


def config(**changes) -> ModelConfig:
    return dataclasses.replace(CONFIG, **changes)


@functools.lru_cache
def params_of(model_config: ModelConfig):
    """Biases are moved off their zeros."""
    module = MixtureOfExperts(model_config)
    params = unbox(jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros((1, 1, D)), None, True)))["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: np.float32(rng.normal(size=leaf.shape) * 0.5), params)


@functools.partial(jax.jit, static_argnames=("model_config",))
def run(model_config, params, x, present, dropout_rng=None):
    """The output and the sums."""
    rngs = {} if dropout_rng is None else {"dropout": dropout_rng}
    y, collected = MixtureOfExperts(model_config).apply(
        {"params": params}, x, present, dropout_rng is None, mutable=("sums",), rngs=rngs
    )
    return y, collected["sums"]


@functools.partial(jax.jit, static_argnames=("model_config",))
def run_with_gradients(model_config, params, x, present, cotangent, weights):
    """Output and sums, and the gradients of y . cotangent + weights . sums for parameters and input."""

    def loss(params, x):
        y, sums = run(model_config, params, x, present)
        return jnp.sum(y * cotangent) + sum(weights[name] * pair[0] for name, pair in sums.items()), (y, sums)

    grads, (y, sums) = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)
    return y, sums, *grads


def weights_of(*names):
    every = (*LOSSES, "expert_load_max", "dropped_share", "router_entropy")
    return {name: np.float32(name in names) for name in every}


def inputs(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(*shape, D)).astype(np.float32)


X, COTANGENT = inputs(B, T), inputs(B, T, seed=1)


def with_bias(params, bias):
    return {**params, "router": {**params["router"], "bias": np.float32(bias)}}


def assert_trees_close(a, b, **tolerance):
    jax.tree.map(lambda left, right: np.testing.assert_allclose(left, right, **tolerance), a, b)


def oracle(model_config, params, x, present):
    """One token and one expert at a time, in float64: the output, each token's experts, the choices dropped."""
    params = jax.tree.map(np.float64, params)
    J = model_config.experts_per_token
    expert = [jax.tree.map(lambda leaf, e=e: leaf[e], params["experts"]) for e in range(E)]

    def feed_forward(weights, vector):
        def linear(name, vector):
            return vector @ weights[name]["kernel"] + weights[name].get("bias", 0)

        if model_config.activation == "swiglu":
            gate = linear("gate", vector)
            return linear("down", gate / (1 + np.exp(-gate)) * linear("up", vector))
        return linear("down", np.maximum(linear("up", vector), 0))

    y, chosen_by, dropped = np.zeros(x.shape), {}, 0
    for b in range(x.shape[0]):
        room = math.inf
        if model_config.expert_dispatch == "capacity":
            room = math.ceil(model_config.expert_capacity_factor * present[b].sum() * J / E)
        load = [0] * E
        for t in np.flatnonzero(present[b]):
            logits = x[b, t] @ params["router"]["kernel"]
            if model_config.expert_router == "softmax":
                scores = np.exp(logits) / np.exp(logits).sum()
                chosen = np.argsort(-scores)[:J]
                total = scores[chosen].sum() if J > 1 else 1
            else:
                scores = 1 / (1 + np.exp(-logits))
                chosen = np.argsort(-(scores + params["router"]["bias"]))[:J]
                total = scores[chosen].sum()
            chosen_by[b, t] = chosen
            y[b, t] = feed_forward(params["shared"], x[b, t])
            for e in chosen:
                if load[e] < room:
                    load[e] += 1
                    y[b, t] += scores[e] / total * feed_forward(expert[e], x[b, t])
                else:
                    dropped += 1
    return y, chosen_by, dropped


def shares(chosen_by):
    choices = np.concatenate(list(chosen_by.values()))
    return np.bincount(choices, minlength=E) / choices.size


@pytest.mark.parametrize(
    ("dispatch", "router", "activation"), [("dropless", "softmax", "relu"), ("capacity", "sigmoid", "swiglu")]
)
def test_with_one_expert_it_is_the_feed_forward(dispatch, router, activation):
    mixture = config(
        activation=activation,
        num_experts=1,
        experts_per_token=1,
        expert_dispatch=dispatch,
        expert_router=router,
        expert_capacity_factor=1.0,
        d_ff_shared=0,
    )
    params = params_of(mixture)
    y, _, grads, x_grad = run_with_gradients(mixture, params, X, EVERYWHERE, COTANGENT, weights_of())

    def plain(params, x):
        y = FeedForward(mixture).apply({"params": params}, x, True)
        return jnp.sum(y * COTANGENT), y

    of_one = jax.tree.map(lambda leaf: leaf[0], params["experts"])
    expected, expected_y = jax.jit(jax.grad(plain, argnums=(0, 1), has_aux=True))(of_one, X)
    np.testing.assert_allclose(y, expected_y, atol=1e-5)
    assert_trees_close((jax.tree.map(lambda leaf: leaf[0], grads["experts"]), x_grad), expected, rtol=1e-5, atol=1e-5)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(grads["router"]))


@pytest.mark.parametrize(
    ("dispatch", "router", "chosen", "others"),
    [
        ("dropless", "softmax", 2, {}),
        ("dropless", "sigmoid", 2, {}),
        ("capacity", "softmax", 2, {}),
        ("capacity", "sigmoid", 2, {}),
        ("dropless", "softmax", 1, {"activation": "swiglu"}),
        ("capacity", "sigmoid", 5, {"activation": "swiglu", "feed_forward_bias": False}),
    ],
)
def test_equals_a_loop_over_tokens(dispatch, router, chosen, others):
    mixture = config(expert_dispatch=dispatch, expert_router=router, experts_per_token=chosen, **others)
    params = params_of(mixture)
    expected, chosen_by, dropped = oracle(mixture, params, X, PRESENT)
    y, sums = run(mixture, params, X, PRESENT)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert sums["dropped_share"] == (dropped, PRESENT.sum() * chosen)
    assert (dropped > 0) == (dispatch == "capacity")
    total, count = sums["expert_load_max"]
    np.testing.assert_allclose(total / count, shares(chosen_by).max() * E, rtol=1e-5)


def test_ample_capacity_is_dropless():
    ample = config(expert_dispatch="capacity", expert_capacity_factor=float(E))
    arguments = params_of(CONFIG), X, PRESENT, COTANGENT, weights_of(*LOSSES)
    assert_trees_close(
        run_with_gradients(CONFIG, *arguments), run_with_gradients(ample, *arguments), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("dispatch", "router"), PAIRS)
def test_no_gradient_from_later_tokens_or_other_rows(dispatch, router):
    mixture = config(expert_dispatch=dispatch, expert_router=router)
    for b, t in np.ndindex(B, T):
        cotangent = np.zeros_like(X)
        cotangent[b, t] = 1
        *_, x_grad = run_with_gradients(mixture, params_of(mixture), X, EVERYWHERE, cotangent, weights_of())
        seen = np.abs(x_grad).sum(-1) > 0
        assert list(np.argwhere(seen).ravel()) == [b, t]  # itself, through the shared expert even where it was dropped


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_no_later_token_or_batch_mate_changes_an_output(dispatch, router):
    """A gradient does not see who displaces whom: here tokens are replaced, one and all after it, or whole rows."""
    mixture = config(expert_dispatch=dispatch, expert_router=router)
    params = params_of(mixture)
    y, sums = run(mixture, params, X, EVERYWHERE)
    assert (sums["dropped_share"][0] > 3 * B) == (dispatch == "capacity")
    for other in (inputs(B, T, seed=seed) for seed in range(3, 9)):
        for t in range(T):
            got, _ = run(mixture, params, np.concatenate([X[:, :t], other[:, t:]], axis=1), EVERYWHERE)
            np.testing.assert_allclose(got[:, :t], y[:, :t], atol=1e-5)
        for b in range(B):
            got, _ = run(mixture, params, np.where(np.arange(B)[:, None, None] == b, X, other), EVERYWHERE)
            np.testing.assert_allclose(got[b], y[b], atol=1e-5)
            assert np.abs(got[b - 1] - y[b - 1]).max() > 0.1


def test_slots_are_given_out_token_by_token():
    """Capacity ceil(1.0 * 5 * 2 / 5) = 2: the second choice of token 1 takes what the first of token 3 would want."""
    experts = jnp.array([[[0, 1], [2, 0], [4, 3], [0, 3], [3, 2], [1, 3]]])
    present = jnp.array([[True, True, False, True, True, True]])
    slot, slots = capacity_slots(config(expert_capacity_factor=1.0), experts, present)
    assert slots == 3  # as many as six tokens would need
    np.testing.assert_array_equal(slot, [[[0, 0], [0, 1], [3, 3], [3, 0], [1, 1], [1, 3]]])


@pytest.mark.parametrize(("factor", "tokens", "capacity"), [(1.1, 25, 11), (1.1, 26, 12), (9.0, 7, 7), (0.01, 7, 1)])
def test_capacity_is_rounded_up(factor, tokens, capacity):
    experts, present = jnp.zeros((1, tokens, 2), jnp.int32).at[..., 1].set(3), jnp.ones((1, tokens), bool)
    slot, slots = capacity_slots(config(expert_capacity_factor=factor), experts, present)
    assert slots == capacity
    assert (slot[0, :, 0] < slots).sum() == capacity


@pytest.mark.parametrize(("dispatch", "router"), PAIRS)
def test_padding_changes_nothing(dispatch, router):
    mixture = config(expert_dispatch=dispatch, expert_router=router)
    params, weights = params_of(mixture), weights_of(*LOSSES)
    y, sums, grads, x_grad = run_with_gradients(mixture, params, X, PRESENT, COTANGENT, weights)
    y, x_grad = np.asarray(y), np.asarray(x_grad)
    assert not y[~PRESENT].any()
    assert not x_grad[~PRESENT].any()

    # One more row, and columns on both sides, so that padding is first, last and in between; filled with NaN.
    wider = np.pad(PRESENT, ((0, 1), (4, 3)))
    x, cotangent = np.full((*wider.shape, D), np.nan, np.float32), np.full((*wider.shape, D), 7, np.float32)
    x[wider], cotangent[wider] = X[PRESENT], COTANGENT[PRESENT]
    wider_y, wider_sums, wider_grads, wider_x_grad = run_with_gradients(mixture, params, x, wider, cotangent, weights)
    wider_y, wider_x_grad = np.asarray(wider_y), np.asarray(wider_x_grad)
    np.testing.assert_allclose(wider_y[wider], y[PRESENT], atol=1e-5)
    np.testing.assert_allclose(wider_x_grad[wider], x_grad[PRESENT], rtol=1e-4, atol=1e-4)
    assert_trees_close((wider_sums, wider_grads), (sums, grads), rtol=1e-4, atol=1e-4)
    assert not wider_y[~wider].any()
    assert not wider_x_grad[~wider].any()


@pytest.mark.parametrize(("dispatch", "router"), PAIRS)
def test_a_batch_of_padding_gives_zeros(dispatch, router):
    mixture = config(expert_dispatch=dispatch, expert_router=router)
    everything = run_with_gradients(mixture, params_of(mixture), X, ~EVERYWHERE, COTANGENT, weights_of(*LOSSES))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(everything))


def test_dropless_is_one_ragged_product_a_matrix():
    for activation, matrices in (("relu", 2), ("swiglu", 3)):
        mixture = config(activation=activation)
        params = params_of(mixture)
        names, sizes = _operations(jax.make_jaxpr(functools.partial(run, mixture))(params, X, PRESENT).jaxpr)
        assert names.count("ragged_dot_general") == matrices
        assert max(sizes) < E * B * T * F
        grads = jax.make_jaxpr(functools.partial(run_with_gradients, mixture))(
            params, X, PRESENT, COTANGENT, weights_of(*LOSSES)
        )
        names, sizes = _operations(grads.jaxpr)
        assert names.count("ragged_dot_general") == 3 * matrices
        assert max(sizes) < E * B * T * F


def _operations(jaxpr):
    """The names of all primitives of a program, and the sizes of all arrays that it makes."""
    names, sizes = [], []
    for equation in jaxpr.eqns:
        names.append(equation.primitive.name)
        sizes += [math.prod(variable.aval.shape) for variable in equation.outvars]
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(inner, "eqns"):
                inner_names, inner_sizes = _operations(inner)
                names, sizes = names + inner_names, sizes + inner_sizes
    return names, sizes


def test_load_balancing_is_one_when_even_and_the_number_of_experts_at_collapse():
    mixture = config(experts_per_token=1, activation="swiglu")
    params = params_of(mixture)
    params = {**params, "router": {"kernel": 30 * np.eye(D, E, dtype=np.float32)}}
    tokens = np.arange(B * T).reshape(B, T)
    present = (tokens < 4 * E) & EVERYWHERE
    n = 4 * E
    for expert_of_token, loss in ((tokens % E, 1), (tokens * 0, E)):
        x = np.eye(D, dtype=np.float32)[expert_of_token]
        _, sums = run(mixture, params, x, present)
        assert float(sums["load_balancing"][0] / n) == pytest.approx(loss, rel=1e-5)
        assert float(sums["expert_load_max"][0] / n) == pytest.approx(loss, rel=1e-5)
        assert float(sums["router_entropy"][0] / n) == pytest.approx(0, abs=1e-5)
    params["router"]["kernel"] *= 0
    _, sums = run(mixture, params, x, present)
    assert float(sums["load_balancing"][0] / n) == pytest.approx(1)
    assert float(sums["router_entropy"][0] / n) == pytest.approx(math.log(E))
    assert float(sums["router_z"][0] / n) == pytest.approx(math.log(E) ** 2)


@pytest.mark.parametrize("router", ROUTERS)
def test_losses_and_statistics_are_their_formulas(router):
    mixture = config(expert_router=router)
    params = params_of(mixture)
    _, chosen_by, _ = oracle(mixture, params, X, PRESENT)
    _, sums = run(mixture, params, X, PRESENT)
    logits = np.float64(X[PRESENT]) @ params["router"]["kernel"]
    scores = np.exp(logits) if router == "softmax" else 1 / (1 + np.exp(-logits))
    probabilities = scores / scores.sum(-1, keepdims=True)
    n = PRESENT.sum()
    share = shares(chosen_by)
    expected = {
        "load_balancing": E * (share * probabilities.mean(0)).sum() * n,
        "router_z": (np.log(np.exp(logits).sum(-1)) ** 2).sum(),
        "router_bias": 0,
        "expert_load_max": E * share.max() * n,
        "dropped_share": 0,
        "router_entropy": -(probabilities * np.log(probabilities)).sum(),
    }
    for name, (total, count) in sums.items():
        assert float(total) == pytest.approx(expected[name], rel=1e-5), name
        assert count == (2 * n if name == "dropped_share" else n)
    assert set(expected) - set(sums) == (set() if router == "sigmoid" else {"router_bias"})


def test_losses_train_the_router_alone_and_statistics_nothing():
    mixture = config(expert_dispatch="capacity", expert_router="sigmoid")
    trained = {"load_balancing": {"router/kernel"}, "router_z": {"router/kernel"}, "router_bias": {"router/bias"}}
    for name in weights_of():
        arguments = params_of(mixture), X, PRESENT, 0 * COTANGENT, weights_of(name)
        grads = run_with_gradients(mixture, *arguments)[2]
        moved = {
            jax.tree_util.keystr(path, simple=True, separator="/")
            for path, leaf in jax.tree_util.tree_leaves_with_path(grads)
            if np.asarray(leaf).any()
        }
        assert moved == trained.get(name, set()), name


def test_the_sigmoid_bias_decides_who_is_chosen_but_not_the_weights():
    mixture = config(expert_router="sigmoid")
    params = params_of(mixture)
    y, _ = run(mixture, params, X, EVERYWHERE)
    params = with_bias(params, [0, 3, 0, 3, 0])
    forced, sums = run(mixture, params, X, EVERYWHERE)
    expected, chosen_by, _ = oracle(mixture, params, X, EVERYWHERE)
    assert all(set(chosen) == {1, 3} for chosen in chosen_by.values())
    np.testing.assert_allclose(forced, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(forced - y).max() > 0.1
    total, count = sums["expert_load_max"]
    assert total / count == E / 2
    # Other biases with which the same two are chosen.
    np.testing.assert_allclose(run(mixture, with_bias(params, [0, 9, 0, 5, 0]), X, EVERYWHERE)[0], forced, atol=1e-5)


def test_the_gradient_of_the_sigmoid_bias_evens_out_the_load():
    mixture = config(expert_dispatch="capacity", expert_router="sigmoid")
    params, bias, loads = params_of(mixture), np.float32([0, 0.5, 0, 0.2, -0.5]), []

    def run_with(bias, cotangent):
        arguments = with_bias(params, bias), X, EVERYWHERE, cotangent, weights_of("router_bias")
        _, sums, grads, _ = run_with_gradients(mixture, *arguments)
        return sums, np.asarray(grads["router"]["bias"])

    for _ in range(40):
        sums, grad = run_with(bias, 0 * COTANGENT)
        loads.append(float(sums["expert_load_max"][0] / sums["expert_load_max"][1]))
        bias = bias - 0.02 * np.sign(grad)
    assert loads[0] > 1.6
    assert np.mean(loads[-5:]) < 1.2

    # With everything on two of the five, the signs are known. The output adds nothing to them.
    _, grad = run_with([0, 3, 0, 3, 0], COTANGENT)
    np.testing.assert_allclose(grad, B * T * 0.001 * np.array([-1, 1, -1, 1, -1]), rtol=1e-5)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_bfloat16_is_close_to_float32_and_routes_the_same(dispatch):
    wide = config(expert_dispatch=dispatch)
    narrow = dataclasses.replace(wide, dtype="bfloat16")
    params = params_of(wide)
    y, sums = run(wide, params, X, PRESENT)
    narrow_y, narrow_sums = run(narrow, params, X, PRESENT)
    assert narrow_y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(narrow_y), y, rtol=0.03, atol=0.1)
    assert_trees_close(narrow_sums, sums, rtol=1e-6)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(narrow_sums))


@pytest.mark.parametrize(
    "sizes", [{"data": 4}, {"data": 2, "expert": 2}, {"data": 1, "expert": 2, "tensor": 2}], ids=str
)
@pytest.mark.parametrize(("dispatch", "router"), PAIRS)
def test_devices_change_nothing(dispatch, router, sizes):
    mixture = config(expert_dispatch=dispatch, expert_router=router, num_experts=6, d_ff=14)
    params, weights = params_of(mixture), weights_of(*LOSSES)
    expected = run_with_gradients(mixture, params, X, PRESENT, COTANGENT, weights)
    mesh = make_mesh(MeshConfig(**sizes))
    assert mesh.devices.size == B
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(ROW_AXES))
    with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXES):
        x, present, cotangent = (jax.device_put(array, rows) for array in (X, PRESENT, COTANGENT))
        got = run_with_gradients(mixture, params, x, present, cotangent, weights)
        program = str(jax.make_jaxpr(functools.partial(run, mixture))(params, x, present))
    assert_trees_close(got, expected, rtol=1e-4, atol=1e-4)
    exchange = {"dropless": "all_gather", "capacity": "all_to_all"}[dispatch]
    assert "shard_map" in program and (exchange in program) == ("expert" in sizes)


def test_dropout_is_of_its_own_on_every_row_and_device():
    x, key, other_key = np.tile(X[:1], (B, 1, 1)), jax.random.key(0), jax.random.key(1)
    for dispatch, mesh in zip(DISPATCHES, (make_mesh(MeshConfig()), make_mesh(MeshConfig(data=1))), strict=True):
        mixture = config(expert_dispatch=dispatch, activation_dropout_rate=0.5, d_ff_shared=0)
        with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXES):
            y, other = (np.asarray(run(mixture, params_of(mixture), x, EVERYWHERE, k)[0]) for k in (key, other_key))
        assert all(np.abs(y[a] - y[b]).max() > 0.01 for a in range(B) for b in range(a))
        assert not np.array_equal(y, other)


def test_sums_are_stacked_over_scanned_layers_and_sown_only_when_asked_for():
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + MixtureOfExperts(CONFIG)(x, None, True), None

    stack = nn.scan(
        Layer,
        variable_axes={"params": 0, "sums": 0},
        split_rngs={"params": True},
        length=2,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )()
    variables = jax.eval_shape(stack.init, jax.random.key(0), X, None)
    assert set(variables) == {"params"}
    _, collected = jax.eval_shape(functools.partial(stack.apply, mutable=("sums",)), variables, X, None)
    (sums,) = collected["sums"].values()
    assert set(sums) == {"load_balancing", "router_z", "expert_load_max", "dropped_share", "router_entropy"}
    assert all(part.shape == (2,) for pair in sums.values() for part in pair)
    assert jax.eval_shape(functools.partial(stack.apply, mutable=()), variables, X, None)[1] == {}


def test_parameters_are_named_for_sharding_and_scaled():
    mixture = config(activation="swiglu", expert_router="sigmoid", d_ff_shared=17)
    boxed = jax.eval_shape(lambda: MixtureOfExperts(mixture).init(jax.random.key(0), jnp.zeros((1, 1, D)), None, True))[
        "params"
    ]
    leaves = jax.tree_util.tree_leaves_with_path(boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/"): (leaf.value.shape, leaf.names) for path, leaf in leaves
    }
    assert all(leaf.value.dtype == jnp.float32 for _, leaf in leaves)
    assert found == {
        "experts/down/bias": ((E, D), ("expert", "features")),
        "experts/down/kernel": ((E, F, D), ("expert", "mlp", "embed")),
        "experts/gate/bias": ((E, F), ("expert", "mlp")),
        "experts/gate/kernel": ((E, D, F), ("expert", "embed", "mlp")),
        "experts/up/bias": ((E, F), ("expert", "mlp")),
        "experts/up/kernel": ((E, D, F), ("expert", "embed", "mlp")),
        "router/bias": ((E,), (None,)),
        "router/kernel": ((D, E), ("features", None)),
        "shared/down/bias": ((D,), ("features",)),
        "shared/down/kernel": ((17, D), ("mlp", "embed")),
        "shared/gate/bias": ((17,), ("mlp",)),
        "shared/gate/kernel": ((D, 17), ("embed", "mlp")),
        "shared/up/bias": ((17,), ("mlp",)),
        "shared/up/kernel": ((D, 17), ("embed", "mlp")),
    }

    def init(scale):
        module = MixtureOfExperts(mixture, scale)
        return unbox(jax.jit(lambda: module.init(jax.random.key(0), jnp.zeros((1, 1, D)), None, True))())["params"]

    plain, scaled = init(1.0), init(0.25)
    for name in ("experts", "shared"):
        assert_trees_close(scaled[name], jax.tree.map(lambda leaf: leaf * 0.25, plain[name]), rtol=1e-6)
    assert_trees_close(scaled["router"], plain["router"])
    limit = math.sqrt(6 / (D + F))
    assert 0.95 * limit < np.abs(plain["experts"]["up"]["kernel"]).max() <= limit


def test_active_parameters_leave_out_the_experts_that_a_token_does_not_visit():
    mixture = config(activation="swiglu", d_ff_shared=17)
    params = {"layers": params_of(mixture), "embedding": np.zeros((23, D))}
    of_one_expert = 2 * (D * F + F) + F * D + D
    shared = 2 * (D * 17 + 17) + 17 * D + D
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert total == 23 * D + D * E + shared + 5 * of_one_expert
    assert count_active_parameters(params, mixture) == 23 * D + D * E + shared + 2 * of_one_expert
    assert count_active_parameters(jax.eval_shape(lambda: params), mixture) == total - 3 * of_one_expert
