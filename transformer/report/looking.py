"""What a trained model attended to, as named arrays: for notebooks, figures and the page.

from transformer.report.looking import look
found = look("runs/m30k", "A man rides a bicycle.")
found.weights["cross"][3]         # of the last of four layers, float32 [heads, target tokens, source tokens]
found.attention["encoder"][0]     # its queries, keys, values, mask, bias and scale too
found.pieces["encoder"]           # what stands at each place
"""

from pathlib import Path
from typing import Optional

from transformer.looks import CanBeLookedInto, Look
from transformer.training.loading import Loaded, load
from transformer.types import UserError


def look(run: Loaded | str | Path, line: str, target: Optional[str] = None) -> Look:
    """Run a model on one input, and see what each of its layers did.

    Args:
      run: what ``transformer.load`` gives, or a workdir.
      line: a text as ``generate.py`` takes it, or the path of an image.
      target: of an encoder-decoder model, what it is to be seen writing; None: its best output.

    Raises:
      UserError: if there is no such run, nothing to look at, or a task that shows nothing of its model.
    """
    loaded = run if isinstance(run, Loaded) else load(run)
    if not isinstance(loaded.task, CanBeLookedInto):
        raise UserError(f"task={loaded.config.task} does not say how its model is looked into; give it a method look")
    return loaded.task.look(loaded.params, line, target)
