"""How long a step must take at least, by the figures of a chip: estimates, and called so."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transformer.plan.collectives import Collective
from transformer.plan.topologies import Chip


class Work(NamedTuple):
    """Of one device in one step.

    flops          of matrix products, those that rematerialisation repeats included
    memory_bytes   read and written
    link_bytes     sent within its slice
    network_bytes  sent to other slices
    """

    flops: float
    memory_bytes: float
    link_bytes: float
    network_bytes: float = 0.0


class Times(NamedTuple):
    """Seconds that each takes alone, at the chip's best."""

    compute: float
    hbm: float
    interconnect: float
    network: float

    @property
    def bound(self) -> str:
        """What takes longest."""
        return max(self._fields, key=lambda name: float(getattr(self, name)))

    @property
    def least(self) -> float:
        """A step, if all goes on at the same time."""
        return max(self)

    @property
    def estimate(self) -> float:
        """A step, if one goes on after the other. Real programs overlap some of it, and reach no peak of a chip."""
        return sum(self)


def times(work: Work, chip: Chip, flops: float) -> Times:
    """
    Args:
      work: of a device in a step.
      chip: its figures.
      flops: a second, at its best, in bfloat16.
    """
    network = work.network_bytes / chip.network_bandwidth if work.network_bytes and chip.network_bandwidth else 0.0
    return Times(
        work.flops / flops,
        work.memory_bytes / chip.memory_bandwidth,
        work.link_bytes / chip.link_bandwidth,
        network,
    )


def sent_bytes(found: Sequence[Collective], mesh_shape: Mapping[str, int]) -> tuple[float, float]:
    """Bytes that a device sends within its slice, and to other slices.

    A sum over the n devices of s slices is taken within each slice first, so that of what a device sends in a ring of
    all n it sends (s - 1) / (n - 1) to another slice.
    """
    links = network = 0.0
    for each in found:
        slices = mesh_shape["slice"] if "slice" in each.axes else 1
        outside = each.sent * each.times * (slices - 1) / (each.group - 1)
        network += outside
        links += each.sent * each.times - outside
    return links, network
