"""What a mesh shares out: the gradient of one device, all in its place, nothing gathered that need not be."""

import dataclasses
import math
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.training.sharded import EXPERTS, GRID, Family, config_of, numbers_of_a_parameter
from transformer.config import Config, MeshConfig, ModelConfig
from transformer.training.loading import load
from transformer.training.partitioning import (
    count_row_shards,
    make_mesh,
    parameter_shardings,
    require_even_shares,
)
from transformer.training.trainer import train
from transformer.types import UserError

PAIRS = (
    ("translation", {"data": 2, "tensor": 2}, 2),
    ("span_corruption", {"data": 1, "tensor": 4}, 1),
    ("language_modeling", {"data": 1, "fsdp": 2, "tensor": 2}, 3),
    ("masked_lm", {"data": 1, "fsdp": 4}, 1),
    ("image_classification", {"data": 2, "fsdp": 2}, 2),
)


@pytest.mark.parametrize(("task", "sizes", "parts"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_a_mesh_changes_no_gradient_and_gathers_parameters_only(task, sizes, parts, tmp_path):
    tried = Family(config_of(task, str(tmp_path)))
    found = tried.on(sizes, parts)
    assert tried.difference(found, parts) < 1e-5
    assert {axis for each in found.sent for axis in each.axes} == {axis for axis, size in sizes.items() if size > 1}
    shared = numbers_of_a_parameter(found.shapes)
    whole = shared | {size * sizes.get("fsdp", 1) for size in shared}
    if task == "image_classification":  # ten logits a row are less than the row: XLA gathers their gradient
        rows, num_classes = tried.batch.label_weights.shape
        whole.add(-(-rows // (4 * parts)) * sizes["fsdp"] * num_classes)
    for each in found.sent:
        numbers = {math.prod(shape.dims) for shape in each.shapes}
        if each.kind == "all-gather":
            assert each.axes == ("fsdp",) and numbers <= whole, f"an activation is gathered: {each}"
        elif each.kind == "all-reduce":  # gradients and sums over rows; over tensor, what a layer puts out
            assert "tensor" in each.axes or numbers <= whole | {1}, f"an activation is summed over rows: {each}"
        else:  # the gradient of the class token: of each row's a part of its numbers
            of_class_token = task == "image_classification" and each.kind == "all-to-all"
            assert of_class_token and sum(numbers) <= tried.task.config.model.d_model, f"not in the design: {each}"


@pytest.mark.parametrize(
    ("task", "sizes", "kinds"),
    [
        ("translation", {"data": 1, "expert": 2, "tensor": 2}, {"all-gather", "all-reduce"}),
        ("language_modeling", {"data": 1, "fsdp": 2, "expert": 2}, {"all-to-all"}),
    ],
)
def test_experts_are_shared_out_and_their_weights_stay_where_they_are(task, sizes, kinds, tmp_path):
    tried = Family(config_of(task, str(tmp_path), **EXPERTS[task]))
    found = tried.on(sizes)
    assert tried.difference(found, 1) < 1e-5
    experts = [leaf for path, leaf in paths_and_shapes(found.shapes) if "experts" in path and "kernel" in path]
    assert all(shape[1] == EXPERTS[task]["num_experts"] // 2 for shape in experts)
    over_experts = [each for each in found.sent if each.axes == ("expert",)]
    assert {each.kind for each in over_experts} >= kinds
    weights = {math.prod(shape[1:]) * 2 for shape in experts} | {math.prod(shape) * 2 for shape in experts}
    gathered = {math.prod(shape.dims) for each in over_experts if each.kind == "all-gather" for shape in each.shapes}
    assert not weights & gathered, "the weights of all experts are gathered"


@pytest.mark.parametrize("implementation", ["blockwise", "dense"])
def test_rows_are_shared_along_their_length(implementation, tmp_path):
    config = config_of("language_modeling", str(tmp_path), True, attention_implementation=implementation)
    tried = Family(config)
    found = tried.on({"data": 1, "sequence": 2, "tensor": 2})
    assert tried.difference(found, 1) < 1e-5
    over_length = [each for each in found.sent if "sequence" in each.axes]
    rows, length = tried.batch.input_tokens.shape
    keys = rows * length * config.model.d_model // 2  # of all heads of a device
    for each in over_length:  # gradients; keys and values, and theirs; chunks of queries and outputs
        numbers = {math.prod(shape.dims) for shape in each.shapes}
        if each.kind == "all-gather":
            assert numbers == {keys}, f"more than keys and values is gathered: {each}"
    assert {each.kind for each in over_length} >= {"all-gather", "all-reduce"}


def paths_and_shapes(shapes):
    leaves = jax.tree_util.tree_leaves_with_path(shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


@pytest.mark.slow
def test_every_family_on_meshes_of_eight_devices():
    flags = os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=8")
    assert math.prod(GRID[2][0].values()) == 8 and "device_count=8" in flags
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.sharded"],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_devices_are_shared_out_among_the_axes():
    for sizes, expected in (
        ({}, (4, 1, 1, 1, 1)),
        ({"data": 2}, (2, 1, 1, 1, 1)),
        ({"tensor": 2}, (2, 1, 1, 1, 2)),
        ({"data": 1, "fsdp": -1}, (1, 4, 1, 1, 1)),
        ({"expert": 2, "sequence": 2}, (1, 1, 2, 2, 1)),
    ):
        mesh = make_mesh(MeshConfig(**sizes))
        assert tuple(mesh.shape.values()) == expected
        assert count_row_shards(mesh) == math.prod(expected[:3])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 64}, "mesh.data=64 but there are 4 cpu devices"),
        ({"fsdp": 3}, "mesh.fsdp=3 does not divide the devices, of which 4 cpu devices are there"),
        ({"data": 2, "fsdp": 2, "tensor": 2}, r"mesh.data=2 \* mesh.fsdp=2 \* mesh.tensor=2 but there are 4"),
    ],
)
def test_meshes_that_cannot_be(sizes, message):
    with pytest.raises(UserError, match=message):
        make_mesh(MeshConfig(**sizes))


def test_sizes_that_do_not_divide():
    mesh = make_mesh(MeshConfig(data=1, fsdp=2, tensor=2))
    require_even_shares(ModelConfig(d_model=6, num_heads=2, d_ff=4), mesh)
    require_even_shares(ModelConfig(d_model=6, num_heads=2, d_ff=4, num_experts=4), make_mesh(MeshConfig(expert=2)))
    with pytest.raises(UserError, match=r"mesh\.expert=2 but model\.num_experts=0"):
        require_even_shares(ModelConfig(d_model=6, num_heads=2, d_ff=4), make_mesh(MeshConfig(expert=2)))
    for changes, message in (
        ({"d_model": 9, "num_heads": 3, "d_ff": 4}, "model.d_model=9 is no multiple of mesh.fsdp=2"),
        ({"d_model": 6, "num_heads": 3, "d_ff": 4}, "model.num_heads=3 is no multiple of mesh.tensor=2"),
        ({"d_model": 8, "num_heads": 2, "num_kv_heads": 1, "d_ff": 4}, "model.num_kv_heads=1 is no multiple"),
        ({"d_model": 8, "num_heads": 2, "d_ff": 5}, "model.d_ff=5 is no multiple"),
    ):
        with pytest.raises(UserError, match=message):
            require_even_shares(ModelConfig(**changes), mesh)


def test_a_vocabulary_that_does_not_divide_says_what_would(tmp_path):
    config = config_of("masked_lm", str(tmp_path), vocab_size=271)
    boxed = Family(config).boxed
    message = "the axis vocabulary of parameter encoder/embedding/embedding has 271, .*set model.vocab_size=272"
    with pytest.raises(UserError, match=message):
        parameter_shardings(make_mesh(MeshConfig(tensor=2)), boxed)


def meshed(config: Config, **sizes: int) -> Config:
    return dataclasses.replace(config, mesh=MeshConfig(**sizes))


def test_a_run_goes_on_upon_another_mesh_and_is_read_on_one_device(tmp_path):
    config = config_of("translation", str(tmp_path))
    training = dataclasses.replace(
        config.training,
        num_steps=4,
        checkpoint_every=2,
        evaluate_every=100,
        log_every=1,
        ema_decay=0.5,
        epsilon=1e-2,  # or Adam would make a step of the rounding error where a gradient is 0
    )
    evaluation = dataclasses.replace(config.evaluation, beam_size=1, max_examples=3)
    config = dataclasses.replace(config, training=training, evaluation=evaluation)
    half = dataclasses.replace(config, training=dataclasses.replace(training, max_minutes=0.0))

    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert train(meshed(config, data=1), alone) == 0
    assert train(meshed(half, data=1, fsdp=2, tensor=2), shared) == 0
    assert train(meshed(half, data=2, tensor=2), shared) == 0
    assert train(meshed(config, data=4), shared) == 0
    expected, found = (load(workdir, weights="ema") for workdir in (alone, shared))
    assert found.checkpoint["steps"] == expected.checkpoint["steps"] == [4]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), found.params, expected.params)
