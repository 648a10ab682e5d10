"""Words with labels: text is taken apart and put together again, and rows hold every word of a text once."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer.config import DataConfig
from transformer.data.documents import DocumentList, make_documents
from transformer.data.labeled_text import NO_LABEL
from transformer.data.token_labels import (
    CASE_AND_MARK_LABELS,
    LABELINGS,
    LabeledSentences,
    WordEncoder,
    WordsOfDocuments,
    read_sentences,
    restore,
    take_apart,
)
from transformer.data.tokenizer import ByteTokenizer, CharacterTokenizer
from transformer.data.vocabularies import train_sentencepiece
from transformer.types import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("We must carry on.", "we/Upper must/lower carry/lower on/lower."),
        ("I, too", "i/Upper, too/lower"),
        ("NATO? NATO", "nato/CAPS? nato/CAPS"),
        ("the U.S. and the U.S.,", "the/lower u.s/CAPS. and/lower the/lower u.s/CAPS,"),
        ('"No!" (he said);', "no/Upper. he/lower said/lower,"),
        ("Members of the Congress:\nIt is", "members/Upper of/lower the/lower congress/Upper, it/Upper is/lower"),
        ("years -- I", "years/lower, i/Upper"),
        ("years--I—we - you", "years/lower, i/Upper, we/lower, you/lower"),
        ("so. -- But", "so/lower. but/Upper"),
        ("-- what? ... ( . ) ,", "what/lower?"),
        ("end ... ?", "end/lower."),
        ("Mr. McDonald's AmeriCorps iPhone", "mr/Upper. mcdonald's/Upper americorps/Upper iphone/lower"),
        ("Anti-Semitism pre- and post-war", "anti-semitism/Upper pre-/lower and/lower post-war/lower"),
        ("$3,000.50, 4th 1945-46 & -5%.", "$3,000.50/lower, 4th/lower 1945-46/lower &/lower -5%/lower."),
        ("Äpfel, ΝΑΙ. Straße STRAßE", "äpfel/Upper, ναι/CAPS. straße/Upper straße/CAPS"),
        ("", ""),
        (" ... -- \n", ""),
    ],
)
def test_taking_apart(text, expected):
    words, labels, _ = take_apart(text)
    assert [f"{word}/{label}" for word, label in zip(words, labels, strict=True)] == expected.split()


@pytest.mark.parametrize(
    ("words", "labels", "text"),
    [
        (["we", "must"], ["Upper", "lower."], "We must."),
        (["u.s", "is"], ["CAPS.", "lower?"], "U.S. is?"),
        (["$3", "o'neill's", "4th"], ["Upper", "Upper,", "CAPS"], "$3 O'neill's, 4TH"),
        (["kiss", "kiss"], ["Upper", "CAPS"], "Kiss KISS"),  # U+212A is a capital of k too
        ([], [], ""),
    ],
)
def test_restoring(words, labels, text):
    assert restore(words, labels) == text


WORD = st.from_regex(r"\A[a-zäπ0-9$]([a-zäπ0-9'.&/-]{0,5}[a-zäπ0-9%])?\Z")


@st.composite
def plain_texts(draw):
    """Text as :func:`restore` says that it can be had back."""
    tokens = []
    for word in draw(st.lists(WORD, max_size=9)):
        written = draw(st.sampled_from([str.lower, str.upper, lambda word: word[:1].upper() + word[1:]]))(word)
        if "--" not in written:
            tokens.append(written + draw(st.sampled_from(["", ",", ".", "?"])))
    return " ".join(tokens)


@given(plain_texts())
def test_restoring_is_the_inverse_of_taking_apart(text):
    words, labels, _ = take_apart(text)
    assert restore(words, labels) == text
    assert set(labels) <= set(CASE_AND_MARK_LABELS)


@settings(max_examples=300)
@given(st.one_of(st.text(), st.text("aB'.,—- ?\"(ßǅİΣς\n"), plain_texts()))
def test_what_is_restored_is_taken_apart_again(text):
    """For any text: what is lost, is lost once. Words hold no white space and no capitals that have a small letter."""
    words, labels, _ = take_apart(text)
    assert take_apart(restore(words, labels))[:2] == (words, labels)
    for word in words:
        assert word and not re.search(r"\s", word)
        assert word == "".join(letter.lower() if letter.lower().upper() == letter else letter for letter in word)


@given(plain_texts())
def test_plain_input_gives_the_words_of_the_text(text):
    """What is typed in, in lower case and without marks, is what a model has learnt from."""
    labeling = LABELINGS["case_and_punctuation"]
    words = take_apart(text).words
    assert labeling.words(" ".join(words)) == words
    assert labeling.words(text) == words


# Given labels

CONLL = "-DOCSTART- -X- O O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nPeter\tB-PER\nNew York\tx\tB-LOC\n-DOCSTART-\nIt O"


def test_reading_sentences(tmp_path):
    (tmp_path / "train.conll").write_text(CONLL)
    found = list(read_sentences(tmp_path / "train.conll"))
    assert [sentence.words for sentence in found] == [("EU", "rejects"), ("Peter", "New York"), ("It",)]
    assert [sentence.labels for sentence in found] == [("B-ORG", "O"), ("B-PER", "B-LOC"), ("O",)]
    assert [sentence.place.rpartition(":")[2] for sentence in found] == ["3-4", "7-8", "10-10"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\nb\n", r"x\.txt:2: 'b' is not a word and its label"),
        ("a O\n\tO\n", r"x\.txt:2: 'O' is not a word"),
        ("\n-DOCSTART- O\n", r"x\.txt holds no words"),
    ],
)
def test_mistakes_in_files_name_the_line(tmp_path, text, message):
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(UserError, match=message):
        list(read_sentences(tmp_path / "x.txt"))


def test_splits_of_given_labels(tmp_path):
    (tmp_path / "train.conll").write_text(CONLL)
    (tmp_path / "val.txt").write_text("a B-PER\n")
    source = LabeledSentences(DataConfig(source="files", directory=str(tmp_path)), 0)
    assert source.labels().names == ("B-LOC", "B-ORG", "B-PER", "O") and source.labels().most_frequent == "O"
    assert list(source.documents("train")) == ["EU rejects", "Peter New York", "It"]
    assert source.size("validation") == 1
    with pytest.raises(UserError, match=r"there is no .*test\.conll .*holds train\.conll, val\.txt"):
        list(source.texts("test"))
    before = source.fingerprint_of("train")
    (tmp_path / "train.conll").write_text(CONLL.replace("VBZ O", "VBZ B-ORG"))
    assert LabeledSentences(DataConfig(source="files", directory=str(tmp_path)), 0).fingerprint_of("train") != before


def test_labels_of_documents_are_the_same_for_every_split():
    source = WordsOfDocuments(DocumentList(["Yes.\n\nNo, NO.", "and so on"]))
    assert source.labels().names == CASE_AND_MARK_LABELS and source.labels().most_frequent == "lower"
    assert list(source.documents("train")) == ["yes no no", "and so on"]
    long = WordsOfDocuments(DocumentList(["word " * 250]))
    assert [len(line.split()) for line in next(long.documents("train")).split("\n")] == [100, 100, 50]


def test_generated_pairs_have_no_labels_of_words():
    with pytest.raises(UserError, match=r"data\.source=topics has no labels for its words; .*case_and_punctuation"):
        LABELINGS["given"].source(DataConfig(source="topics"), 0)


# Rows


class WordPieces:
    """A vocabulary in the manner of BERT: known words, else their letters with "##" before all but the first."""

    vocab_size, pad_id, bos_id, eos_id, unk_id, fingerprint = 300, 0, 1, 2, 3, "pieces"
    mask_id, sentinel_ids, start_id = None, (), None
    known = ("a", "the", "number", "##s")

    def encode(self, line):
        return [piece for word in line.split() for piece in self._pieces(word)]

    def _pieces(self, word):
        for size in range(len(word), 0, -1):
            if word[:size] in self.known:
                rest = (
                    [self.known.index("##s") + 4] if word[size:] == "s" else [150 + ord(c) % 128 for c in word[size:]]
                )
                return [self.known.index(word[:size]) + 4, *rest]
        return [22 + ord(letter) % 128 for letter in word if letter.isprintable()]

    def encode_batch(self, lines):
        return list(map(self.encode, lines))

    def decode(self, ids):
        raise NotImplementedError

    def save(self, folder, name):
        raise NotImplementedError


@pytest.fixture(scope="module")
def sentence_pieces():
    return train_sentencepiece(["the number of numbers", "a number, the numbers"] * 9, "bpe", 290)


def test_the_first_piece_of_a_word_has_its_label():
    encoder = WordEncoder(WordPieces(), 16)
    rows = encoder([["the", "numbers", "the", "\x07"]])
    assert rows.rows.tokens[0].tolist() == [1, 5, 6, 7, 5, 3, 2]  # the control sign is unknown
    assert rows.words[0].tolist() == [NO_LABEL, 0, 1, NO_LABEL, 2, 3, NO_LABEL]
    of_tokens = rows.labels(np.array([4, 0, 3, 1], np.int32))
    assert of_tokens[0].tolist() == [NO_LABEL, 4, 0, NO_LABEL, 3, 1, NO_LABEL]


def test_the_space_before_a_word_is_in_its_first_piece(sentence_pieces):
    """So a row's tokens are those of its words as one text."""
    text = "the number of 17 numbers"
    rows = WordEncoder(sentence_pieces, 64)([text.split()])
    assert rows.rows.tokens[0].tolist()[1:-1] == sentence_pieces.encode(text)
    pieces = sentence_pieces.pieces
    first = rows.rows.tokens[0][rows.words[0] != NO_LABEL]
    assert all(pieces[token].startswith("\u2581") for token in first) and len(first) == 5
    others = rows.rows.tokens[0][1:-1][rows.words[0][1:-1] == NO_LABEL]
    assert len(others) and not any(pieces[token].startswith("\u2581") for token in others)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharacterTokenizer("the numbrs")], ids=["bytes", "characters"])
