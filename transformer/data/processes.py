"""Processes that take over a part of the work."""

import collections
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Optional, TypeVar

from transformer.types import UserError

PAIRS_PER_CHUNK, CHARACTERS_PER_CHUNK = 8_192, 2**24  # worked on at a time; of documents as many as of pairs
CHUNKS_AHEAD = 2  # for each process: so many are read, or done and not yet asked for
EXAMPLES_PER_PROCESS = 100_000  # for less it does not pay to start another process
WHY_ENDED = (
    "ended early: killed, as happens where memory runs out, or never started, as in a script that does not keep what "
    'it runs under if __name__ == "__main__":'
)

Example = TypeVar("Example", bound=tuple[str, ...])
Chunk = TypeVar("Chunk")
Result = TypeVar("Result")


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes_for(size: int, asked: Optional[int]) -> int:
    """How many processes so many examples are worth; at most as many as asked for (None: one for each core)."""
    return min(asked or cores(), max(1, size // EXAMPLES_PER_PROCESS))


def chunks_of(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """As many examples at a time as memory holds well, be they words or books; at least one."""
    chunk, size = [], 0
    for example in examples:
        chunk.append(example)
        size += sum(map(len, example))
        if len(chunk) == PAIRS_PER_CHUNK or size > CHARACTERS_PER_CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def map_in_order(
    work: Callable[[Chunk], Result],
    chunks: Iterable[Chunk],
    processes: int,
    doing: str,
    prepare: Optional[Callable[..., None]] = None,
    *arguments: Any,
) -> Iterator[Result]:
    """What ``work`` makes of each chunk, in order, on several processes.

    Args:
      work: goes to a process with each chunk; what is large is better kept there by ``prepare``.
      chunks: are read in this process, a few ahead.
      processes: how many.
      doing: what they do, in messages: "tokenise".
      prepare: is called in each process first, with ``arguments``.

    Raises:
      UserError: a process ended early.
    """
    pool = start_pool(processes, prepare, *arguments)
    waiting: collections.deque[Future[Result]] = collections.deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(work, chunk))
            if len(waiting) > CHUNKS_AHEAD * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise UserError(
            f"one of the {processes} processes that {doing} {WHY_ENDED}; set data.processes lower, or mend the script"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def start_pool(number: int, prepare: Optional[Callable[..., None]], *arguments: Any) -> ProcessPoolExecutor:
    """Processes that call ``prepare(*arguments)`` first, and end when this process ends, however it does.

    They are not forked, which would take JAX's threads with them.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(number, context, _start, (prepare, arguments))


def terminate(pool: ProcessPoolExecutor) -> None:
    """End the processes at once, in the midst of what they do."""
    for process in list((pool._processes or {}).values()):  # Python 3.14 has a method for it
        process.terminate()


def _start(prepare: Optional[Callable[..., None]], arguments: Sequence[Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is for the parent
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    if prepare is not None:
        prepare(*arguments)
