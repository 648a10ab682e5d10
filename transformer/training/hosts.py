"""Several processes that train together: how they find each other, agree, wait for each other, and end.

What they compute together is XLA's affair. This is about all else, over the service that the first process runs for
``jax.distributed``: it holds small values by name, and barriers with a limit of time.
"""

import contextlib
import json
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed  # the service itself has no public name

from transformer.config import MeshConfig
from transformer.types import UserError

HEARTBEAT_SECONDS = 20  # without a sign of life from a process the others end; JAX's default is 100
SHUTDOWN_SECONDS = 15  # that a process waits for the others at its end; JAX's default is 300
TOTALS_SECONDS = 600.0  # in which all processes come to a report: one may be compiling
WATCH_SECONDS = 0.5  # from one look for the failure of another process to the next
FAREWELL_SECONDS = 2.0  # in which the others can learn why this process fails
FAILURE = "transformer/failure"
MARK = ".hosts"  # in the workdir: what the first process wrote there for the others to see
USER_ERROR, ERROR = 2, 1  # exit codes

logger = logging.getLogger(__name__)
_leaving = threading.Lock()  # held by the thread that ends this process: what comes after it is no news
_numbers: dict[str, int] = {}  # of barriers and values of the same name, so far: a name is good once


def join(config: MeshConfig) -> None:
    """Meet the other processes of the run, if ``mesh.distributed``. Before JAX is asked for its devices.

    Who they are is found out from Slurm, Kubernetes, Open MPI or Cloud TPU, or stated by ``mesh.coordinator``,
    ``mesh.num_processes`` and ``mesh.process``.

    If they are not all there in time, this process ends with a message.

    Raises:
      UserError: they cannot be found out.
    """
    if not config.distributed or distributed.global_state.client is not None:
        return
    stated = {"coordinator": config.coordinator, "num_processes": config.num_processes, "process": config.process}
    logger.info("waiting for the other processes, at most %d s", config.wait_seconds)
    patience = threading.Timer(config.wait_seconds, _give_up, [config])
    patience.daemon = True
    try:
        patience.start()
        jax.distributed.initialize(
            coordinator_address=config.coordinator,
            num_processes=config.num_processes,
            process_id=config.process,
            initialization_timeout=config.wait_seconds + 60,  # its end would be that of the process, without a word
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except ValueError as error:
        missing = ", ".join(f"mesh.{key}" for key, value in stated.items() if value is None)
        raise UserError(
            f"mesh.distributed=True: no cluster that JAX knows was found ({error}); set {missing or 'all three keys'}"
        ) from None
    finally:
        patience.cancel()
    number, count = jax.process_index(), jax.process_count()
    if number:
        _speak_for(number)
    logger.info("process %d of %d", number, count)
    threading.Thread(target=_watch, name="failures of other processes", daemon=True).start()


def _give_up(config: MeshConfig) -> None:
    """End this process, which waits where no exception reaches it."""
    logger.error(
        "error: not all processes of the run were there within mesh.wait_seconds=%d. See that each is started, with "
        "the same mesh.coordinator (here %s), which it can reach, and a mesh.process of its own, from 0 on",
        config.wait_seconds,
        distributed.global_state.coordinator_address,
    )
    _leave(USER_ERROR)


def several() -> bool:
    """Whether there are other processes."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether files and reports are this process's affair."""
    return jax.process_index() == 0


def barrier(name: str, seconds: float) -> None:
    """Return when all processes are here.

    Raises:
      UserError: if some do not come in time.
    """
    if not several():
        return
    try:
        _client().wait_at_barrier(_once(name), round(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"waited {seconds:.0f} s for all processes ({name}): {str(error).splitlines()[0]}") from None


def require_same(what: str, value: str, seconds: float, remedy: str) -> None:
    """Raise a ``UserError`` in a process whose value is not that of the first."""
    if not several():
        return
    name = _once(what)
    if is_first():
        _client().key_value_set(name, value)
    first = _client().blocking_key_value_get(name, round(1000 * seconds))
    if first != value:
        raise UserError(f"process {jax.process_index()}: {what} is {value} here and {first} in process 0; {remedy}")


def require_shared(folder: Path, name: str, seconds: float) -> None:
    """See that all processes have the same folder before them, not each its own of the same name.

    Args:
      folder: that they read and write.
      name: by which the user gave it.

    Raises:
      UserError: in a process that does not see what the first wrote there.
    """
    if not several():
        return
    token = f"{time.time_ns()}"
    if is_first():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).write_text(token)
    barrier(f"{name}: written", seconds)
    found = (folder / MARK).read_text() if (folder / MARK).exists() else "nothing"
    require_same(f"what lies in {name}", found, seconds, "give a folder on a disk that all hosts share, or a bucket")
    barrier(f"{name}: read", seconds)
    if is_first():
        (folder / MARK).unlink(missing_ok=True)


def totals(values: Mapping[str, float]) -> dict[str, float]:
    """The sums over all processes of values that each has by the same names; all processes call it."""
    if not several():
        return dict(values)
    round_ = _once("totals")
    _client().key_value_set(f"{round_}/{jax.process_index()}", json.dumps(dict(values)))
    limit = round(1000 * TOTALS_SECONDS)
    found = [
        json.loads(_client().blocking_key_value_get(f"{round_}/{number}", limit))
        for number in range(jax.process_count())
    ]
    return {name: math.fsum(each[name] for each in found) for name in values}


@contextlib.contextmanager
def together() -> Iterator[None]:
    """For what processes do together: one that fails takes the others down with its message, none waits for ever.

    An exception ends this process at once: JAX would wait at its end for processes that wait for this one.
    """
    if not several():
        yield
        return
    try:
        yield
    except BaseException as error:
        _fail(error)
    logging.shutdown()


def end() -> None:
    """Part from the other processes, when all have come so far."""
    if several():
        jax.distributed.shutdown()


def _fail(error: BaseException) -> None:
    """Say why, here and to the others, and end."""
    _leaving.acquire()
    if isinstance(error, UserError):
        logger.error("error: %s", error)
    else:
        logger.error("".join(traceback.format_exception(error)).rstrip())
    with contextlib.suppress(Exception):  # the first to fail is heard, and the service may be gone
        message = {"process": jax.process_index(), "message": f"{type(error).__name__}: {error}"}
        _client().key_value_set(FAILURE, json.dumps(message))
        time.sleep(FAREWELL_SECONDS)
    _leave(USER_ERROR if isinstance(error, UserError) else ERROR)


def _watch() -> None:
    """End this process when another has said that it fails."""
    while True:
        time.sleep(WATCH_SECONDS)
        client = distributed.global_state.client
        if client is None:
            return
        try:
            failure = json.loads(client.key_value_try_get(FAILURE))
        except Exception:  # there is none, or no service any more: JAX ends the process then
            continue
        if failure["process"] != jax.process_index():
            _leaving.acquire()
            logger.error("ending, for process %d has failed: %s", failure["process"], failure["message"])
            _leave(ERROR)


def _leave(code: int) -> None:
    """End without waiting for anyone, once the others have had time to; what is logged is written first."""
    if distributed.global_state.process_id == 0:
        time.sleep(2 * FAREWELL_SECONDS)  # its end is that of the service, at which JAX would abort them
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _speak_for(number: int) -> None:
    """Log no more than what goes wrong, and say where."""
    logger = logging.getLogger("transformer")
    logger.setLevel(logging.WARNING)
    for handler in logger.handlers:
        handler.setFormatter(logging.Formatter(f"process {number}: %(message)s"))


def _client() -> Any:
    return distributed.global_state.client


def _once(name: str) -> str:
    """A name that was not used before, the same in all processes, which ask in the same order."""
    _numbers[name] = _numbers.get(name, 0) + 1
    return f"transformer/{name}/{_numbers[name]}"
