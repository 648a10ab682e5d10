"""Documents to rows: whole, each token once, and no target predicted from another document."""

import collections
import dataclasses
import gzip
import itertools
import pydoc_data.topics

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.shared_data import shared_data
from transformer.config import DataConfig
from transformer.data.batching import document_plan, make_windows
from transformer.data.documents import (
    LEAST_SHARED,
    DocumentList,
    DocumentSource,
    families,
    make_documents,
    read_documents,
    split_topics,
)
from transformer.data.pipeline import DocumentPipeline, StreamPipeline, window_batches
from transformer.data.sources import make_source
from transformer.data.store import Tokens, open_store
from transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, ByteTokenizer, CharacterTokenizer
from transformer.data.vocabularies import (
    load_tokenizer,
    load_tokenizers,
    make_tokenizer,
    make_tokenizers,
    save_tokenizers,
)
from transformer.types import UserError

AWKWARD = "a\x85b \u2028 \x00 \t👩\u200d👧 שלום e\u0301 ﬁ <s></s><pad><unk> ▁ \ufeff\r\nline\n\n  end "


# Sources


def test_documents_end_where_the_config_says(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n  two\x85\n\n \t\nthree\n\n".encode())
    assert list(read_documents(path, "file")) == ["one\n  two\x85\n\n \t\nthree\n"]
    assert list(read_documents(path, "line")) == ["one", "  two\x85", "three"]
    assert list(read_documents(path, "blank_line")) == ["one\n  two\x85", "three"]
    path.write_text("\n before\n### 1\n### 2-x \n\n one\n\n###two\n \n### 3\n \nthree ### 4\n")
    assert list(read_documents(path, "heading")) == [" before", " one\n\n###two", "three ### 4"]
    path.write_text("### a\nb")
    assert list(read_documents(path, "heading")) == ["b"]


def files(folder, seed=0, **changes) -> DocumentSource:
    config = DataConfig(source="files", directory=str(folder), documents="line")
    return make_documents(dataclasses.replace(config, **{"train": ("a", "b"), **changes}), seed)


def test_splits_are_stems_plain_or_gzipped(tmp_path):
    (tmp_path / "a.txt").write_text("1\n2")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"3\n"))
    (tmp_path / "val.txt").write_text("4")
    source = files(tmp_path, train_weights=(2, 3))
    assert [list(source.documents(split)) for split in ("train", "validation", "a")] == [
        ["1", "2", "3"],
        ["4"],
        ["1", "2"],
    ]
    assert source.size("train") == 3 and source.repeats("train").tolist() == [2, 2, 3]
    assert source.repeats("validation") is None and files(tmp_path).repeats("train") is None
    with pytest.raises(UserError, match=r"there is no .*test\.txt \(nor test\.txt\.gz\); stems .*: a, b, val"):
        list(source.documents("test"))
    untrained = files(tmp_path, train=("a", "gone"))  # other splits need no training files
    assert list(untrained.documents("validation")) == ["4"]
    with pytest.raises(UserError, match=r"there is no .*gone\.txt"):
        untrained.fingerprint_of("train")
    before = source.fingerprint_of("train")
    (tmp_path / "a.txt").write_text("12")
    assert files(tmp_path).fingerprint_of("train") != before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"fine\nna\xefve\n", r"a\.txt:2: not UTF-8 \(byte 0xef at column 3\)"),
        (b"", r"a\.txt holds no text"),
        (b"\xef\xbb\xbf \n\t\n", r"a\.txt holds no text"),
    ],
)
@pytest.mark.parametrize("documents", ["file", "line", "blank_line", "heading"])
def test_bad_files_are_named(tmp_path, content, message, documents):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_documents(tmp_path / "a.txt", documents))


# Splits of one text


def parts(source: DocumentSource) -> dict[str, list[str]]:
    """The documents of each split; one that is empty is a mistake."""
    found = {}
    for split in ("train", "validation", "test"):
        try:
            found[split] = list(source.documents(split))
            assert found[split] and source.size(split) == len(found[split])
        except UserError as error:
            assert f"for the {split} split; change the shares" in str(error)
            found[split] = []
    return found


