"""SIGTERM and Ctrl-C: the first asks for a checkpoint and an end, the second ends at once."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)


class Preempted(BaseException):
    """Raised inside :meth:`StopSignals.interruptible` when a signal comes; like a Ctrl-C, no error of what was done."""


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
