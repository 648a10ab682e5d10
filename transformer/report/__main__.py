"""Reports on runs, and pages to look at.

python -m transformer.report card --workdir=DIR     the experiment card, as it is now: DIR/card.md and DIR/card.json
python -m transformer.report attention --workdir=DIR --input=TEXT [--target=TEXT] --output=FILE.html
                                                    what the model attends to for a text
python -m transformer.report attention --workdir=DIR --image=FILE --output=FILE.html       for an image
python -m transformer.report walkthrough --output=FILE.html    what attention does, on a small example; needs no run
python -m transformer.report run --workdir=DIR [--workdir=DIR2 ...] --output=FILE.html     curves, differences, outputs

An output that ends in .svg, .png or .pdf is a figure in place of a page: of --stack, --layer and --head (from 1), or of
all heads of a layer; of runs, their curves over --axis. It needs matplotlib (requirements-figures.txt).
"""

import sys
from collections.abc import Callable
from pathlib import Path

from absl import flags

from transformer import commands
from transformer.types import UserError, one_of

WORKDIR = flags.DEFINE_multi_string("workdir", [], "the folder of a run; run: may be given several times")
CHECKPOINT = flags.DEFINE_string("checkpoint", "latest", "latest, best, a step, or average:N")
WEIGHTS = flags.DEFINE_string("weights", "raw", "raw, or ema for their moving average")
INPUT = flags.DEFINE_string("input", None, "attention: a text, as a line for generate.py")
IMAGE = flags.DEFINE_string("image", None, "attention: the path of an image")
TARGET = flags.DEFINE_string(
    "target", None, "attention: what an encoder-decoder model is seen writing; default: its best"
)
OUTPUT = flags.DEFINE_string("output", None, "the file to be written")
STACK = flags.DEFINE_string("stack", None, "figures: encoder, decoder or cross; default: the last that the model has")
LAYER = flags.DEFINE_integer("layer", None, "figures: from 1; default: the last", lower_bound=1)
HEAD = flags.DEFINE_integer("head", None, "figures: from 1; default: all of the layer", lower_bound=1)
AXIS = flags.DEFINE_enum("axis", "steps", ("steps", "minutes", "tokens"), "run, figures: what curves are drawn over")
OVERRIDES = commands.define_overrides()


def card() -> None:
    from transformer.report.card import FILES, write
    from transformer.training.workdir import copy_to_bucket, local_workdir

    workdir = local_workdir(_one_workdir())
    print(write(workdir), end="")
    copy_to_bucket(workdir, *FILES)


def attention() -> None:
    from transformer.report.attention_page import facts_of, page
    from transformer.report.figures import SUFFIXES, write_figure
    from transformer.report.looking import look
    from transformer.report.page import write
    from transformer.training.devices import select_platform
    from transformer.training.loading import load
    from transformer.training.workdir import local_workdir, read_config

    given = [flag.value for flag in (INPUT, IMAGE) if flag.value is not None]
    if len(given) != 1:
        raise UserError("give one of --input=TEXT and --image=FILE")
    output, workdir = Path(_given(OUTPUT)), local_workdir(_one_workdir())
    config = commands.override(read_config(workdir), OVERRIDES)
    if (config.task == "image_classification") == (IMAGE.value is None):
        raise UserError(
            f"task={config.task} looks at {'texts: give --input' if IMAGE.value else 'images: give --image'}"
        )
    select_platform(config.mesh)
    run = load(workdir, CHECKPOINT.value, WEIGHTS.value, config)
    found = look(run, given[0], TARGET.value)
    if output.suffix in SUFFIXES:
        write_figure(output, found, STACK.value, LAYER.value, HEAD.value)
    else:
        write(output, page(found, facts_of(run)))
    print(f"{output}: {output.stat().st_size / 1e6:.2f} MB")


def walkthrough() -> None:
    from transformer.report.page import write
    from transformer.report.walkthrough_page import page

    output = Path(_given(OUTPUT))
    write(output, page(output))
    print(output)


def run() -> None:
    from transformer.report.figures import SUFFIXES
    from transformer.report.page import write
    from transformer.report.run_figure import write_figure
    from transformer.report.run_page import page
    from transformer.report.runs import read_runs

    if not WORKDIR.value:
        raise UserError("--workdir is not given; see --help")
    output = Path(_given(OUTPUT))
    runs = read_runs(WORKDIR.value)
    if output.suffix in SUFFIXES:
        write_figure(output, runs, AXIS.value)
    else:
        write(output, page(runs))
    print(f"{output}: {output.stat().st_size / 1e6:.2f} MB")


COMMANDS: dict[str, Callable[[], None]] = {
    "card": card,
    "attention": attention,
    "walkthrough": walkthrough,
    "run": run,
}
"""What stands behind ``python -m transformer.report``. Modules are imported when they are needed."""


def _one_workdir() -> str:
    if len(WORKDIR.value) != 1:
        raise UserError("give one --workdir; run is the command that takes several")
    return WORKDIR.value[0]


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
