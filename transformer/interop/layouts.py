"""How one of their tensors holds one or several of our arrays: pairs of functions that move numbers and change none.

Our kernels have the axes of their inputs before those of their outputs: ``query/kernel`` is [D, H, K] and
``output/kernel`` [H, K, D]. A layout sees one layer at a time: the leading axis of layers, along which ours are
stacked, is taken off before and put back after.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Arrays = tuple[np.ndarray, ...]
Shapes = tuple[tuple[int, ...], ...]


class Layout(NamedTuple):
    """A pair of functions, each the other's inverse.

    to_theirs  our arrays, in the order of the row, to their tensor; also says, by its result's shape, what theirs must
               have
    to_ours    their tensor, of that shape, and the shapes of ours, to our arrays
    """

    to_theirs: Callable[[Arrays], np.ndarray]
    to_ours: Callable[[np.ndarray, Shapes], Arrays]


def _single(
    to_theirs: Callable[[np.ndarray], np.ndarray],
    to_ours: Callable[[np.ndarray, tuple[int, ...]], np.ndarray],
) -> Layout:
    """The layout of a tensor that holds one array of ours."""
    return Layout(lambda ours: to_theirs(ours[0]), lambda theirs, shapes: (to_ours(theirs, shapes[0]),))


as_is = _single(lambda ours: ours, lambda theirs, shape: theirs)
"""The same shape: embeddings, tables of positions, norms, most biases."""

flat = _single(lambda ours: ours.reshape(-1), lambda theirs, shape: theirs.reshape(shape))
"""All axes as one: biases of queries, keys and values, [H, K] to [H * K]."""


def linear(num_inputs: int = 1) -> Layout:
    """A kernel as in torch's Linear: [outputs, inputs].

    Args:
      num_inputs: axes of the kernel that are inputs: 2 for attention's ``output/kernel``, else 1.
    """
    return _single(lambda ours: _matrix(ours, num_inputs).T, lambda theirs, shape: theirs.T.reshape(shape))


def conv1d(num_inputs: int = 1) -> Layout:
    """A kernel as in GPT-2's Conv1D: [inputs, outputs]. ``num_inputs`` as for :func:`linear`."""
    return _single(lambda ours: _matrix(ours, num_inputs), lambda theirs, shape: theirs.reshape(shape))


def transposed(*axes: int) -> Layout:
    """Axis i of theirs is axis ``axes[i]`` of ours, as for kernels of convolutions."""
    inverse = tuple(int(axis) for axis in np.argsort(axes))
    return _single(lambda ours: ours.transpose(axes), lambda theirs, shape: theirs.transpose(inverse))


def leading(count: int) -> Layout:
    """Theirs has so many axes of size 1 before those of ours."""
    return _single(
        lambda ours: ours.reshape((1,) * count + ours.shape),
        lambda theirs, shape: theirs.reshape(shape),
    )


def fused(layout: Layout, axis: int) -> Layout:
    """Several arrays of ours, each laid out by ``layout``, one after the other along an axis of theirs.

    For example queries, keys and values in one: ``fused(linear(), axis=0)``.
    """

    def to_theirs(ours: Arrays) -> np.ndarray:
        return np.concatenate([layout.to_theirs((array,)) for array in ours], axis)

    def to_ours(theirs: np.ndarray, shapes: Shapes) -> Arrays:
        sizes = [expected_shape(layout, (shape,))[axis] for shape in shapes]
        parts = np.split(theirs, np.cumsum(sizes)[:-1], axis)
        return tuple(layout.to_ours(part, (shape,))[0] for part, shape in zip(parts, shapes, strict=True))

    return Layout(to_theirs, to_ours)


def expected_shape(layout: Layout, shapes: Shapes) -> tuple[int, ...]:
    """The shape of the tensor that holds arrays of these shapes."""
    return layout.to_theirs(tuple(np.empty(shape, np.int8) for shape in shapes)).shape


def _matrix(kernel: np.ndarray, num_inputs: int) -> np.ndarray:
    return kernel.reshape(math.prod(kernel.shape[:num_inputs]), -1)
