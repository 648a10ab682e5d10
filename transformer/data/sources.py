"""Where pairs of lines come from: parallel text files, TFDS or generated phrases, cleaned if that is asked for."""

from collections.abc import Callable

from transformer.config import DataConfig
from transformer.data.cleaning import CleanedSource, rules_of
from transformer.data.pairs import FileSource, ParallelSource, PhraseSource
from transformer.data.tfds_pairs import TfdsPairs
from transformer.types import one_of

SOURCES: dict[str, Callable[[DataConfig, int], ParallelSource]] = {
    "files": FileSource,
    "phrases": PhraseSource,
    "tfds": lambda config, seed: TfdsPairs(config),
}
"""The names that ``data.source`` may have."""


def make_source(config: DataConfig, seed: int) -> ParallelSource:
    """The source that ``data.source`` names, cleaned if that is asked for.

    Args:
      seed: draws the pairs of generated sources.

    Raises:
      UserError: for what cannot be found or generated.
    """
    source = one_of("data.source", config.source, SOURCES)(config, seed)
    return CleanedSource(source, config) if rules_of(config) else source