# Of different characters, so that no two are equal.
DOCUMENTS = st.lists(st.integers(1, 30), min_size=2, max_size=40).map(
    lambda ns: [chr(200 + i) * n for i, n in enumerate(ns)]
)
SHARES = st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.45])


@given(documents=DOCUMENTS, validation=SHARES, test=SHARES)
def test_the_end_of_the_text_is_held_out_in_whole_documents(tmp_path_factory, documents, validation, test):
    assume(validation + test > 0)
    folder = tmp_path_factory.mktemp("text")
    cut = len(documents) // 2
    for stem, lines in (("a", documents[:cut]), ("b", documents[cut:])):
        (folder / f"{stem}.txt").write_text("\n".join(lines), encoding="utf-8")
    found = parts(files(folder, split="end", validation_share=validation, test_share=test))
    assert [*found["train"], *found["validation"], *found["test"]] == documents
    total, size = (sum(map(len, texts)) for texts in (documents, found["test"]))
    place = len(documents) - len(found["test"])  # the boundary is as near to the share as whole documents allow
    if place < len(documents):
        assert size - len(documents[place]) / 2 <= test * total + 1e-6
    if place > 0:
        assert size + len(documents[place - 1]) / 2 >= test * total - 1e-6
    size, place = size + sum(map(len, found["validation"])), len(found["train"])
    if 0 < place < len(documents):
        assert size + len(documents[place - 1]) / 2 >= (validation + test) * total - 1e-6
        assert size - len(documents[place]) / 2 <= (validation + test) * total + 1e-6


