"""What a look inside a model is given: the collection ``intermediates``."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn


def keep(module: nn.Module, name: str, value: Callable[[], Any]) -> None:
    """Give a value out under a name, if the caller of ``apply`` asked for it; else it is not computed."""
    if module.is_mutable_collection("intermediates") and not module.is_initializing():
        module.sow("intermediates", name, value())
