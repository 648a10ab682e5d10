"""Train a model, or go on with a run.

python train.py --config=configs/NAME.py --workdir=DIR [--config.SECTION.KEY=VALUE ...]

The same command goes on from the newest checkpoint in DIR. Exit code: 0 when done; training.preempted_exit_code (143)
when a signal came, after saving; 2 for a mistake in flags, config or data.
"""

from absl import flags
from ml_collections import config_flags

from transformer import commands

CONFIG = config_flags.DEFINE_config_file("config", None, "the experiment; --config.SECTION.KEY=VALUE overrides a key")
flags.mark_flag_as_required("config")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "the folder of the run: config, tokenizer, checkpoints, metrics, log", required=True
)


def main() -> int:
    config = commands.read_config(CONFIG)  # before JAX is imported: mistakes show at once
    from transformer.training.trainer import train
    from transformer.training.workdir import local_workdir

    return train(config, local_workdir(WORKDIR.value))


if __name__ == "__main__":
    commands.run(main)
