"""Whole plans of tiny models on virtual CPUs, and what the devices of the main configs send each other."""

import dataclasses
import json
import math
import runpy

import jax
import pytest

from tests.plan.test_stand_in import config_of
from tests.training.sharded import numbers_of_a_parameter
from transformer.config import Config, MeshConfig, from_config_dict
from transformer.plan.draft import Draft, Program, largest_buffers, needed_bytes
from transformer.plan.memory import state_bytes
from transformer.plan.planning import plan, with_batch
from transformer.plan.topologies import parse
from transformer.types import UserError

CPUS = parse("cpu:4")  # as many as the tests have


def outcome(capsys) -> tuple[str, dict]:
    printed = capsys.readouterr().out
    return printed, json.loads(printed.splitlines()[-1])


def tiny(task: str = "language_modeling", mesh: dict[str, int] | None = None, **model) -> Config:
    config = config_of(task)
    sizes = {"dropout_rate": 0.0, **model}
    decoding = dataclasses.replace(config.decoding, method="greedy", max_source_length=16, max_extra_tokens=5)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **sizes),
        mesh=MeshConfig(**(mesh or {"data": 4})),
        decoding=decoding,
    )


def test_a_plan_says_what_it_must(capsys):
    config = tiny(mesh={"data": 2, "fsdp": 2})
    assert plan(config, CPUS, tokens_per_device=240) == 0
    printed, result = outcome(capsys)
    draft = Draft(with_batch(config, 4, 240), jax.devices())
    assert result["topology"] == "cpu:4" and result["mesh"] == {
        "data": 2,
        "fsdp": 2,
        "expert": 1,
        "sequence": 1,
        "tensor": 1,
    }
    assert result["num_parameters"] == draft.num_parameters
    sizes = result["bytes_per_device"]
    assert {name: sizes[name] for name in ("parameters", "optimizer")} == state_bytes(draft.abstract)
    assert sizes["total"] == sum(size for name, size in sizes.items() if name != "total")
    assert sizes["temporaries"] > 4 * draft.num_parameters / 2 and result["estimated_activation_bytes"] > 0
    assert result["tokens_per_step"] == 960 and result["rows"] == 60
    assert result["flops_per_device_step"] == draft.work["flops"] / 4
    assert result["collective_bytes"].keys() == {"data", "fsdp", "data+fsdp"} and result["fits"] is True
    assert result["hbm_bytes"] is result["bound"] is result["estimated_step_seconds"] is None
    assert result["compile_seconds"] >= 0 and result["decoding"]["fits"] is True
    assert "2 times the config's 480 tokens" in printed and "training.num_steps=50,000 see as many tokens" in printed
    assert result["learning_rate"] == pytest.approx(2**0.5)


def test_padding_that_fills_a_pod_is_said_to_be_idle(capsys, monkeypatch):
    program = Program({"parameters": 4}, [], 0.0)
    monkeypatch.setattr(Draft, "compile", lambda self: program)
    monkeypatch.setattr(Draft, "compile_decoding", lambda self: None)
    config = tiny()
    assert plan(dataclasses.replace(config, data=dataclasses.replace(config.data, tokens_per_batch=32)), CPUS) == 0
    printed, result = outcome(capsys)
    assert "50% of the rows are padding; state --tokens_per_device" in printed and "decoding" not in result


def test_out_of_memory_is_a_result(capsys, monkeypatch):
    program = Program({"parameters": 3, "optimizer": 4}, [], 1.0, needed=2.0**30, largest_buffers=("9.38GiB f32[7]",))
    monkeypatch.setattr(Draft, "compile", lambda self: program)
    assert plan(tiny(), CPUS) == 1
    printed, result = outcome(capsys)
    assert "OUT OF MEMORY" in printed and "    9.38GiB f32[7]" in printed
    for remedy in ("max_tokens_per_device=64", "model.rematerialize=attention", "a larger mesh.fsdp", "--search"):
        assert remedy in printed
    assert result["fits"] is False and result["largest_buffers"] == ["9.38GiB f32[7]"]
    assert result["bytes_per_device"]["total"] == 7 + 2**30 and "collective_bytes" not in result


