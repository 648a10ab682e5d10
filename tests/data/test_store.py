"""The store gives back what the tokenizers said, is made once, and is never half there."""

import logging
import multiprocessing
import resource
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.data import processes
from transformer.data.store import open_store
from transformer.types import UserError


class ListSource:
    """Pairs from memory."""

    def __init__(self, pairs: Sequence[tuple[str, str]]):
        self._pairs = list(pairs)
        self.reads = 0

    @property
    def fingerprint(self) -> str:
        return self.fingerprint_of("train")

    def fingerprint_of(self, split: str) -> str:
        return f"{split} {self._pairs}"

    def size(self, split: str) -> int:
        return len(self._pairs)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        self.reads += 1
        return iter(self._pairs)

    def repeats(self, split: str) -> np.ndarray | None:
        return None


class NumberTokenizer:
    """Lines of numbers: each is its own id."""

    unk_id, mask_id, sentinel_ids, start_id = 3, None, (), None

    def __init__(self, vocab_size: int = 97, pad_id: int = 0, bos_id: int = 1, eos_id: int = 2):
        self.vocab_size = vocab_size
        self.pad_id, self.bos_id, self.eos_id = pad_id, bos_id, eos_id
        self.fingerprint = f"numbers {vocab_size}"

    def encode(self, line: str) -> list[int]:
        return [int(word) for word in line.split()]

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.encode(line) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def save(self, folder, name: str) -> None:
        raise NotImplementedError


def lines_of(sides: Sequence[Sequence[int]]) -> tuple[str, ...]:
    return tuple(" ".join(map(str, ids)) for ids in sides)


ids = st.lists(st.integers(4, 96), max_size=7)
TOKENIZERS = (NumberTokenizer(97), NumberTokenizer(101, eos_id=5))
SMALL = [("11 13", "17"), ("", "19 23 29"), ("31", "")]


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=23), st.integers(1, 7))
def test_every_line_comes_back_with_eos(tmp_path_factory, pairs, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "PAIRS_PER_CHUNK", chunk)
        store = open_store(
            ListSource([lines_of(pair) for pair in pairs]), "train", TOKENIZERS, tmp_path_factory.mktemp("cache")
        )
    assert len(store) == len(pairs)
    for index, (source, target) in enumerate(pairs):
        assert store.source(index).tolist() == [*source, 2]
        assert store.target(index).tolist() == [*target, 5]
    assert store.source_lengths.tolist() == [len(source) + 1 for source, _ in pairs]
    assert store.target_lengths.tolist() == [len(target) + 1 for _, target in pairs]
    assert store.source_lengths.dtype == store.source(0).dtype == np.int32
    some = np.random.default_rng(0).integers(0, len(pairs), 5)
    assert store.sides[1].gather(some).tolist() == [token for index in some for token in [*pairs[index][1], 5]]
    assert store.sides[0].gather(some[:0]).shape == (0,)


@pytest.mark.parametrize(("vocab_size", "dtype", "largest"), [(65536, "uint16", 65535), (65537, "uint32", 65536)])
def test_the_largest_id_survives(tmp_path, vocab_size, dtype, largest):
    tokenizer = NumberTokenizer(vocab_size)
    store = open_store(ListSource([(str(largest), str(largest))]), "train", (tokenizer, tokenizer), tmp_path)
    assert store.source(0).tolist() == store.target(0).tolist() == [largest, 2]
    (tokens,) = tmp_path.glob("train-*/source.tokens")
    assert tokens.stat().st_size == 2 * np.dtype(dtype).itemsize


def test_it_is_made_once_and_again_for_other_text_or_another_tokenizer(tmp_path):
    source = ListSource(SMALL)
    fingerprints = [open_store(source, "train", TOKENIZERS, tmp_path).fingerprint for _ in range(2)]
    assert source.reads == 1 and fingerprints[0] == fingerprints[1]
    fingerprints += [
        open_store(source, "train", (TOKENIZERS[0], NumberTokenizer(103)), tmp_path).fingerprint,
        open_store(source, "train", (TOKENIZERS[0], NumberTokenizer(101, eos_id=7)), tmp_path).fingerprint,
        open_store(ListSource(SMALL[:2]), "train", TOKENIZERS, tmp_path).fingerprint,
    ]
    assert len(set(fingerprints)) == 4
    assert open_store(ListSource(SMALL), "news/../2012", TOKENIZERS, tmp_path).target(1).tolist() == [19, 23, 29, 5]


