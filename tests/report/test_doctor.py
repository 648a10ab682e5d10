"""The doctor finds each fault that is planted, and only that; a sound run has none."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import wmt14_en_de, wmt14_en_fr
from tests.shared_data import shared_data
from transformer.config import (
    Config,
    DataConfig,
    EvaluationConfig,
    MeshConfig,
    ModelConfig,
    TrainingConfig,
    from_config_dict,
    to_json,
)
from transformer.data.pairs import PairList
from transformer.data.text_files import read_pairs
from transformer.data.tfds_builders import is_prepared
from transformer.data.tokenizer import CharacterTokenizer
from transformer.data.vocabularies import load_tokenizers
from transformer.evaluation.moses import paper_tokens
from transformer.evaluation.text_scores import full_score
from transformer.report import scores as records
from transformer.report.doctor import CHECKS, LOOK_HERE, NOT_KNOWN, OK, diagnose, examine, language_of
from transformer.report.doctor_facts import (
    Overlap,
    _Search,
    choose_recipe,
    gather,
    look_at_lines,
    look_at_test,
    look_at_training,
)
from transformer.tasks.translation import TranslationTask
from transformer.training.loading import load
from transformer.training.trainer import train
from transformer.training.workdir import read_config
from transformer.types import Candidate, UserError

pytestmark = pytest.mark.xdist_group("doctor")  # one run serves all

NEED_A_RECIPE = {"search", "averaging", "length penalty", "tokens an update", "label smoothing"}
NEED_OUTPUTS = {"lines", "tokenised outputs", "cut outputs", "length ratio", "copies", "length penalty", "search"}
NEED_TRAINING = {"EOS", "vocabulary", "overlap", "duplicates", "padding", "tokens an update"}

NAMES = (("Anna", "Anna"), ("the Smiths", "Familie Smith"), ("Mr. Brown", "Herrn Brown"), ("Basel", "Basel"))
THINGS = (("house", "Das Haus"), ("book", "Das Buch"), ("car", "Das Auto"), ("bicycle", "Das Fahrrad"))
RECIPES = {
    f"{module.__name__.rpartition('.')[2]}.py:{variant}": from_config_dict(module.get_config(variant))
    for module in (wmt14_en_de, wmt14_en_fr)
    for variant in module.PUBLISHED
}


def sentence(number: int) -> tuple[str, str]:
    """A pair that no other number has."""
    name, thing = NAMES[number % len(NAMES)], THINGS[number // len(NAMES) % len(THINGS)]
    english = f"The {thing[0]} of {name[0]} is {number} years old, and it is for you."
    return english, f"{thing[1]} von {name[1]} ist {number} Jahre alt, und es ist nicht für dich."


TRAINING, VALIDATION, TEST = (
    [sentence(number) for number in numbers] for numbers in (range(400), range(400, 440), range(440, 500))
)


def write_pairs(folder, stem, pairs):
    for side, language in enumerate(("en", "de")):
        (folder / f"{stem}.{language}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")


class KnownTranslations:
    """A translator that needs no model, and makes one mistake in each line."""

    num_truncated = 0

    def __call__(self, params, lines, num_best):
        known = dict([*TEST, *VALIDATION])
        return ([Candidate(known[line].replace("Jahre", "Jahr"), 0.0)] for line in lines)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A run of two steps, whose translations are good all the same: nobody translates them."""
    folder = tmp_path_factory.mktemp("data")
    for stem, pairs in (("train", TRAINING), ("val", VALIDATION), ("test", TEST)):
        write_pairs(folder, stem, pairs)
    config = Config(
        data=DataConfig(
            source="files",
            directory=str(folder),
            cache_directory=str(folder / "cache"),
            tokenizer_model="character",
            batching="pack",
            tokens_per_batch=1_024,
            max_source_length=256,
            max_target_length=256,
        ),
        model=ModelConfig(d_model=8, d_ff=8, num_heads=1, num_encoder_layers=1, num_decoder_layers=1),
        training=TrainingConfig(num_steps=2),
        evaluation=EvaluationConfig(beam_size=1, max_examples=1),
        mesh=MeshConfig(data=1),
    )
    workdir = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationTask, "_translator", lambda self, decoding: KnownTranslations())
        assert train(config, workdir) == 0
        run = load(workdir)
        outputs = workdir / "outputs" / "test.latest.raw.txt"
        outputs.parent.mkdir()
        about = {"split": "test", "checkpoint": "latest", "weights": "raw", "steps": run.checkpoint["steps"]}
        records.save(outputs, {**about, **run.task.evaluate(run.params, "test", outputs=outputs)}, config, config)
    return workdir


