"""Processes that take over a part of the work."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def start_pool(number: int, prepare: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """Processes that call ``prepare(*arguments)`` first, and end when this process ends, however it does.

    They are not forked, which would take JAX's threads with them.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(number, context, _start, (prepare, arguments))


def terminate(pool: ProcessPoolExecutor) -> None:
    """End the processes at once, in the midst of what they do."""
    for process in list((pool._processes or {}).values()):  # Python 3.14 has a method for it
        process.terminate()


def _start(prepare: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is for the parent
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    prepare(*arguments)
