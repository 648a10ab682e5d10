"""Scores and outputs of rows on all devices: what evaluation and inference share, on one device and on many hosts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from transformer.models.sharding import count_shares, shared_over

_before_each: ContextVar[Callable[[], None]] = ContextVar("_before_each", default=lambda: None)


@contextmanager
def before_each_batch(call: Callable[[], None]) -> Iterator[None]:
    """While entered, call this before every batch of rows; every host does so, at the same batches."""
    token = _before_each.set(call)
    try:
        yield
    finally:
        _before_each.reset(token)


def by_rows(function: Callable[..., Any], model: Any, params: Any, rows: Any, **options: Any) -> Any:
    """What a compiled function gives for rows, in NumPy: ``function(model, params, *rows, **options)``.

    On a mesh the rows are shared out over its devices; rows of zeros, which must be padding to the function, fill up
    what cannot be shared evenly, and their results are dropped. Every host calls it with all rows and has all results.

    Args:
      function: compiled; all that it gives has the rows first.
      rows: a tuple of trees of NumPy arrays, rows first.
      options: of the function; they are not shared out.
    """
    _before_each.get()()
    number = len(jax.tree.leaves(rows)[0])
    mesh = jax.sharding.get_mesh()
    if mesh.empty or mesh.size == 1:
        return jax.device_get(function(model, params, *rows, **options))
    axes = shared_over("batch")
    place = NamedSharding(mesh, PartitionSpec(axes))

    def shared(array: np.ndarray) -> jax.Array:
        missing = -len(array) % count_shares(axes)
        filled = np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
        return jax.make_array_from_callback(filled.shape, place, lambda index: filled[index])

    found = function(model, params, *jax.tree.map(shared, rows), **options)
    several = jax.process_count() > 1
    found = multihost_utils.process_allgather(found, tiled=True) if several else jax.device_get(found)
    return jax.tree.map(lambda array: array[:number], found)


def lower_by_rows(function: Callable[..., Any], model: Any, params: Any, rows: Any, **options: Any) -> Any:
    """The program that :func:`by_rows` would run, lowered for the mesh that is entered; nothing runs.

    Args:
      params: abstract, each where it lies.
      rows: as there, but only their shapes are used.
    """
    axes = shared_over("batch")
    place = NamedSharding(jax.sharding.get_mesh(), PartitionSpec(axes))

    def shared(array: np.ndarray) -> jax.ShapeDtypeStruct:
        filled = len(array) + -len(array) % count_shares(axes)
        return jax.ShapeDtypeStruct((filled, *array.shape[1:]), array.dtype, sharding=place)

    return function.lower(model, params, *jax.tree.map(shared, rows), **options)  # type: ignore[attr-defined]
