"""Each scheme by what it is for: distances, and numbers that its paper or its published code gives."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.models import oracle
from transformer.config import ModelConfig
from transformer.models.attention.biases import alibi_slopes, distance_buckets
from transformer.models.positions import position_encoding, rotary_frequencies, rotate

CONFIG = ModelConfig(d_model=24, num_heads=3, position_encoding="rotary")


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rotated_products_depend_on_the_distance_only(fraction):
    config = dataclasses.replace(CONFIG, rotary_fraction=fraction)
    rng = np.random.default_rng(0)
    query, key = (jnp.asarray(rng.normal(size=(1, 1, 3, 8)), jnp.float32) for _ in range(2))

    @jax.jit
    def product(query_position, key_position):
        scheme = position_encoding(config, bidirectional=True)
        turned = [
            rotate(x, scheme.rotation(jnp.full((1, 1), position)))
            for x, position in ((query, query_position), (key, key_position))
        ]
        return jnp.einsum("bthk,bshk->h", *turned)

    for distance in (0, 3, 11):
        at_the_start = product(distance, 0)
        np.testing.assert_allclose(product(distance + 517, 517), at_the_start, rtol=1e-3, atol=1e-3)
    assert not np.allclose(product(3, 0), product(0, 3), atol=1e-2)
    scheme = position_encoding(config, bidirectional=True)
    np.testing.assert_array_equal(rotate(query, scheme.rotation(jnp.zeros((1, 1), jnp.int32))), query)


def test_a_rotation_is_a_product_of_complex_numbers():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 5, 3, 8)).astype(np.float32)
    positions = rng.integers(0, 400, (2, 5))
    got = rotate(jnp.asarray(x), position_encoding(CONFIG, bidirectional=False).rotation(jnp.asarray(positions)))
    frequencies = 10_000.0 ** (-np.arange(4) / 4)
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * positions[..., None, None] * frequencies)
    np.testing.assert_allclose(got, np.concatenate([turned.real, turned.imag], -1), atol=2e-4)


def test_angles_are_float32_under_bfloat16():
    """At position 4,097 bfloat16 could not tell neighbours apart."""
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    x = jnp.ones((1, 2, 3, 8), jnp.bfloat16)
    rotation = position_encoding(config, bidirectional=False).rotation(jnp.array([[4_096, 4_097]]))
    turned = rotate(x, rotation)
    assert turned.dtype == jnp.bfloat16 and rotation.cosines.dtype == jnp.float32
    assert not np.allclose(turned[:, 0].astype(jnp.float32), turned[:, 1].astype(jnp.float32), atol=0.1)


@pytest.mark.parametrize(
    ("changes", "expected", "factor"),
    [
        (
            {"rotary_scaling": "linear", "rotary_scaling_factor": 4.0},
            [0.25, 0.079056941, 0.025, 0.0079056947, 0.0025, 0.00079056947, 0.00025, 7.9056947e-05],
            1.0,
        ),
        (
            {"rotary_scaling": "llama3", "rotary_scaling_factor": 8.0, "rotary_original_length": 256},
            [1.0, 0.31622776, 0.1, 0.0066131069, 0.00125, 0.00039528473, 0.000125, 3.9528473e-05],
            1.0,
        ),
        (
            {"rotary_scaling": "yarn", "rotary_scaling_factor": 4.0, "rotary_original_length": 256},
            [1.0, 0.25693506, 0.0625, 0.013834965, 0.0025, 0.00079056947, 0.00025, 7.9056947e-05],
            1.138629436111989,
        ),
        (
            {"rotary_scaling": "yarn", "rotary_scaling_factor": 16.0, "rotary_original_length": 4_096},
            [1.0, 0.31622776, 0.1, 0.024211189, 0.0053125, 0.00093880121, 6.25e-05, 1.9764237e-05],
            1.2772588722239782,
        ),
    ],
)
def test_scaled_frequencies_are_those_of_published_code(changes, expected, factor):
    """``ROPE_INIT_FUNCTIONS`` of transformers 5.24 with rope_theta 10,000 and one head of 16 components."""
    config = ModelConfig(d_model=16, num_heads=1, position_encoding="rotary", **changes)
    frequencies, got_factor = rotary_frequencies(config)
    np.testing.assert_allclose(frequencies, expected, rtol=2e-5)
    assert got_factor == pytest.approx(factor, rel=1e-6)


def test_scaling_stretches_slow_frequencies_and_spares_fast_ones():
    def frequencies(**changes):
        config = ModelConfig(
            d_model=64, num_heads=1, rotary_scaling_factor=8.0, rotary_original_length=256, **changes
        )  # fmt: skip
        return rotary_frequencies(config)[0]

    plain = frequencies()
    np.testing.assert_allclose(frequencies(rotary_scaling="linear"), plain / 8, rtol=1e-6)
    for scaling in ("ntk", "llama3", "yarn"):
        found = frequencies(rotary_scaling=scaling)
        assert found[0] == pytest.approx(plain[0], rel=1e-6)
        assert found[-1] == pytest.approx(plain[-1] / 8, rel=1e-5)
        assert (np.diff(found) < 0).all()
    assert rotary_frequencies(
        ModelConfig(d_model=8, num_heads=1, rotary_scaling="yarn", rotary_scaling_factor=8.0)
    )[1] == pytest.approx(0.1 * math.log(8) + 1)  # fmt: skip


@given(
    st.integers(-500, 500), st.sampled_from([4, 8, 12, 32]), st.sampled_from([20, 128, 300]), st.booleans()
)  # fmt: skip
def test_buckets_of_distances(distance, buckets, furthest, bidirectional):
    exact = buckets // (4 if bidirectional else 2)
    place = math.log(max(abs(distance), 1) / exact) / math.log(furthest / exact) * exact
    assume(abs(place - round(place)) > 1e-4)  # on the border of two buckets the logarithm's last digit decides
    got = int(distance_buckets(jnp.asarray(distance), buckets, bidirectional=bidirectional, max_distance=furthest))
    assert got == oracle.bucket(distance, buckets, bidirectional, furthest)
    assert 0 <= got < buckets


def test_t5_buckets_of_its_defaults():
    """32 buckets up to 128: distances 0 to 7 have their own, the last one begins at 91."""
    bucket = functools.partial(distance_buckets, num_buckets=32, bidirectional=True, max_distance=128)
    before, after = jnp.array([0, -1, -7, -8, -11, -12, -90, -91, -500]), jnp.array([1, 7, 8, 90, 91, 500])
    assert bucket(before).tolist() == [0, 1, 7, 8, 8, 9, 14, 15, 15]
    assert bucket(after).tolist() == [17, 23, 24, 30, 31, 31]
    causal = functools.partial(distance_buckets, num_buckets=32, bidirectional=False, max_distance=128)
    assert causal(jnp.array([5, 0, -1, -15, -16, -112, -113, -500])).tolist() == [0, 0, 1, 15, 16, 30, 31, 31]


def test_slopes_of_the_paper():
    np.testing.assert_allclose(alibi_slopes(8), [2.0**-n for n in range(1, 9)])
    np.testing.assert_allclose(alibi_slopes(16)[:3], [2**-0.5, 2**-1, 2**-1.5])
    np.testing.assert_allclose(alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])


def test_learned_positions_end_with_the_table():
    config = dataclasses.replace(CONFIG, position_encoding="learned", max_positions=5)
    scheme = position_encoding(config, bidirectional=False)
    x, positions = jnp.zeros((1, 4, 24)), jnp.array([[-1, 0, 4, 5]])
    variables = scheme.init(jax.random.key(0), x, positions, method="add")
    encoded = scheme.apply(variables, x, positions, method="add")
    assert np.isnan(encoded[0]).all(axis=-1).tolist() == [False, False, False, True]
    assert variables["params"]["embedding"].value.shape == (5, 24)
