"""The folder of what can be made again: tokenised text, vocabularies, digests."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from transformer.config import DataConfig
from transformer.paths import user_cache
from transformer.types import UserError


def cache_folder(config: DataConfig) -> Path:
    """The folder of what can be made again: ``data.cache_directory``, or ``transformer`` in the user's cache."""
    if config.cache_directory is not None:
        return Path(config.cache_directory).expanduser()
    return user_cache()


@contextlib.contextmanager
def writing_cache(path: Path) -> Iterator[None]:
    """Say which key to change when a file of the cache cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; set data.cache_directory to a folder on a disk with room"
        ) from error
