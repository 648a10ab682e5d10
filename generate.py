"""Use a run, one input a line, one output a line, in order: from a file or standard input to a file or standard output.

python generate.py --workdir=DIR [--input=FILE] [--output=FILE] [--num_best=4 --scores]

What comes out is what the run was trained for: a translation of the line, what comes after it (without the line),
what belongs in its gaps, its class, its words with their labels, or its vector. For images a line is the path of one.

A line of nothing but white space gives an empty line. With --num_best=N each input gives exactly N lines, the likeliest
first, or so many samples; with --scores each output follows its score and a tab. A newline inside an output is written
\\n; with --format=jsonl inputs are JSON strings and outputs JSON objects, which hold any text.

Settings of decoding can be changed, as --config.decoding.beam_size=8, or for continuations and other samples:

--config.decoding.method=sample   with temperature, top_k, top_p, min_p; another seed gives other samples
--config.decoding.repetition_penalty=1.2          pieces that have occurred become less likely
--config.decoding.stop="('.',)"                   the output ends before the first of these strings
--config.decoding.max_extra_tokens=100            and after so many tokens (of a translation: more than the line has)
--config.data.image_size=384                      images at another resolution than in training
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from absl import flags

from transformer import commands
from transformer.types import Candidate, UserError

WORKDIR = flags.DEFINE_string("workdir", None, "the folder of a run that train.py made", required=True)
CHECKPOINT = flags.DEFINE_string("checkpoint", "latest", "latest, best, a step, or average:N")
WEIGHTS = flags.DEFINE_string("weights", "raw", "raw, or ema for their moving average")
INPUT = flags.DEFINE_string("input", None, "a file, plain or .gz; default: standard input")
OUTPUT = flags.DEFINE_string("output", None, "a file, replaced once all is written; default: standard output")
FORMAT = flags.DEFINE_enum("format", "text", ["text", "jsonl"], "one text a line, or one JSON value a line")
NUM_BEST = flags.DEFINE_integer("num_best", 1, "outputs for each input", lower_bound=1)
SCORES = flags.DEFINE_bool("scores", False, "write each output's score before it")
OVERRIDES = commands.define_overrides()


def main() -> int:
    from transformer.data.text_files import decode_lines, read_lines
    from transformer.training.hosts import is_first
    from transformer.training.loading import inference_mesh, load
    from transformer.training.workdir import local_workdir, read_config

    workdir = local_workdir(WORKDIR.value)
    config = commands.override(read_config(workdir), OVERRIDES)
    if config.mesh.distributed and not (INPUT.value and OUTPUT.value):
        raise UserError("mesh.distributed=True: several processes share no standard input; give --input and --output")
    with inference_mesh(config) as mesh:
        run = load(workdir, CHECKPOINT.value, WEIGHTS.value, config, mesh)
        lines = list(read_lines(INPUT.value) if INPUT.value else decode_lines(sys.stdin.buffer, "standard input"))
        if FORMAT.value == "jsonl":
            lines = [parse(line, number) for number, line in enumerate(lines, 1)]
        with open_output() if is_first() else open(os.devnull, "w") as output:
            for number, candidates in enumerate(run.task.candidates(run.params, lines, NUM_BEST.value)):
                for candidate in candidates:
                    output.write(formatted(candidate, number) + "\n")
    return 0


def parse(line: str, number: int) -> str:
    """The text of a JSON line: a string, or an object with ``text``."""
    try:
        value = json.loads(line)
        text = value["text"] if isinstance(value, dict) else value
    except (ValueError, KeyError):
        text = None
    if not isinstance(text, str):
        raise UserError(f'{INPUT.value or "standard input"}:{number}: neither a JSON string nor {{"text": "..."}}')
    return text


def formatted(candidate: Candidate, number: int) -> str:
    from transformer.data.text_files import escape_newlines

    if FORMAT.value == "jsonl":
        score = {"score": candidate.score} if SCORES.value else {}
        return json.dumps({"line": number + 1, "text": candidate.text, **score}, ensure_ascii=False)
    return (f"{candidate.score:.4f}\t" if SCORES.value else "") + escape_newlines(candidate.text)


@contextlib.contextmanager
def open_output() -> Iterator[IO[str]]:
    if OUTPUT.value is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
        yield sys.stdout
        sys.stdout.flush()
        return
    path = Path(OUTPUT.value)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as output:
            yield output
        partial.replace(path)
    except OSError as error:
        raise UserError(f"--output={path} cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    commands.run(main)
