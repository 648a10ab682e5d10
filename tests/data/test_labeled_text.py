"""Labelled texts: every line read or named, each example once an epoch, and its label nowhere but in the labels."""

import gzip
import itertools
import json
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.config import DataConfig
from transformer.data.labeled_text import (
    NO_LABEL,
    LabeledSource,
    LabeledTextPipeline,
    LabelSet,
    encode_rows,
    fitting,
    flat,
    inference_batches,
    labeled_batch,
    make_labeled_texts,
    make_rows,
    read_labeled,
)
from transformer.data.tokenizer import ByteTokenizer
from transformer.types import LabeledTextBatch, UserError

TRAPS = "a\x85b \u2028 c\x0bd\x1c \r \ufeff 😀 שלום  "


class Numbers(ByteTokenizer):
    """A text of numbers: each is its own id. The special ids are BERT's."""

    vocab_size, pad_id, bos_id, eos_id = 131, 0, 101, 102

    def encode(self, line: str) -> list[int]:
        return [int(word) for word in line.split()]


# Files


def write(path, *lines: str):
    content = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(path) -> list[tuple[str, ...]]:
    return [(label, *texts) for label, texts, _ in read_labeled(path)]


SINGLE = [("good", "a fine film"), ("1", TRAPS), ("good", ""), ("b:c", " two  spaces ")]
PAIRS = [("1", "a fine film", "yes"), ("0", TRAPS, "")]


def json_line(example: tuple[str, ...]) -> str:
    names = ("label", "text", "text_pair")
    return json.dumps(dict(zip(names, example, strict=False)) | {"idx": 3})


@pytest.mark.parametrize("zipped", ["", ".gz"])
@pytest.mark.parametrize(
    ("ending", "examples", "line"),
    [
        (".jsonl", SINGLE, json_line),
        (".jsonl", PAIRS, json_line),
        (".tsv", SINGLE, "\t".join),
        (".tsv", PAIRS, "\t".join),
        (".txt", SINGLE, " ".join),
    ],
)
def test_each_format_gives_the_text_as_it_stands(tmp_path, ending, examples, line, zipped):
    path = write(tmp_path / f"a{ending}{zipped}", *map(line, examples))
    assert read(path) == examples
    assert [place for _, _, place in read_labeled(path)] == [f"{path}:{n}" for n in range(1, len(examples) + 1)]


def test_labels_may_be_integers(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "x", "label": 0}', '{"text": "y", "label": -2, "text_pair": null}')
    assert read(path) == [("0", "x"), ("-2", "y")]


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("a.txt", "positive", "a label, a space and a text, found 'positive'"),
        ("a.txt", " no label", "a label, a space and a text, found ' no label'"),
        ("a.txt", "", "a label, a space and a text, found ''"),
        ("a.tsv", "1 no tab", "a label, a tab and a text, and for pairs another tab and text, found '1 no tab'"),
        ("a.tsv", "\ttext", "a label, a tab and a text"),
        ("a.tsv", "1\ta\tb\tc", "a label, a tab and a text"),
        ("a.jsonl", "{'text': 'x'}", 'an object with "text"'),
        ("a.jsonl", '{"text": "x"}', 'an object with "text"'),
        ("a.jsonl", '{"label": "1"}', 'an object with "text"'),
        ("a.jsonl", '{"text": "x", "label": true}', 'an object .* "label" .a string or an integer'),
        ("a.jsonl", '{"text": "x", "label": 1.5}', 'an object .* "label" .a string or an integer'),
        ("a.jsonl", '{"text": "x", "label": ""}', 'an object .* "label" .a string or an integer'),
        ("a.jsonl", '{"text": 7, "label": "1"}', 'an object with "text" .a string'),
        ("a.jsonl", '{"text": "x", "label": "1", "text_pair": 7}', 'an object .* "text_pair" .a string'),
        ("a.jsonl", '["x", "1"]', 'an object with "text"'),
        ("a.jsonl", '"x"', 'an object with "text"'),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path, name, line, message):
    first = {"a.txt": "1 x", "a.tsv": "1\tx", "a.jsonl": '{"text": "x", "label": 1}'}[name]
    path = write(tmp_path / name, first, line)
    with pytest.raises(UserError, match=rf"{name}:2: expected {message}"):
        read(path)


