"""Layouts only move numbers: each function is undone by the other, and the shape they state is the one they give."""

import numpy as np
import pytest

from transformer.interop.layouts import as_is, conv1d, expected_shape, flat, fused, leading, linear, transposed

CASES = {
    "as_is": (as_is, [(5, 7)], (5, 7)),
    "flat": (flat, [(3, 5)], (15,)),
    "linear": (linear(), [(7, 3, 5)], (15, 7)),
    "linear, two inputs": (linear(2), [(3, 5, 7)], (7, 15)),
    "conv1d": (conv1d(), [(7, 3, 5)], (7, 15)),
    "conv1d, two inputs": (conv1d(2), [(3, 5, 7)], (15, 7)),
    "transposed": (transposed(3, 2, 0, 1), [(2, 3, 5, 7)], (7, 5, 2, 3)),
    "leading": (leading(2), [(7,)], (1, 1, 7)),
    "fused rows": (fused(linear(), axis=0), [(7, 3, 5), (7, 1, 5), (7, 2, 5)], (30, 7)),
    "fused columns": (fused(conv1d(), axis=1), [(7, 3, 5), (7, 3, 5)], (7, 30)),
    "fused biases": (fused(flat, axis=0), [(3, 5), (1, 5)], (20,)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_function_undoes_the_other(name):
    layout, shapes, expected = CASES[name]
    rng = np.random.default_rng(0)
    ours = tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)
    theirs = layout.to_theirs(ours)
    assert theirs.shape == expected == expected_shape(layout, tuple(shapes))
    back = layout.to_ours(theirs, tuple(shapes))
    assert [array.shape for array in back] == shapes
    assert all(np.array_equal(a, b) for a, b in zip(ours, back, strict=True))
    assert sorted(theirs.ravel()) == sorted(np.concatenate([array.ravel() for array in ours]))


def test_a_linear_of_torch_multiplies_from_the_right():
    rng = np.random.default_rng(0)
    weight, x = rng.normal(size=(15, 7)), rng.normal(size=(2, 7))
    (kernel,) = linear().to_ours(weight, ((7, 3, 5),))
    np.testing.assert_allclose(np.einsum("bd,dhk->bhk", x, kernel), (x @ weight.T).reshape(2, 3, 5))
    weight, x = rng.normal(size=(7, 15)), rng.normal(size=(2, 3, 5))
    (kernel,) = linear(2).to_ours(weight, ((3, 5, 7),))
    np.testing.assert_allclose(np.einsum("bhk,hkd->bd", x, kernel), x.reshape(2, 15) @ weight.T)
