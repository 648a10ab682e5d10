"""A file that one process holds while the others wait."""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from transformer.types import UserError

SECONDS_BETWEEN_TRIES, SECONDS_BETWEEN_MESSAGES = 0.5, 60.0

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def locked(path: Path, work: str, wait_minutes: float | None = None) -> Iterator[None]:
    """Hold the lock file; it is released when the process ends, however it ends.

    Processes of other hosts with the same disk wait too, where the disk has locks; where it has none, that is said.

    Args:
      path: of the file, in a folder that is there; it stays.
      work: what is done under the lock, for messages.
      wait_minutes: for another process that holds it; None: without end.

    Raises:
      OSError: the file cannot be written.
      UserError: another process has held it for longer than ``wait_minutes``.
    """
    with open(path, "a+") as file:
        try:
            _wait(file.fileno(), path, work, wait_minutes)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            logger.warning("%s cannot be locked (%s): see that no other process is %s", path, error.strerror, work)
        file.truncate(0)
        file.write(f"{socket.gethostname()}, process {os.getpid()}\n")
        file.flush()
        yield


def _wait(descriptor: int, path: Path, work: str, wait_minutes: float | None) -> None:
    start = time.monotonic()
    said = -SECONDS_BETWEEN_MESSAGES
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            seconds = time.monotonic() - start
        if wait_minutes is not None and seconds >= 60 * wait_minutes:
            raise UserError(
                f"{_holder(path)} is still {work} after {wait_minutes:g} minutes of waiting ({path}); see whether it "
                "is stuck, or set data.wait_minutes higher"
            )
        if seconds - said >= SECONDS_BETWEEN_MESSAGES:
            said = seconds
            holder = _holder(path)
            logger.info("%s is %s; waiting for it, %.0f minutes so far (%s)", holder, work, seconds / 60, path)
        time.sleep(SECONDS_BETWEEN_TRIES)


def _holder(path: Path) -> str:
    """The host and the process that the file names."""
    return path.read_text(errors="replace").strip() or "another process"
