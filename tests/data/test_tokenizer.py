"""Text to ids and back: exact, deterministic, with the special ids where they are said to be."""

import dataclasses
import io
import json
import logging
import re

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from num2words import num2words

from tests.shared_data import shared_data
from transformer.config import DataConfig
from transformer.data import vocabularies
from transformer.data.documents import make_documents
from transformer.data.sources import make_source
from transformer.data.text_files import read_lines
from transformer.data.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    ByteTokenizer,
    CharacterTokenizer,
    ExtraIdsTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
)
from transformer.data.vocabularies import (
    load_tokenizer,
    load_tokenizers,
    make_tokenizer,
    make_tokenizers,
    save_tokenizers,
    train_sentencepiece,
)
from transformer.types import UserError

SPECIAL_LOOKING = "<s> </s> <pad> <unk> <0x41> <s></s><pad>"
TEXT = [
    f"{num2words(i * 37)} cats  see {num2words(i * 101, lang='de')} Häuser {i}\t{SPECIAL_LOOKING if i % 3 == 0 else ''}"
    for i in range(199)
]
MODEL_TYPES = ("bpe", "unigram")


@pytest.fixture(scope="module", params=MODEL_TYPES)
def tokenizer(request):
    return train_sentencepiece(TEXT, request.param, 311)


@pytest.fixture(scope="module")
def opennmt():
    return SentencePieceTokenizer.load(shared_data("tokenizer-fixtures") / "opennmt-sample.sp.model")