@pytest.fixture(scope="module")
def facts(healthy):
    return gather(healthy, read_config(healthy), RECIPES)


@pytest.fixture
def workdir(healthy, tmp_path):
    """A copy of the run, and of its data, to plant faults in."""
    config = read_config(healthy)
    shutil.copytree(healthy, tmp_path / "run")
    shutil.copytree(config.data.directory, tmp_path / "data")
    place = {"directory": str(tmp_path / "data"), "cache_directory": str(tmp_path / "data" / "cache")}
    write_config(tmp_path / "run", dataclasses.replace(config, data=dataclasses.replace(config.data, **place)))
    return tmp_path / "run"


def write_config(workdir, config):
    (workdir / "config.json").write_text(to_json(config))


def to_look_at(facts) -> set[str]:
    return {name for name, finding in diagnose(facts).items() if finding.verdict == LOOK_HERE}


def found_in(workdir) -> set[str]:
    return to_look_at(gather(workdir, read_config(workdir), RECIPES))


def test_a_sound_run_gives_nothing_to_look_at(facts):
    verdicts = {name: finding.verdict for name, finding in diagnose(facts).items()}
    assert {name for name, verdict in verdicts.items() if verdict != OK} == NEED_A_RECIPE
    assert {verdicts[name] for name in NEED_A_RECIPE} == {NOT_KNOWN}
    assert facts.step == 2 and facts.test.size == len(TEST) and facts.training.size == len(TRAINING)
    assert facts.in_training == facts.in_validation == Overlap(0, 0) and facts.training.repeated == 0
    longest = max(len(source) for source, _ in TEST) + 1
    assert facts.test.longest == longest and facts.outputs.path.is_file()


def test_what_is_printed_is_a_line_for_each_check_and_json_can_hold_the_rest(healthy, facts, capsys):
    result = examine(healthy, read_config(healthy), RECIPES)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"outputs in {facts.outputs.path}: 60 lines, bleu {facts.outputs.bleu:.2f}"
    assert printed[1] == "no recipe is known for this data"
    assert [line.partition(": ")[0][11:] for line in printed[2:]] == list(CHECKS)
    assert json.loads(json.dumps(result)) == result and result["look_here"] == {}
    assert set(result["ok"]) | set(result["not_known"]) == set(CHECKS)


# Outputs


def tokens(lines: list[str]) -> list[str]:
    return paper_tokens(lines, "de")


def every(number: int, change):
    """Change each so-manieth output, given its sentence."""
    return lambda sentences: [
        {**each, **(change(each) if i % number == 0 else {})} for i, each in enumerate(sentences)
    ]  # fmt: skip


def of_key(change, *keys: str):
    """Change the lines under some keys of all sentences."""

    def changed(sentences):
        columns = {key: change([each[key] for each in sentences]) for key in keys}
        return [
            {**each, **{key: columns[key][i] for key in keys}} for i, each in enumerate(sentences)
        ]  # fmt: skip

    return changed


def lower(lines: list[str]) -> list[str]:
    return [line.lower() for line in lines]


def shorter(lines: list[str]) -> list[str]:
    return [" ".join(line.split()[:-4]) + ", da." for line in lines]


