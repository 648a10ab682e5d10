"""How devices are described, and what libtpu makes of a description."""

import math
import subprocess
import sys

import pytest

from transformer.plan.topologies import CHIPS, Topology, parse, prepare
from transformer.types import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v5e:4x4", Topology("v5e:4x4", "v5e", (4, 4), 1)),
        ("2xv6e:16x16", Topology("2xv6e:16x16", "v6e", (16, 16), 2)),
        ("v5p:2x3x5", Topology("v5p:2x3x5", "v5p", (2, 3, 5), 1)),
        ("cpu:8", Topology("cpu:8", "cpu", (8,), 1)),
    ],
)
def test_what_is_written(text, expected):
    assert parse(text) == expected
    assert (expected.chip is None) == (expected.kind == "cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5e", "is not understood; write v5e:4x4"),
        ("v5e:4x", "is not understood"),
        ("4x4", "is not understood"),
        ("v5:4x4", "is not one of cpu, v4, v5e, v5p, v6e, tpu7x; did you mean v5"),
        ("v5e:0x4", "has no devices"),
        ("2xcpu:4", "write cpu:8"),
        ("cpu:2x3", "write cpu:6"),
        ("2xv4:2x2x1", "what v4 sends from slice to slice is not stated"),
    ],
)
def test_what_is_not(text, message):
    with pytest.raises(UserError, match=message):
        parse(text)


def test_jax_must_not_have_started():
    import jax  # noqa: F401

    with pytest.raises(RuntimeError, match="in a process of its own"):
        prepare(parse("cpu:4"))


def test_figures_of_chips_agree_with_what_is_known_of_them():
    """From the pages for v5e and v6e, whose other figures the table does not hold."""
    assert CHIPS["v5e"].link_bandwidth * 4 == pytest.approx(
        1_600e9 / 8 * 2
    )  # two dimensions, both directions: 1,600 Gbit/s
    assert CHIPS["v6e"].link_bandwidth * 4 == pytest.approx(800e9)
    assert CHIPS["v5p"].link_bandwidth * 6 == pytest.approx(1_200e9)
    assert CHIPS["v6e"].network_bandwidth * 256 * 8 == pytest.approx(25.6e12)


DESCRIBE = """
import sys
from transformer.plan.topologies import devices_of, parse, prepare
from transformer.types import UserError
from transformer.config import MeshConfig
topology = parse(sys.argv[1])
try:
    prepare(topology)
    devices = devices_of(topology)
except UserError as error:
    sys.exit(str(error))
from transformer.training.devices import peak_flops
from transformer.training.partitioning import count_slices, make_mesh
mesh = make_mesh(MeshConfig(fsdp=2), devices)
first = {getattr(device, "slice_index", 0) for device in mesh.devices[: len(mesh.devices) // topology.slices].flat}
print(len(devices), count_slices(devices), mesh.shape["data"], len(first), peak_flops(devices[0]))
"""


def describe(text: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", DESCRIBE, text], capture_output=True, text=True)


def test_virtual_cpus_are_as_many_as_are_asked_for():
    assert describe("cpu:6").stdout.split() == ["6", "1", "3", "1", "None"]


@pytest.mark.parametrize("text", ["v5e:2x4", "v4:2x2x1", "v5p:2x2x2", "2xv6e:2x2", "tpu7x:2x2x1"])
def test_slices_of_tpus(text):
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install -r requirements-plan.txt")
    topology = parse(text)
    done = describe(text)
    assert done.returncode == 0, done.stderr[-2000:]
    number = topology.slices * math.prod(topology.shape) * (2 if topology.kind == "tpu7x" else 1)
    devices, slices, data, slices_in_a_part, flops = done.stdout.split()
    assert (int(devices), int(slices), int(data)) == (number, topology.slices, number // 2)
    assert slices_in_a_part == "1", "slices must stand one after the other along data"
    assert float(flops) > 1e14


def test_a_slice_that_cannot_be():
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install -r requirements-plan.txt")
    assert "libtpu knows no such slice" in describe("v5e:3x3").stderr


def test_without_libtpu_it_says_what_to_install(monkeypatch):
    blocked = DESCRIBE.replace("import sys\n", "import sys\nsys.modules['libtpu'] = None\n", 1)
    done = subprocess.run([sys.executable, "-c", blocked, "v5e:2x2"], capture_output=True, text=True)
    assert "needs libtpu" in done.stderr and "pip install -r requirements-plan.txt" in done.stderr
