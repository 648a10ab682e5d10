"""What the doctor looks at, gathered once: figures of a workdir, of its newest outputs, and of the data."""

import array
import collections
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from transformer.config import Config, DecodingConfig, differences
from transformer.data.batching import training_plan
from transformer.data.cache import cache_folder
from transformer.data.pairs import ParallelSource
from transformer.data.segmented_text import SegmentedTextTokenizer
from transformer.data.sources import make_source
from transformer.data.store import Tokens, open_store
from transformer.data.text_files import read_pairs
from transformer.data.tokenizer import Tokenizer
from transformer.data.vocabularies import load_tokenizers
from transformer.progress import progress
from transformer.report import scores
from transformer.training.loading import open_checkpoints
from transformer.training.workdir import OUTPUTS
from transformer.types import UserError

SAMPLE = 20_000  # training pairs, spread evenly, of which letters, words and pieces are counted

Pairs = Sequence[tuple[str, str]]
Tokenizers = tuple[Tokenizer, Tokenizer]

COMMON_WORDS = {
    "en": "the of and is that with for to at by from this are it before after until since you we",
    "de": "der die das und ist den dem ein eine mit von auf im für zu nicht sich nach vor seit",
    "fr": "le la les et est une dans pour que sur avec au à qui pas il depuis avant après vers",
}
"""Language -> words that are frequent in it and rare in the others."""

COMMA_OR_END = re.compile(r"(?<=\S)( ?)(?:,(?= |$)|\.$)")
"""A comma, or the full stop at the end of a line, and the space that Moses' tokenizer puts before it. Other signs have
a space there in French text too."""

MARKS = re.compile(r"@@(?: |$)|@-@|▁|⁇|<unk>|\ufffd|&apos;|&#\d+;")
"""What tokenizers leave behind and text does not have. ``&quot;`` and ``&amp;`` are in WMT's own files."""


class Recipe(NamedTuple):
    """A published experiment that a run is compared with, and the name of its config."""

    name: str
    config: Config


class Writing(NamedTuple):
    """How lines are written.

    letters   that have two cases
    capitals  of these
    stops     commas, and full stops at the end of a line
    spaced    of these, with a space before
    marked    lines that have one of ``MARKS``
    words     of each language in ``COMMON_WORDS``
    """

    letters: int
    capitals: int
    stops: int
    spaced: int
    marked: int
    words: Mapping[str, int]


class Pieces(NamedTuple):
    """What a tokenizer makes of lines: their characters, its pieces, and of these the unknown ones."""

    characters: int
    pieces: int
    unknown: int


class OutputFacts(NamedTuple):
    """The newest outputs that eval.py wrote.

    path
    split         None if they are of other files
    checkpoint    as it was asked for: latest, best, a step, average:N
    weights       raw or ema
    steps         whose mean the weights were
    decoding      as it was
    size          lines
    unfinished    outputs that were cut at their limit, without EOS
    copied        outputs that are their source, where the reference is not
    bleu          from 0 to 100
    length_ratio  tokens of the outputs to those of the references
    references    as they were scored
    writing       of the outputs
    """

    path: Path
    split: Optional[str]
    checkpoint: str
    weights: str
    steps: tuple[int, ...]
    decoding: DecodingConfig
    size: int
    unfinished: int
    copied: int
    bleu: float
    length_ratio: float
    references: Writing
    writing: Writing


class TestFacts(NamedTuple):
    """The lines to be translated and their references, as they are on disk. Where there are two, of source and target.

    size      pairs
    of_data   False: the data is not here, and they are those beside the outputs
    writing
    pieces
    changed   references of known pieces that do not come back from the tokenizer as they were
    too_long  sources that are longer than decoding.max_source_length
    longest   tokens of the longest source, EOS included
    """

    size: int
    of_data: bool
    writing: tuple[Writing, Writing]
    pieces: tuple[Pieces, Pieces]
    changed: int
    too_long: int
    longest: int


