"""Documents to rows: whole, each token once, and no target predicted from another document."""

import collections
import gzip
import itertools
import pydoc_data.topics

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
from transformer.data.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    ByteTokenizer,
    CharacterTokenizer,
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


def files(folder, **changes) -> DocumentSource:
    config = DataConfig(source="files", directory=str(folder), train=("a", "b"), documents="line", **changes)
    return make_documents(config, 0)


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
@pytest.mark.parametrize("documents", ["file", "line", "blank_line"])
def test_bad_files_are_named(tmp_path, content, message, documents):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_documents(tmp_path / "a.txt", documents))


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


def transitions(documents: Tokens, repeats=None) -> collections.Counter:
    """How often an epoch should have each target after the token before it; EOS before a document's first."""
    found = collections.Counter()
    for number in range(len(documents.lengths)):
        ids = [EOS_ID, *documents[number].tolist()]
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


def pipeline(documents, batching, row_length, rows, seed, repeats=None):
    if batching == "stream":
        return StreamPipeline(
            documents, tokens_per_batch=rows * row_length, row_length=row_length, seed=seed, repeats=repeats
        )
    config = DataConfig(batching=batching, tokens_per_batch=rows * row_length, max_target_length=row_length)
    pieces, counts = documents.pieces(row_length)
    repeats = None if repeats is None else np.repeat(repeats, counts)
    return DocumentPipeline(pieces, document_plan(config, pieces.lengths, seed, repeats), PAD_ID)


@pytest.mark.parametrize("batching", ["stream", "pack", "bucket"])
@given(lengths=LENGTHS, row_length=st.integers(2, 23), rows=st.integers(1, 5), data=st.data())
def test_every_epoch_has_every_token_once_after_the_one_before(batching, lengths, row_length, rows, data):
    documents = corpus(lengths)
    repeats = data.draw(st.none() | st.lists(st.integers(1, 3), min_size=len(lengths), max_size=len(lengths)))
    repeats = None if repeats is None else np.array(repeats, np.int32)
    made = pipeline(documents, batching, row_length, rows, 7, repeats)
    for epoch in range(2):
        batches = [made.batch(epoch * made.num_batches + n) for n in range(made.num_batches)]
        assert counted(batches) == transitions(documents, repeats)
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
    documents = corpus(lengths)
    windows = make_windows(documents.lengths, most, stride)
    scored = collections.Counter()
    for document, start, length, overlap in zip(*windows, strict=True):
        assert 0 < length <= most and start + length <= documents.lengths[document]
        for token in range(start + overlap, start + length):
            scored[document, token] += 1
            assert token - start >= min(token, most - stride)
    assert scored == {(d, t): 1 for d, n in enumerate(documents.lengths) for t in range(n)}
    batches = [build() for _, build in window_batches(windows, documents, 64, PAD_ID)]
    assert counted(batches) == transitions(documents)
    numbers = np.concatenate([numbers for numbers, _ in window_batches(windows, documents, 64, PAD_ID)])
    assert sorted(numbers.tolist()) == list(range(len(windows.starts)))


def test_a_store_gives_documents_back(tmp_path, monkeypatch):
    from transformer.data import store as stores

    monkeypatch.setattr(stores, "CHARACTERS_PER_CHUNK", 10)
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