@given(documents=DOCUMENTS, seed=st.integers(0, 2**40), data=st.data())
def test_random_splits_follow_from_seed_and_text(tmp_path_factory, documents, seed, data):
    folder = tmp_path_factory.mktemp("text")
    documents = documents + documents[: len(documents) // 3]
    stems = {}
    for order in (documents, data.draw(st.permutations(documents))):
        (folder / "a.txt").write_text("\n".join(order[:1]), encoding="utf-8")
        (folder / "b.txt").write_text("\n".join(order[1:]), encoding="utf-8")
        source = files(folder, seed, split="random", validation_share=0.2, test_share=0.3, train_weights=(5, 2))
        found = parts(source)
        assert sorted(itertools.chain(*found.values())) == sorted(documents)
        for one, other in itertools.combinations(found.values(), 2):
            assert not set(one) & set(other)  # the same text is not learnt and asked for
        places = iter(order)
        assert all(any(text == place for place in places) for text in found["train"])  # in order
        if found["train"]:
            wanted = [5 if number == 0 else 2 for number, text in enumerate(order) if text in found["train"]]
            assert source.repeats("train").tolist() == wanted
        if stems:
            assert {split: set(texts) for split, texts in found.items()} == stems
        stems = {split: set(texts) for split, texts in found.items()}


def test_a_share_of_many_documents_is_drawn(tmp_path):
    documents = [f"{number:03}" for number in range(500)]
    (tmp_path / "a.txt").write_text("\n".join(documents))
    drawn = [parts(files(tmp_path, seed, train=("a",), split="random")) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    for found in drawn:
        assert [len(texts) for texts in found.values()] == [425, 25, 50]
        assert max(found["test"]) > "300" and min(found["test"]) < "200"
    assert 1 < len(set(drawn[0]["test"]) & set(drawn[2]["test"])) < 15


def test_a_single_document_is_cut_by_characters(tmp_path):
    text = "".join(map(chr, range(200, 400)))
    (tmp_path / "a.txt").write_text(text + "\n", encoding="utf-8")
    (tmp_path / "other.txt").write_text("other", encoding="utf-8")
    options = dict(train=("a",), documents="file", split="end")
    source = files(tmp_path, **options)
    assert parts(source) == {"train": [text[:170]], "validation": [text[170:180]], "test": [text[180:]]}
    assert list(source.documents("other")) == ["other"] and source.size("other") == 1
    fingerprints = {source.fingerprint_of(split) for split in ("train", "validation", "test", "a", "other")}
    assert len(fingerprints) == 5
    assert parts(files(tmp_path, test_share=0.5, validation_share=0.0, **options))["validation"] == []
    assert files(tmp_path, test_share=0.2, **options).fingerprint_of("train") not in fingerprints
    with pytest.raises(UserError, match=r"data\.split=random .*leaves nothing of 1 examples for the test split"):
        list(files(tmp_path, train=("a",), split="random").documents("test"))


def test_the_last_tenth_of_tiny_shakespeare():
    folder = shared_data("tiny-shakespeare")
    source = files(folder, train=("input",), documents="file", split="end")
    [test] = source.documents("test")
    [text] = source.documents("input")
    assert len(test) == 111_540 and text.endswith(test) and text == "".join(itertools.chain(*parts(source).values()))


def test_speeches_are_held_out_whole():
    folder = shared_data("us-speeches")
    source = files(folder, train=("inaugural", "state_union"), documents="heading", split="random")
    found = parts(source)
    assert sum(map(len, found.values())) == 124 and all(len(texts) > 3 for texts in found.values())
    assert not any(text.startswith(("#", "\n")) or "\n### " in text for texts in found.values() for text in texts)


def test_pairs_are_split_too(tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"a.{language}").write_text("".join(f"{language} {number}\n" for number in range(100, 200)))
    config = DataConfig(source="files", directory=str(tmp_path), train=("a",), split="end")
    source = make_source(config, 0)
    assert list(source.pairs("test")) == [(f"en {number}", f"de {number}") for number in range(190, 200)]
    assert [source.size(split) for split in ("train", "validation", "test")] == [85, 5, 10]


def test_sources_with_splits_of_their_own_are_not_split():
    for source, make in (("topics", make_documents), ("phrases", make_source)):
        with pytest.raises(UserError, match=f"data.split=end is for data.source=files; {source} has splits of its own"):
            make(DataConfig(source=source, split="end"), 0)


def test_sources_of_the_other_task_are_refused():
    with pytest.raises(UserError, match=r"data\.source=phrases is not one of files, topics"):
        make_documents(DataConfig(), 0)
    with pytest.raises(UserError, match=r"data\.source=topics is not one of files, phrases"):
        make_source(DataConfig(source="topics"), 0)


def long_paragraphs(text: str) -> set[str]:
    return {p for each in text.split("\n\n") if len(p := " ".join(each.split())) >= LEAST_SHARED}


def check_splits(topics: dict[str, str], splits: dict[str, list[str]]) -> None:
    assert sorted(name for names in splits.values() for name in names) == sorted(topics)
    text = {split: [topics[name] for name in names] for split, names in splits.items()}
    for one, other in itertools.combinations(text.values(), 2):
        assert not long_paragraphs("\n\n".join(one)) & long_paragraphs("\n\n".join(other))
    total = sum(map(len, topics.values()))
    for split in ("validation", "test"):
        assert sum(map(len, text[split])) <= 0.1 * total


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=50), st.integers(0, 3))
def test_topics_that_share_a_paragraph_stay_together(contents, seed):
    paragraphs = [f"{number} " * 53 if number % 5 else "See also" for number in range(61)]
    topics = {f"t{i}": "\n\n".join(paragraphs[number] for number in each) for i, each in enumerate(contents)}
    splits = split_topics(topics, seed)
    check_splits(topics, splits)
    assert split_topics(dict(reversed(topics.items())), seed) == splits


def test_families_grow_through_a_third():
    a, b = "first " * 40, "second " * 40
    assert sorted(families({"x": a, "z": b, "y": f"{a}\n\n{b}", "w": "short"})) == [["w"], ["x", "y", "z"]]


