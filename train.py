"""Train a model, or go on with a run.

python train.py --config=configs/NAME.py --workdir=DIR [--config.SECTION.KEY=VALUE ...] [--dry_run]

The same command goes on from the newest checkpoint in DIR. Exit code: 0 when done; training.preempted_exit_code (143)
when a signal came, after saving; 2 for a mistake in flags, config or data. DIR/card.md then says what was run.

--dry_run trains nothing, prepares no data set and leaves DIR as it is: it prints what the run will be (parameters,
FLOPs, memory, schedule, batches as text), checks it, and runs one step on a few rows. The last line of standard output
is then one JSON object; exit code 1: a check failed.
"""

from absl import flags
from ml_collections import config_flags

from transformer import commands

CONFIG = config_flags.DEFINE_config_file("config", None, "the experiment; --config.SECTION.KEY=VALUE overrides a key")
flags.mark_flag_as_required("config")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "the folder of the run: config, tokenizer, checkpoints, metrics, log", required=True
)

DRY_RUN = flags.DEFINE_bool("dry_run", False, "show and check what the run will be, and run one step on a few rows")


def main() -> int:
    config = commands.read_config(CONFIG)  # before JAX is imported: mistakes show at once
    from transformer.training.workdir import local_workdir, training_workdir

    if DRY_RUN.value:
        from transformer.plan.dry_run import dry_run

        return dry_run(config, local_workdir(WORKDIR.value), commands.config_name(CONFIG))
    from transformer.report.card import update
    from transformer.training.trainer import train

    return train(config, training_workdir(WORKDIR.value), name=commands.config_name(CONFIG), at_end=update)


if __name__ == "__main__":
    commands.run(main)
