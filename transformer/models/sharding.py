"""Where activations lie on the mesh: a no-op until a trainer enters a mesh and the table of logical axes."""

from typing import Any

import flax.linen as nn
import jax
from flax.linen.spmd import RulesFallback


def constrain(x: Any, *names: str) -> Any:
    """Pin the axes of an activation, or of a table that may still be NumPy's, named as in ``training/partitioning.py``.

    A name that is not there is an error.
    """
    return nn.with_logical_constraint(x, names, fallback=RulesFallback.RAISE_ERROR)


def shared_over(name: str) -> tuple[str, ...]:
    """The axes of the mesh, of more than one device, that share out a logical axis; none without a mesh and a table."""
    spec: Any = nn.logical_to_mesh_axes((name,))
    found = (spec[0],) if isinstance(spec[0], str) else spec[0] or ()
    sizes = jax.sharding.get_abstract_mesh().shape
    return tuple(axis for axis in found if sizes.get(axis, 1) > 1)


def count_shares(axes: tuple[str, ...]) -> int:
    """How many devices stand along some axes of the mesh that is entered."""
    sizes = jax.sharding.get_abstract_mesh().shape
    number = 1
    for axis in axes:
        number *= sizes[axis]
    return number
