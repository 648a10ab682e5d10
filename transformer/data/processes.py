"""Processes that take over a part of the work."""

import concurrent.futures
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

BrokenPool = concurrent.futures.process.BrokenProcessPool
"""What is raised when one of the processes was killed."""


def start_pool(number: int, prepare: Callable[..., None], *arguments: Any) -> concurrent.futures.ProcessPoolExecutor:
    """Processes that call ``prepare(*arguments)`` first, and end when this process ends, however it does.

    They are not forked, which would take JAX's threads with them.
    """
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(number, context, _start, (prepare, arguments))


def _start(prepare: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    prepare(*arguments)
