"""Score a run, or text.

python eval.py --workdir=DIR --split=test [--checkpoint=latest|best|STEP|average:5] [--weights=raw|ema]
python eval.py --workdir=DIR --text=FILE                          what the run's splits are made of, in another file
python eval.py --workdir=DIR --source=FILE --reference=FILE       translate a file and score the translations
python eval.py --workdir=DIR --source=FILE --hypothesis=FILE      the log-probability of each given line, in nats
python eval.py --hypothesis=FILE --reference=FILE [--reference=FILE2]     score text, without a model

The first two serve every run, the next two translation. --text is a file in the form in which the run reads its own
data: documents, lines with their labels, words with theirs, or for images a folder or file of them.

The last line of standard output is one JSON object: num_examples and, as they apply, nll_per_token, perplexity,
bits_per_byte, accuracy, f1 and others. Settings of decoding and evaluation can be changed:
--config.decoding.beam_size=8, --config.evaluation.stride=64.
"""

import json
from pathlib import Path
from typing import Any

from absl import flags

from transformer import commands
from transformer.types import UserError

WORKDIR = flags.DEFINE_string("workdir", None, "the folder of a run that train.py made")
SPLIT = flags.DEFINE_string("split", None, "validation, test, or the stem of other files in data.directory")
CHECKPOINT = flags.DEFINE_string("checkpoint", "latest", "latest, best, a step, or average:N")
WEIGHTS = flags.DEFINE_string("weights", "raw", "raw, or ema for their moving average")
TEXT = flags.DEFINE_string("text", None, "a file, or a folder of images, in the form of the run's own data")
SOURCE = flags.DEFINE_string("source", None, "a file to translate")
REFERENCE = flags.DEFINE_multi_string("reference", [], "a file of right translations; may be given several times")
HYPOTHESIS = flags.DEFINE_string("hypothesis", None, "a file of given translations")
OVERRIDES = commands.define_overrides()


def main() -> int:
    scores = score_text() if WORKDIR.value is None else score_run(WORKDIR.value)
    print(json.dumps(scores))
    return 0


def score_text() -> dict[str, Any]:
    """Scores of text that is there already."""
    if SPLIT.value or TEXT.value or SOURCE.value:
        raise UserError("--split, --text and --source need a model: give --workdir too")
    if not HYPOTHESIS.value or not REFERENCE.value:
        raise UserError("give --workdir, or --hypothesis and --reference; see --help")
    from transformer.data.sources import read_lines
    from transformer.evaluation.text_scores import score

    return score(list(read_lines(HYPOTHESIS.value)), [list(read_lines(path)) for path in REFERENCE.value])


def score_run(given: str) -> dict[str, Any]:
    """Scores of a run's model on a split or on files."""
    data: str | dict[str, Path]
    if TEXT.value:
        if SPLIT.value or SOURCE.value or HYPOTHESIS.value or REFERENCE.value:
            raise UserError("--text is scored alone: without --split, --source, --hypothesis and --reference")
        data = {"text": Path(TEXT.value)}
        name = Path(TEXT.value).name
    elif SOURCE.value:
        if SPLIT.value or bool(HYPOTHESIS.value) == bool(REFERENCE.value) or len(REFERENCE.value) > 1:
            raise UserError("with --source give either one --reference or --hypothesis, and no --split")
        other = {"hypothesis": HYPOTHESIS.value} if HYPOTHESIS.value else {"reference": REFERENCE.value[0]}
        data = {name: Path(path) for name, path in {"source": SOURCE.value, **other}.items()}
        name = Path(SOURCE.value).name
    elif HYPOTHESIS.value or REFERENCE.value:
        raise UserError("--hypothesis and --reference are scored without --workdir, or give --source too")
    else:
        name = data = SPLIT.value or "test"
    from transformer.training.devices import select_platform
    from transformer.training.loading import load
    from transformer.training.workdir import copy_to_bucket, local_workdir, read_config

    workdir = local_workdir(given)
    config = commands.override(read_config(workdir), OVERRIDES)
    select_platform(config.mesh.platform)
    run = load(workdir, CHECKPOINT.value, WEIGHTS.value, config)
    outputs = workdir / "outputs" / f"{name}.{CHECKPOINT.value.replace(':', '-')}.{WEIGHTS.value}.txt"
    outputs.parent.mkdir(exist_ok=True)
    scores = run.task.evaluate(run.params, data, outputs=outputs)
    copy_to_bucket(workdir)
    print(f"outputs in {outputs}")
    return {
        "split": data if isinstance(data, str) else {name: str(path) for name, path in data.items()},
        "checkpoint": CHECKPOINT.value,
        "weights": WEIGHTS.value,
        "steps": run.checkpoint["steps"],
        **scores,
    }


if __name__ == "__main__":
    commands.run(main)
