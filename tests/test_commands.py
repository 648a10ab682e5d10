"""What the command line may change of a run that is there."""

import pathlib
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


CHANGE = """
import sys
from ml_collections import config_flags
from transformer import commands
from transformer.config import flatten
from transformer.types import UserError

flag = config_flags.DEFINE_config_file("config")
commands.parse_flags(sys.argv)
try:
    config = dict(flatten(commands.read_config(flag)))
except UserError as error:
    print(error)
else:
    print([config[argument.split("=")[0].removeprefix("--config.")] for argument in sys.argv[2:]])
"""


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("training.max_minutes=3", "training.max_minutes=None", "data.directory=D", "data.directory=None"),
         "[None, None, None, None]"),
        (("training.num_steps=None",), "training.num_steps=None must be of type int, not NoneType"),
        (("data.train=news-2012,talks.v1", "data.train_weights=1,3"), "[('news-2012', 'talks.v1'), (1, 3)]"),
        (("model.attention_biases=",), "[()]"),
        # A word that Python would not evaluate, after one that says that there are layers enough.
        (("model.num_encoder_layers=2", "model.num_decoder_layers=2", "model.attention_window=3",
          "model.attention_pattern=local,global"), "[2, 2, 3, ('local', 'global')]"),
        (("decoding.stop=a, b",), "[('a, b',)]"),
    ],
)  # fmt: skip
def test_values_on_the_command_line_are_what_they_look_like(overrides, said):
    config = f"--config={pathlib.Path(__file__).parent.parent / 'configs/phrases_en_de.py'}"
    flags = [f"--config.{override}" for override in overrides]
    done = subprocess.run([sys.executable, "-c", CHANGE, config, *flags], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(said)
