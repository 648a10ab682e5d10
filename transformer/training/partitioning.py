"""The mesh of devices, and the one table from logical axes to mesh axes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax.experimental.mesh_utils import create_hybrid_device_mesh
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.config import MESH_AXES, MeshConfig, ModelConfig
from transformer.types import Params, UserError

ROW_AXES = ("data", "fsdp", "expert")
"""The axes of the mesh that share the rows of a batch."""

Rules = tuple[tuple[str, str | tuple[str, ...] | None], ...]

LOGICAL_AXES: Rules = (
    ("batch", ROW_AXES),
    ("length", "sequence"),
    ("positions", None),  # of a table of them
    ("features", None),  # the model's width in activations and vectors
    ("layers", None),
    ("embed", "fsdp"),  # the model's width in matrices
    ("embed_output", None),
    ("heads", "tensor"),
    ("kv_heads", "tensor"),
    ("head_dim", None),
    ("mlp", "tensor"),
    ("vocabulary", "tensor"),
    ("classes", None),
    ("buckets", None),
    ("expert", "expert"),
)
"""Where each named axis of a parameter or an activation lies. None: on every device whole.

With ``fsdp`` each device holds a part of every parameter, gathers those of a layer when it computes it, and sums
gradients into its own part. Reference: Rajbhandari et al., ZeRO (2020), stage 3. With ``tensor`` it computes a part of
each layer's heads and hidden units, and sums of activations go around. Reference: Shoeybi et al., Megatron-LM (2019).
"""

EVALUATION_AXES: Rules = tuple((name, None if name == "length" else axis) for name, axis in LOGICAL_AXES)
"""The same for evaluation and inference, whose rows have any length."""


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The devices, all or the first that the config asks for, along the axes ``MESH_AXES``.

    Slices of TPUs, which a network joins, stand one after the other along ``data``.

    Args:
      config: sizes of the axes.
      devices: to choose from; None: those of this process and its peers.

    Raises:
      UserError: if there are fewer devices than asked for, those along the axes that are stated do not divide all, or
        ``data`` does not divide over the slices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = {axis: getattr(config, axis) for axis in MESH_AXES}
    stated = {axis: size for axis, size in sizes.items() if size != -1}
    asked = " * ".join(f"mesh.{axis}={size}" for axis, size in stated.items() if size > 1) or "mesh.data=1"
    number = math.prod(stated.values())
    there = f"there are {len(devices)} {devices[0].platform} devices"
    if number > len(devices):
        raise UserError(f"{asked} but {there}; use at most these")
    if len(stated) < len(sizes):
        if len(devices) % number:
            raise UserError(f"{asked} does not divide the devices, of which {there[len('there are ') :]} are there")
        sizes |= {axis: len(devices) // number for axis in sizes.keys() - stated.keys()}
    types = (jax.sharding.AxisType.Auto,) * len(sizes)
    number = math.prod(sizes.values())
    if jax.process_count() > 1 and number < len(devices):
        raise UserError(f"{asked} leaves devices out, of which {there}; with several processes all must have a part")
    slices = count_slices(devices[:number])
    if slices == 1:
        return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types, devices=devices[:number])
    if sizes["data"] % slices or number < len(devices):
        raise UserError(f"{asked}: {slices} slices share the rows of mesh.data; make it a multiple of {slices}")
    outer = {axis: slices if axis == "data" else 1 for axis in sizes}
    inner = tuple(size // outer[axis] for axis, size in sizes.items())
    return Mesh(create_hybrid_device_mesh(inner, tuple(outer.values()), devices), tuple(sizes), axis_types=types)


def count_slices(devices: Sequence[jax.Device]) -> int:
    """How many slices of TPUs they are; other devices are one."""
    return len({getattr(device, "slice_index", 0) if device.platform == "tpu" else 0 for device in devices})


def count_row_shards(mesh: Mesh) -> int:
    """Among how many devices, or groups of devices, the rows of a batch are shared out."""
    return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def require_even_shares(config: ModelConfig, mesh: Mesh) -> None:
    """See that the sizes of a model divide over the mesh, before there are data or parameters.

    Raises:
      UserError: for one that does not.
    """
    sizes = {
        "d_model": ("fsdp", config.d_model),
        "num_heads": ("tensor", config.num_heads),
        "num_kv_heads": ("tensor", config.kv_heads),
        "d_ff": ("tensor", config.d_ff),
        "num_experts": ("expert", config.num_experts),
    }
    if mesh.shape["expert"] > 1 and not config.num_experts:
        raise UserError(f"mesh.expert={mesh.shape['expert']} but model.num_experts=0: there are no experts to share")
    for key, (axis, size) in sizes.items():
        if size % mesh.shape[axis]:
            raise UserError(
                f"model.{key}={size} is no multiple of mesh.{axis}={mesh.shape[axis]}, the devices that share it evenly"
            )


def unbox(boxed: Params) -> Params:
    """Plain arrays. Flax's own ``unbox`` would also pin each to its axes, which the shardings of the state do."""
    return jax.tree.map(lambda leaf: leaf.value, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def parameter_shardings(mesh: Mesh, boxed: Params) -> Params:
    """A sharding for every parameter, from the logical names that ``init`` boxed it with.

    Raises:
      ValueError: for a parameter without names, or a name that the table lacks.
      UserError: for an axis that the devices cannot share evenly.
    """
    table: dict[str | None, Any] = {None: None, **dict(LOGICAL_AXES)}

    def sharding(path: Any, leaf: Any) -> NamedSharding:
        if not isinstance(leaf, nn.LogicallyPartitioned):
            raise ValueError(f"parameter {jax.tree_util.keystr(path)} has no logical axis names")
        for name, size in zip(leaf.names, leaf.value.shape, strict=True):
            if name not in table:
                raise ValueError(f"parameter {jax.tree_util.keystr(path)}: no logical axis is called {name!r}")
            axis = table[name]
            if axis is not None and size % mesh.shape[axis]:
                least = -(-size // mesh.shape[axis]) * mesh.shape[axis]
                remedy = f"; set model.vocab_size={least}" if name == "vocabulary" else ""
                raise UserError(
                    f"the axis {name} of parameter {jax.tree_util.keystr(path, simple=True, separator='/')} has "
                    f"{size}, no multiple of mesh.{axis}={mesh.shape[axis]}{remedy}"
                )
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


class RowShare(NamedTuple):
    """The rows of a batch that are this process's to build.

    num_rows  of the batch on all devices, filled up
    rows      of them, those that its devices hold
    copies    processes that hold the same rows, this one included
    """

    num_rows: int
    rows: slice
    copies: int


def row_share(mesh: Mesh, num_rows: int, multiple: int = 1) -> RowShare:
    """Which rows this process builds of a batch.

    Args:
      num_rows: of the batch; they are filled up to a multiple of their shares times ``multiple``.
      multiple: the number of parts in which it is computed.
    """
    filled = num_rows + -num_rows % (count_row_shards(mesh) * multiple)
    bounds: dict[int, tuple[int, int]] = {}
    places: Any = NamedSharding(mesh, PartitionSpec(ROW_AXES)).devices_indices_map((filled,))
    for device, (rows,) in places.items():
        start, stop, _ = rows.indices(filled)
        first, last = bounds.get(device.process_index, (start, stop))
        bounds[device.process_index] = min(first, start), max(last, stop)
    own = bounds[jax.process_index()]
    return RowShare(filled, slice(*own), list(bounds.values()).count(own))


def place_batch(mesh: Mesh, batch: Any, multiple: int = 1, share: RowShare | None = None) -> Any:
    """A batch of NumPy arrays on the devices, its rows shared out.

    Rows are filled up to a multiple of their shares times ``multiple`` with zeros, which are padding of weight 0: the
    plan of batches never depends on the number of devices.

    Args:
      share: of the batch, if it is not there whole: it begins with the first row of the share.
    """
    place = NamedSharding(mesh, PartitionSpec(ROW_AXES))
    share = share or row_share(mesh, len(jax.tree.leaves(batch)[0]), multiple)

    def placed(array: np.ndarray) -> Any:
        missing = share.rows.stop - share.rows.start - len(array)
        if missing:
            array = np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
        if jax.process_count() == 1:
            return jax.device_put(array, place)

        def of_device(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(share.num_rows)
            return array[start - share.rows.start : stop - share.rows.start]

        return jax.make_array_from_callback((share.num_rows, *array.shape[1:]), place, of_device)

    return jax.tree.map(placed, batch)
