"""Devices that are only described: slices of TPUs, for which libtpu compiles, and virtual CPUs."""

import importlib.util
import math
import os
import re
import sys
from typing import Any, NamedTuple, Optional

from transformer.types import UserError, one_of


class Chip(NamedTuple):
    """What a maker's data sheet says of one device, as JAX counts them.

    memory             bytes
    memory_bandwidth   bytes a second
    link_bandwidth     bytes a second that it sends along one dimension of the slice's torus, both ways together
    network_bandwidth  bytes a second that it sends to other slices; None: not stated
    configuration      of the chip, for libtpu; None: the usual one
    """

    memory: int
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: Optional[float]
    configuration: Optional[str] = None


CHIPS = {
    "v4": Chip(32 * 2**30, 1.2e12, 100e9, None, "megacore"),
    "v5e": Chip(16 * 2**30, 819e9, 100e9, 25e9 / 8),
    "v5p": Chip(95 * 2**30, 2.765e12, 200e9, 50e9 / 8),
    "v6e": Chip(32 * 2**30, 1.6e12, 200e9, 100e9 / 8),
    "tpu7x": Chip(96 * 2**30, 3.69e12, 100e9, 50e9 / 8),  # half a chip, which JAX sees as two devices
}
"""By the names that libtpu has for them. FLOP/s are in training/devices.py.

Reference: Google Cloud's documentation, "Cloud TPU system architecture", a page for each (docs.cloud.google.com/tpu);
for the links of v4, 50 GB/s each way, Jouppi et al., TPU v4 (2023), table 4. A link of the others follows from what is
stated for a chip in both directions, divided by 2 and by its links, four in two dimensions (v5e, v6e) or six in three.
The network of v5e and v6e is a pod's, divided by its 256 chips.
"""

DESCRIPTION = re.compile(r"(?:(\d+)x)?([a-z]\w*):(\d+(?:x\d+)*)")


class Topology(NamedTuple):
    """Devices that are described.

    text    as it was given
    kind    cpu, or a name in ``CHIPS``
    shape   of one slice, in chips; of CPUs their number
    slices  how many of them, joined by a network
    """

    text: str
    kind: str
    shape: tuple[int, ...]
    slices: int

    @property
    def chip(self) -> Optional[Chip]:
        """None for CPUs."""
        return None if self.kind == "cpu" else CHIPS[self.kind]


def parse(text: str) -> Topology:
    """``v5e:4x4``, ``2xv6e:16x16`` for two slices, or ``cpu:8``.

    Raises:
      UserError: for anything else.
    """
    found = DESCRIPTION.fullmatch(text)
    if not found:
        raise UserError(f"--topology={text} is not understood; write v5e:4x4, 2xv6e:16x16 (two slices) or cpu:8")
    slices, kind, shape = int(found[1] or 1), found[2], tuple(map(int, found[3].split("x")))
    one_of("the kind of --topology", kind, {"cpu": None, **CHIPS})
    if not slices or not all(shape):
        raise UserError(f"--topology={text} has no devices")
    if kind == "cpu" and (slices > 1 or len(shape) > 1):
        raise UserError(f"--topology={text}: CPUs have no shape; write cpu:{slices * math.prod(shape)}")
    if slices > 1 and CHIPS[kind].network_bandwidth is None:
        raise UserError(f"--topology={text}: what {kind} sends from slice to slice is not stated; use one slice")
    return Topology(text, kind, shape, slices)


def prepare(topology: Topology) -> None:
    """Set what JAX and libtpu read from the environment when they start, so that nothing looks for a TPU here.

    Raises:
      RuntimeError: JAX has been imported.
      UserError: there is no libtpu.
    """
    if "jax" in sys.modules:
        raise RuntimeError("JAX has read the environment: plan in a process of its own")
    os.environ["JAX_PLATFORMS"] = "cpu"
    if topology.kind == "cpu":
        flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={topology.shape[0]}"
        return
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"--topology={topology.text} needs libtpu, which compiles for TPUs and runs anywhere on Linux: "
            "pip install -r requirements-plan.txt"
        )
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": f"{topology.kind}-{math.prod(topology.shape)}",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_STDERR_LOG_LEVEL": os.environ.get("TPU_STDERR_LOG_LEVEL", "3"),
        "TPU_MIN_LOG_LEVEL": os.environ.get("TPU_MIN_LOG_LEVEL", "3"),
    }


def devices_of(topology: Topology) -> list[Any]:
    """Devices for which programs can be compiled; those of TPUs cannot run them. After :func:`prepare`.

    Raises:
      UserError: libtpu knows no such slice.
    """
    import jax
    from jax.experimental import topologies

    if topology.chip is None:
        return jax.devices()
    options: dict[str, Any] = {}
    if topology.chip.configuration is not None:
        options["chip_config_name"] = topology.chip.configuration
    if math.prod(topology.shape) == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    name = f"{topology.kind}:{'x'.join(map(str, topology.shape))}"
    try:
        return list(topologies.get_topology_desc(name, platform="tpu", **options).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--topology={topology.text}: libtpu knows no such slice ({reason})") from None
