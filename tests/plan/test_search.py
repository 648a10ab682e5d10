"""Which meshes there are, how they are ranked, and what is compiled of them."""

import dataclasses
import math

import jax
import pytest

from tests.plan.test_estimates import SIZES
from tests.plan.test_stand_in import config_of
from transformer.config import MESH_AXES, Config
from transformer.plan.draft import Draft, Program
from transformer.plan.roofline import Times
from transformer.plan.search import POLICIES, compile_best, meshes, ranked, sizes_by_policy, with_candidate
from transformer.plan.topologies import CHIPS
from transformer.types import UserError

EACH = {  # of rematerialisation: what is kept for a row
    policy: SIZES._replace(row_bytes=SIZES.row_bytes / 2**number) for number, policy in enumerate(POLICIES)
}


def config(**model) -> Config:
    found = config_of("translation")
    sizes = {"d_model": 12, "num_heads": 6, "d_ff": 18, "vocab_size": 36, "dropout_rate": 0.0, **model}
    return dataclasses.replace(found, model=dataclasses.replace(found.model, **sizes))


def test_meshes_share_everything_out_evenly():
    found = list(meshes(config(), 12, 1, rows=12, length=24))
    assert all(math.prod(sizes.values()) == 12 and tuple(sizes) == MESH_AXES for sizes in found)
    assert {sizes["tensor"] for sizes in found} == {1, 2, 4} & {1, 2, 3, 6}  # powers of 2 that divide heads
    assert {sizes["fsdp"] for sizes in found} == {1, 2, 3, 4, 6, 12}
    assert {sizes["sequence"] for sizes in found} == {sizes["expert"] for sizes in found} == {1}
    assert len({tuple(sizes.values()) for sizes in found}) == len(found)


def test_rows_slices_lengths_and_experts_count():
    few = list(meshes(config(), 12, 1, rows=6, length=24))
    assert few and all(sizes["data"] * sizes["fsdp"] <= 6 for sizes in few)
    assert all(sizes["data"] % 3 == 0 for sizes in meshes(config(), 12, 3, rows=12, length=24))
    assert {sizes["sequence"] for sizes in meshes(config(), 4, 1, rows=12, length=4_096)} == {1, 2, 4}
    experts = config(num_experts=6)
    assert {sizes["expert"] for sizes in meshes(experts, 4, 1, rows=12, length=24)} == {1, 2}


def test_the_quickest_that_fit_come_first():
    small = ranked(config(), EACH, CHIPS["v5e"], 4, 1, 1e9)
    assert all(each.fits for each in small)
    assert [each.seconds for each in small] == sorted(each.seconds for each in small)
    assert small[0].rematerialize == "none", "nothing is computed again where there is room"
    room = CHIPS["v5e"].memory
    tight = {policy: sizes._replace(row_bytes=sizes.row_bytes * room / 3_000) for policy, sizes in EACH.items()}
    found = ranked(config(), tight, CHIPS["v5e"], 4, 1, 1e9)
    fitting = [each.fits for each in found]
    assert True in fitting and False in fitting and fitting == sorted(fitting, reverse=True)
    assert found[0].rematerialize != "none"
    large = [each for each in found if not each.fits]
    assert [each.memory for each in large] == sorted(each.memory for each in large)


def test_devices_that_share_nothing_evenly():
    with pytest.raises(UserError, match="no mesh of 49 devices shares out 22 rows"):
        ranked(config(), EACH, CHIPS["v5e"], 49, 1, 1e9)


def test_what_is_kept_for_each_way_of_rematerialisation():
    sizes = sizes_by_policy(config_of("language_modeling"), jax.devices())
    assert sizes["none"].row_bytes > sizes["attention"].row_bytes > sizes["layer"].row_bytes
    assert {each.all_bytes for each in sizes.values()} == {sizes["none"].row_bytes}


def test_the_best_is_chosen_by_what_was_compiled(monkeypatch):
    """The second of three is, by what its program says; a mesh that cannot be is passed over."""
    monkeypatch.setattr(Draft, "compile", lambda self: Program({"parameters": 1}, [], 0.0))
    planned, devices = config(), jax.devices()
    candidates = ranked(planned, EACH, CHIPS["v5e"], 4, 1, 1e9)
    impossible = candidates[0]._replace(sizes={**candidates[0].sizes, "data": 8})
    seconds = iter((3.0, 1.0, 2.0))
    tried: list[Draft] = []

    def estimate(draft, sizes, program):
        tried.append(draft)
        return Times(next(seconds), 0.0, 0.0, 0.0)

    best = compile_best([impossible, *candidates], planned, EACH, devices, estimate)
    assert len(tried) == 3 and best.draft is tried[1] and best.program.fits
    assert "mesh.data=8" in best.table[0]["refused"]
    assert [row.get("compiled_seconds") for row in best.table[:4]] == [None, 3.0, 1.0, 2.0]
    assert dict(best.draft.mesh.shape) == candidates[1].sizes
    expected = with_candidate(planned, candidates[1].sizes, candidates[1].rematerialize)
    assert best.draft.config.mesh == expected.mesh
    assert best.draft.config.model.rematerialize == expected.model.rematerialize