def test_the_topics_of_this_python():
    found = set()
    for seed in range(3):
        source = make_documents(DataConfig(source="topics"), seed)
        texts = {split: list(source.documents(split)) for split in ("train", "validation", "test")}
        splits = split_topics(pydoc_data.topics.topics, seed)
        check_splits(pydoc_data.topics.topics, splits)
        assert {split: [pydoc_data.topics.topics[name] for name in names] for split, names in splits.items()} == texts
        assert min(sum(map(len, texts[split])) for split in ("validation", "test")) > 15_000
        found.add(source.fingerprint_of("test"))
    assert len(found) == 3
    with pytest.raises(UserError, match="split=tset is not one of train, validation, test; did you mean test"):
        list(source.documents("tset"))


# Tokenizers


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example(AWKWARD)
@example("")
def test_text_comes_back_from_bytes_and_known_characters(text):
    for tokenizer in (ByteTokenizer(), CharacterTokenizer(text + "x")):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not {PAD_ID, BOS_ID, EOS_ID, UNK_ID} & set(ids)
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        assert tokenizer.encode_batch([text, "x"]) == [ids, tokenizer.encode("x")]
        assert tokenizer.decode([BOS_ID, *ids, EOS_ID, PAD_ID]) == text


def test_characters_are_sorted_and_others_unknown():
    tokenizer = CharacterTokenizer("banana😀")
    assert tokenizer.encode("abn😀") == [4, 5, 6, 7] and tokenizer.vocab_size == 8
    assert tokenizer.encode("a\u00e4\U0010ffff\ud800") == [4, UNK_ID, UNK_ID, UNK_ID]
    assert tokenizer.decode([4, UNK_ID, 5]) == "a\ufffdb"
    assert ByteTokenizer().decode(ByteTokenizer().encode("ä")[:1]) == "\ufffd"


@pytest.mark.parametrize("kind", ["bpe", "character", "byte"])
def test_tokenizers_of_documents_are_made_saved_and_loaded(tmp_path, kind):
    source = DocumentList([AWKWARD + "abc def " * 40, "abc\nxyz ghi " * 30])
    config = DataConfig(tokenizer_model=kind, vocab_size=310, cache_directory=str(tmp_path))
    tokenizer = make_tokenizer(config, source)
    save_tokenizers(tmp_path, (tokenizer, tokenizer))
    loaded = load_tokenizers(tmp_path)[1]
    assert type(loaded) is type(tokenizer)
    assert (loaded.fingerprint, loaded.vocab_size) == (tokenizer.fingerprint, tokenizer.vocab_size)
    text = AWKWARD.replace("▁", " ")  # SentencePiece's own sign for a space
    assert loaded.decode(loaded.encode(text)) == text
    given_again = make_tokenizer(DataConfig(tokenizer=str(tmp_path / "tokenizer.model")), source)
    assert given_again.fingerprint == tokenizer.fingerprint


def test_tokenizers_differ_by_what_decides_the_ids():
    kinds = [ByteTokenizer(), CharacterTokenizer("ab"), CharacterTokenizer("abc")]
    assert len({tokenizer.fingerprint for tokenizer in kinds}) == 3
    assert CharacterTokenizer("ab").fingerprint == CharacterTokenizer("bab").fingerprint


def test_a_damaged_tokenizer_is_named(tmp_path):
    for content in (b'{"kind": "character"}', b'{"kind": "char', b'{"kind": "character", "characters": 3}'):
        (tmp_path / "x.model").write_bytes(content)
        with pytest.raises(UserError, match=r"x\.model is not a whole tokenizer"):
            load_tokenizer(tmp_path / "x.model")


def test_pairs_may_have_characters_too(tmp_path):
    config = DataConfig(num_phrases=50, tokenizer_model="character", cache_directory=str(tmp_path))
    tokenizer, same = make_tokenizers(config, make_source(config, 0))
    assert tokenizer is same and isinstance(tokenizer, CharacterTokenizer) and tokenizer.vocab_size < 120


