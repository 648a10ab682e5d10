"""Score a run, or text.

python eval.py --workdir=DIR --split=test [--checkpoint=latest|best|STEP|average:5] [--weights=raw|ema]
python eval.py --workdir=DIR --text=FILE                          what the run's splits are made of, in another file
python eval.py --workdir=DIR --source=FILE --reference=FILE       translate a file and score the translations
python eval.py --workdir=DIR --source=FILE --hypothesis=FILE      the log-probability of each given line, in nats
python eval.py --workdir=DIR --doctor                             why is the BLEU of the newest translations low?
python eval.py --hypothesis=FILE --reference=FILE [--reference=FILE2]     score text, without a model
    [--target_language=de]     also as the paper of 2017 does
    [--baseline=FILE]          is it better than another system's? may be given several times

The first two serve every run, the next two translation. --text is a file in the form in which the run reads its own
data: documents, lines with their labels, words with theirs, or for images a folder or file of them.

The last line of standard output is one JSON object: num_examples and, as they apply, nll_per_token, perplexity,
bits_per_byte, accuracy, f1 and others. Scores of text are printed before it with their definitions, and translations
get a page beside the outputs, in WORKDIR/outputs. What was scored is then in the experiment card, WORKDIR/card.md, too.
Settings of decoding and evaluation can be changed: --config.decoding.beam_size=8, --config.evaluation.stride=64; of
images their resolution, --config.data.image_size=384.
Where a run's data were tokenised for Moses, --config.decoding.detokenize makes its outputs text, for raw references in
a file (those of a split it makes text too); with --target_language also --hypothesis and --baseline.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from transformer import commands
from transformer.config import Config, from_config_dict
from transformer.types import UserError

WORKDIR = flags.DEFINE_string("workdir", None, "the folder of a run that train.py made")
SPLIT = flags.DEFINE_string("split", None, "validation, test, or the stem of other files in data.directory")
CHECKPOINT = flags.DEFINE_string("checkpoint", "latest", "latest, best, a step, or average:N")
WEIGHTS = flags.DEFINE_string("weights", "raw", "raw, or ema for their moving average")
TEXT = flags.DEFINE_string("text", None, "a file, or a folder of images, in the form of the run's own data")
SOURCE = flags.DEFINE_string("source", None, "a file to translate")
REFERENCE = flags.DEFINE_multi_string("reference", [], "a file of right translations; may be given several times")
HYPOTHESIS = flags.DEFINE_string("hypothesis", None, "a file of given translations")
BASELINE = flags.DEFINE_multi_string("baseline", [], "a file of another system's, to compare --hypothesis with")
TARGET_LANGUAGE = flags.DEFINE_string("target_language", None, "of --hypothesis without --workdir: de, fr, ...")
DOCTOR = flags.DEFINE_bool("doctor", False, "check what is known to make translations score low")
OVERRIDES = commands.define_overrides()


def main() -> int:
    if WORKDIR.value is None:
        score_text()
    elif DOCTOR.value:
        examine_run(WORKDIR.value)
    else:
        score_run(WORKDIR.value)
    return 0


def score_text() -> None:
    """Print scores of text that is there already."""
    if SPLIT.value or TEXT.value or SOURCE.value or DOCTOR.value:
        raise UserError("--split, --text, --source and --doctor need a run: give --workdir too")
    if not HYPOTHESIS.value or not REFERENCE.value:
        raise UserError("give --workdir, or --hypothesis and --reference; see --help")
    from transformer.data.text_files import read_lines
    from transformer.evaluation.moses import detokenizer
    from transformer.evaluation.text_scores import compare, describe, full_score

    language = TARGET_LANGUAGE.value
    detokenize: Callable[[str], str] = str
    if commands.override(Config(), OVERRIDES).decoding.detokenize:
        if language is None:
            raise UserError("decoding.detokenize=True needs to know the language; give --target_language=fr or another")
        detokenize = detokenizer(language)

    def system(path: str) -> list[str]:
        return [detokenize(line) for line in read_lines(path)]

    hypotheses, references = system(HYPOTHESIS.value), [list(read_lines(path)) for path in REFERENCE.value]
    scores = full_score(hypotheses, references, language)
    if BASELINE.value:
        scores["baselines"] = compare(hypotheses, references, {path: system(path) for path in BASELINE.value})
    print("\n".join(describe(scores)))
    if language is None:
        print("no bleu_paper: give --target_language for the score as the paper of 2017 counts it")
    print(json.dumps(scores))


def score_run(given: str) -> None:
    """Print scores of a run's model on a split or on files."""
    if BASELINE.value or TARGET_LANGUAGE.value:
        raise UserError("--baseline and --target_language go with --hypothesis and --reference, without --workdir")
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
    from transformer.training.hosts import is_first
    from transformer.training.loading import inference_mesh, load
    from transformer.training.workdir import OUTPUTS, local_workdir, read_config

    workdir = local_workdir(given)
    of_run = read_config(workdir)
    config = commands.override(of_run, OVERRIDES)
    outputs = workdir / OUTPUTS / f"{name}.{CHECKPOINT.value.replace(':', '-')}.{WEIGHTS.value}.txt"
    with inference_mesh(config) as mesh:
        run = load(workdir, CHECKPOINT.value, WEIGHTS.value, config, mesh)
        outputs.parent.mkdir(exist_ok=True)
        scores = {
            "split": data if isinstance(data, str) else {name: str(path) for name, path in data.items()},
            "checkpoint": CHECKPOINT.value,
            "weights": WEIGHTS.value,
            "steps": run.checkpoint["steps"],
            **run.task.evaluate(run.params, data, outputs=outputs if is_first() else None),
        }
        if is_first():
            report(workdir, outputs, scores, of_run, config)


