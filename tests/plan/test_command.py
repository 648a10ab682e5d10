"""The command as it is typed, in a process of its own: virtual CPUs, and TPUs where libtpu is there."""

import json

import pytest

from tests.system.scripts import last_json, mistake, run

PLAN = ("-m", "transformer.plan")
MODEL = (
    "--config=configs/topics_lm.py",
    "--config.data.tokens_per_batch=512",
    "--config.data.max_target_length=32",
    "--config.model.d_model=16",
    "--config.model.d_ff=24",
    "--config.model.num_decoder_layers=2",
    "--config.model.vocab_size=258",
    "--config.decoding.max_source_length=16",
    "--config.decoding.max_extra_tokens=5",
)
ON_TPUS = (*MODEL, "--config.model.dtype=bfloat16", "--nodecoding")


def test_on_virtual_cpus():
    done = run(*PLAN, *MODEL, "--topology=cpu:6", "--config.mesh.fsdp=2", "--nodecoding")
    result = last_json(done)
    assert result["mesh"]["data"] == 3 and result["mesh"]["fsdp"] == 2 and result["fits"] is True
    assert b"Devices: 6 of cpu:6" in done.stdout and b"training on" not in done.stdout + done.stderr


def test_mistakes():
    assert "is not one of cpu, v4" in mistake(*PLAN, *MODEL, "--topology=v9:2x2")
    assert "mesh.fsdp=3 does not divide the devices" in mistake(
        *PLAN, *MODEL, "--topology=cpu:4", "--config.mesh.fsdp=3"
    )
    arguments = ("--workdir=nowhere", "--topology=cpu:4")
    assert "describes devices that are not here; give --dry_run too" in mistake("train.py", *MODEL, *arguments)


@pytest.mark.slow
def test_a_dry_run_for_a_topology_is_a_plan(tmp_path):
    arguments = (*MODEL, "--topology=cpu:4")
    plan = last_json(run(*PLAN, *arguments))
    same = last_json(run("train.py", *arguments, "--dry_run", f"--workdir={tmp_path / 'run'}"))
    for result in (plan, same):
        result.pop("compile_seconds")
        result["decoding"].pop("compile_seconds")
    assert plan == same and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_on_tpus():
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install -r requirements-plan.txt")
    result = last_json(run(*PLAN, *ON_TPUS, "--topology=v5e:2x2", "--config.mesh.fsdp=2"))
    assert result["fits"] and result["bytes_per_device"]["total"] < result["hbm_bytes"] == 16 * 2**30
    assert 0 < result["estimated_mfu"][0] < result["estimated_mfu"][1] < 1
    assert result["estimated_step_seconds"] > 0 and result["bound"] in ("compute", "hbm", "interconnect")
    assert set(result["collective_bytes"]) == {"data", "fsdp", "data+fsdp"}

    two = last_json(run(*PLAN, *ON_TPUS, "--topology=2xv5e:2x2"))
    assert two["mesh"]["slice"] == 2 and any("slice" in axes for axes in two["collective_bytes"])


@pytest.mark.slow
def test_out_of_memory_on_tpus():
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install -r requirements-plan.txt")
    too_much = ("--tokens_per_device=400000", "--config.model.vocab_size=50000")
    done = run(*PLAN, *ON_TPUS, "--topology=v5e:2x2", *too_much, code=1)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["fits"] is False and result["bytes_per_device"]["total"] > result["hbm_bytes"]
    assert result["largest_buffers"] and b"OUT OF MEMORY" in done.stdout
