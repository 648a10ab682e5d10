"""Named arrays of a model for notebooks."""

import types

import pytest

from tests.report.looks import translation_look
from transformer.report.looking import look
from transformer.training.loading import Loaded
from transformer.types import UserError


class Shown:
    def look(self, params, line, target=None):
        return translation_look()._replace(input=line, output=f"{params} {target}")


def loaded(task) -> Loaded:
    config = types.SimpleNamespace(task="mine")
    return Loaded(None, "weights", None, None, task, config, {})


def test_a_run_is_looked_into_by_its_task():
    found = look(loaded(Shown()), "some line", "a target")
    assert found.input == "some line" and found.output == "weights a target"
    assert [weights.shape for weights in found.weights["cross"]] == [(3, 5, 6)] * 2


def test_a_task_that_shows_nothing_is_named(tmp_path):
    with pytest.raises(UserError, match="task=mine does not say"):
        look(loaded(object()), "some line")
    with pytest.raises(UserError, match=r"config\.json does not exist"):
        look(tmp_path, "some line")
