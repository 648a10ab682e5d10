"""What the command line may change of a run that is there."""

import subprocess
import sys

import pytest

# Flags are global: each command line is parsed in a process of its own.
OVERRIDE = """
import sys
from transformer import commands
from transformer.config import Config, flatten
from transformer.types import UserError

flag = commands.define_overrides()
commands.parse_flags(sys.argv)
try:
    config = commands.override(Config(), flag)
except UserError as error:
    print(error)
else:
    print({key: value for key, value in flatten(config) if value != dict(flatten(Config()))[key]})
"""


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("--config.model.attention_implementation=auto", "--config.decoding.beam_size=8"),
            "{'model.attention_implementation': 'auto', 'decoding.beam_size': 8}",
        ),
        (("--config.model.dtype=bfloat16", "--config.mesh.data=1"), "{'model.dtype': 'bfloat16', 'mesh.data': 1}"),
        (("--config.evaluation.window=64", "--config.evaluation.window=None"), "{}"),
        (("--config.training.best_metric=None",), "training.best_metric=None must be of type str, not NoneType"),
        (("--config.model.d_ff=64",), "model.d_ff belongs to the run and cannot be overridden here; what can: "),
        (("--config.model.rotary_scaling=yarn",), "model.rotary_scaling=yarn does nothing with model.rotary_scaling_"),
    ],
)
def test_how_a_model_is_computed_may_be_overridden_and_what_it_is_may_not(overrides, said):
    done = subprocess.run(
        [sys.executable, "-c", OVERRIDE, *overrides], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.startswith(said)