# Rows


def corpus(lengths) -> Tokens:
    """Documents of so many tokens and EOS; no token but EOS stands twice."""
    ends = np.cumsum([n + 1 for n in lengths])
    tokens = np.arange(100, 100 + ends[-1])
    tokens[ends - 1] = EOS_ID
    return Tokens(tokens.astype(np.uint16), np.append(0, ends))


def transitions(documents: Tokens, repeats=None, start=(EOS_ID,)) -> collections.Counter:
    """How often an epoch should have each target after the token before it; ``start`` before a document's first."""
    found = collections.Counter()
    for number in range(len(documents.lengths)):
        ids = [*start, *documents[number].tolist()]
        for pair in itertools.pairwise(ids):
            found[pair] += 1 if repeats is None else int(repeats[number])
    return found


def counted(batches) -> collections.Counter:
    return collections.Counter(
        pair
        for batch in batches
        for pair in zip(
            batch.input_tokens[batch.loss_weights > 0].tolist(),
            batch.target_tokens[batch.loss_weights > 0].tolist(),
            strict=True,
        )
    )


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def pipeline(documents, batching, row_length, rows, seed, repeats=None, start_id=None):
    if batching == "stream":
        return StreamPipeline(
            documents,
            tokens_per_batch=rows * row_length,
            row_length=row_length,
            seed=seed,
            repeats=repeats,
            start_id=start_id,
        )
    config = DataConfig(batching=batching, tokens_per_batch=rows * row_length, max_target_length=row_length)
    pieces, counts = documents.pieces(row_length)
    repeats = None if repeats is None else np.repeat(repeats, counts)
    return DocumentPipeline(pieces, document_plan(config, pieces.lengths, seed, repeats), PAD_ID, start_id)


@pytest.mark.parametrize("batching", ["stream", "pack", "bucket"])
@given(lengths=LENGTHS, row_length=st.integers(2, 23), rows=st.integers(1, 5), data=st.data())
def test_every_epoch_has_every_token_once_after_the_one_before(batching, lengths, row_length, rows, data):
    documents = corpus(lengths)
    repeats = data.draw(st.none() | st.lists(st.integers(1, 3), min_size=len(lengths), max_size=len(lengths)))
    repeats = None if repeats is None else np.array(repeats, np.int32)
    start_id = data.draw(st.sampled_from([None, BOS_ID]))
    made = pipeline(documents, batching, row_length, rows, 7, repeats, start_id)
    for epoch in range(2):
        batches = [made.batch(epoch * made.num_batches + n) for n in range(made.num_batches)]
        assert counted(batches) == transitions(documents, repeats, (start_id or EOS_ID,))
        assert {batch.target_tokens.shape for batch in batches} <= set(made.shapes)


@pytest.mark.parametrize("batching", ["pack", "bucket"])
@given(lengths=LENGTHS, row_length=st.integers(2, 23))
def test_a_segment_is_a_stretch_of_one_document(batching, lengths, row_length):
    documents = corpus(lengths)
    made = pipeline(documents, batching, row_length, 3, 0)
    found = []
    for n in range(made.num_batches):
        batch = made.batch(n)
        assert ((batch.segment_ids > 0) == (batch.loss_weights > 0)).all()
        assert (batch.target_tokens[batch.segment_ids == 0] == PAD_ID).all()
        for row in range(len(batch.segment_ids)):
            for segment in range(1, batch.segment_ids[row].max() + 1):
                places = np.flatnonzero(batch.segment_ids[row] == segment)
                assert (np.diff(places) == 1).all()
                assert batch.positions[row, places].tolist() == list(range(len(places)))
                found.append(batch.target_tokens[row, places].tolist())
                assert batch.input_tokens[row, places[1:]].tolist() == found[-1][:-1]
    wanted = [
        documents[number].tolist()[start : start + row_length]
        for number in range(len(lengths))
        for start in range(0, lengths[number] + 1, row_length)
    ]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("batching", ["stream", "pack", "bucket"])
