"""Several processes tokenise what one would; what goes wrong in them is said."""

import os
import signal

import pytest

from transformer.data import processes as shared
from transformer.data.encoding import encode, encode_all
from transformer.data.pairs import PairList
from transformer.data.store import open_store
from transformer.data.tokenizer import ByteTokenizer, CharacterTokenizer
from transformer.data.vocabularies import train_sentencepiece
from transformer.types import UserError

PAIRS = [(f"line {n} of some", f"Zeile {n * n}" if n % 7 else "") for n in range(300)]


@pytest.fixture(scope="module")
def tokenizers():
    text = [line for pair in PAIRS for line in pair]
    return train_sentencepiece(text, "bpe", 300), CharacterTokenizer("".join(text))


def chunks(size):
    return [PAIRS[start : start + size] for start in range(0, len(PAIRS), size)]


def test_the_store_is_the_same_to_the_byte(tokenizers, tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "PAIRS_PER_CHUNK", 17)
    monkeypatch.setattr(shared, "EXAMPLES_PER_PROCESS", 100)
    folders = [tmp_path / str(processes) for processes in (1, 2)]
    for folder, processes in zip(folders, (1, 2), strict=True):
        assert len(open_store(PairList(PAIRS), "train", tokenizers, folder, processes)) == len(PAIRS)
    files = [{path.name: path.read_bytes() for path in folder.glob("*/*")} for folder in folders]
    assert len(files[0]) == 5 and files[0] == files[1]


def test_a_process_that_is_killed(tokenizers, monkeypatch):
    found = encode_all(chunks(7), (Deadly(), ByteTokenizer()), 2)
    with pytest.raises(UserError, match=r"one of the 2 processes that tokenise ended early: killed.*data\.processes"):
        list(found)


class Deadly(ByteTokenizer):
    def encode_batch(self, lines):
        os.kill(os.getpid(), signal.SIGKILL)


def test_ids_outside_of_the_vocabulary_are_found():
    tokenizer = ByteTokenizer()
    tokenizer.vocab_size = 100
    assert encode(tokenizer, ["", "\x01", "\x01z"]).outside == (2, 126)
    assert encode(tokenizer, ["\x01"]).outside is None


def test_no_more_is_read_ahead_than_is_worked_on_and_errors_come_out(tokenizers):
    read = 0

    def counted():
        nonlocal read
        for chunk in chunks(31):
            read += 1
            yield chunk
        raise UserError("line 301 is bad")

    found, done = encode_all(counted(), tokenizers, 2), 0
    with pytest.raises(UserError, match="line 301 is bad"):
        for sides in found:
            done += 1
            assert read <= done + shared.CHUNKS_AHEAD * 2
            assert [len(side.ends) for side in sides] == [31, 31]
    assert read == 10 and done == 10 - shared.CHUNKS_AHEAD * 2