FAULTY_OUTPUTS = {
    "outputs in lower case": (of_key(lower, "output"), {"letter case"}),
    "all in lower case": (of_key(lower, "output", "reference"), {"letter case"}),
    "outputs of tokens": (of_key(tokens, "output"), {"tokenised outputs"}),
    "references of tokens": (of_key(tokens, "reference"), {"tokenised references"}),
    "short outputs": (of_key(shorter, "output"), {"length ratio"}),
    "long outputs": (of_key(lambda lines: [line + " Und so weiter und so fort." for line in lines], "output"),
                     {"length ratio"}),
    "outputs that were cut": (every(10, lambda each: {"finished": False}), {"cut outputs"}),
    "a few copies of the source": (every(10, lambda each: {"output": each["source"]}), {"copies"}),
    "lines that stay as they are": (every(10, lambda each: dict.fromkeys(("output", "reference"), each["source"])),
                                    set()),
    "lines left out": (lambda sentences: sentences[:-3], {"lines"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTY_OUTPUTS)
def test_faults_of_outputs(workdir, fault):
    change, names = FAULTY_OUTPUTS[fault]
    path = workdir / "outputs" / "test.latest.raw.jsonl"
    sentences = change([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])
    path.write_text("".join(json.dumps(each) + "\n" for each in sentences), encoding="utf-8")
    scored = full_score([each["output"] for each in sentences], [[each["reference"] for each in sentences]], None)
    change_record(workdir, lambda record: record["scores"].update(scored))
    assert found_in(workdir) == names


def change_record(workdir, change):
    path = workdir / "outputs" / "test.latest.raw.scores.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(json.dumps(record), encoding="utf-8")


@pytest.mark.parametrize(
    ("key", "changes", "names"),
    [
        ("decoding", {"length_penalty": "power", "alpha": 1.5}, {"length penalty"}),
        ("decoding", {"alpha": -0.6}, {"length penalty"}),
        ("decoding", {"alpha": 2.0}, {"length penalty"}),
        ("decoding", {"length_penalty": "power"}, set()),  # as fairseq has it
        ("decoding", {"length_penalty": "none"}, set()),
        ("decoding", {"method": "sample"}, {"search"}),
        ("decoding", {"method": "greedy"}, set()),
        ("decoding", {"max_source_length": 20}, {"cut sources"}),
        ("scores", {"steps": [1]}, {"steps"}),
        ("scores", {"steps": [1], "checkpoint": "best"}, set()),
    ],
)
def test_faults_of_the_scoring(workdir, key, changes, names):
    change_record(workdir, lambda record: record[key].update(changes))
    assert found_in(workdir) == names


# Data


def test_a_training_that_has_not_come_to_its_end(workdir):
    config = read_config(workdir)
    write_config(workdir, dataclasses.replace(config, training=dataclasses.replace(config.training, num_steps=3)))
    assert found_in(workdir) == {"steps"}


def test_lines_that_lost_their_eos(workdir, facts):
    (path,) = (workdir.parent / "data" / "cache").glob("train-*/target.tokens")
    stored = np.fromfile(path, np.uint16)
    (ends,) = np.nonzero(stored == load_tokenizers(workdir)[1].eos_id)
    stored[ends[7]] = stored[0]
    stored.tofile(path)
    changed = gather(workdir, read_config(workdir), RECIPES)
    assert changed.training.without_eos == 1 and facts.training.without_eos == 0
    assert to_look_at(changed) == {"EOS"}


FAULTY_FILES = {
    "test lines in validation": ({"val": VALIDATION + TEST[:10]}, {"overlap"}),
    "another alphabet": ({"test": [(source, target.replace("Jahre", "ЛЕТ")) for source, target in TEST]},
                         {"unknown pieces"}),
    "references in pieces": ({"test": [(source, target.replace("Jahre", "Ja@@ hre")) for source, target in TEST]},
                             {"raw references", "unknown pieces"}),
    "more test lines than were scored": ({"test": [*TEST, sentence(600)]}, {"lines"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTY_FILES)
def test_faults_of_test_and_validation_files(workdir, fault):
    files, names = FAULTY_FILES[fault]
    for stem, pairs in files.items():
        write_pairs(workdir.parent / "data", stem, pairs)
    assert found_in(workdir) == names


def swapped(pairs):
    return [(target, source) for source, target in pairs]


FAULTY_TRAINING = {
    "swapped": (swapped(TRAINING), {}, {"direction"}),
    "pairs twice": (TRAINING + TRAINING[:150], {}, {"duplicates"}),
    "two test pairs": (TRAINING + TEST[:2], {}, {"overlap"}),
    "two test sources": (TRAINING + [(source, target + "!") for source, target in TEST[:2]], {}, set()),
    "test pairs": (TRAINING + TEST[:5], {}, {"overlap"}),
    "test sources": (TRAINING + [(source, target + "!") for source, target in TEST[:5]], {}, {"overlap"}),
    "copies": (TRAINING + [(source + "!", source + "!") for source, _ in TRAINING[:30]], {}, {"copies"}),
    "lower case": ([(source, target.lower()) for source, target in TRAINING], {}, {"letter case"}),
    "one bucket": ([(source * (9 if i == 0 else 1), target) for i, (source, target) in enumerate(TRAINING)],
                   {"batching": "bucket", "num_buckets": 1, "max_source_length": 900}, {"padding"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTY_TRAINING)
def test_faults_of_the_training_text(healthy, facts, fault, tmp_path):
    pairs, changes, names = FAULTY_TRAINING[fault]
    data = dataclasses.replace(facts.config.data, cache_directory=str(tmp_path), **changes)
    config = dataclasses.replace(facts.config, data=data)
    training, overlap = look_at_training(config, PairList(pairs), load_tokenizers(healthy), None, TEST)
    assert training.repeated == len(pairs) - len(set(pairs))
    assert training.identical == sum(source == target for source, target in pairs)
    assert to_look_at(facts._replace(training=training, in_training=overlap)) == names


class LossyTokenizer(CharacterTokenizer):
    def decode(self, ids):
        return super().decode(ids).replace("Jahre", "jahre")


def test_a_tokenizer_that_changes_references(healthy, facts):
    source, target = load_tokenizers(healthy)
    lossy = LossyTokenizer("".join(target._pieces[4:]))
    test = look_at_test((source, lossy), TEST, 512)
    assert test.changed == len(TEST)
    assert to_look_at(facts._replace(test=test)) == {"vocabulary"}


def test_a_vocabulary_of_other_text(facts):
    finer = tuple(each._replace(pieces=2 * each.pieces) for each in facts.test.pieces)
    assert to_look_at(facts._replace(test=facts.test._replace(pieces=finer))) == {"vocabulary"}


@given(st.lists(st.tuples(*[st.sampled_from("abc")] * 2)), st.lists(st.tuples(*[st.sampled_from("abcd")] * 2)))
def test_overlap_is_of_the_lines_of_the_test_set(test, other):
    search = _Search(test)
    for pair in other:
        search.add(pair)
    sources = {source for source, _ in other}
    assert search.result() == Overlap(sum(source in sources for source, _ in test), sum(pair in other for pair in test))


# The recipe


def of_recipe(facts, name):
    """A sound run of a published experiment."""
    config = RECIPES[name]
    last = config.training.num_steps
    steps = tuple(range(last - config.training.keep_checkpoints + 1, last + 1))
    outputs = facts.outputs._replace(size=3_003, checkpoint="average:5", steps=steps, decoding=config.decoding)
    return facts._replace(
        config=config,
        recipe=choose_recipe(config, RECIPES),
        step=last,
        outputs=outputs,
        test=facts.test._replace(size=3_003),
        training=facts.training._replace(size=4_500_000, batch_tokens=(24_000.0, 25_000.0)),
    )


GERMAN = [name for name in RECIPES if name.startswith("wmt14_en_de")]


@pytest.mark.parametrize("name", GERMAN)
def test_a_sound_run_of_a_recipe_is_ok_throughout(facts, name):
    sound = of_recipe(facts, name)
    assert sound.recipe.name == name
    assert {name: str(found) for name, found in diagnose(sound).items() if found.verdict != OK} == {}


def outputs_with(**changes):
    return lambda facts: facts._replace(outputs=facts.outputs._replace(**changes))


def config_with(section, **changes):
    def changed(facts):
        part = dataclasses.replace(getattr(facts.config, section), **changes)
        return facts._replace(config=dataclasses.replace(facts.config, **{section: part}))

    return changed


def decoding_with(**changes):
    return lambda facts: outputs_with(decoding=dataclasses.replace(facts.outputs.decoding, **changes))(facts)


DEVIATIONS = {
    "one checkpoint": (outputs_with(steps=(100_000,), checkpoint="latest"), {"averaging"}),
    "one checkpoint, for validation": (outputs_with(steps=(100_000,), checkpoint="latest", split="validation"), set()),
    "a moving average": (outputs_with(steps=(100_000,), checkpoint="latest", weights="ema"), set()),
    "the subset": (lambda f: outputs_with(size=2_737)(f._replace(test=f.test._replace(size=2_737))), {"lines"}),
    "another test set": (lambda f: outputs_with(size=3_000)(f._replace(test=f.test._replace(size=3_000))), {"lines"}),
    "4k tokens": (lambda f: f._replace(training=f.training._replace(batch_tokens=(3_900.0, 4_000.0))),
                  {"tokens an update"}),
    "few steps": (lambda f: config_with("training", num_steps=50_000)(f._replace(step=50_000)), {"steps"}),
    "no smoothing": (config_with("training", label_smoothing=0.0), {"label smoothing"}),
    "another smoothing": (config_with("training", label_smoothing_form="others"), {"label smoothing"}),
    "another alpha": (decoding_with(alpha=0.9), {"length penalty"}),
    "another penalty": (decoding_with(length_penalty="power"), {"length penalty"}),
    "greedy": (decoding_with(method="greedy"), {"search"}),
    "beam 12": (decoding_with(beam_size=12), {"search"}),
    "German to English": (config_with("data", source_language="de", target_language="en"), {"direction"}),
}  # fmt: skip


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_deviations_from_the_recipe(facts, deviation):
    change, names = DEVIATIONS[deviation]
    assert to_look_at(change(of_recipe(facts, "wmt14_en_de.py:base"))) == names


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_is_the_nearest_and_the_direction_changes_nothing(name):
    config = RECIPES[name]
    turned = dataclasses.replace(config.data, source_language=config.data.target_language, target_language="en")
    for data in (config.data, turned):
        training = dataclasses.replace(config.training, num_steps=1_000, label_smoothing=0.2)
        changed = dataclasses.replace(config, data=data, training=training)
        assert choose_recipe(changed, RECIPES).name == name


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"source": "files", "directory": "wmt14", "test": "newstest2013"}, False),
        ({"source": "files", "test": "newstest2014"}, True),
        ({"directory": "wmt17_translate/de-en"}, False),
        ({"target_language": "cs"}, False),
    ],
)
def test_other_data_has_no_recipe(changes, known):
    config = RECIPES["wmt14_en_de.py:base"]
    found = choose_recipe(dataclasses.replace(config, data=dataclasses.replace(config.data, **changes)), RECIPES)
    assert (found is not None) == known


# What cannot be known


def not_known(facts) -> set[str]:
    return {name for name, finding in diagnose(facts).items() if finding.verdict == NOT_KNOWN}


def test_without_translations(workdir):
    shutil.rmtree(workdir / "outputs")
    found = gather(workdir, read_config(workdir), RECIPES)
    assert not_known(found) == NEED_OUTPUTS | NEED_A_RECIPE and to_look_at(found) == set()
    assert "run eval.py first" in diagnose(found)["length ratio"].found


def test_without_data(workdir):
    shutil.rmtree(workdir.parent / "data")
    found = gather(workdir, read_config(workdir), RECIPES)
    assert not_known(found) == {*NEED_TRAINING, *NEED_A_RECIPE, "lines"} and to_look_at(found) == set()
    assert "is not a folder" in diagnose(found)["duplicates"].found
    shutil.rmtree(workdir / "outputs")
    found = gather(workdir, read_config(workdir), RECIPES)
    assert not_known(found) == set(CHECKS) - {"steps"}


def test_other_training_text_than_that_of_the_run_is_not_looked_at(workdir):
    write_pairs(workdir.parent / "data", "train", TRAINING[1:] * 2)
    found = gather(workdir, read_config(workdir), RECIPES)
    assert not_known(found) == NEED_TRAINING | NEED_A_RECIPE and to_look_at(found) == set()
    assert "is not what the run was trained on" in diagnose(found)["duplicates"].found


def test_a_data_set_that_is_not_prepared_is_not_fetched(workdir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(workdir.parent))
    config = read_config(workdir)
    data = dataclasses.replace(config.data, source="tfds", directory="wmt14_translate/de-en")
    assert not is_prepared("wmt14_translate/de-en")
    found = gather(workdir, dataclasses.replace(config, data=data), RECIPES)
    assert "wmt14_translate/de-en is not prepared in TFDS_DATA_DIR" in diagnose(found)["duplicates"].found
    assert found.recipe.name.startswith("wmt14_en_de.py:")
    folder = workdir.parent / "wmt14_translate" / "de-en" / "1.0.0"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("{}")
    assert is_prepared("wmt14_translate/de-en") and is_prepared(str(folder))


def test_translations_of_files(workdir):
    folder = workdir.parent / "data"
    files = {"source": str(folder / "test.en"), "reference": str(folder / "test.de")}
    change_record(workdir, lambda record: record["scores"].update(split=files))
    found = gather(workdir, read_config(workdir), RECIPES)
    assert found.outputs.split is None and to_look_at(found) == set()
    (folder / "test.de").unlink()  # the lines beside the outputs do as well
    assert to_look_at(gather(workdir, read_config(workdir), RECIPES)) == set()


def test_the_validation_split_is_no_fault_of_itself(workdir):
    write_pairs(workdir.parent / "data", "val", TEST)
    change_record(workdir, lambda record: record["scores"].update(split="validation"))
    assert found_in(workdir) == set()


def test_unknown_languages_and_little_text_are_not_judged(facts):
    czech = dataclasses.replace(facts.config.data, source_language="cs", target_language="ru")
    assert not_known(facts._replace(config=dataclasses.replace(facts.config, data=czech))) >= {"direction"}
    assert language_of(look_at_lines(side for pair in TRAINING for side in pair)) is None
    few = look_at_lines(["ja."])
    little = facts._replace(
        test=facts.test._replace(writing=(few, few)),
        outputs=facts.outputs._replace(writing=few, references=few),
        training="no training text",
    )
    names = {"direction", "letter case", "tokenised references", "tokenised outputs"}
    assert not_known(little) >= names and to_look_at(little) == set()


def test_other_tasks_are_refused(workdir):
    config = dataclasses.replace(read_config(workdir), task="span_corruption")
    with pytest.raises(UserError, match="task=span_corruption"):
        examine(workdir, config, {})


# Real text


@pytest.mark.parametrize(
    ("name", "stem", "language"),
    [
        ("multi30k", "test_2016_flickr", "de"),
        ("multi30k", "test_2016_flickr", "fr"),
        ("wmt-newstest-2008-2013", "newstest2013.en-de", "de"),
        ("wmt-newstest-2008-2013", "newstest2013.en-fr", "fr"),
    ],
)
def test_real_text_and_its_tokens(facts, name, stem, language):
    folder = shared_data(name)
    pairs = list(read_pairs(folder / f"{stem}.en", folder / f"{stem}.{language}"))[:500]
    sources, references = zip(*pairs, strict=True)
    tokenizer = CharacterTokenizer("".join("".join(pair) for pair in pairs))

    def seen(lines):
        writing = look_at_lines(lines)
        test = look_at_test((tokenizer, tokenizer), pairs, 10_000)
        outputs = facts.outputs._replace(size=len(pairs), writing=writing, references=look_at_lines(references))
        data = dataclasses.replace(facts.config.data, target_language=language)
        config = dataclasses.replace(facts.config, data=data)
        training = facts.training._replace(writing=test.writing, pieces=test.pieces)
        return to_look_at(facts._replace(config=config, test=test, outputs=outputs, training=training))

    assert seen(references) == set()
    assert seen(paper_tokens(references, language)) == {"tokenised outputs"}
    assert seen(lower(list(references))) == {"letter case"}
    assert seen(sources) == {"direction"}