def test_a_file_that_is_wrong_is_named(tmp_path):
    with pytest.raises(UserError, match=r"a\.tsv is empty"):
        read(write(tmp_path / "a.tsv"))
    with pytest.raises(UserError, match=r"the ending of .*a\.csv=\.csv is not one of \.jsonl, \.tsv, \.txt"):
        read(tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"there is no file .*gone\.tsv \(nor gone\.tsv\.gz\)"):
        read(tmp_path / "gone.tsv")


# Sources


def source_of(folder, **changes) -> LabeledSource:
    return make_labeled_texts(DataConfig(source="files", directory=str(folder), **changes), 0)


def content(examples) -> list[tuple[str, ...]]:
    return [(label, *texts) for label, texts, _ in examples]


def test_splits_are_stems_of_any_format(tmp_path):
    write(tmp_path / "a.txt", "1 x", "0 y")
    write(tmp_path / "b.jsonl.gz", json_line(("1", "z")))
    write(tmp_path / "val.tsv", "0\tw")
    source = source_of(tmp_path, train=("a", "b"), train_weights=(2, 3))
    assert content(source.examples("train")) == [("1", "x"), ("0", "y"), ("1", "z")]
    assert content(source.examples("validation")) == [("0", "w")]
    assert source.repeats("train").tolist() == [2, 2, 3] and source.repeats("validation") is None
    with pytest.raises(UserError, match=r"no .*test with one of the endings \.jsonl, .*; stems .*: a, b, val"):
        source.examples("test")
    before = source.fingerprint_of("train")
    write(tmp_path / "a.txt", "0 x", "0 y")
    assert source_of(tmp_path, train=("a", "b")).fingerprint_of("train") != before
    write(tmp_path / "val.txt.gz", "0 w")
    with pytest.raises(UserError, match=r"val\.tsv and .*val\.txt\.gz are both there"):
        source_of(tmp_path, train=("a",)).examples("validation")


@pytest.mark.parametrize("split", ["random", "end"])
def test_one_file_can_be_split(tmp_path, split):
    lines = [f"{n % 3} text {n % 97}" for n in range(211)]  # most texts come twice or three times
    write(tmp_path / "train.txt", *lines)
    options = {"split": split, "validation_share": 0.2, "test_share": 0.3}
    source = source_of(tmp_path, **options)
    parts = {name: content(source.examples(name)) for name in ("train", "validation", "test")}
    assert sorted(itertools.chain(*parts.values())) == sorted(tuple(line.split(" ", 1)) for line in lines)
    for name, share in {"validation": 0.2, "test": 0.3}.items():
        assert abs(len(parts[name]) / len(lines) - share) < 0.02
    if split == "random":
        texts = [{text for _, text in part} for part in parts.values()]
        assert not any(one & other for one, other in itertools.combinations(texts, 2))
    else:
        assert parts["train"] + parts["validation"] + parts["test"] == [tuple(line.split(" ", 1)) for line in lines]


def test_phrases_have_their_kinds_as_labels():
    source = make_labeled_texts(DataConfig(num_phrases=211), 0)
    examples = source.examples("train")
    assert len(examples) == 211 and len({example.label for example in examples}) == 9
    ordinals = [example.texts[0] for example in examples if example.label == "ordinals"]
    assert ordinals and all(text.endswith(("st", "nd", "rd", "th")) for text in ordinals)
    assert source.fingerprint_of("train") != make_labeled_texts(DataConfig(num_phrases=211), 1).fingerprint_of("train")


# Labels


def test_the_labels_are_those_of_the_training_split(tmp_path):
    labels = LabelSet.of(["b", "a", "c", "b", "a"], pairs=True)
    assert labels == LabelSet(("a", "b", "c"), "a", True)
    assert labels.numbers(["c", "a"], ["", ""]).tolist() == [2, 0]
    with pytest.raises(UserError, match=r"^dev\.txt:7: the training split has no label 'd'; it has a, b, c$"):
        labels.numbers(["a", "d"], ["dev.txt:6", "dev.txt:7"])
    assert LabelSet.load(tmp_path) is None
    labels.save(tmp_path)
    assert LabelSet.load(tmp_path) == labels
    (tmp_path / "labels.json").write_text('{"names": ["a"]}')
    with pytest.raises(UserError, match=r"labels\.json does not hold the labels of a run"):
        LabelSet.load(tmp_path)