class TrainingFacts(NamedTuple):
    """The training text, and the batches made of it. Where there are two, of source and target.

    size           pairs
    repeated       pairs that came before
    identical      pairs with the same text on both sides
    writing        of a sample
    pieces         of a sample
    without_eos    tokenised lines, of either side, that do not end in EOS
    batch_tokens   real tokens of a batch, on average
    padding_share  of all positions
    """

    size: int
    repeated: int
    identical: int
    writing: tuple[Writing, Writing]
    pieces: tuple[Pieces, Pieces]
    without_eos: int
    batch_tokens: tuple[float, float]
    padding_share: float


class Overlap(NamedTuple):
    """How many lines of the test set have their source, and how many both sides, in another split."""

    sources: int
    pairs: int


class Facts(NamedTuple):
    """All that the checks look at; in place of what cannot be known stands the reason.

    config         of the run
    recipe         None: there is none for this data
    step           of the newest checkpoint
    outputs
    test
    training
    in_training    of the test set
    in_validation  of the test set
    """

    config: Config
    recipe: Optional[Recipe]
    step: int | str
    outputs: OutputFacts | str
    test: TestFacts | str
    training: TrainingFacts | str
    in_training: Overlap | str
    in_validation: Overlap | str


def gather(workdir: Path, config: Config, recipes: Mapping[str, Config]) -> Facts:
    """Look at a run of translation. Nothing is trained, translated or fetched.

    Args:
      workdir: on local disk.
      config: of the run.
      recipes: published experiments, by the names of their configs.

    Raises:
      UserError: the workdir lacks its tokenizer.
    """
    tokenizers = load_tokenizers(workdir)
    step, fingerprint = _newest_checkpoint(workdir, config)
    outputs, scored, sentences = _read_outputs(workdir)
    decoding = config.decoding if isinstance(outputs, str) else outputs.decoding
    source = _open_source(config)
    pairs = _test_pairs(source, scored, sentences)
    recipe = choose_recipe(config, recipes)
    if isinstance(pairs, str):
        training, _ = look_at_training(config, source, tokenizers, fingerprint, ())
        return Facts(config, recipe, step, outputs, pairs, training, pairs, pairs)
    test = look_at_test(tokenizers, pairs, decoding.max_source_length, of_data=pairs is not sentences)
    training, in_training = look_at_training(config, source, tokenizers, fingerprint, pairs)
    in_validation = _overlap_with_validation(source, scored, pairs)
    return Facts(config, recipe, step, outputs, test, training, in_training, in_validation)


def choose_recipe(config: Config, recipes: Mapping[str, Config]) -> Optional[Recipe]:
    """Of the recipes for the two languages, in either direction, the one that differs least, if the data is WMT14's.

    That is told by names: of the data set of TFDS, or newstest2014 for the test files.
    """
    data = config.data
    if not ("wmt14" in (data.directory or "") if data.source == "tfds" else "newstest2014" in data.test):
        return None
    languages = {data.source_language, data.target_language}
    found = [
        Recipe(name, recipe)
        for name, recipe in recipes.items()
        if {recipe.data.source_language, recipe.data.target_language} == languages
    ]
    return min(found, key=lambda recipe: len(differences(recipe.config, config)), default=None)


def look_at_lines(lines: Iterable[str]) -> Writing:
    """How lines are written."""
    letters = capitals = stops = spaced = marked = 0
    words: collections.Counter[str] = collections.Counter()
    for line in lines:
        upper = sum(map(str.isupper, line))
        capitals += upper
        letters += upper + sum(map(str.islower, line))
        spaces = COMMA_OR_END.findall(line)
        stops += len(spaces)
        spaced += sum(map(bool, spaces))
        marked += MARKS.search(line) is not None
        words.update(line.lower().split())
    of_language = {language: sum(words[word] for word in common.split()) for language, common in COMMON_WORDS.items()}
    return Writing(letters, capitals, stops, spaced, marked, of_language)


