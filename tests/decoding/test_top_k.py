import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer.decoding.top_k import CHUNK, k_largest

KINDS = ["smooth", "ascending", "ties", "mostly forbidden", "all forbidden"]
jitted = jax.jit(k_largest, static_argnums=1)


@pytest.mark.parametrize(("vocab_size", "k"), [(7, 3), (7, 7), (4 * CHUNK + 1, 1), (1009, 3), (1024, 5)])
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS))
@settings(max_examples=15)
def test_equals_lax_top_k(vocab_size, k, seed, kind):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((2, 3, vocab_size)).astype(np.float32)
    if kind == "ascending":
        values.sort()
    elif kind == "ties":
        values = np.round(values)
    elif kind == "mostly forbidden":
        values[rng.random(values.shape) < 0.997] = -np.inf
    elif kind == "all forbidden":
        values[:] = -np.inf
    for found, expected in zip(jitted(jnp.asarray(values), k), jax.lax.top_k(values, k), strict=True):
        np.testing.assert_array_equal(found, expected)