# Rows


@given(st.lists(st.integers(0, 23), min_size=2, max_size=2), st.integers(0, 31))
def test_of_a_pair_the_longer_text_loses_its_end_first(lengths, room):
    kept = list(lengths)
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    assert fitting(lengths, room) == tuple(kept)
    assert fitting(lengths[:1], room) == (min(lengths[0], room),)


def test_rows_have_the_form_of_bert():
    rows = encode_rows(Numbers(), [("7 8 9", "11 12"), ("", "13")], 20)
    assert [rows.tokens[n].tolist() for n in (0, 1)] == [[101, 7, 8, 9, 102, 11, 12, 102], [101, 102, 13, 102]]
    assert [rows.token_types[n].tolist() for n in (0, 1)] == [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1]]
    rows = encode_rows(Numbers(), [("7 8",), ("",)], 20)
    assert [rows.tokens[n].tolist() for n in (0, 1)] == [[101, 7, 8, 102], [101, 102]]
    assert not rows.token_types.gather(np.array([0, 1])).any() and not rows.truncated.any()


def test_what_is_cut_is_counted_and_said_once(caplog):
    rows = encode_rows(Numbers(), [("5 6 7",), ("5 6 7 8",), ("5 6 7 8 9",)], 5)
    assert rows.tokens.lengths.tolist() == [5, 5, 5] and rows.truncated.tolist() == [False, True, True]
    assert rows.tokens[2].tolist() == [101, 5, 6, 7, 102]
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "2 of 3 rows have more than data.max_source_length=5 tokens; the ends of their texts are left out"
    ]
    assert rows.first(2).truncated.tolist() == [False, True] and rows.first(None).truncated.sum() == 2
    with pytest.raises(UserError, match=r"data\.max_source_length=4 has no room for 2 text"):
        encode_rows(Numbers(), [("5", "6")], 4)


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(UserError, match="gives id 131, but its vocabulary has 131 pieces"):
        encode_rows(Numbers(), [("130",), ("131",)], 5)


# Batches

row_lists = st.lists(st.lists(st.integers(103, 130), max_size=17), min_size=1, max_size=41)


def pipeline_of(rows, labels, *, seed: int = 0, tokens: int = 53, **options) -> LabeledTextPipeline:
    config = DataConfig(tokens_per_batch=tokens, max_source_length=19, num_buckets=3)
    return LabeledTextPipeline(rows, labels, config, seed=seed, pad_id=Numbers.pad_id, **options)


def read_batch(batch: LabeledTextBatch) -> list[tuple[tuple[int, ...], int]]:
    """Tokens and label of each row, by the plain meaning of the fields."""
    found = []
    for tokens, types, length, label, weight in zip(*batch, strict=True):
        assert (tokens[length:] == Numbers.pad_id).all() and not types[length:].any()
        assert weight == (length > 0)
        if length:
            assert tokens[0] == 101 and tokens[length - 1] == 102
            found.append((tuple(tokens[1 : length - 1].tolist()), int(label)))
        else:
            assert label == 0
    return found


@given(row_lists, st.integers(19, 199), st.integers(0, 2), st.booleans())
def test_an_epoch_holds_every_example_with_its_label(lists, tokens, epoch, weighted):
    rows = make_rows(Numbers(), [(ids,) for ids in lists], 19)
    labels = np.arange(len(lists), dtype=np.int32)
    repeats = 1 + labels % 3 if weighted else None
    pipeline = pipeline_of(rows, labels, tokens=tokens, repeats=repeats)
    batches = [pipeline.batch(epoch * pipeline.num_batches + place) for place in range(pipeline.num_batches)]
    seen = [example for batch in batches for example in read_batch(batch)]
    times = np.ones_like(labels) if repeats is None else repeats
    assert sorted(seen) == sorted((tuple(ids), n) for n, ids in enumerate(lists) for _ in range(times[n]))
    assert {batch.input_tokens.shape for batch in batches} <= set(pipeline.shapes) and len(pipeline.shapes) <= 3
    dtypes = {name: array.dtype for name, array in batches[0]._asdict().items()}
    assert dtypes.pop("loss_weights") == np.float32 and set(dtypes.values()) == {np.dtype(np.int32)}
    positions = sum(batch.input_tokens.size for batch in batches)
    assert pipeline.padding_share == pytest.approx(1 - sum(batch.lengths.sum() for batch in batches) / positions)


