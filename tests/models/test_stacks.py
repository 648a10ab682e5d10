"""What a stack computes again in the backward pass changes what is kept, and nothing else."""

import functools

import jax
import numpy as np
import pytest

from tests.models.small import NO_MASKS, config, model_and_params, tokens
from transformer.types import UserError

KINDS = {
    "one layer": ({}, ("attention", "layer")),
    "experts": ({"num_experts": 3}, ("layer",)),
    "pattern": (
        {"attention_window": 3, "attention_pattern": ("local", "global"), "num_decoder_layers": 2},
        ("attention",),
    ),
}


def loss(params, model):
    source, target = tokens(3, 5), tokens(3, 7, seed=1)
    rngs = {"dropout": jax.random.key(2)}
    logits, _ = model.apply(
        {"params": params}, source, target, NO_MASKS, deterministic=False, rngs=rngs, mutable=["sums"]
    )
    return (logits**2).mean()


def kept(model, params) -> int:
    """Bytes that the forward pass keeps."""
    residuals = jax.eval_shape(lambda params: jax.vjp(functools.partial(loss, model=model), params)[1], params)
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(residuals))


@pytest.mark.parametrize(("changes", "policies"), KINDS.values(), ids=KINDS)
def test_gradients_are_the_same_whatever_is_computed_again(changes, policies):
    def gradient(policy):
        model, params = model_and_params(config(rematerialize=policy, **changes))
        return jax.jit(jax.grad(loss), static_argnums=1)(params, model)

    expected = gradient("none")
    for policy in policies:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradient(policy), expected)


@pytest.mark.parametrize("changes", [changes for changes, _ in KINDS.values()], ids=KINDS)
def test_what_is_computed_again_is_not_kept(changes):
    none, attention, layer = (
        kept(*model_and_params(config(rematerialize=policy, **changes))) for policy in ("none", "attention", "layer")
    )
    assert layer < attention < none


def test_an_unknown_policy():
    with pytest.raises(UserError, match=r"model\.rematerialize=layers is not one of none, attention, layer"):
        model_and_params(config(rematerialize="layers"))
