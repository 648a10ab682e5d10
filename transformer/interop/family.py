"""What one family of pretrained models is: a table of names and layouts, and its config.json in both directions.

A family is one file in ``families/`` and one line in ``families/__init__.py``. Import, export, and the account of every
tensor and every key are written once, in ``tables.py`` and ``pretrained.py``, over what is described here.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from transformer.config import Config
from transformer.interop.layouts import Layout, as_is, flat, linear
from transformer.interop.settings import Settings


class Row(NamedTuple):
    """One of their tensors and what of ours is in it.

    ours    paths in our parameters, ``decoder/layers/self_attention/query/kernel``: usually one; for a fused tensor
            several, in its order
    theirs  the tensor's name; with ``{layer}`` there is one for each layer, and ours are stacked along their first axis
    layout  see ``layouts.py``
    """

    ours: tuple[str, ...]
    theirs: str
    layout: Layout


Changes = dict[str, Any]
"""Dotted keys of our config and their values; all others stay at their defaults."""


@dataclasses.dataclass(frozen=True)
class Family:
    """One family.

    name         as it is called in messages
    model_types  the values of ``model_type`` in the config.json's that it reads
    tasks        the names of our tasks that it can be
    read_config  their config.json, and the names of all tensors (which tell what heads there are), to our config: task,
                 model, and the lengths in data and decoding. Every key must be asked for, see ``Settings``.
    write_config our config to their config.json, ``model_type`` and ``architectures`` included. It may leave out what
                 it cannot say: what is written is read back, and a model that comes back as another one is refused
                 with the key that changed.
    rows         the table, which may depend on the config: tied or not, with biases or without
    prefix       of the names of all tensors below the head, ``bert.``; rows are written with it. Files of models
                 without a head have none: they are read too, and written for ``base_tasks``
    base_tasks   tasks whose models have no head in their files
    head         first name of our parameters of a head that a model may lack; its rows are then left out
    endings      how names end that older files write otherwise: old ending to new
    copies       tensors that some files hold besides the one they equal, by name: refused where they do not
    buffers      patterns of tensors that are no weights: positions, masks, frequencies
    unused       patterns of weights that a model of this config has no use for; what matches is reported
    images       whether its inputs are images: no tokenizer belongs to it, but a ``preprocessor_config.json``, which
                 is the value of ``preprocessor_config`` among the settings, read and written
    """

    name: str
    model_types: tuple[str, ...]
    tasks: tuple[str, ...]
    read_config: Callable[[Settings, frozenset[str]], Changes]
    write_config: Callable[[Config], dict[str, Any]]
    rows: Callable[[Config], Sequence[Row]]
    prefix: str = ""
    base_tasks: tuple[str, ...] = ()
    head: str = ""
    endings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    unused: Callable[[Config], tuple[str, ...]] = lambda config: ()
    images: bool = False


def linear_rows(ours: str, theirs: str, num_inputs: int = 1, *, bias: bool = True) -> list[Row]:
    """The rows of one of our ``Linear`` modules that is a Linear of torch: its kernel, and its bias if it has one.

    Args:
      num_inputs: axes of the kernel that are inputs, see ``layouts.linear``.
    """
    rows = [Row((f"{ours}/kernel",), f"{theirs}.weight", linear(num_inputs))]
    return [*rows, Row((f"{ours}/bias",), f"{theirs}.bias", flat)] if bias else rows


def norm_rows(ours: str, theirs: str, *, bias: bool = True) -> list[Row]:
    """The rows of a norm: its scale, and its bias if it has one."""
    rows = [Row((f"{ours}/scale",), f"{theirs}.weight", as_is)]
    return [*rows, Row((f"{ours}/bias",), f"{theirs}.bias", as_is)] if bias else rows
