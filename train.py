"""Train a model, or go on with a run.

python train.py --config=configs/NAME.py --workdir=DIR [--config.SECTION.KEY=VALUE ...] [--dry_run]

The same command goes on from the newest checkpoint in DIR. Exit code: 0 when done; training.preempted_exit_code (143)
when a signal came, after saving; 2 for a mistake in flags, config or data. DIR/card.md then says what was run.

--dry_run trains nothing, prepares no data set and leaves DIR as it is: it prints what the run will be (parameters,
FLOPs, memory, schedule, batches as text), checks it, and runs one step on a few rows. The last line of standard output
is then one JSON object; exit code 1: a check failed. With --topology=v5e:4x4 it plans the run for devices that are not
here and reads no data: the same as python -m transformer.plan.

--profile_steps=10:15 writes what the device and the host do in steps 10 to 14 to DIR/profile, which TensorBoard and
XProf show (docs/running.md).
"""

from absl import flags
from ml_collections import config_flags

from transformer import commands
from transformer.types import UserError

CONFIG = config_flags.DEFINE_config_file("config", None, "the experiment; --config.SECTION.KEY=VALUE overrides a key")
flags.mark_flag_as_required("config")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "the folder of the run: config, tokenizer, checkpoints, metrics, log", required=True
)

DRY_RUN = flags.DEFINE_bool("dry_run", False, "show and check what the run will be, and run one step on a few rows")
TOPOLOGY = flags.DEFINE_string("topology", None, "with --dry_run: plan for such devices, as transformer.plan does")
PROFILE = flags.DEFINE_string("profile_steps", None, "FIRST:STOP, steps of which a profile is written to DIR/profile")


def main() -> int:
    config = commands.read_config(CONFIG)  # before JAX is imported: mistakes show at once
    if TOPOLOGY.value is not None:
        if not DRY_RUN.value:
            raise UserError(f"--topology={TOPOLOGY.value} describes devices that are not here; give --dry_run too")
        from transformer.plan import topologies

        topology = topologies.parse(TOPOLOGY.value)
        topologies.prepare(topology)
        from transformer.plan.planning import plan

        return plan(config, topology)
    from transformer.training.workdir import local_workdir, training_workdir

    if DRY_RUN.value:
        from transformer.plan.dry_run import dry_run

        return dry_run(config, local_workdir(WORKDIR.value), commands.config_name(CONFIG))
    from transformer.report.card import update
    from transformer.training.trainer import train

    profile = None if PROFILE.value is None else steps_to_profile(PROFILE.value)
    name = commands.config_name(CONFIG)
    return train(config, training_workdir(WORKDIR.value), name=name, at_end=update, profile=profile)


def steps_to_profile(text: str) -> range:
    """The steps that ``FIRST:STOP`` means."""
    first, _, stop = text.partition(":")
    if not (first.isdecimal() and stop.isdecimal() and int(first) < int(stop)):
        raise UserError(f"--profile_steps={text} is no FIRST:STOP with FIRST below STOP, such as 10:15")
    return range(int(first), int(stop))


if __name__ == "__main__":
    commands.run(main)