def test_a_batch_is_a_pure_function_of_seed_and_step(batching):
    documents = corpus([31, 7, 19, 2, 43, 11])
    one, other = (pipeline(documents, batching, 13, 2, 5) for _ in range(2))
    steps = list(range(3 * one.num_batches))
    forward = [one.batch(step) for step in steps]
    backward = [other.batch(step) for step in reversed(steps)][::-1]
    for a, b in zip(forward, backward, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
            assert x.dtype == y.dtype == (np.float32 if x is a.loss_weights else np.int32)
    epochs = [[batch.target_tokens.tolist() for batch in forward[i :: one.num_batches]] for i in range(2)]
    assert epochs[0][0] != epochs[0][1] != epochs[0][2]
    seed = pipeline(documents, batching, 13, 2, 6)
    assert any((seed.batch(n).target_tokens != one.batch(n).target_tokens).any() for n in range(2))


def test_the_cuts_of_the_stream_move():
    documents = corpus([499])
    made = pipeline(documents, "stream", 20, 25, 0)
    starts = [{int(ids[0]) % 20 for ids in made.batch(epoch).target_tokens} for epoch in range(4)]
    assert len(set(map(frozenset, starts))) == 4
    for batch in (made.batch(0), made.batch(3)):
        assert (batch.positions == np.arange(20)).all() and (batch.segment_ids == 1).all()


@given(lengths=LENGTHS, most=st.integers(1, 17), data=st.data())
def test_windows_score_every_token_once_with_context(lengths, most, data):
    stride = data.draw(st.integers(1, most))
    start = data.draw(st.sampled_from([(), (EOS_ID,), (BOS_ID,)]))  # what a document begins after
    first = 1 - len(start)
    documents = corpus(lengths)
    windows = make_windows(documents.lengths, most, stride, first)
    scored = collections.Counter()
    for document, begin, length, overlap in zip(*windows, strict=True):
        assert 0 < length <= most and first <= begin and begin + length <= documents.lengths[document]
        for token in range(begin + overlap, begin + length):
            scored[document, token] += 1
            assert token - begin >= min(token - first, most - stride)
    assert scored == {(d, t): 1 for d, n in enumerate(documents.lengths) for t in range(first, n)}
    batches = [build() for _, build in window_batches(windows, documents, 64, PAD_ID, *start)]
    assert counted(batches) == transitions(documents, start=start)
    numbers = np.concatenate([numbers for numbers, _ in window_batches(windows, documents, 64, PAD_ID)])
    assert sorted(numbers.tolist()) == list(range(len(windows.starts)))


def test_a_document_of_one_token_scores_nothing_where_nothing_stands_before_it():
    windows = make_windows(np.array([1, 3, 0], np.int32), 2, 1, first=1)
    assert windows.lengths.tolist() == [0, 2, 0] and windows.starts.tolist() == [1, 1, 1]


def test_a_store_gives_documents_back(tmp_path, monkeypatch):
    from transformer.data import processes

    monkeypatch.setattr(processes, "CHARACTERS_PER_CHUNK", 10)
    texts = [AWKWARD, "a" * 1_001, "b\nc"]
    tokenizer = ByteTokenizer()
    for _ in range(2):  # made, then found
        documents = open_store(DocumentList(texts), "train", (tokenizer,), tmp_path).sides[0]
        assert [tokenizer.decode(documents[n].tolist()) for n in range(3)] == texts
        assert all(documents[n][-1] == EOS_ID for n in range(3))
    assert documents.at(np.array([-1, 0])).tolist() == [EOS_ID, documents[0][0]]
    assert documents.first(2).lengths.tolist() == documents.lengths[:2].tolist()
    assert documents.count(EOS_ID) == 3 and documents.first(2).count(EOS_ID) == 2
    with pytest.raises(UserError, match="the test split has no documents"):
        open_store(DocumentList([]), "test", (tokenizer,), tmp_path)
