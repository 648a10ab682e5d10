"""Tensors in safetensors files: read one at a time, whatever their number of files, and written."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save_file

from transformer.interop.settings import read_json
from transformer.types import UserError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")


class SafetensorsFolder(Mapping[str, np.ndarray]):
    """The tensors of ``model.safetensors``, or of the files that its index lists; numbers are given in float32.

    Raises:
      UserError: if there is none, or a file is missing, damaged, or lacks what the index says.
    """

    def __init__(self, folder: Path):
        self._files: dict[str, Any] = {}
        for path, expected in _files(folder).items():
            try:
                file = safetensors.safe_open(path, framework="np")
            except (OSError, safetensors.SafetensorError) as error:
                raise UserError(f"{path} cannot be read: {error}") from None
            for name in file.keys():  # noqa: SIM118
                if name in self._files:
                    raise UserError(f"{path}: {name} is in another file of {folder} too")
                self._files[name] = file
            if missing := sorted(expected - set(file.keys())):
                raise UserError(f"{path} has no {missing[0]}, which {folder / INDEX} says it has")

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = np.asarray(self._files[name].get_tensor(name))
        return tensor if np.issubdtype(tensor.dtype, np.integer) else tensor.astype(np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _files(folder: Path) -> dict[Path, set[str]]:
    """The files, and the names of tensors that an index says are in each."""
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: set()}
    if (folder / INDEX).is_file():
        places = read_json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict):
            raise UserError(f"{folder / INDEX} has no weight_map, which says in which file each tensor is")
        files: dict[Path, set[str]] = {folder / name: set() for name in sorted(set(places.values()))}
        for tensor, name in places.items():
            files[folder / name].add(tensor)
        return files
    pickled = [name for name in PICKLED if (folder / name).exists()]
    if pickled:
        raise UserError(
            f"{folder} holds {pickled[0]}, which is not read here: a pickled file can run any code. With the package "
            "transformers, AutoModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) writes safetensors; in place "
            "of AutoModel use the class that has the model's head"
        )
    raise UserError(f"{folder} holds neither {SINGLE} nor {INDEX}")


def save(path: Path, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write tensors into one file."""
    save_file(dict(tensors), path, metadata={"format": "pt"})  # without which transformers does not read it
