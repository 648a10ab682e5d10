import numpy as np
import pytest

from transformer.decoding.length_penalty import length_penalties
from transformer.types import UserError


def test_values():
    # Wu et al. 2016, equation 14: lp(Y) = (5 + |Y|)^alpha / (5 + 1)^alpha.
    np.testing.assert_allclose(length_penalties("gnmt", 1.0, 7), [1, 7 / 6, 8 / 6, 9 / 6, 10 / 6, 11 / 6, 2], rtol=1e-6)
    np.testing.assert_allclose(length_penalties("gnmt", 0.6, 13)[-1], 18**0.6 / 6**0.6, rtol=1e-6)
    np.testing.assert_allclose(length_penalties("power", 2.0, 3), [1, 4, 9], rtol=1e-6)
    np.testing.assert_allclose(length_penalties("power", -1.0, 3), [1, 1 / 2, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize(("name", "alpha"), [("none", 3.0), ("gnmt", 0.0), ("power", 0.0)])
def test_no_penalty(name, alpha):
    np.testing.assert_array_equal(length_penalties(name, alpha, 5), np.ones(5))


@pytest.mark.parametrize("alpha", [1e3, -1e3, float("nan"), float("inf")])
def test_out_of_range(alpha):
    with pytest.raises(UserError, match="alpha="):
        length_penalties("power", alpha, 7)
