"""Seconds from figures, by hand."""

import pytest

from transformer.plan.collectives import Collective
from transformer.plan.roofline import Work, sent_bytes, times
from transformer.plan.topologies import Chip

CHIP = Chip(memory=7, memory_bandwidth=11.0, link_bandwidth=13.0, network_bandwidth=17.0)


@pytest.mark.parametrize(
    ("work", "seconds", "bound"),
    [
        (Work(10.0, 22.0, 13.0, 0.0), (2.0, 2.0, 1.0, 0.0), "compute"),
        (Work(5.0, 33.0, 13.0, 17.0), (1.0, 3.0, 1.0, 1.0), "hbm"),
        (Work(5.0, 11.0, 52.0, 0.0), (1.0, 1.0, 4.0, 0.0), "interconnect"),
        (Work(5.0, 11.0, 13.0, 85.0), (1.0, 1.0, 1.0, 5.0), "network"),
    ],
)
def test_what_takes_longest(work, seconds, bound):
    found = times(work, CHIP, flops=5.0)
    assert found == seconds and found.bound == bound
    assert found.least == max(seconds) and found.estimate == sum(seconds)


def collective(axes: tuple[str, ...], group: int, sent: float, times: int = 1) -> Collective:
    return Collective("all-reduce", axes, group, (), sent, times, True, "")


def test_what_goes_to_other_slices():
    """Of 3 slices with 4 devices each: a ring of all 12 crosses 11 gaps, 2 of which lead to another slice."""
    mesh = {"slice": 3, "data": 4, "tensor": 2}
    found = [collective(("slice", "data"), 12, 110.0, 2), collective(("data",), 4, 7.0), collective(("slice",), 3, 5.0)]
    links, network = sent_bytes(found, mesh)
    assert network == pytest.approx(2 * 110 * 2 / 11 + 5)
    assert links == pytest.approx(2 * 110 * 9 / 11 + 7)
    assert sent_bytes([collective(("data", "tensor"), 8, 3.0)], {"data": 4, "tensor": 2}) == (3.0, 0.0)
