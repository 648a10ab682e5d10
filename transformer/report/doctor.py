"""Why a translation model's score is low: a check for each known reason, of a workdir, its outputs and its data.

To add a check, write a function from ``Facts`` to ``Finding`` and name it in ``CHECKS``. What a figure is compared with
is a constant, with its reason. Where a figure is missing, or there is nothing to compare it with, the finding is ``not
known``: a sound run is never blamed.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypeVar

from transformer.config import Config
from transformer.report.doctor_facts import COMMON_WORDS, Facts, Overlap, Recipe, Writing, gather
from transformer.types import UserError

OK, LOOK_HERE, NOT_KNOWN = "ok", "look here", "not known"

FULL, SUBSET = 3_003, 2_737  # lines of newstest2014, and of sacreBLEU's wmt14 for German

FEW_WORDS = 30  # common ones, as many as ten sentences have: with fewer a language is not told
CLEARLY = 3  # times as many common words as any other language has; in news it is 300 times
FEW_LETTERS = 500  # with fewer the share of capitals says little
LEAST_CAPITALS = 0.001  # of letters; generated French phrases have 0.3%, sentences from 2% (English) to 8% (German)
KEPT_CAPITALS = 0.25  # of the references' share; other kinds of text have half or twice as many
FEW_STOPS = 20  # commas and full stops
MOST_SPACED = 0.2  # of them; text has at most 0.1%, Moses' tokens nearly all
MOST_MARKED = 0.01  # of lines; text has none
MOST_UNFINISHED = 0.01  # of outputs; a trained model ends nearly all
LENGTH_RATIOS = (0.9, 1.1)  # shorter outputs lose a tenth of BLEU by its brevity penalty; good ones are within 5%
STRONGEST_PENALTY = 2.0  # for twice the length: that of the mean log-probability. A stronger one asks for long outputs
LEAST_TOKENS = 0.7  # of the recipe's batch; where that counts padding, up to a quarter is padding
MOST_UNKNOWN = 0.01  # of pieces; each is a hole in a sentence
MOST_SPLIT = 1.3  # times the pieces a character of training; newstest2013 after earlier ones 1.04, after captions 1.5
MOST_CHANGED = 0.01  # of references
MOST_SEEN_SOURCES, MOST_SEEN_PAIRS = 0.05, 0.01  # of test lines; newstest2013 and Multi30k have none in training
MOST_REPEATED = 0.2  # of training pairs
MOST_COPIED = 0.02  # of outputs
# of training pairs. Reference: Ott et al., Analyzing Uncertainty (2018): WMT14 has 1% to 2%, much more does harm
MOST_IDENTICAL = 0.05
MOST_PADDING = 0.4  # of positions; buckets have up to a quarter

Value = TypeVar("Value")


class Finding(NamedTuple):
    """What a check found.

    verdict  OK, LOOK_HERE or NOT_KNOWN
    found    the figure, or why there is none
    remedy   what to do about it
    """

    verdict: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.found}; {self.remedy}" if self.remedy else self.found


class NotKnown(Exception):
    """Says why a check cannot be made."""


def examine(workdir: Path, config: Config, recipes: Mapping[str, Config]) -> dict[str, Any]:
    """Print what every check finds in a run, a line each; give the same for a program.

    Args:
      workdir: on local disk.
      config: of the run.
      recipes: published experiments to compare it with, by the names of their configs.

    Raises:
      UserError: the run is not of translation, or its workdir lacks the tokenizer.
    """
    if config.task != "translation":
        raise UserError(
            f"--doctor looks for what makes translations score low, and this run is of task={config.task}; "
            "train.py --dry_run checks the batches of any task"
        )
    facts = gather(workdir, config, recipes)
    outputs = None if isinstance(facts.outputs, str) else facts.outputs
    recipe = None if facts.recipe is None else facts.recipe.name
    if outputs is not None:
        print(f"outputs in {outputs.path}: {outputs.size:,} lines, bleu {outputs.bleu:.2f}")
    print(f"compared with {recipe}" if recipe else "no recipe is known for this data")
    findings = diagnose(facts)
    for name, finding in findings.items():
        print(f"{finding.verdict:<10} {name}: {finding}")
    of_verdict = {
        verdict.replace(" ", "_"): {name: str(each) for name, each in findings.items() if each.verdict == verdict}
        for verdict in (LOOK_HERE, NOT_KNOWN, OK)
    }
    return {"outputs": str(outputs.path) if outputs else None, "recipe": recipe, **of_verdict}


def diagnose(facts: Facts) -> dict[str, Finding]:
    """What each check finds, by its name."""
    findings = {}
    for name, check in CHECKS.items():
        try:
            findings[name] = check(facts)
        except NotKnown as reason:
            findings[name] = Finding(NOT_KNOWN, str(reason))
    return findings


def known(value: Value | str) -> Value:
    """The facts, unless the reason why they are missing stands in their place."""
    if isinstance(value, str):
        raise NotKnown(value)
    return value


def recipe_of(facts: Facts, found: str) -> Recipe:
    """The recipe; if there is none, the finding is what was found, and not known to be right."""
    if facts.recipe is None:
        raise NotKnown(f"{found}; there is no recipe to compare it with")
    return facts.recipe


# The text


def direction(facts: Facts) -> Finding:
    """The two languages stand where the config says, and the recipe."""
    data = facts.config.data
    if facts.recipe is not None and facts.recipe.config.data.source_language != data.source_language:
        recipe = facts.recipe.config.data
        return Finding(
            LOOK_HERE,
            f"{data.source_language} to {data.target_language}, and {facts.recipe.name} is {recipe.source_language} to "
            f"{recipe.target_language}",
            "another task with other scores: exchange data.source_language and data.target_language in a new run",
        )
    sides = [("sources", data.source_language), ("targets", data.target_language)]
    texts: list[tuple[str, str, Writing]] = []
    for name, split in (("training", facts.training), ("test", facts.test)):
        if not isinstance(split, str):
            texts += [(f"{name} {side}", code, each) for (side, code), each in zip(sides, split.writing, strict=True)]
    if not isinstance(facts.outputs, str):
        texts.append(("outputs", data.target_language, facts.outputs.writing))
    wanted = {name: code.lower()[:2] for name, code, _ in texts}
    told = {name: language for name, _, writing in texts if (language := language_of(writing)) is not None}
    told = {name: language for name, language in told.items() if wanted[name] in COMMON_WORDS}
    if not told:
        languages = f"{data.source_language} and {data.target_language}"
        raise NotKnown(f"there is too little text in {languages}, or their words are not known here")
    found = ", ".join(f"{name} {language}" for name, language in told.items())
    if any(language != wanted[name] for name, language in told.items()):
        return Finding(
            LOOK_HERE,
            f"{data.source_language} to {data.target_language}, but by their words: {found}",
            "see which file holds which language, or whether the model copies",
        )
    return Finding(OK, f"by their words: {found}")


def language_of(writing: Writing) -> Optional[str]:
    """The language that has clearly the most common words, if one has."""
    counts = sorted(writing.words.items(), key=lambda item: item[1])
    (_, second), (language, first) = counts[-2:]
    return language if first >= max(FEW_WORDS, CLEARLY * second) else None


def letter_case(facts: Facts) -> Finding:
    """References, outputs and training targets have capitals."""
    texts = {}
    if not isinstance(facts.test, str):
        texts["references"] = facts.test.writing[1]
    if not isinstance(facts.outputs, str):
        texts["references"] = facts.outputs.references
        texts["outputs"] = facts.outputs.writing
    if not isinstance(facts.training, str):
        texts["training targets"] = facts.training.writing[1]
    shares = {name: each.capitals / each.letters for name, each in texts.items() if each.letters >= FEW_LETTERS}
    if "references" not in shares:
        raise NotKnown("there are no references" if not texts else "the references have too few letters")
    found = "capitals among the letters: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    if shares["references"] < LEAST_CAPITALS:
        return Finding(LOOK_HERE, found, "no score of cased text: score against the references as they were written")
    if any(share < KEPT_CAPITALS * shares["references"] for share in shares.values()):
        return Finding(LOOK_HERE, found, "the score is cased: train on text as it was written")
    return Finding(OK, found)


def raw_references(facts: Facts) -> Finding:
    """No tokenizer has left anything in the references."""
    test = known(facts.test)
    marked = test.writing[1].marked
    found = (
        f"{marked:,} of {test.size:,} references have pieces, escapes or unknown signs of a tokenizer (@@, &apos;, ⁇)"
    )
    if marked > MOST_MARKED * test.size:
        return Finding(LOOK_HERE, found, "the score is of tokens: score against the text as it was written")
    return Finding(OK, found)


def tokenized_references(facts: Facts) -> Finding:
    """Commas and full stops stand at their word."""
    writing = known(facts.test).writing[1] if isinstance(facts.outputs, str) else facts.outputs.references
    remedy = "the score is of tokens: give raw references; --config.decoding.detokenize makes outputs raw"
    return _stops(writing, "references", remedy)


def tokenized_outputs(facts: Facts) -> Finding:
    """Commas and full stops stand at their word."""
    remedy = "the model learnt tokens: --config.decoding.detokenize, against raw references"
    return _stops(known(facts.outputs).writing, "outputs", remedy)


def _stops(writing: Writing, name: str, remedy: str) -> Finding:
    found = f"{writing.spaced:,} of {writing.stops:,} commas and full stops of the {name} have a space before them"
    if writing.stops < FEW_STOPS:
        raise NotKnown(f"{found}: too few to tell")
    return Finding(LOOK_HERE, found, remedy) if writing.spaced > MOST_SPACED * writing.stops else Finding(OK, found)


def lines(facts: Facts) -> Finding:
    """All lines of the test set were scored, and they are those of the papers."""
    outputs = known(facts.outputs)
    size, data = outputs.size, facts.config.data
    found = f"{size:,} lines"
    if data.target_language == "de" and size == SUBSET:
        remedy = f"papers score all {FULL:,}: sacreBLEU's wmt14/full"
        return Finding(LOOK_HERE, f"{found}, as many as sacreBLEU's wmt14 has of newstest2014", remedy)
    if facts.recipe is not None and outputs.split == "test" and size != FULL:
        return Finding(LOOK_HERE, found, f"newstest2014 has {FULL:,}: see data.test")
    test = known(facts.test)
    if not test.of_data:
        raise NotKnown(f"{found}; whether these are all is not known without the data")
    if size != test.size:
        return Finding(LOOK_HERE, f"{found}, and the split has {test.size:,}", "run eval.py again, on this data")
    return Finding(OK, f"{found}, all of the {outputs.split} split" if outputs.split else f"{found}, all of the files")


# The data


def eos(facts: Facts) -> Finding:
    """Every tokenised training line ends in EOS."""
    training = known(facts.training)
    found = f"{training.without_eos:,} of {2 * training.size:,} training lines, on both sides, end without it"
    if training.without_eos:
        return Finding(LOOK_HERE, found, "remove the tokenised corpus (data.cache_directory) and train again")
    return Finding(OK, found)


def unknown_pieces(facts: Facts) -> Finding:
    """The vocabulary has pieces for the test set."""
    test = known(facts.test)
    counts = dict(zip(("sources", "references"), test.pieces, strict=True))
    found = ", ".join(f"{name} {each.unknown:,} of {each.pieces:,} pieces" for name, each in counts.items())
    if any(each.unknown > MOST_UNKNOWN * each.pieces for each in counts.values()):
        return Finding(LOOK_HERE, found, "split the text as that of training was, or use a vocabulary with bytes")
    return Finding(OK, found)


def vocabulary(facts: Facts) -> Finding:
    """The vocabulary was made for such text, and gives it back."""
    test = known(facts.test)
    found = f"{test.changed:,} of {test.size:,} references change on their way through the tokenizer"
    if test.changed > MOST_CHANGED * test.size:
        return Finding(LOOK_HERE, found, "no output can equal them: use a tokenizer that keeps the text")
    if isinstance(facts.training, str):
        raise NotKnown(f"{found}; pieces a character of the training text: {facts.training}")
    worst = 0.0
    for name, here, there in zip(("sources", "targets"), test.pieces, facts.training.pieces, strict=True):
        rates = [each.pieces / max(each.characters, 1) for each in (here, there)]
        found += f"; pieces a character, {name} {rates[0]:.2f} (in training {rates[1]:.2f})"
        worst = max(worst, rates[0] / max(rates[1], 1e-9))
    if worst > MOST_SPLIT:
        return Finding(LOOK_HERE, found, "the vocabulary is of other text: learn it from text like that of the test")
    return Finding(OK, found)


def overlap(facts: Facts) -> Finding:
    """The test set is in neither training nor validation."""
    test = known(facts.test)
    found, seen = [], False
    for name, each in (("training", facts.in_training), ("validation", facts.in_validation)):
        if isinstance(each, Overlap):
            found.append(
                f"{each.sources:,} of {test.size:,} test sources are in {name}, {each.pairs:,} with their target"
            )
            seen |= each.sources > MOST_SEEN_SOURCES * test.size or each.pairs > MOST_SEEN_PAIRS * test.size
    if seen:
        return Finding(LOOK_HERE, "; ".join(found), "test on lines that are in neither")
    known(facts.in_training)
    return Finding(OK, "; ".join(found))


def duplicates(facts: Facts) -> Finding:
    """Few training pairs came before."""
    training = known(facts.training)
    found = f"{training.repeated:,} of {training.size:,} training pairs came before"
    if training.repeated > MOST_REPEATED * training.size:
        return Finding(LOOK_HERE, found, "take them out: data.cleaning=duplicates")
    return Finding(OK, found)


def padding(facts: Facts) -> Finding:
    """Batches are of tokens."""
    share = known(facts.training).padding_share
    found = f"{share:.1%} of the positions of training"
    if share > MOST_PADDING:
        return Finding(LOOK_HERE, found, "data.batching=pack, or shorter data.max_source_length and max_target_length")
    return Finding(OK, found)


def batch_tokens(facts: Facts) -> Finding:
    """An update sees as many real tokens as in the recipe."""
    source, target = known(facts.training).batch_tokens
    found = f"{source:,.0f} source and {target:,.0f} target tokens an update, without padding"
    wanted = recipe_of(facts, found).config.data.tokens_per_batch
    if max(source, target) < LEAST_TOKENS * wanted:
        remedy = f"train with data.tokens_per_batch={wanted}; it is of all devices together"
        return Finding(LOOK_HERE, f"{found}; the recipe has {wanted:,}", remedy)
    return Finding(OK, f"{found}; the recipe has {wanted:,}")


# The training


def steps(facts: Facts) -> Finding:
    """The training came to its end, which is that of the recipe, and its end was scored."""
    step, wanted = known(facts.step), facts.config.training.num_steps
    found = f"{step:,} of {wanted:,} steps"
    if step < wanted:
        return Finding(LOOK_HERE, found, "the same train.py command goes on")
    if facts.recipe is not None and wanted < (least := facts.recipe.config.training.num_steps):
        return Finding(LOOK_HERE, f"{found}; the recipe has {least:,}", f"train with training.num_steps={least}")
    if not isinstance(facts.outputs, str):
        newest = max(facts.outputs.steps)
        found += f"; what was scored is of step {newest:,}"
        if newest < step and (facts.outputs.checkpoint + ":").startswith(("latest:", "average:")):
            return Finding(LOOK_HERE, found, "run eval.py again")
    return Finding(OK, found)


def label_smoothing(facts: Facts) -> Finding:
    """The amount and the form are those of the recipe."""
    amount, form = facts.config.training.label_smoothing, facts.config.training.label_smoothing_form
    found = f"{amount:g}, {form}" if amount else "none"
    recipe = recipe_of(facts, found).config.training
    wanted = f"{recipe.label_smoothing:g}, {recipe.label_smoothing_form}"
    if (amount, form) != (recipe.label_smoothing, recipe.label_smoothing_form):
        remedy = "train with training.label_smoothing and training.label_smoothing_form of the recipe"
        return Finding(LOOK_HERE, f"{found}; the recipe has {wanted}", remedy)
    return Finding(OK, f"{found}, as in the recipe")


# The scoring


def averaging(facts: Facts) -> Finding:
    """Weights are the mean of as many checkpoints as in the recipe, or a moving average."""
    outputs = known(facts.outputs)
    count = len(outputs.steps)
    found = f"the weights are {f'the mean of {count} checkpoints' if count > 1 else 'those of 1 checkpoint'}"
    if outputs.weights == "ema":
        return Finding(OK, f"{found}, in their moving average")
    recipe = recipe_of(facts, found)
    if outputs.split == "validation":
        return Finding(OK, f"{found}; the recipe averages none for the validation split")
    wanted = recipe.config.training.keep_checkpoints
    if count < wanted:
        return Finding(LOOK_HERE, f"{found}; the recipe has {wanted}", f"eval.py --checkpoint=average:{wanted}")
    return Finding(OK, f"{found}, as in the recipe")


def search(facts: Facts) -> Finding:
    """Outputs were searched for as in the recipe."""
    outputs = known(facts.outputs)
    method, width = outputs.decoding.method, outputs.decoding.beam_size
    found = f"beam {width}" if method == "beam" else method
    if method == "sample":
        return Finding(LOOK_HERE, found, "samples score low: --config.decoding.method=beam")
    wanted = recipe_of(facts, found).config.decoding.beam_size
    if method != "beam" or width != wanted:
        remedy = f"--config.decoding.method=beam --config.decoding.beam_size={wanted}"
        return Finding(LOOK_HERE, f"{found}; the recipe has beam {wanted}", remedy)
    return Finding(OK, f"{found}, as in the recipe")


def length_penalty(facts: Facts) -> Finding:
    """The form and alpha go together, and are those of the recipe."""
    decoding = known(facts.outputs).decoding
    name, alpha = decoding.length_penalty, decoding.alpha
    if decoding.method != "beam":
        raise NotKnown(f"none is used by {decoding.method}")
    found = name if name == "none" else f"{name}, alpha {alpha:g}"
    # How much 40 tokens are favoured over 20.
    growth = {"gnmt": (45 / 25) ** alpha, "power": 2.0**alpha, "none": 1.0}[name]
    if not 1 <= growth <= STRONGEST_PENALTY:
        remedy = "an alpha of another form? gnmt is ((5 + n) / 6)^alpha, usually 0.6; power n^alpha, at most 1"
        return Finding(LOOK_HERE, f"{found}: 40 tokens may cost {growth:.2f} times as much as 20", remedy)
    recipe = recipe_of(facts, found).config.decoding
    if (name, alpha) != (recipe.length_penalty, recipe.alpha):
        remedy = f"--config.decoding.length_penalty={recipe.length_penalty} --config.decoding.alpha={recipe.alpha:g}"
        return Finding(LOOK_HERE, f"{found}; the recipe has {recipe.length_penalty}, alpha {recipe.alpha:g}", remedy)
    return Finding(OK, f"{found}, as in the recipe")


# The outputs


def cut_sources(facts: Facts) -> Finding:
    """Every source was translated whole."""
    test = known(facts.test)
    found = f"{test.too_long:,} of {test.size:,} sources are cut at decoding.max_source_length; the longest has "
    found += f"{test.longest:,} tokens"
    if test.too_long:
        return Finding(LOOK_HERE, found, f"--config.decoding.max_source_length={test.longest}")
    return Finding(OK, found)


def cut_outputs(facts: Facts) -> Finding:
    """Outputs end by themselves."""
    outputs = known(facts.outputs)
    found = f"{outputs.unfinished:,} of {outputs.size:,} outputs reach their limit without EOS"
    if outputs.unfinished > MOST_UNFINISHED * outputs.size:
        return Finding(LOOK_HERE, found, "train longer; raise decoding.max_extra_tokens if they end well until there")
    return Finding(OK, found)


def length_ratio(facts: Facts) -> Finding:
    """Outputs are about as long as the references."""
    ratio = known(facts.outputs).length_ratio
    found = f"outputs have {ratio:.3f} times the tokens of the references"
    if not LENGTH_RATIOS[0] <= ratio <= LENGTH_RATIOS[1]:
        what = "short" if ratio < 1 else "long"
        remedy = (
            f"too {what}: see the length penalty, EOS, cut outputs and whether references and outputs are tokenised"
        )
        return Finding(LOOK_HERE, found, remedy)
    return Finding(OK, found)


def copies(facts: Facts) -> Finding:
    """Outputs are no copies of their sources, and training does not teach to copy."""
    found, many = [], False
    if not isinstance(facts.outputs, str):
        found.append(f"{facts.outputs.copied:,} of {facts.outputs.size:,} outputs are their source, not the reference")
        many |= facts.outputs.copied > MOST_COPIED * facts.outputs.size
    if not isinstance(facts.training, str):
        found.append(
            f"{facts.training.identical:,} of {facts.training.size:,} training pairs have the same on both sides"
        )
        many |= facts.training.identical > MOST_IDENTICAL * facts.training.size
    if many:
        return Finding(
            LOOK_HERE, "; ".join(found), "data.cleaning=identical, and sources that are in the right language"
        )
    known(facts.outputs)
    return Finding(OK, "; ".join(found))


CHECKS: dict[str, Callable[[Facts], Finding]] = {
    "direction": direction,
    "letter case": letter_case,
    "lines": lines,
    "raw references": raw_references,
    "tokenised references": tokenized_references,
    "tokenised outputs": tokenized_outputs,
    "EOS": eos,
    "cut sources": cut_sources,
    "cut outputs": cut_outputs,
    "length ratio": length_ratio,
    "length penalty": length_penalty,
    "search": search,
    "averaging": averaging,
    "tokens an update": batch_tokens,
    "steps": steps,
    "unknown pieces": unknown_pieces,
    "vocabulary": vocabulary,
    "overlap": overlap,
    "duplicates": duplicates,
    "copies": copies,
    "padding": padding,
    "label smoothing": label_smoothing,
}
"""In the order in which they are printed."""