def test_words_of_characters_begin_with_the_space(tokenizer):
    rows = WordEncoder(tokenizer, 64)([["the", "number"]])
    assert rows.rows.tokens[0].tolist()[1:-1] == tokenizer.encode(" the number")
    assert np.flatnonzero(rows.words[0] != NO_LABEL).tolist() == [1, 5]


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.sampled_from(["the", "numbers", "xyz", "of", "abcdefghi"]), max_size=23), max_size=5),
    st.integers(3, 11),
)
def test_rows_hold_every_word_once_and_no_two_texts(texts, length):
    tokenizer = WordPieces()
    rows = WordEncoder(tokenizer, length)(texts)
    words = [word for text in texts for word in text]
    text_of_word = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    seen, room = [], []
    for row, text in enumerate(rows.texts):
        tokens, numbers = rows.rows.tokens[row], rows.words[row]
        assert len(tokens) == len(numbers) <= length and (tokens[0], tokens[-1]) == (1, 2)
        own = numbers[numbers != NO_LABEL]
        assert len(own) and set(text_of_word[own]) == {text}
        expected = [tokenizer.encode(words[word])[: length - 2] for word in own]
        assert [token for pieces in expected for token in pieces] == tokens[1:-1].tolist()
        room.append((length - len(tokens), len(expected[0])))
        seen += own.tolist()
    assert seen == list(range(len(words)))
    for (left, _), (_, first), same in zip(room[:-1], room[1:], rows.texts[:-1] == rows.texts[1:], strict=True):
        assert not same or left < first  # no row ends before it must


def test_a_long_word_is_cut_and_said(caplog):
    rows = WordEncoder(WordPieces(), 6)([["xxxxxxxxx", "the"]])
    assert [len(rows.rows.tokens[row]) for row in (0, 1)] == [6, 3]
    assert "of 1 words only the first 4 pieces are read: 'xxxxxxxxx'" in caplog.text


def test_speeches_are_never_mixed():
    """The topics of Python's help as documents: every word is in one row of its own topic."""
    source = WordsOfDocuments(make_documents(DataConfig(source="topics"), 0))
    texts = [text.words for text in source.texts("test")]
    rows = WordEncoder(ByteTokenizer(), 128)(texts)
    counts = np.bincount(rows.texts, [(rows.words[row] != NO_LABEL).sum() for row in range(len(rows.texts))])
    assert counts.tolist() == [len(text) for text in texts]
