"""How far long work has come: a bar on a terminal, plain lines otherwise."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Optional, TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 10.0
LINES_IN = {"line": 1, "pair": 2}

logger = logging.getLogger(__name__)


def progress(
    items: Iterable[Item],
    description: str,
    total: Optional[int],
    unit: str = "line",
    *,
    done: int = 0,
    plain_lines: bool = True,
) -> Iterator[Item]:
    """Pass ``items`` on and show how many of ``total`` have gone by, on standard error; log how long it took.

    Args:
      items: whatever is worked through.
      description: of the work.
      total: how many there are; None: not known.
      unit: what one of them is called; rates of text are in lines.
      done: how many were worked through earlier.
      plain_lines: whether lines are logged where there is no terminal; False if the work logs lines of its own.
    """
    has_bar = sys.stderr.isatty()
    if has_bar:
        items = tqdm(items, desc=description, total=total, unit=unit, initial=done, dynamic_ncols=True)
    if not plain_lines:
        yield from items
        return

    def rate(seconds: float) -> str:
        number = (done - before) / seconds
        return f"{number * LINES_IN[unit]:,.0f} lines a second" if unit in LINES_IN else f"{number:.3g} a second"

    start = last = time.monotonic()
    before = done
    for item in items:
        yield item
        done += 1
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES and not has_bar:
            last = now
            place = done if total is None else f"{done} of {total}"
            logger.info("%s: %s, %s", description, place, rate(now - start))
    seconds = time.monotonic() - start
    if seconds >= SECONDS_BETWEEN_LINES:
        logger.info("%s: done in %.0f s, %s", description, seconds, rate(seconds))


class ProgressHandler(logging.StreamHandler):
    """Logs to standard error without breaking a bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)