def look_at_test(tokenizers: Tokenizers, pairs: Pairs, max_source_length: int, of_data: bool = True) -> TestFacts:
    """The pairs of a test set, of which there is at least one.

    Args:
      max_source_length: tokens, EOS included, of which longer sources are cut.
      of_data: see :class:`TestFacts`.
    """
    (sources, inputs), (references, wanted) = _encode(tokenizers, pairs)
    lengths = [len(ids) + 1 for ids in inputs]
    target = tokenizers[1]
    join = target.join if isinstance(target, SegmentedTextTokenizer) else str
    changed = sum(
        target.unk_id not in ids and target.decode(ids) != join(line)
        for line, ids in zip(references, wanted, strict=True)
    )
    return TestFacts(
        size=len(pairs),
        of_data=of_data,
        writing=(look_at_lines(sources), look_at_lines(references)),
        pieces=(_count(tokenizers[0], sources, inputs), _count(target, references, wanted)),
        changed=changed,
        too_long=sum(length > max_source_length for length in lengths),
        longest=max(lengths),
    )


def look_at_training(
    config: Config, source: ParallelSource | str, tokenizers: Tokenizers, fingerprint: Optional[str], test: Pairs
) -> tuple[TrainingFacts | str, Overlap | str]:
    """The training text, and what of a test set is in it; or why that is not known.

    Repeated pairs are told by hashes of 8 bytes: of 36 million they take 0.3 GB, and as much again to be sorted.

    Args:
      source: or why there is none.
      fingerprint: of the text that the run was trained on; None: any will do.
    """
    if isinstance(source, str):
        return source, source
    try:
        if fingerprint not in (None, source.fingerprint_of("train")):
            reason = "the training text that is here (data.directory) is not what the run was trained on"
            return reason, reason
        size = source.size("train")
        store = open_store(source, "train", tokenizers, cache_folder(config.data), config.data.processes)
        lengths = store.source_lengths, store.target_lengths
        plan = training_plan(config.data, *lengths, config.seed, source.repeats("train"))
        hashes, identical, search = array.array("q"), 0, _Search(test)
        sample, every = [], max(1, size // SAMPLE)
        for number, pair in enumerate(progress(source.pairs("train"), "looking at the training text", size, "pair")):
            hashes.append(hash(pair))
            identical += pair[0] == pair[1]
            search.add(pair)
            if number % every == 0:
                sample.append(pair)
    except UserError as error:
        return str(error), str(error)
    in_order = np.sort(np.frombuffer(hashes, np.int64))
    sides = _encode(tokenizers, sample)
    writing, pieces = zip(
        *(
            (look_at_lines(lines), _count(each, lines, ids))
            for each, (lines, ids) in zip(tokenizers, sides, strict=True)
        ),
        strict=True,
    )
    facts = TrainingFacts(
        size=size,
        repeated=int(np.count_nonzero(in_order[1:] == in_order[:-1])),
        identical=identical,
        writing=writing,
        pieces=pieces,
        without_eos=sum(map(lines_without_eos, store.sides, (tokenizer.eos_id for tokenizer in tokenizers))),
        batch_tokens=plan.mean_tokens(),
        padding_share=plan.padding_share(),
    )
    return facts, search.result()


def lines_without_eos(side: Tokens, eos_id: int) -> int:
    """How many lines of one side of a store do not end as they must."""
    return int(np.count_nonzero(side.at(side.offsets[1:] - 1) != eos_id))


class _Search:
    """Which of some pairs, or at least their sources, are among those that come by."""

    def __init__(self, wanted: Pairs):
        self._wanted = wanted
        self._sources = {source for source, _ in wanted}
        self._pairs = set(wanted)
        self._found_sources: set[str] = set()
        self._found_pairs: set[tuple[str, str]] = set()

    def add(self, pair: tuple[str, str]) -> None:
        if pair[0] in self._sources:
            self._found_sources.add(pair[0])
            if pair in self._pairs:
                self._found_pairs.add(pair)

    def result(self) -> Overlap:
        sources = sum(source in self._found_sources for source, _ in self._wanted)
        return Overlap(sources, sum(pair in self._found_pairs for pair in self._wanted))


def _overlap_with_validation(
    source: ParallelSource | str, scored: str | Mapping[str, str], test: Pairs
) -> Overlap | str:
    if scored == "validation":
        return "what was translated is the validation split"
    if isinstance(source, str):
        return source
    search = _Search(test)
    try:
        for pair in source.pairs("validation"):
            search.add(pair)
    except UserError as error:
        return str(error)
    return search.result()


def _newest_checkpoint(workdir: Path, config: Config) -> tuple[int | str, Optional[str]]:
    """The step, and the fingerprint of the data it was trained on; or why they are not known."""
    checkpoints = open_checkpoints(workdir, config)
    steps = checkpoints.steps()
    if not steps:
        return "there is no checkpoint in the workdir", None
    try:
        return steps[-1], checkpoints.metadata(steps[-1])["data_fingerprint"]
    except UserError as error:
        return str(error), None


def _open_source(config: Config) -> ParallelSource | str:
    """The data of a run, or why it cannot be read here."""
    directory = config.data.directory
    if config.data.source == "tfds" and directory is not None:
        from transformer.data.tfds_builders import data_dir, is_prepared

        if not is_prepared(directory):
            return f"{directory} is not prepared in TFDS_DATA_DIR={data_dir()}"
    try:
        return make_source(config.data, config.seed)
    except UserError as error:
        return str(error)


def _read_outputs(workdir: Path) -> tuple[OutputFacts | str, str | Mapping[str, str], Pairs]:
    """The newest outputs; the split, or the files, that they are of; their sources and references."""
    folder = workdir / OUTPUTS
    records = [
        record
        for record in scores.read(workdir)
        if "bleu" in record["scores"] and (folder / f"{record['name']}.jsonl").exists()
    ]
    if not records:
        return "no translations in the workdir; run eval.py first", "test", ()
    name, found, decoding = (records[-1][key] for key in ("name", "scores", "decoding"))
    path = folder / f"{name}.txt"
    lines = path.with_suffix(".jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    sentences = [json.loads(line) for line in lines]
    sources, references, outputs = ([each[key] for each in sentences] for key in ("source", "reference", "output"))
    scored = found["split"]
    facts = OutputFacts(
        path=path,
        split=scored if isinstance(scored, str) else None,
        checkpoint=found["checkpoint"],
        weights=found["weights"],
        steps=tuple(found["steps"]),
        decoding=DecodingConfig(**{**decoding, "stop": tuple(decoding["stop"])}),
        size=len(sentences),
        unfinished=sum(not each["finished"] for each in sentences),
        copied=sum(map(_is_copy, sources, references, outputs)),
        bleu=found["bleu"],
        length_ratio=found["length_ratio"],
        references=look_at_lines(references),
        writing=look_at_lines(outputs),
    )
    return facts, scored, list(zip(sources, references, strict=True))


def _test_pairs(source: ParallelSource | str, scored: str | Mapping[str, str], sentences: Pairs) -> Pairs | str:
    """The lines as they are on disk: beside outputs the references may be joined from pieces."""
    try:
        if not isinstance(scored, str):
            return list(read_pairs(scored["source"], scored["reference"]))
        if isinstance(source, str):
            return sentences or source
        return list(source.pairs(scored))
    except UserError as error:
        return sentences or str(error)


def _encode(tokenizers: Tokenizers, pairs: Pairs) -> list[tuple[Sequence[str], list[list[int]]]]:
    """Of each side the lines, and their ids."""
    return [
        (lines, tokenizer.encode_batch(lines))
        for tokenizer, lines in zip(tokenizers, zip(*pairs, strict=True), strict=True)
    ]


def _count(tokenizer: Tokenizer, lines: Sequence[str], encoded: Sequence[Sequence[int]]) -> Pieces:
    unknown = sum(list(ids).count(tokenizer.unk_id) for ids in encoded)
    return Pieces(sum(map(len, lines)), sum(map(len, encoded)), unknown)


def _is_copy(source: str, reference: str, output: str) -> bool:
    source, reference, output = (
        "".join(SegmentedTextTokenizer.join(line).split()) for line in (source, reference, output)
    )
    return output == source != reference and output != ""
