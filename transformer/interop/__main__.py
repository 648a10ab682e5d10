"""Pretrained weights to a workdir, and a workdir to weights that other codebases read.

python -m transformer.interop import --from=FOLDER_OR_GGUF_FILE --workdir=DIR [--tokenizer=PLACE] [--pairs]
python -m transformer.interop export --workdir=DIR --to=FOLDER [--checkpoint=latest|best|STEP|average:N] [--weights=ema]

A folder holds config.json, model.safetensors (or several files and their index) and the tokenizer; PLACE, if that is
elsewhere, is its file, another such folder or a workdir. The workdir is then what eval.py and generate.py take, and
train.py starts from it with any config: --config=configs/NAME.py:DIR.
"""

import sys
from pathlib import Path

from absl import flags

from transformer import commands
from transformer.paths import is_remote
from transformer.types import UserError, one_of

FROM = flags.DEFINE_string("from", None, "import: a folder with config.json and safetensors, or a .gguf file")
TOKENIZER = flags.DEFINE_string("tokenizer", None, "import: a folder, workdir or file with it, if --from has it not")
PAIRS = flags.DEFINE_bool("pairs", False, "import: the labels of a classifier are of pairs of texts")
TO = flags.DEFINE_string("to", None, "export: the folder to write")
WORKDIR = flags.DEFINE_string("workdir", None, "the folder of a run: import writes it, export reads it")
CHECKPOINT = flags.DEFINE_string("checkpoint", "latest", "export: latest, best, a step, or average:N")
WEIGHTS = flags.DEFINE_string("weights", "raw", "export: raw, or ema for their moving average")


def import_weights() -> None:
    from transformer.interop.pretrained import import_pretrained

    tokenizer = None if TOKENIZER.value is None else Path(TOKENIZER.value)
    import_pretrained(_given(FROM), _given(WORKDIR), tokenizer, pairs=PAIRS.value)


def export_weights() -> None:
    from transformer.interop.pretrained import export_pretrained

    export_pretrained(_given(WORKDIR), _given(TO), CHECKPOINT.value, WEIGHTS.value)


COMMANDS = {"import": import_weights, "export": export_weights}


def _given(flag: flags.FlagHolder[str | None]) -> Path:
    if flag.value is None:
        raise UserError(f"--{flag.name} is not given; see --help")
    if is_remote(flag.value):
        raise UserError(f"--{flag.name}={flag.value} must be on local disk; a workdir can be copied to a bucket later")
    return Path(flag.value).expanduser()


def main() -> int:
    from transformer.config import MeshConfig
    from transformer.training.devices import select_platform

    run = one_of("python -m transformer.interop: the command", COMMAND, COMMANDS)
    select_platform(MeshConfig(platform="cpu"))  # there is nothing to compute
    run()
    return 0


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else ""
    commands.run(main)
