"""Healthy batches of every family pass all checks, and each check sees its fault."""

import types

import numpy as np
import pytest

from tests.plan.families import SECTIONS, family
from transformer.plan.checks import BatchChecks, check_loss, check_special_ids, failed
from transformer.tasks import make_task
from transformer.types import BatchView, TokenView

BEGIN, END, RANGE = "texts begin as they must", "EOS at every end", "ids in range"
WITHIN, UNKNOWN = "no padding, BOS or EOS within a text", "unknown pieces"
WEIGHTS = "loss on real tokens only, and on some"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Of every family the task."""
    return {name: make_task(family(name, str(tmp_path_factory.mktemp(name)))) for name in SECTIONS}


def look(*views) -> BatchChecks:
    checks = BatchChecks()
    for number, view in enumerate(views):
        checks.add(number, view)
    return checks


@pytest.mark.parametrize("name", SECTIONS)
def test_batches_of_every_family_pass(tasks, name):
    task = tasks[name]
    batches = [task.batch(number) for number in range(task.steps_per_epoch() + 1)]
    views = [task.view(batch) for batch in batches]
    assert failed(look(*views).results()) == []
    assert check_special_ids(views[0]).passed
    for batch, view in zip(batches, views, strict=True):
        work = task.work(batch)
        real = sum(value for key, value in work.items() if key.endswith("_tokens"))
        inputs = [tokens for tokens in view.tokens if tokens.loss_weights is None]
        if name in ("translation", "span_corruption", "language_modeling"):
            inputs = [inputs[0], view.tokens[-1]] if len(view.tokens) == 3 else [view.tokens[-1]]
        assert not inputs or real == sum(np.count_nonzero(tokens.segment_ids) for tokens in inputs)


def tokenizer(**ids):
    """Of 20 pieces, of which the first four are special."""
    given = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "mask_id": None, "sentinel_ids": (), "vocab_size": 20}
    decode = lambda ids: "".join(chr(97 + i) for i in ids if i > 3)  # noqa: E731
    return types.SimpleNamespace(**{**given, "decode": decode, **ids})


def healthy(**changed) -> TokenView:
    """Two texts and padding in the first row, one text in the second, that fill the columns of an embedding of 23."""
    view = TokenView(
        "target",
        np.array([[1, 7, 8, 2, 1, 9, 2, 0], [1, 5, 6, 11, 12, 13, 19, 2]], np.int32),
        np.array([[1, 1, 1, 1, 2, 2, 2, 0], [1] * 8], np.int32),
        23,
        tokenizer(),
        loss_weights=np.array([[1] * 7 + [0], [1] * 8], np.float32),
        first=1,
        last=2,
    )
    return view._replace(**changed)


def changed(name: str, *places: tuple[int, int, float]) -> TokenView:
    """A healthy view with other values in some places of a field."""
    array = getattr(healthy(), name).copy()
    for row, column, value in places:
        array[row, column] = value
    return healthy(**{name: array})


FAULTS = {
    "an id beyond the embedding": (changed("tokens", (0, 7, 23)), {RANGE}),
    "an id that is no piece": (changed("tokens", (1, 3, 20)), {RANGE}),
    "a negative id": (changed("tokens", (1, 3, -1)), {RANGE}),
    "no EOS": (changed("tokens", (0, 6, 9)), {END}),
    "no EOS in the midst of a row": (changed("tokens", (0, 3, 9)), {END}),
    "no BOS": (changed("tokens", (0, 4, 9)), {BEGIN}),
    "padding in a text": (changed("tokens", (1, 4, 0)), {WITHIN}),
    "BOS in a text": (changed("tokens", (1, 4, 1)), {WITHIN}),
    "EOS in a text": (changed("tokens", (1, 4, 2)), {WITHIN}),
    "unknown pieces": (changed("tokens", (1, 4, 3), (1, 5, 3)), {UNKNOWN}),
    "a weight on padding": (changed("loss_weights", (0, 7, 1)), {WEIGHTS}),
    "no weight": (healthy(loss_weights=np.zeros((2, 8), np.float32)), {WEIGHTS}),
}


def view_of(tokens: TokenView) -> BatchView:
    return BatchView((tokens,), {}, 20)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_check_sees_its_fault_and_no_other(fault):
    tokens, names = FAULTS[fault]
    assert failed(look(view_of(healthy())).results()) == []
    results = look(view_of(healthy()), view_of(tokens)).results()
    assert set(failed(results)) == names
    [found] = [check.found for check in results if not check.passed]
    assert "batch 1" in found or names == {UNKNOWN}


def test_only_a_text_that_was_cut_may_lack_its_eos():
    tokens = changed("tokens", (0, 3, 9))  # a text of 4 tokens
    assert failed(look(view_of(tokens._replace(most=4))).results()) == []
    assert failed(look(view_of(tokens._replace(most=3))).results()) == [END]


def test_special_pieces_that_a_text_may_hold_are_allowed():
    tokens = changed("tokens", (1, 4, 2))
    assert failed(look(view_of(tokens._replace(inside=(2,)))).results()) == []


@pytest.mark.parametrize(
    ("ids", "num_ids", "found"),
    [
        ({"eos_id": 20}, 23, "eos is 20, and the vocabulary has 20 pieces"),
        ({"unk_id": -2}, 23, "unk is -2"),
        ({"mask_id": 21}, 23, "mask is 21"),
        ({"sentinel_ids": (19, 20)}, 23, "sentinel 1 is 20"),
        ({}, 19, "20 pieces, but 19 rows of the embedding"),
        ({"eos_id": 0}, 23, "EOS is 0, and so is padding or BOS"),
        ({"pad_id": 7}, 23, "pad 7 decodes to 'h'"),
    ],
)
def test_special_ids_out_of_place_are_found(ids, num_ids, found):
    assert check_special_ids(view_of(healthy())).passed
    assert check_special_ids(view_of(healthy(tokenizer=tokenizer(unk_id=-1)))).passed  # a vocabulary of bytes
    check = check_special_ids(view_of(healthy(tokenizer=tokenizer(**ids), num_ids=num_ids)))
    assert not check.passed and check.found.startswith(found)


@pytest.mark.parametrize(("nll", "passed"), [(6.9, True), (9.5, True), (3.0, False), (20.0, False), (np.nan, False)])
def test_the_first_loss_is_that_of_knowing_nothing(nll, passed):
    assert check_loss(nll, 1_000, 64).passed == passed


def test_a_batch_without_eos_is_found(tasks):
    task = tasks["translation"]
    whole = task.batch(0)
    ends = whole.decoder_target_tokens == task.tokenizer.eos_id
    view = task.view(whole._replace(decoder_target_tokens=np.where(ends, 77, whole.decoder_target_tokens)))
    assert failed(look(view).results()) == [END]