def report(workdir: Path, outputs: Path, scores: dict[str, Any], of_run: Config, config: Config) -> None:
    """Print scores, and keep them with what they are scores of."""
    from transformer.report.card import FILES, update
    from transformer.report.scores import save
    from transformer.training.workdir import copy_to_bucket

    save(outputs, scores, of_run, config)
    print(f"outputs in {outputs}")
    described: list[str] = []
    if "bleu" in scores:
        from transformer.evaluation.text_scores import describe
        from transformer.report.translations import write

        print(f"report in {write(outputs, f'{workdir}: {outputs.stem}', scores)}")
        described = describe(scores)
    update(workdir)
    print("".join(f"{line}\n" for line in described) + json.dumps(scores), flush=True)
    written = [path for path in outputs.parent.iterdir() if path.name.startswith(f"{outputs.stem}.")]
    copy_to_bucket(workdir, *FILES, *(path.relative_to(workdir).as_posix() for path in written))


def examine_run(given: str) -> None:
    """Print what the doctor finds in a run; nothing is trained or translated for it."""
    others = (SPLIT, CHECKPOINT, WEIGHTS, TEXT, SOURCE, REFERENCE, HYPOTHESIS, BASELINE, TARGET_LANGUAGE)
    present = [f"--{flag.name}" for flag in others if flags.FLAGS[flag.name].present]
    if present:
        raise UserError(f"--doctor looks at the newest translations in the workdir: it takes no {', '.join(present)}")
    from configs import wmt14_en_de, wmt14_en_fr
    from transformer.report.doctor import examine
    from transformer.training.workdir import local_workdir, read_config

    workdir = local_workdir(given)
    recipes = {
        f"{module.__name__.rpartition('.')[2]}.py:{variant}": from_config_dict(module.get_config(variant))
        for module in (wmt14_en_de, wmt14_en_fr)
        for variant in module.PUBLISHED
    }
    print(json.dumps(examine(workdir, commands.override(read_config(workdir), OVERRIDES), recipes)))


if __name__ == "__main__":
    commands.run(main)