def train_plain(lines, **settings):
    """A model as the sentencepiece command would make it."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=50, hard_vocab_limit=False, minloglevel=2,
        **settings,
    )  # fmt: skip
    return model.getvalue()


def user_error(function, *arguments):
    with pytest.raises(UserError) as error:
        function(*arguments)
    return str(error.value)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")))
@example("")
@example(" ")
@example("  leading, double  and trailing  ")
@example("\t tab\t\t")
@example("\x00 NUL \x00")
@example("next\x85line \u2028 \x0b\x0c \r \n \ufeff")
@example("😀👩\u200d👩\u200d👧 שלום \u202e e\u0301 ﬁ Ｆｕｌｌ \xa0\u3000\u2585")
@example(SPECIAL_LOOKING)
@example("<0x41><0xFF><<s>>")
def test_every_line_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not {PAD_ID, BOS_ID, EOS_ID, UNK_ID} & set(ids)
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_the_sign_for_a_space_is_the_one_exception(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a▁b")) == "a b"


def test_a_very_long_line(tokenizer):
    line = "the old cat sees 17 houses " * 2_003
    assert tokenizer.decode(tokenizer.encode(line)) == line


def test_news_text_comes_back(tokenizer):
    folder = shared_data("wmt-newstest-2008-2013")
    lines = list(read_lines(folder / "newstest2009.en-de.de"))
    encoded = tokenizer.encode_batch(lines)
    assert [tokenizer.decode(ids) for ids in encoded] == lines


def test_a_batch_is_its_lines(tokenizer):
    lines = ["", " ", *TEXT, "\x00"]
    assert tokenizer.encode_batch(lines) == [tokenizer.encode(line) for line in lines]
    assert tokenizer.encode_batch([]) == []


def test_the_interface(tokenizer):
    as_protocol: Tokenizer = tokenizer
    assert as_protocol.fingerprint
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (PAD_ID, BOS_ID, EOS_ID, UNK_ID)
    assert tokenizer.vocab_size == 311 == len(tokenizer.pieces)
    assert tokenizer.pieces[:4] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert (tokenizer.mask_id, tokenizer.sentinel_ids, tokenizer.start_id) == (None, (), EOS_ID)


def test_decoding_leaves_special_ids_out_and_cuts_nothing(tokenizer):
    one, two = tokenizer.encode("forty cats"), tokenizer.encode("no lion")
    ids = [BOS_ID, *one, EOS_ID, PAD_ID, *two, EOS_ID, PAD_ID, PAD_ID]
    assert tokenizer.decode(ids) == "forty cats no lion"
    assert tokenizer.decode([PAD_ID, EOS_ID]) == tokenizer.decode([]) == ""


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_no_piece_crosses_a_space_or_joins_digits(model_type):
    learnt = train_sentencepiece([f"{line} in 1988 as in 1989" for line in TEXT], model_type, 331)
    for piece in learnt.pieces:
        assert "▁" not in piece.lstrip("▁")
        assert not re.search(r"\d.*\d", piece) or re.fullmatch("<0x[0-9A-F]{2}>", piece)


def test_lines_with_the_trainers_own_sign_are_learnt_from():
    signed = train_sentencepiece([f"{line}\u2585" for line in TEXT], "bpe", 311)
    assert signed.pieces == train_sentencepiece([f"{line} " for line in TEXT], "bpe", 311).pieces
    assert signed.decode(signed.encode("\u2585")) == "\u2585"


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_training_is_deterministic(model_type, tmp_path):
    one, same = (train_sentencepiece(iter(TEXT), model_type, 313) for _ in range(2))
    other = train_sentencepiece(TEXT, model_type, 317)
    assert one.fingerprint == same.fingerprint != other.fingerprint
    one.save(tmp_path, "one")
    same.save(tmp_path, "same")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "same").read_bytes()


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_vocabulary_must_fit_the_text(model_type):
    message = user_error(train_sentencepiece, TEXT, model_type, 10_007)
    assert "data.vocab_size=10007" in message
    most = int(re.search(r"at most (\d+)", message)[1])
    assert train_sentencepiece(TEXT, model_type, most).vocab_size == most
    assert f"at most {most}" in user_error(train_sentencepiece, TEXT, model_type, most + 1)

    message = user_error(train_sentencepiece, TEXT, model_type, 269)
    assert "data.vocab_size=269" in message
    least = int(re.search(r"at least (\d+)", message)[1])
    assert f"at least {least}" in user_error(train_sentencepiece, TEXT, model_type, least - 1)
    if model_type == "bpe":
        assert train_sentencepiece(TEXT, model_type, least).vocab_size == least


@pytest.mark.parametrize("lines", [[], ["", "  ", "\t"]])
def test_no_text(lines):
    assert "no text" in user_error(train_sentencepiece, lines, "bpe", 300)


def test_long_lines_are_left_out_and_counted(caplog, monkeypatch):
    monkeypatch.setattr(vocabularies, "MOST_LINE_BYTES", 997)
    with caplog.at_level(logging.WARNING):
        learnt = train_sentencepiece([*TEXT, "ß" * 499, "q" * 997], "bpe", 307)
    assert "1 lines longer than 997 bytes" in caplog.text
    assert learnt.fingerprint == train_sentencepiece([*TEXT, "q" * 997], "bpe", 307).fingerprint


def test_training_is_silent(capfd):
    train_sentencepiece(["\u2585 sign of the trainer", *TEXT], "bpe", 300)
    assert capfd.readouterr() == ("", "")


def test_encodings_of_the_original_tool(opennmt):
    cases = json.loads((shared_data("tokenizer-fixtures") / "opennmt-sample.sp.encodings.json").read_text())
    assert [opennmt.encode(case["text"]) for case in cases] == [case["ids"] for case in cases]
    assert [[opennmt.pieces[i] for i in opennmt.encode("Hello world!")]] == [cases[0]["pieces"]]


def test_a_given_model_without_padding_gets_one_more_id(opennmt):
    assert (opennmt.vocab_size, opennmt.pad_id) == (1_001, 1_000)
    assert (opennmt.unk_id, opennmt.bos_id, opennmt.eos_id) == (0, 1, 2)
    ids = opennmt.encode("Hello world!")
    assert opennmt.decode([1, *ids, 2, 1_000]) == "Hello world!"
    assert "⁇" in opennmt.decode([*ids, 0])
    assert len(opennmt.pieces) == opennmt.vocab_size


def test_special_pieces_that_a_given_model_lacks(tmp_path):
    without_bos = SentencePieceTokenizer(train_plain(TEXT, bos_id=-1, eos_id=1, pad_id=2))
    assert without_bos.bos_id == without_bos.pad_id == 2
    without_both = SentencePieceTokenizer(train_plain(TEXT, bos_id=-1, eos_id=1))
    assert without_both.bos_id == without_both.pad_id == without_both.vocab_size - 1
    (tmp_path / "given.model").write_bytes(train_plain(TEXT, eos_id=-1))
    message = user_error(SentencePieceTokenizer.load, tmp_path / "given.model")
    assert "given.model" in message and "end-of-sentence" in message and "data.tokenizer" in message


@pytest.mark.parametrize("content", [b"", b"no model", None])
def test_files_that_are_no_models(tmp_path, content):
    path = tmp_path / "a.model"
    if content is not None:
        path.write_bytes(content)
    what = "cannot read the tokenizer" if content is None else "is not a whole SentencePiece model"
    message = user_error(SentencePieceTokenizer.load, path)
    assert str(path) in message and what in message


@pytest.fixture
def config(tmp_path):
    for name, lines in (("en", TEXT), ("de", [line.upper() for line in TEXT])):
        (tmp_path / f"train.{name}").write_text("\n".join(lines) + "\n")
    return DataConfig(
        source="files", directory=str(tmp_path), vocab_size=401, cache_directory=str(tmp_path / "cache" / "deep")
    )


@pytest.mark.parametrize("joint", [True, False])
def test_vocabularies_are_learnt_once_and_saved(config, tmp_path, monkeypatch, joint):
    config = dataclasses.replace(config, joint_vocabulary=joint)
    source = make_source(config, 0)
    pair = make_tokenizers(config, source)
    assert (pair[0] is pair[1]) == joint
    assert (pair[0].fingerprint == pair[1].fingerprint) == joint
    assert any("AND" in piece for piece in pair[1].pieces)

    save_tokenizers(tmp_path / "run", pair)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == (
        ["tokenizer.model"] if joint else ["tokenizer.source.model", "tokenizer.target.model"]
    )
    monkeypatch.setattr(vocabularies, "train_sentencepiece", None)  # from here on the cache must do
    for again in (make_tokenizers(config, source), load_tokenizers(tmp_path / "run")):
        assert (again[0] is again[1]) == joint
        assert [one.fingerprint for one in again] == [one.fingerprint for one in pair]
    assert all(path.suffix == ".model" for path in (tmp_path / "cache" / "deep" / "tokenizers").iterdir())


def test_the_cache_tells_settings_and_text_apart(config, tmp_path):
    fingerprints = set()
    for changes in ({}, {"vocab_size": 409}, {"tokenizer_model": "unigram", "vocab_size": 347}):
        changed = dataclasses.replace(config, **changes)
        fingerprints.add(make_tokenizers(changed, make_source(changed, 0))[0].fingerprint)
    (tmp_path / "train.de").write_text("\n".join("ganz andere Zeilen " + line[::-1] for line in TEXT) + "\n")
    fingerprints.add(make_tokenizers(config, make_source(config, 0))[0].fingerprint)
    assert len(fingerprints) == 4


def test_a_cache_that_cannot_be_written_is_named(config, tmp_path):
    (tmp_path / "cache").touch()
    with pytest.raises(UserError, match=r"set data\.cache_directory"):
        make_tokenizers(config, make_source(config, 0))


def test_a_failed_write_leaves_nothing(tokenizer, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(vocabularies.os, "replace", full)
    with pytest.raises(OSError):
        tokenizer.save(tmp_path, "tokenizer.model")
    assert not list(tmp_path.iterdir())


def test_given_vocabularies(config, tmp_path):
    for name, size in (("one", 307), ("two", 311)):
        train_sentencepiece(TEXT, "bpe", size).save(tmp_path, f"{name}.model")
    one, two = tmp_path / "one.model", tmp_path / "two.model"
    given = dataclasses.replace(config, tokenizer=str(one))
    source, target = make_tokenizers(given, make_source(given, 0))
    assert source is target and source.vocab_size == 307
    given = dataclasses.replace(config, tokenizer=f"{one},{two}")
    assert "data.joint_vocabulary=False" in user_error(make_tokenizers, given, make_source(given, 0))
    given = dataclasses.replace(given, joint_vocabulary=False)
    assert [one.vocab_size for one in make_tokenizers(given, make_source(given, 0))] == [307, 311]
    given = dataclasses.replace(config, tokenizer=str(tmp_path / "none.model"))
    assert "none.model" in user_error(make_tokenizers, given, make_source(given, 0))


def test_a_folder_without_tokenizers(tmp_path):
    assert str(tmp_path) in user_error(load_tokenizers, tmp_path)


def test_large_corpora_are_sampled():
    pairs = [(str(i), "") for i in range(1_009)]
    samples = [list(vocabularies._sample(iter(pairs), 1_009, most)) for most in (101, 101, 103)]
    assert len(set(samples[0])) == 101 and samples[0] == sorted(samples[0], key=lambda pair: int(pair[0]))
    assert samples[0] == samples[1] and len(samples[2]) == 103
    mean = sum(int(pair[0]) for pair in samples[0]) / 101
    assert 400 < mean < 600
    assert list(vocabularies._sample(iter(pairs), 1_009, 1_009)) == pairs


def test_the_vocabulary_is_learnt_from_a_sample_of_the_stated_size(config, monkeypatch):
    seen = []
    learn = vocabularies.train_sentencepiece

    def look(lines, *settings):
        seen.append(list(lines))
        return learn(TEXT, *settings)

    monkeypatch.setattr(vocabularies, "train_sentencepiece", look)
    for size in (3, len(TEXT)):
        sampled = dataclasses.replace(config, vocabulary_sample=size)
        make_tokenizers(sampled, make_source(sampled, 0))
    assert [len(lines) for lines in seen] == [6, 2 * len(TEXT)]
    assert all(target == source.upper() for source, target in zip(seen[0][::2], seen[0][1::2], strict=True))


@pytest.mark.parametrize("vocab_size", [500, 1_000])
def test_no_piece_holds_a_phrase(tmp_path, vocab_size):
    config = DataConfig(num_phrases=7_001, vocab_size=vocab_size, cache_directory=str(tmp_path))
    source = make_source(config, 0)
    learnt, _ = make_tokenizers(config, source)
    pieces = {piece.replace("▁", " ").strip() for piece in learnt.pieces}
    for split in ("train", "test"):
        for pair in source.pairs(split):
            assert pieces.isdisjoint(pair)
    assert min(len(ids) for side in zip(*source.pairs("test"), strict=True) for ids in learnt.encode_batch(side)) >= 2


@pytest.fixture(scope="module", params=["sentencepiece", "character", "byte"])
def base(request):
    if request.param == "sentencepiece":
        return train_sentencepiece(TEXT, "bpe", 311)
    return CharacterTokenizer("".join(TEXT)) if request.param == "character" else ByteTokenizer()


@pytest.mark.parametrize("number", [1, 7])
def test_extra_ids_stand_at_the_end(base, number):
    extended = ExtraIdsTokenizer(base, number)
    assert isinstance(extended, Tokenizer)
    assert extended.vocab_size == base.vocab_size + number
    assert extended.mask_id == base.vocab_size
    assert extended.sentinel_ids == tuple(range(extended.vocab_size - 1, base.vocab_size - 1, -1))
    for name in ("pad_id", "bos_id", "eos_id", "unk_id", "start_id"):
        assert getattr(extended, name) == getattr(base, name)


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["<extra_id_0>", "<extra_id_6>", "<mask>", "[MASK]", "a", " ", "<", "\U0010ffff"]))
)
def test_no_text_has_extra_ids(tokenizer, parts):
    text, extended = "".join(parts), ExtraIdsTokenizer(tokenizer, 7)
    assert extended.encode(text) == tokenizer.encode(text)
    assert extended.encode_batch([text, ""]) == tokenizer.encode_batch([text, ""])
    assert extended.decode(extended.encode(text)) == text


def test_extra_ids_are_seen_in_the_text(base):
    extended = ExtraIdsTokenizer(base, 7)
    first, second = extended.sentinel_ids[:2]
    cats = base.encode("forty cats")
    lion = base.encode("no lion" if isinstance(base, SentencePieceTokenizer) else " no lion")
    assert (
        extended.decode([*cats, first, *lion, second, EOS_ID, PAD_ID]) == "forty cats<extra_id_0> no lion<extra_id_1>"
    )
    assert extended.decode([BOS_ID, first, *lion]) == "<extra_id_0> no lion"
    assert extended.decode([second, first]) == "<extra_id_1><extra_id_0>"
    assert extended.decode([extended.mask_id]) == "<extra_id_6>"
    assert extended.decode(cats) == "forty cats" and extended.decode([]) == ""


def test_extra_ids_are_saved_with_the_tokenizer(base, tmp_path):
    fingerprints = {base.fingerprint}
    for number in (1, 2):
        extended = ExtraIdsTokenizer(base, number)
        extended.save(tmp_path, "tokenizer.model")
        loaded = load_tokenizer(tmp_path / "tokenizer.model")
        assert loaded.sentinel_ids == extended.sentinel_ids and loaded.vocab_size == extended.vocab_size
        assert loaded.encode_batch(TEXT[:3]) == base.encode_batch(TEXT[:3])
        assert loaded.fingerprint == extended.fingerprint
        fingerprints.add(extended.fingerprint)
    assert len(fingerprints) == 3


def test_more_extra_ids_follow_those_that_are_there(base):
    twice = ExtraIdsTokenizer(ExtraIdsTokenizer(base, 2), 3)
    size = base.vocab_size
    assert twice.sentinel_ids == (size + 1, size, size + 4, size + 3, size + 2)
    assert twice.mask_id == size
    assert twice.decode(twice.sentinel_ids) == "".join(f"<extra_id_{k}>" for k in range(5))


@pytest.mark.parametrize("joint", [True, False])
def test_the_config_adds_extra_ids(config, tmp_path, joint):
    config = dataclasses.replace(config, joint_vocabulary=joint, extra_ids=5)
    pair = make_tokenizers(config, make_source(config, 0))
    assert [len(one.sentinel_ids) for one in pair] == [5, 5] and pair[0].vocab_size == 401 + 5
    assert (pair[0] is pair[1]) == joint
    save_tokenizers(tmp_path / "run", pair)
    assert [one.fingerprint for one in load_tokenizers(tmp_path / "run")] == [one.fingerprint for one in pair]

    ByteTokenizer().save(tmp_path, "given")
    given = DataConfig(source="topics", tokenizer=str(tmp_path / "given"), extra_ids=5)
    made = DataConfig(source="topics", tokenizer_model="byte", extra_ids=5)
    one, other = (make_tokenizer(each, make_documents(each, 0)) for each in (given, made))
    assert one.fingerprint == other.fingerprint and one.vocab_size == 260 + 5
