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


def progress(items: Iterable[Item], description: str, total: int, unit: str = "line") -> Iterator[Item]:
    """Pass ``items`` on and show how many of ``total`` have gone by, on standard error."""
    if sys.stderr.isatty():
        yield from tqdm(items, desc=description, total=total, unit=unit, dynamic_ncols=True)
        return
    start = last = time.monotonic()
    done = 0
    for item in items:
        yield item
        done += 1
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            rate = done / (now - start)
            logger.info("%s: %d of %d (%.0f %ss/s)", description, done, total, rate, unit)
