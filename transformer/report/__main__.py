"""Reports on a run.

python -m transformer.report card --workdir=DIR     the experiment card, as it is now: DIR/card.md and DIR/card.json
"""

import sys

from absl import flags

from transformer import commands
from transformer.types import UserError, one_of

WORKDIR = flags.DEFINE_string("workdir", None, "the folder of a run")


def card() -> None:
    from transformer.report.card import FILES, write
    from transformer.training.workdir import copy_to_bucket, local_workdir

    workdir = local_workdir(_given(WORKDIR))
    print(write(workdir), end="")
    copy_to_bucket(workdir, *FILES)


COMMANDS = {"card": card}


def _given(flag: flags.FlagHolder[str | None]) -> str:
    if flag.value is None:
        raise UserError(f"--{flag.name} is not given; see --help")
    return flag.value


def main() -> int:
    one_of("python -m transformer.report: the command", COMMAND, COMMANDS)()
    return 0


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else ""
    commands.run(main)
