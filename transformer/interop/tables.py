"""From their tensors to our parameters and back by a family's table, with an account of every tensor.

Parameters are flat here: a dict from paths, ``decoder/layers/feed_forward/up/kernel``, to arrays.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import flax.traverse_util
import numpy as np

from transformer.config import Config
from transformer.interop.family import Family, Row
from transformer.interop.layouts import expected_shape
from transformer.progress import progress
from transformer.types import UserError

LAYER = "{layer}"

logger = logging.getLogger(__name__)


def flatten(params: Any) -> dict[str, Any]:
    """A tree of parameters by paths."""
    return flax.traverse_util.flatten_dict(params, sep="/")


def unflatten(flat: Mapping[str, Any]) -> Any:
    return flax.traverse_util.unflatten_dict(flat, sep="/")


def full_names(family: Family, names: Iterable[str]) -> dict[str, str]:
    """The names of a file's tensors as the family's table has them, and as they stand in the file."""
    found = list(names)
    missing = "" if any(name.startswith(family.prefix) for name in found) else family.prefix
    result = {}
    for name in found:
        full = missing + name
        for old, new in family.endings.items():
            if full.endswith(old):
                full = full.removesuffix(old) + new
        result[full] = name
    return result


def read_params(
    family: Family,
    config: Config,
    tensors: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    origin: str,
) -> dict[str, np.ndarray]:
    """Our parameters from their tensors, all of which are accounted for.

    Args:
      tensors: by their names; read one at a time.
      shapes: of our parameters, by paths.
      origin: what the tensors were read from, for messages.

    Raises:
      UserError: for a tensor that is missing, left over, of another shape or not finite, naming it.
    """
    names = full_names(family, tensors)
    rows = covering_rows(family, config, shapes)
    wanted = {name for row in rows for name in names_of(row, shapes)}
    missing = sorted(wanted - names.keys())
    if missing:
        raise UserError(f"{origin}: the model of its config.json needs {_listed(missing)}, which is not there")
    _account(family, config, tensors, names, wanted, origin)
    params = {path: np.empty(shapes[path], np.float32) for row in rows for path in row.ours}
    for row in progress(rows, "reading tensors", len(rows), "row"):
        parts = tuple(shapes[path][LAYER in row.theirs :] for path in row.ours)
        expected = expected_shape(row.layout, parts)
        for layer, name in enumerate(names_of(row, shapes)):
            tensor = tensors[names[name]]
            if tensor.shape != expected:
                raise UserError(
                    f"{origin}: {names[name]} is {list(tensor.shape)}, but the model of its config.json needs "
                    f"{list(expected)}"
                )
            if not np.isfinite(tensor).all():
                raise UserError(f"{origin}: {names[name]} has numbers that are not finite: the file is damaged")
            for path, array in zip(row.ours, row.layout.to_ours(tensor, parts), strict=True):
                params[path][layer if LAYER in row.theirs else ...] = array
    return params


def write_tensors(family: Family, config: Config, params: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Their tensors, with names, from our parameters."""
    shapes = {path: array.shape for path, array in params.items()}
    prefix = family.prefix if config.task in family.base_tasks else ""
    for row in covering_rows(family, config, shapes):
        for layer, name in enumerate(names_of(row, shapes)):
            ours = tuple(params[path][layer] if LAYER in row.theirs else params[path] for path in row.ours)
            yield name.removeprefix(prefix), np.ascontiguousarray(row.layout.to_theirs(ours))


def covering_rows(family: Family, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> Sequence[Row]:
    """The family's rows, each parameter of the model in exactly one.

    Raises:
      UserError: for a parameter that no row has: a head that the family's files have not.
      ValueError: if the table of the family does not fit the model: no user's mistake.
    """
    rows = list(family.rows(config))
    if family.head and not any(path.startswith(f"{family.head}/") for path in shapes):
        rows = [row for row in rows if not row.ours[0].startswith(f"{family.head}/")]
    paths = [path for row in rows for path in row.ours]
    left = sorted(set(shapes) - set(paths))
    if left:
        raise UserError(f"files of the family {family.name} have no place for {_listed(left)}")
    wrong = sorted(set(paths) - set(shapes)) or sorted({path for path in paths if paths.count(path) > 1})
    if wrong:
        raise ValueError(f"the table of the family {family.name} and the model differ in {', '.join(wrong)}")
    return rows


def names_of(row: Row, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The tensors of a row: one for each layer, or one."""
    if LAYER not in row.theirs:
        return [row.theirs]
    return [row.theirs.replace(LAYER, str(layer)) for layer in range(shapes[row.ours[0]][0])]


def _account(
    family: Family,
    config: Config,
    tensors: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    wanted: set[str],
    origin: str,
) -> None:
    """See what each tensor is that no row wants: a copy, a buffer, known to be of no use, or an error."""
    unused, unknown = [], []
    for name in names.keys() - wanted:
        if name in family.copies and family.copies[name] in names:
            copied = family.copies[name]
            if not np.array_equal(tensors[names[name]], tensors[names[copied]]):
                raise UserError(
                    f"{origin}: {names[name]} and {names[copied]} differ, but its config.json says that they are one "
                    "(tie_word_embeddings)"
                )
        elif _matches(name, family.unused(config)):
            unused.append(names[name])
        elif not _matches(name, family.buffers):
            unknown.append(names[name])
    if unknown:
        raise UserError(f"{origin}: the model of its config.json has no place for {_listed(sorted(unknown))}")
    if unused:
        logger.warning("task=%s does not use %s", config.task, ", ".join(sorted(unused)))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
