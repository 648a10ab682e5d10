"""The mesh of devices, and the one table from logical axes to mesh axes."""

from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.config import MeshConfig
from transformer.types import Params, UserError

LOGICAL_AXES: tuple[tuple[str, str | None], ...] = (
    ("batch", "data"),
    ("length", None),
    ("layers", None),
    ("embed", None),
    ("embed_output", None),
    ("embedding", None),
    ("heads", None),
    ("kv_heads", None),
    ("head_dim", None),
    ("mlp", None),
    ("vocabulary", None),
    ("buckets", None),
    ("expert", None),
)
"""Where each named axis of a parameter or an activation lies. None: on every device whole."""


def make_mesh(config: MeshConfig) -> Mesh:
    """All devices, or the first ``mesh.data`` of them, in one axis ``data``.

    Raises:
      UserError: if there are fewer devices than asked for.
    """
    devices = jax.devices()
    size = len(devices) if config.data == -1 else config.data
    if size > len(devices):
        raise UserError(
            f"mesh.data={size} but there are {len(devices)} {devices[0].platform} devices; use at most these"
        )
    return jax.make_mesh((size,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices[:size])


def unbox(boxed: Params) -> Params:
    """Plain arrays. Flax's own ``unbox`` would also pin each to its axes, which the shardings of the state do."""
    return jax.tree.map(lambda leaf: leaf.value, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def parameter_shardings(mesh: Mesh, boxed: Params) -> Params:
    """A sharding for every parameter, from the logical names that ``init`` boxed it with.

    Raises:
      ValueError: for a parameter without names, or a name that the table lacks.
    """
    table: dict[str | None, str | None] = {None: None, **dict(LOGICAL_AXES)}

    def sharding(path: Any, leaf: Any) -> NamedSharding:
        if not isinstance(leaf, nn.LogicallyPartitioned):
            raise ValueError(f"parameter {jax.tree_util.keystr(path)} has no logical axis names")
        for name in leaf.names:
            if name not in table:
                raise ValueError(f"parameter {jax.tree_util.keystr(path)}: no logical axis is called {name!r}")
        return NamedSharding(mesh, PartitionSpec(*(table[name] for name in leaf.names)))

    return jax.tree_util.tree_map_with_path(
        sharding, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    )


def state_shardings(mesh: Mesh, state: Any, params: Params, shardings: Params) -> Any:
    """Shardings for a pytree that holds copies of the parameters' tree (optimiser moments) and scalars.

    A leaf whose path ends in a parameter's path, and that has its shape, lies where the parameter lies; the rest is
    on every device.
    """
    known = {
        jax.tree_util.keystr(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True
        )
    }

    def sharding(path: Any, leaf: Any) -> NamedSharding:
        for start in range(len(path)):
            shape, found = known.get(jax.tree_util.keystr(path[start:]), (None, None))
            if found is not None and shape == leaf.shape:
                return found
        return NamedSharding(mesh, PartitionSpec())

    return jax.tree_util.tree_map_with_path(sharding, state)


def place_batch(mesh: Mesh, batch: Any, multiple: int = 1) -> Any:
    """A batch of NumPy arrays on the devices, its rows shared out.

    Rows are filled up to a multiple of devices times ``multiple`` with zeros, which are padding of weight 0: the plan
    of batches never depends on the number of devices.
    """
    unit = mesh.devices.size * multiple

    def place(array: np.ndarray) -> Any:
        missing = -array.shape[0] % unit
        if missing:
            array = np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec("data")))

    return jax.tree.map(place, batch)