@pytest.mark.parametrize(
    "name", ["manifest.json", "source.tokens", "target.tokens", "source.offsets", "target.offsets"]
)
@pytest.mark.parametrize("damage", ["cut", "grown", "gone", "emptied"])
def test_a_damaged_store_is_made_again_with_a_warning(tmp_path, caplog, name, damage):
    open_store(ListSource(SMALL), "train", TOKENIZERS, tmp_path)
    (path,) = tmp_path.glob(f"train-*/{name}")
    data = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes({"cut": data[:-1], "grown": data + bytes(8), "emptied": b""}[damage])
    source = ListSource(SMALL)
    store = open_store(source, "train", TOKENIZERS, tmp_path)
    assert source.reads == 1 and "damaged" in caplog.text
    assert [store.target(index).tolist() for index in range(3)] == [[17, 5], [19, 23, 29, 5], [5]]
    assert path.read_bytes() == data


def test_offsets_that_never_reached_the_disk_are_seen(tmp_path, caplog):
    open_store(ListSource(SMALL), "train", TOKENIZERS, tmp_path)
    (path,) = tmp_path.glob("train-*/target.offsets")
    path.write_bytes(bytes(path.stat().st_size))
    assert open_store(ListSource(SMALL), "train", TOKENIZERS, tmp_path).target(0).tolist() == [17, 5]
    assert "damaged" in caplog.text


def test_what_a_killed_process_left_does_no_harm(tmp_path):
    path = tmp_path / open_store(ListSource(SMALL), "train", TOKENIZERS, tmp_path / "elsewhere").fingerprint
    partial = path.with_name(f"train-{path.name}.partial")
    partial.mkdir()
    (partial / "source.tokens").write_bytes(b"half")
    assert open_store(ListSource(SMALL), "train", TOKENIZERS, tmp_path).source(0).tolist() == [11, 13, 2]
    assert not partial.exists()


class BrokenSource(ListSource):
    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        yield ("11", "13")
        raise UserError("train.de, line 2: bad UTF-8")


def test_an_error_in_the_text_leaves_nothing_that_looks_whole(tmp_path):
    with pytest.raises(UserError, match="line 2: bad UTF-8"):
        open_store(BrokenSource(SMALL), "train", TOKENIZERS, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert len(open_store(ListSource(SMALL), "train", TOKENIZERS, tmp_path)) == 3


@pytest.mark.parametrize(("side", "pair"), [("source", ("11", "13")), ("target", ("10", "13 14"))])
@pytest.mark.parametrize("chunk", [1, 2, 8192])
def test_an_id_outside_the_vocabulary_names_its_pair(tmp_path, monkeypatch, side, pair, chunk):
    monkeypatch.setattr(processes, "PAIRS_PER_CHUNK", chunk)
    tokenizers = (NumberTokenizer(11), NumberTokenizer(14))
    fine = ("10 10", "13 13 13")
    with pytest.raises(UserError, match=f"{side} side gives id {'11' if side == 'source' else '14'} in pair 3"):
        open_store(ListSource([fine, fine, pair, fine]), "train", tokenizers, tmp_path)


def test_an_empty_split_is_an_error(tmp_path):
    with pytest.raises(UserError, match="the test split has no pairs"):
        open_store(ListSource([]), "test", TOKENIZERS, tmp_path)


def test_a_cache_that_cannot_be_written_names_the_key(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"data\.cache_directory"):
        open_store(ListSource(SMALL), "train", TOKENIZERS, tmp_path / "file" / "cache")


def test_a_full_disk_names_the_key(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(UserError, match=r"data\.cache_directory"):
            open_store(ListSource(SMALL * 1000), "train", TOKENIZERS, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


class SlowSource(ListSource):
    """Waits in the middle of the text until told to go on, and counts its readers across processes."""

    def __init__(self, pairs, started, go_on, reads):
        super().__init__(pairs)
        self._started, self._go_on, self._shared_reads = started, go_on, reads

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        with self._shared_reads.get_lock():
            self._shared_reads.value += 1
        self._started.set()
        yield self._pairs[0]
        assert self._go_on.wait(20)
        yield from self._pairs[1:]


def _open_and_report(source, folder, queue):
    queue.put(open_store(source, "train", TOKENIZERS, folder).source(0).tolist())


def test_one_process_makes_it_and_the_others_wait(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    context = multiprocessing.get_context("fork")
    started, go_on, reads, queue = context.Event(), context.Event(), context.Value("i", 0), context.Queue()
    source = SlowSource(SMALL, started, go_on, reads)
    process = context.Process(target=_open_and_report, args=(source, tmp_path, queue))
    process.start()
    assert started.wait(20)
    found = []
    thread = threading.Thread(target=lambda: found.append(open_store(source, "train", TOKENIZERS, tmp_path)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive() and "waiting" in caplog.text
    go_on.set()
    thread.join(20)
    assert found[0].source(0).tolist() == queue.get(timeout=20) == [11, 13, 2]
    process.join(20)
    assert reads.value == 1
