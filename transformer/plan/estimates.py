"""What a step costs before it is compiled: enough to rank meshes, and called an estimate."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax

from transformer.config import VARIANTS, Config, ModelConfig
from transformer.plan.draft import Draft
from transformer.plan.roofline import Work
from transformer.training.partitioning import ROW_AXES

TRAFFIC_OF_ACTIVATION = 4  # what is kept is written and read once, and so is its gradient
BYTES = {"float32": 4, "bfloat16": 2}


class Sizes(NamedTuple):
    """Of a model and a batch; nothing of it depends on the mesh.

    parameters   numbers of them
    state_bytes  of parameters, optimizer and moving average, on a single device
    fixed_bytes  that the forward pass keeps whatever the number of rows: parameters in the compute dtype
    row_bytes    that it keeps for each row
    all_bytes    that it would keep for each row if nothing were rematerialised
    row_flops    of a row, forward and backward
    rows         of a batch, before it is filled up
    length       of its longer side
    """

    parameters: int
    state_bytes: float
    fixed_bytes: float
    row_bytes: float
    all_bytes: float
    row_flops: float
    rows: int
    length: int


def num_layers(config: ModelConfig) -> dict[str, int]:
    """Of each stack that the model has."""
    return {name: getattr(config, f"num_{name}_layers") for name in VARIANTS[config.variant][1]}


def repeated_flops(config: ModelConfig, length: int) -> float:
    """Of rematerialisation, in those of a row's forward and backward pass together; see ``model.rematerialize``."""
    if config.rematerialize == "none":
        return 0.0
    if config.rematerialize == "layer":
        return 1 / 3
    products = 2 * length * config.num_heads * (config.qk_head_size + config.head_size)
    maps = 2 * config.d_model * (2 * config.head_size * (config.num_heads + config.kv_heads) + 3 * config.d_ff)
    return products / (products + maps) / 3


def filled_rows(sizes: Sizes, mesh: Mapping[str, int], parts: int) -> int:
    """Of the batch, with those that fill it up."""
    unit = parts * math.prod(mesh[axis] for axis in ROW_AXES)
    return -(-sizes.rows // unit) * unit


def memory(sizes: Sizes, config: Config, mesh: Mapping[str, int], parts: int) -> float:
    """Bytes of a device: state, gradients, and what is kept for the backward pass."""
    shared = mesh["fsdp"] * mesh["tensor"]
    gradients = sizes.parameters * 4 * (2 if parts > 1 else 1) / shared
    rows = filled_rows(sizes, mesh, parts) / (parts * math.prod(mesh[axis] for axis in ROW_AXES))
    # Heads and hidden units are shared over tensor; the outputs of layers, about half of what is kept, are not.
    again = 0.0 if config.model.rematerialize == "none" else sizes.all_bytes / sum(num_layers(config.model).values())
    kept = rows * (sizes.row_bytes + again) / mesh["sequence"] * (0.5 + 0.5 / mesh["tensor"])
    return (sizes.state_bytes + sizes.fixed_bytes) / shared + gradients + kept


def work(sizes: Sizes, config: Config, mesh: Mapping[str, int], parts: int, slices: int = 1) -> Work:
    """What a device does in a step.

    Args:
      sizes: of model and batch.
      config: of the run.
      mesh: sizes of its axes.
      parts: in which a batch is computed.
      slices: along ``data``.
    """
    devices = math.prod(mesh.values())
    flops = (
        filled_rows(sizes, mesh, parts) * sizes.row_flops / devices * (1 + repeated_flops(config.model, sizes.length))
    )
    sent = sent_by_axis(sizes, config, mesh, parts)
    network = sent["data"] * (slices - 1) / max(mesh["data"] - 1, 1)
    return Work(flops, traffic(sizes, mesh, parts), sum(sent.values()) - network, network)


def traffic(sizes: Sizes, mesh: Mapping[str, int], parts: int) -> float:
    """Bytes that a device reads and writes in a step."""
    shared = mesh["fsdp"] * mesh["tensor"]
    activations = filled_rows(sizes, mesh, parts) * sizes.all_bytes / math.prod(mesh.values())
    weights = 2 * parts * sizes.parameters * 4 / mesh["tensor"]
    gradients = 2 * parts * sizes.parameters * 4 / shared
    return TRAFFIC_OF_ACTIVATION * activations + weights + gradients + 2 * sizes.state_bytes / shared


def sent_by_axis(sizes: Sizes, config: Config, mesh: Mapping[str, int], parts: int) -> dict[str, float]:
    """Bytes that a device sends in a step along each axis of the mesh, by the table in ``training/partitioning.py``."""
    model = config.model
    width = BYTES[model.dtype]
    ring = {axis: (size - 1) / size for axis, size in mesh.items()}
    shares = math.prod(mesh[axis] for axis in ROW_AXES) * mesh["sequence"]
    layers = num_layers(model)
    tokens = filled_rows(sizes, mesh, parts) * sizes.length / shares
    held = parts * sizes.parameters * width / mesh["tensor"]
    gradients = 2 * held / mesh["fsdp"]
    outputs = 2 * sum(layers.values()) + (layers["decoder"] if model.variant == "encoder_decoder" else 0)
    passes = 3 if model.rematerialize == "layer" else 2
    keys = tokens * mesh["sequence"] * model.kv_heads * (model.qk_head_size + model.head_size) * width
    mixtures = sum(layers.values()) / model.experts_every if model.num_experts else 0
    experts = 4 * tokens * model.experts_per_token * model.d_model * width * mixtures  # there and back, and backward
    return {
        "data": gradients * ring["data"],
        "fsdp": 3 * held * ring["fsdp"],  # gathered forward and backward, and gradients scattered
        "expert": (gradients + experts) * ring["expert"],
        "sequence": gradients * ring["sequence"]
        + 2 * passes * sum(layers.values()) * keys / mesh["tensor"] * ring["sequence"],
        "tensor": 2 * passes * outputs * tokens * model.d_model * width * ring["tensor"],
    }


def sizes_of(draft: Draft, all_bytes: float | None = None) -> Sizes:
    """Of the model and the batch of a draft, on whatever mesh, by tracing one and two of its rows.

    Args:
      draft: of a training step.
      all_bytes: what the same without rematerialisation keeps for a row; None: the draft has none.
    """
    first, second = float(draft.kept_bytes(1)), float(draft.kept_bytes(2))
    row = second - first
    return Sizes(
        parameters=draft.num_parameters,
        state_bytes=float(sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(draft.abstract))),
        fixed_bytes=max(first - row, 0.0),
        row_bytes=row,
        all_bytes=row if all_bytes is None else all_bytes,
        row_flops=draft.work["flops"] / draft.batch.rows,
        rows=draft.batch.real_rows,
        length=draft.batch.length,
    )
