"""How far long work has come: a bar on a terminal, plain lines otherwise."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 10.0

logger = logging.getLogger(__name__)


def progress(
    items: Iterable[Item], description: str, total: int, unit: str = "line", *, done: int = 0, plain_lines: bool = True
) -> Iterator[Item]:
    """Pass ``items`` on and show how many of ``total`` have gone by, on standard error.

    Args:
      items: whatever is worked through.
      description: of the work.
      total: how many there are.
      unit: what one of them is called.
      done: how many were worked through earlier.
      plain_lines: whether lines are logged where there is no terminal; False if the work logs lines of its own.
    """
    if sys.stderr.isatty():
        yield from tqdm(items, desc=description, total=total, unit=unit, initial=done, dynamic_ncols=True)
        return
    if not plain_lines:
        yield from items
        return
    start = last = time.monotonic()
    before = done
    for item in items:
        yield item
        done += 1
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            rate = (done - before) / (now - start)
            logger.info("%s: %d of %d, %.3g a second", description, done, total, rate)


class ProgressHandler(logging.StreamHandler):
    """Logs to standard error without breaking a bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)
