"""What is logged of long work, where there is no terminal."""

import logging

import pytest

from transformer import progress as module
from transformer.progress import progress


@pytest.fixture
def clock(monkeypatch):
    """Each look at it takes so many seconds."""

    class Clock:
        now, step = 0.0, 1.0

        def monotonic(self):
            self.now += self.step
            return self.now

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("unit", "done", "total", "lines"),
    [
        ("pair", 0, 25, ["work: 10 of 25, 2 lines a second", "work: 20 of 25, 2 lines a second"]),
        ("line", 0, None, ["work: 10, 1 lines a second", "work: 20, 1 lines a second"]),
        ("batch", 5, 30, ["work: 15 of 30, 1 a second", "work: 25 of 30, 1 a second"]),
    ],
)
def test_rates_on_the_way_and_at_the_end(clock, caplog, unit, done, total, lines):
    caplog.set_level(logging.INFO)
    assert list(progress(range(25), "work", total, unit, done=done)) == list(range(25))
    rate = lines[0].split(", ")[1]
    assert caplog.messages[:2] == lines
    assert caplog.messages[2].startswith("work: done in 26 s, ") and len(caplog.messages) == 3
    assert caplog.messages[2].endswith(rate.split(" ", 1)[1])


def test_short_work_and_work_with_lines_of_its_own_is_not_logged(clock, caplog):
    caplog.set_level(logging.INFO)
    assert list(progress(range(5), "work", 5)) == list(range(5))
    clock.step = 60.0
    assert list(progress(range(5), "work", 5, plain_lines=False)) == list(range(5))
    assert not caplog.messages
