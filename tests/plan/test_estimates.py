"""Estimates before anything is compiled: beside what the compiler finds, and growing as they must."""

import dataclasses
import math

import jax
import pytest

from tests.plan.test_stand_in import config_of
from transformer.config import MESH_AXES, Config, MeshConfig
from transformer.plan.collectives import bytes_by_axes
from transformer.plan.draft import Draft
from transformer.plan.estimates import Sizes, memory, repeated_flops, sent_by_axis, sizes_of, traffic, work

SIZES = Sizes(
    parameters=1_000, state_bytes=12_000.0, fixed_bytes=4_000.0, row_bytes=500.0, all_bytes=700.0, row_flops=1e6,
    rows=22, length=24,
)  # fmt: skip
ALONE = dict.fromkeys(MESH_AXES, 1)


def config(**model) -> Config:
    found = config_of("language_modeling")
    sizes = {"dropout_rate": 0.0, "num_decoder_layers": 2, **model}
    return dataclasses.replace(found, model=dataclasses.replace(found.model, **sizes))


def test_memory_is_shared_out():
    alone = memory(SIZES, config(), ALONE, 1)
    assert alone == 12_000 + 4_000 + 4 * 1_000 + 22 * 500
    assert memory(SIZES, config(), {**ALONE, "fsdp": 2}, 1) == (12_000 + 4_000 + 4_000) / 2 + 11 * 500
    assert memory(SIZES, config(), {**ALONE, "data": 2}, 1) == 20_000 + 11 * 500
    assert memory(SIZES, config(), {**ALONE, "data": 4}, 1) == 20_000 + 6 * 500, "22 rows are filled up to 24"
    assert memory(SIZES, config(), ALONE, 2) == alone + 4_000 - 11 * 500  # sums of gradients, half of the rows
    again = config(rematerialize="layer")
    assert memory(SIZES, again, ALONE, 1) == alone + 22 * 700 / 2  # one of two layers at a time


def test_what_is_computed_again():
    assert repeated_flops(config().model, 24) == 0
    assert repeated_flops(config(rematerialize="layer").model, 24) == 1 / 3
    short, long = (repeated_flops(config(rematerialize="attention").model, length) for length in (24, 2_400))
    assert 0 < short < long < 1 / 3


def test_work_grows_with_the_batch_and_is_shared_out():
    alone = work(SIZES, config(), ALONE, 1)
    assert alone == (22e6, traffic(SIZES, ALONE, 1), 0.0, 0.0)
    shared = work(SIZES._replace(rows=88), config(), {**ALONE, "data": 4}, 1, slices=2)
    assert shared.flops == alone.flops
    sent = 2 * 1_000 * 4 * 3 / 4
    assert (shared.link_bytes, shared.network_bytes) == (sent * 2 / 3, sent / 3)


@pytest.mark.parametrize("sizes", [{"data": 1, "fsdp": 2}, {"data": 1, "tensor": 2}])
def test_what_is_sent_is_about_what_the_compiler_sends(sizes):
    """With layers that weigh more than the embedding; on CPUs gradients are summed whole where TPUs scatter them."""
    planned = config(d_model=32, d_ff=256, vocab_size=28)
    draft = Draft(dataclasses.replace(planned, mesh=MeshConfig(**sizes)), jax.devices())
    (axis,) = (name for name, size in sizes.items() if size > 1)
    expected = sent_by_axis(sizes_of(draft), draft.config, draft.mesh.shape, draft.parts)[axis]
    found = bytes_by_axes(draft.compile().sent)
    assert list(found) == [axis]
    assert expected == pytest.approx(found[axis], rel=0.5)


def test_sizes_are_those_of_the_model_and_its_rows():
    draft = Draft(dataclasses.replace(config(), mesh=MeshConfig(data=2)), jax.devices())
    sizes = sizes_of(draft)
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(draft.abstract))
    assert (sizes.parameters, sizes.state_bytes) == (draft.num_parameters, state)
    assert sizes.row_flops * draft.batch.rows == pytest.approx(draft.work["flops"])
    assert 3 * sizes.row_bytes + sizes.fixed_bytes == pytest.approx(draft.kept_bytes(3), rel=0.01)
    assert sizes.all_bytes == sizes.row_bytes > 4 * math.prod((24, 16))