def random_rows(count: int):
    rng = np.random.default_rng(count)
    return make_rows(Numbers(), [(rng.integers(103, 130, rng.integers(0, 18)).tolist(),) for _ in range(count)], 19)


def assert_same(left, right, but: tuple[str, ...] = ()) -> None:
    for name, one, other in zip(left._fields, left, right, strict=True):
        if name not in but:
            np.testing.assert_array_equal(one, other, err_msg=name)


def test_a_batch_depends_on_nothing_but_the_seed_and_its_number():
    rows, labels = random_rows(211), np.arange(211, dtype=np.int32)
    pipeline = pipeline_of(rows, labels)
    num_steps = 2 * pipeline.num_batches + 3
    forward = [pipeline.batch(step) for step in range(num_steps)]
    again = pipeline_of(rows, labels)
    for step in np.random.default_rng(0).permutation(num_steps):
        assert_same(again.batch(int(step)), forward[step])
    assert not np.array_equal(pipeline_of(rows, labels, seed=1).batch(0).labels, forward[0].labels)
    assert not np.array_equal(forward[0].labels, forward[pipeline.num_batches].labels)


def test_labels_are_nowhere_but_in_the_labels():
    """Other labels: the same batches otherwise, order included."""
    rows, rng = random_rows(53), np.random.default_rng(0)
    one, other = (pipeline_of(rows, rng.integers(0, 5, 53).astype(np.int32)) for _ in range(2))
    for step in range(one.num_batches):
        assert_same(one.batch(step), other.batch(step), but=("labels",))


def test_tokens_may_have_labels():
    rows = make_rows(Numbers(), [([110, 111],), ([112],), ([],)], 19)
    labels = flat([[NO_LABEL, 3, 0, NO_LABEL], [NO_LABEL, 4, NO_LABEL], [NO_LABEL, NO_LABEL]])
    batch = labeled_batch(rows, labels, np.array([1, 2, 0]), (4, 5), 0)
    assert batch.input_tokens.tolist() == [[101, 112, 102, 0, 0], [101, 102, 0, 0, 0], [101, 110, 111, 102, 0], [0] * 5]
    assert batch.labels.tolist() == [[0, 4, 0, 0, 0], [0] * 5, [0, 3, 0, 0, 0], [0] * 5]
    assert batch.loss_weights.tolist() == [[0, 1, 0, 0, 0], [0] * 5, [0, 1, 1, 0, 0], [0] * 5]
    assert batch.lengths.tolist() == [3, 2, 4, 0]
    assert pipeline_of(rows, labels).batch(0).labels.shape == pipeline_of(rows, labels).batch(0).input_tokens.shape


@given(row_lists, st.integers(1, 199))
def test_inference_goes_over_every_row_once(lists, tokens):
    rows = make_rows(Numbers(), [(ids,) for ids in lists], 19)
    seen: dict[int, tuple[int, ...]] = {}
    shapes = set()
    for numbers, build in inference_batches(rows, tokens_per_batch=tokens, longest=19, pad_id=Numbers.pad_id):
        batch = build()
        shapes.add(batch.input_tokens.shape)
        for number, ids, length in zip(numbers, batch.input_tokens, batch.lengths, strict=False):
            assert number not in seen
            seen[number] = tuple(ids[1 : length - 1].tolist())
        assert not batch.lengths[len(numbers) :].any()
    assert seen == {number: tuple(ids) for number, ids in enumerate(lists)}
    for num_rows, length in shapes:
        assert length in (16, 19) and num_rows <= max(tokens // length, 1)
    assert len(shapes) <= 4