def test_what_the_compiler_says_of_memory():
    early = "Ran out of memory on HBM, the total memory required for HLO temporaries (276.27G) exceeds available HBM"
    assert needed_bytes(f"RESOURCE_EXHAUSTED: {early} (15.75G).") == 276.27 * 2**30
    assert needed_bytes("Ran out of memory in memory space hbm. Used 16.5M of 15.75G hbm.") == 16.5 * 2**20
    assert needed_bytes("something else") == math.inf
    report = (
        "Total bytes: 9 (9B)\n  cumulative_size;       size;       offset; used_by_n_values; shapes_list\n"
        "    9.38GiB( 28%);    9.38GiB;      6422528;               13; bf16[5,7], 2×bf16[25,3]\n"
        "   16.41GiB( 49%);    7.03GiB;  10072752128;                5; 5×f32[2,25]\n"
    )
    assert largest_buffers(report) == ("9.38GiB bf16[5,7], 2 x bf16[25,3]", "7.03GiB 5 x f32[2,25]")


def test_cpus_have_no_figures_to_search_by(monkeypatch):
    with pytest.raises(UserError, match=r"--search --topology=cpu:4: there are no figures of CPUs"):
        plan(tiny(), CPUS, search=True)


def test_twice_the_layers_are_twice_the_work_of_layers():
    """What devices send grows likewise: see test_collectives.py."""
    two, four, six = (Draft(tiny(num_decoder_layers=layers), jax.devices()).work["flops"] for layers in (2, 4, 6))
    assert six - four == four - two > 0
    unrolled = Draft(tiny(num_decoder_layers=4, scan_unroll=4), jax.devices())
    assert unrolled.work["flops"] == four


MAIN = (
    ("wmt14_en_de", "base", {"data": 1, "fsdp": 2, "tensor": 2}),
    ("llama_7b", "", {"data": 2, "fsdp": 2}),
    pytest.param("wmt14_en_de", "big", {"data": 2, "fsdp": 2}, marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("name", "variant", "mesh"), MAIN)
def test_main_configs_send_what_the_design_names_and_no_more(name, variant, mesh):
    """Widths, vocabulary and layers as they are; fewer layers and shorter rows. See docs/design.md, "One table"."""
    made = runpy.run_path(f"configs/{name}.py")["get_config"](variant)
    made.update_from_flattened_dict(
        {
            **{f"mesh.{axis}": size for axis, size in mesh.items()},
            "mesh.fsdp": mesh.get("fsdp", 1),
            "model.num_encoder_layers": 2,
            "model.num_decoder_layers": 2,
            "data.max_source_length": 14,
            "data.max_target_length": 14,
            "data.tokens_per_batch": 14 * 14,
            "training.max_tokens_per_device": 14 * 14,
        }
    )
    draft = Draft(from_config_dict(made), jax.devices())
    shapes = jax.tree.map(lambda leaf: leaf.sharding.shard_shape(leaf.shape), draft.abstract.params)
    shared = numbers_of_a_parameter(shapes)
    whole = shared | {size * mesh.get("fsdp", 1) for size in shared}
    program = draft.compile()
    assert {axis for each in program.sent for axis in each.axes} == {axis for axis, size in mesh.items() if size > 1}
    for each in program.sent:
        numbers = {math.prod(shape.dims) for shape in each.shapes}
        if each.kind == "all-gather":
            assert each.axes == ("fsdp",) and numbers <= whole, f"an activation is gathered: {each}"
        elif each.kind == "all-reduce":  # gradients, and sums over rows; over tensor, what layers put out
            assert "tensor" in each.axes or numbers <= whole | {1}, f"an activation is summed over rows: {each}"
        else:
            pytest.fail(f"not in the design: {each}")
