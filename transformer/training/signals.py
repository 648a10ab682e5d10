"""SIGTERM and Ctrl-C: the first asks for a checkpoint and an end, the second ends at once.

Of several processes one is told, and all must save after the same step. JAX passes the news on, and handles SIGTERM for
that: two handlers of one signal would exclude each other.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from jax.experimental import multihost_utils

from transformer.tasks import before_each_batch

logger = logging.getLogger(__name__)


class Preempted(BaseException):
    """Raised inside :meth:`StopSignals.interruptible` when a signal comes; like a Ctrl-C, no error of what was done."""


class SharedStop:
    """The same for several processes: ``received`` turns true in all of them at the same ``poll``."""

    def __init__(self) -> None:
        self.received = False
        self._polls = 0

    def __enter__(self) -> "SharedStop":
        return self

    def __exit__(self, *exception: object) -> None: ...

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """For an evaluation: when a signal has come, all processes raise ``Preempted`` before the same batch."""

        def check() -> None:
            if self.poll():
                raise Preempted

        with before_each_batch(check):
            yield

    def poll(self) -> bool:
        """Whether a signal has come to one of the processes; all of them call it as often."""
        self._polls += 1
        if not self.received and multihost_utils.reached_preemption_sync_point(self._polls):
            self.received = True
            logger.warning("SIGTERM to one of the processes: saving a checkpoint, then ending")
        return self.received


class StopSignals:
    """While entered, ``received`` says whether a signal came."""

    def __init__(self) -> None:
        self.received = False
        self._interruptible = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handler
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """For work that changes nothing, such as an evaluation: a signal raises ``Preempted`` in the midst of it."""
        self._interruptible = True
        try:
            if self.received:
                raise Preempted
            yield
        finally:
            self._interruptible = False

    def poll(self) -> bool:
        """Whether a signal has come; called once before each step is counted as done."""
        return self.received

    def _handle(self, number: int, frame: Any) -> None:
        if self.received:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.received = True
        name = signal.Signals(number).name
        saving = "" if self._interruptible else "saving a checkpoint, then "
        logger.warning("%s: %sending; a second signal ends at once", name, saving)
        if self._interruptible:
            raise Preempted
