"""What host and device do in some steps, for TensorBoard and XProf to show."""

import logging
from pathlib import Path
from typing import Any

import jax

from transformer.types import UserError

FOLDER = "profile"

logger = logging.getLogger(__name__)


class Profile:
    """Of the steps that are asked for; of none, nothing is done.

    Args:
      workdir: where it is written, in ``FOLDER``, by each process of the run.
      steps: as the log counts them, the first step of a run is 1; None: none.
      done: steps of the run that are done.

    Raises:
      UserError: for steps that are done.
    """

    def __init__(self, workdir: Path, steps: range | None, done: int):
        if steps is not None and steps.start <= done:
            raise UserError(
                f"--profile_steps={steps.start}:{steps.stop} begins with a step that is done; this run goes on with "
                f"step {done + 1}: name that or later ones"
            )
        self._folder, self._steps, self._runs = workdir / FOLDER, steps, False

    def before(self, done: int) -> None:
        """Begin, if the next step is the first of them."""
        if self._steps is not None and done + 1 == self._steps.start:
            jax.profiler.start_trace(str(self._folder))
            self._runs = True

    def after(self, done: int, result: Any) -> None:
        """End, if the last of them is done; the device is waited for, whose step gives ``result``."""
        if self._steps is not None and self._runs and done + 1 >= self._steps.stop:
            jax.block_until_ready(result)
            jax.profiler.stop_trace()
            self._runs = False
            logger.info("profile of steps %d to %d in %s", self._steps.start, self._steps.stop - 1, self._folder)
