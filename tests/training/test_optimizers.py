"""Optimizers: first steps by hand, what decays, clipping, and that each of them learns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer.config import TrainingConfig
from transformer.training.optimizers import OPTIMIZERS, make_optimizer
from transformer.types import UserError

L, D, F = 2, 3, 5


def parameters() -> dict:
    random = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    return {
        "embedder": {"embedding": draw(7, D)},
        "layers": {  # stacked: the first axis is the layer
            "dense": {"kernel": draw(L, D, F), "bias": draw(L, F)},
            "norm": {"scale": draw(L, D), "bias": draw(L, D)},
        },
        "final_norm": {"scale": draw(D)},
    }


def config(**values) -> TrainingConfig:
    return TrainingConfig(**values)


def updates_of(c: TrainingConfig, gradients, params, rate=0.5):
    optimizer = make_optimizer(c, lambda step: rate)
    return jax.jit(lambda g, p: optimizer.update(g, optimizer.init(p), p)[0])(gradients, params)


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"adam"}))  # the config refuses weight decay under adam
def test_with_a_zero_gradient_only_kernels_and_embeddings_shrink(name):
    params = parameters()
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates = updates_of(config(optimizer=name, weight_decay=0.1), zeros, params)
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
        value = params
        for key in path:
            value = value[key.key]
        decays = path[-1].key in ("kernel", "embedding")
        np.testing.assert_allclose(update, -0.5 * 0.1 * value if decays else jnp.zeros_like(value), rtol=1e-6)


def test_adam_follows_its_algorithm_for_three_updates():
    c = config(optimizer="adam", beta1=0.9, beta2=0.98, epsilon=1e-3)
    rates = [0.1, 0.2, 0.4]
    optimizer = make_optimizer(c, lambda step: jnp.asarray(rates)[step])
    random = np.random.default_rng(1)
    weight = {"bias": jnp.asarray(random.normal(size=D), jnp.float32)}
    state = optimizer.init(weight)
    theta, m, v = np.asarray(weight["bias"], np.float64), 0.0, 0.0
    for t, learning_rate in enumerate(rates, start=1):
        g = random.normal(size=D)
        updates, state = optimizer.update({"bias": jnp.asarray(g, jnp.float32)}, state, weight)
        weight = optax.apply_updates(weight, updates)
        m = 0.9 * m + 0.1 * g
        v = 0.98 * v + 0.02 * g**2
        theta = theta - learning_rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-3)
        np.testing.assert_allclose(weight["bias"], theta, rtol=1e-5)


def test_adamw_is_adam_plus_the_decay_times_the_rate():
    params = parameters()
    gradients = jax.tree.map(lambda x: 0.1 * x + 0.3, params)
    plain = updates_of(config(optimizer="adam"), gradients, params)
    decayed = updates_of(config(optimizer="adamw", weight_decay=0.2), gradients, params)
    kernel = params["layers"]["dense"]["kernel"]
    difference = decayed["layers"]["dense"]["kernel"] - plain["layers"]["dense"]["kernel"]
    np.testing.assert_allclose(difference, -0.5 * 0.2 * kernel, atol=1e-6)
    np.testing.assert_array_equal(decayed["layers"]["norm"]["bias"], plain["layers"]["norm"]["bias"])


def test_lion_moves_by_the_sign():
    params = parameters()
    gradients = jax.tree.map(lambda x: x - 0.1, params)
    updates = updates_of(config(optimizer="lion"), gradients, params)
    jax.tree.map(lambda u, g: np.testing.assert_allclose(u, -0.5 * np.sign(g)), updates, gradients)


def test_adafactor_keeps_no_second_moment_of_the_size_of_a_large_stacked_kernel():
    params = {"kernel": jnp.ones((L, 131, 257)), "bias": jnp.ones((L, 257))}
    state = jax.eval_shape(make_optimizer(config(optimizer="adafactor"), lambda step: 0.01).init, params)
    sizes = [np.prod(leaf.shape) for leaf in jax.tree.leaves(state)]
    assert max(sizes) == L * 257


@pytest.mark.parametrize("norm", [0.5, 10.0])
def test_clipping_keeps_the_direction_and_bounds_the_global_norm(norm):
    params = parameters()
    gradients = jax.tree.map(lambda x: x * (norm / optax.tree.norm(params)), params)
    clipped = optax.clip_by_global_norm(2.0).update(gradients, optax.EmptyState())[0]
    assert optax.tree.norm(clipped) == pytest.approx(min(norm, 2.0), rel=1e-5)
    # Adam hides the scale of a gradient behind the root of its square; a large epsilon shows it.
    c = config(optimizer="adam", epsilon=1e6)
    with_clip = updates_of(config(optimizer="adam", epsilon=1e6, gradient_clip=2.0), gradients, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), with_clip, updates_of(c, clipped, params))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_learns_a_linear_map(name):
    random = np.random.default_rng(2)
    x, wanted = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((31, D), (D, F)))
    c = config(optimizer=name, beta2=0.98)
    optimizer = make_optimizer(c, optax.cosine_decay_schedule(0.1 if name != "adafactor" else 0.3, 200))
    params = {"kernel": jnp.asarray(random.normal(size=(D, F)), jnp.float32), "bias": jnp.zeros(F)}

    def loss(p):
        return jnp.mean((x @ p["kernel"] + p["bias"] - x @ wanted) ** 2)

    def step(_, carry):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    trained, _ = jax.jit(lambda p: jax.lax.fori_loop(0, 200, step, (p, optimizer.init(p))))(params)
    assert loss(trained) < 0.01 * loss(params)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UserError, match=r"training\.optimizer=adamm is not one of .*did you mean adam"):
        make_optimizer(config(optimizer="adamm"), lambda step: 0.1)


@pytest.mark.parametrize("name", ["adam", "adamw", "lion"])
def test_a_first_moment_in_half_the_memory_gives_nearly_the_same_updates(name):
    params = parameters()
    gradients = jax.tree.map(lambda x: 0.1 * x + 0.3, params)
    optimizer = make_optimizer(config(optimizer=name, moment_dtype="bfloat16"), lambda step: 0.5)
    updates, state = optimizer.update(gradients, optimizer.init(params), params)
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(state) if leaf.ndim}
    assert dtypes == ({"bfloat16"} if name == "lion" else {"bfloat16", "float32"})
    full = updates_of(config(optimizer=name), gradients, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.01), updates, full)
