"""Text that is in pieces already passes through as it is, and comes out joined."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.config import DataConfig
from transformer.data.segmented_text import SegmentedTextTokenizer
from transformer.data.sources import make_source
from transformer.data.tokenizer import EOS_ID, UNK_ID
from transformer.data.vocabularies import load_tokenizer, make_tokenizers, save_tokenizers
from transformer.types import UserError

PIECES = ["the", "trans@@", "la@@", "tion", ",", "@@", "@-@"]


@given(st.lists(st.sampled_from(PIECES), max_size=11))
def test_pieces_have_ids_and_join_to_words(pieces):
    tokenizer = SegmentedTextTokenizer(PIECES)
    ids = tokenizer.encode(" ".join(pieces))
    assert ids == [4 + PIECES.index(piece) for piece in pieces]
    joined = " ".join(pieces).replace("@@ ", "")
    assert tokenizer.decode([*ids, EOS_ID]) == (joined[:-2] if joined.endswith("@@") else joined)


def test_the_joined_text():
    tokenizer = SegmentedTextTokenizer(PIECES)
    assert tokenizer.decode(tokenizer.encode("the trans@@ la@@ tion , the la@@")) == "the translation , the la"
    assert tokenizer.encode("the other") == [4, UNK_ID] and tokenizer.decode([4, UNK_ID]) == "the \ufffd"
    assert tokenizer.join("a@@ b @-@ c@@ d@@") == "ab @-@ cd"


@pytest.mark.parametrize(
    "content",
    [
        "<unk>\n<s>\n</s>\nthe\ntrans@@\ntion\n",  # a list of pieces
        "the 231\ntrans@@ 17\ntion 3\n",  # with counts, as fairseq and subword-nmt write them
        "the\r\ntrans@@\r\ntion\r\n",
    ],
)
def test_lists_of_pieces_are_known_by_their_looks(tmp_path, content):
    (tmp_path / "vocab").write_bytes(content.encode())
    tokenizer = load_tokenizer(tmp_path / "vocab")
    assert isinstance(tokenizer, SegmentedTextTokenizer) and tokenizer.vocab_size == 7
    assert tokenizer.encode("trans@@ tion the <s>") == [5, 6, 4, UNK_ID]
    save_tokenizers(tmp_path, (tokenizer, tokenizer))
    again = load_tokenizer(tmp_path / "tokenizer.model")
    assert again.fingerprint == tokenizer.fingerprint and again.encode("trans@@") == [5]


@pytest.mark.parametrize("content", [b"the\ntranslation\n", b"a line of text with la@@ tion\n", b"\xff@@\n"])
def test_other_files_are_no_lists_of_pieces(tmp_path, content):
    (tmp_path / "vocab").write_bytes(content)
    with pytest.raises(UserError, match="not a whole SentencePiece model"):
        load_tokenizer(tmp_path / "vocab")


def test_vocabularies_of_two_languages(tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text("x@@ y\n")
        (tmp_path / f"dict.{language}.txt").write_text(f"x@@ 3\n{language} 1\n")
    one = DataConfig(source="files", directory=str(tmp_path), tokenizer=str(tmp_path / "dict.en.txt"))
    assert len(set(map(id, make_tokenizers(one, make_source(one, 0))))) == 1
    both = ",".join(str(tmp_path / f"dict.{language}.txt") for language in ("en", "de"))
    two = dataclasses.replace(one, tokenizer=both, joint_vocabulary=False)
    assert [tokenizer.encode("de") for tokenizer in make_tokenizers(two, make_source(two, 0))] == [[UNK_ID], [5]]
