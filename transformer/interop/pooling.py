"""What a folder of sentence-transformers makes of the last layer: ``modules.json`` and ``1_Pooling/config.json``."""

import json
from pathlib import Path

from transformer.interop.settings import read_json
from transformer.types import UserError

MODULES, POOLING = "modules.json", "1_Pooling/config.json"
KEYS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}


def read_pooling(folder: Path) -> dict[str, str]:
    """The way of pooling as a setting, ``pooling_mode``: mean, cls or another; none if no file says.

    Raises:
      UserError: if there is a module that is none of a transformer, pooling and scaling to length 1.
    """
    if (folder / MODULES).is_file():
        for module in read_json(folder / MODULES, list):
            kind = str(module.get("type")).rpartition(".")[2]
            if kind not in ("Transformer", "Pooling", "Normalize"):
                raise UserError(f"{folder / MODULES}: the module {kind} cannot be translated")
    if not (folder / POOLING).is_file():
        return {}
    stated = read_json(folder / POOLING)
    if "pooling_mode" in stated:  # newer files
        return {"pooling_mode": str(stated["pooling_mode"])}
    modes = {
        key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for key, value in stated.items()
        if key.startswith("pooling_mode_") and value
    }
    return {"pooling_mode": "+".join(sorted(modes))}


def write_pooling(folder: Path, mode: str, width: int) -> None:
    """The files of a model whose vectors are pooled so, and then scaled to length 1.

    Args:
      mode: mean or cls.
      width: of the vectors.
    """
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(paths.items())
    ]
    modes = {key: name == mode for name, key in KEYS.items()}
    for path, content in ((MODULES, modules), (POOLING, {"word_embedding_dimension": width, **modes})):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(content, indent=2) + "\n")
