"""Which files a task can score, said before anything slow."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer.types import UserError


def require_roles(task: str, files: Mapping[str, Path], *known: Sequence[str]) -> None:
    """Raise a ``UserError`` unless files that are to be scored have roles that the task knows.

    Args:
      task: its name.
      files: by role, as :meth:`transformer.types.Task.evaluate` gets them.
      known: the sets of roles that it can score, each in the order in which a message names them.
    """
    if set(files) in map(set, known):
        return
    ways = [" with ".join(f"--{role}" for role in roles) for roles in (("split",), *known)]
    given = " with ".join(f"--{role}" for role in files)
    raise UserError(f"task={task} scores {', '.join(ways[:-1])} or {ways[-1]}, not {given}")
