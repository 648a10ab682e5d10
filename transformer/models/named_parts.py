"""The config keys of a model whose values are names of parts, each with the table of what may stand there."""

from collections.abc import Mapping
from typing import Any

from transformer.config import ModelConfig
from transformer.models.attention import IMPLEMENTATIONS
from transformer.models.feed_forward import ACTIVATIONS
from transformer.models.layers import NORM_PLACEMENTS
from transformer.models.norms import NORMS
from transformer.models.positions import POSITION_ENCODINGS
from transformer.types import one_of

NAMED_PARTS: dict[str, Mapping[str, Any]] = {
    "position_encoding": POSITION_ENCODINGS,
    "activation": ACTIVATIONS,
    "attention_implementation": IMPLEMENTATIONS,
    "norm": NORMS,
    "norm_placement": NORM_PLACEMENTS,
}


def check_names(config: ModelConfig) -> None:
    """See that all names are known, before data is read or anything compiled.

    Raises:
      UserError: for one that is not, with the nearest that is.
    """
    for key, table in NAMED_PARTS.items():
        one_of(f"model.{key}", getattr(config, key), table)
