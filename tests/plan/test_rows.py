"""Rows as text and masks as pictures, against the arrays that they show."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.families import SECTIONS, family
from transformer.data.pieces import SPACE
from transformer.data.tokenizer import ByteTokenizer, CharacterTokenizer, ExtraIdsTokenizer
from transformer.data.vocabularies import train_sentencepiece
from transformer.plan.rows import PICTURE_SIZE, piece_namer, show_attention, show_row
from transformer.tasks import make_task
from transformer.types import BatchView, TokenView

LINES = [f"the {animal} saw {number} of them, and left" for animal in ("cat", "dog") for number in range(40)]


def view_of(tokenizer, ids, **fields) -> TokenView:
    tokens = np.array([ids], np.int32)
    return TokenView("input", tokens, np.ones_like(tokens), tokenizer.vocab_size, tokenizer, **fields)


@given(st.lists(st.sampled_from(["the", "dog", " ", "  ", "17", "left", "em"]), min_size=1, max_size=9))
def test_pieces_are_the_text_with_its_spaces_made_visible(parts):
    text = "".join(parts)
    for tokenizer in (CharacterTokenizer("".join(LINES)), ByteTokenizer(), sentencepiece()):
        name = piece_namer(view_of(tokenizer, [0]))
        pieces = [name(i) for i in tokenizer.encode(text)]
        shown = "".join(pieces).replace(SPACE, " ")
        assert shown in (text, " " + text)  # SentencePiece puts a space before the text


_MODEL = []


def sentencepiece():
    if not _MODEL:
        _MODEL.append(train_sentencepiece(LINES, "bpe", 300))
    return _MODEL[0]


def test_special_pieces_go_by_their_roles():
    tokenizer = ExtraIdsTokenizer(sentencepiece(), 3)
    ids = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id]
    name = piece_namer(view_of(tokenizer, [0]))
    assert [name(i) for i in ids] == ["<pad>", "<bos>", "<eos>", "<unk>", "<mask>"]
    assert [name(i) for i in tokenizer.sentinel_ids[:2]] == ["<extra_id_0>", "<extra_id_1>"]
    assert name(tokenizer.vocab_size) == f"<{tokenizer.vocab_size}, which is no piece>"
    assert name(sentencepiece().encode("€")[-1]).startswith("<")  # a byte of a character is no text


def test_a_row_shows_texts_pieces_positions_and_weights():
    tokenizer = CharacterTokenizer("abc \n")
    ids = [*tokenizer.encode("ab"), tokenizer.eos_id, *tokenizer.encode("c\n a"), tokenizer.eos_id, tokenizer.pad_id]
    segments = np.array([[1, 1, 1, 2, 2, 2, 2, 2, 0]])
    view = view_of(
        tokenizer,
        ids,
        positions=np.array([[0, 1, 2, 0, 1, 2, 3, 4, 0]]),
        loss_weights=np.array([[1, 1, 1, 0, 0, 1, 1, 1, 0]]),
    )._replace(segment_ids=segments)
    assert list(show_row(BatchView((view,), {}, 9, lambda row: [f"note {row}"]), 0)) == [
        "input: 2 texts in 9 columns, 1 of them empty",
        "  text 1 in columns 0-2, positions 0-2, loss weights 1 x 3",
        "    ab",
        "    a|b|<eos>",
        "  text 2 in columns 3-7, positions 0-4, loss weights 0 x 2, 1 x 3",
        "    c\\n a",
        f"    c|\\n|{SPACE}|a|<eos>",
        "note 0",
    ]


@pytest.mark.parametrize("size", [PICTURE_SIZE, 3 * PICTURE_SIZE - 1])
def test_a_picture_is_the_matrix(size):
    matrix = np.random.default_rng(0).random((size, size // 2)) < 0.5
    title, *lines = show_attention({"cross": lambda row: matrix[row:]}, 0)
    step = -(-size // PICTURE_SIZE)
    assert title == f"cross, {size} x {size // 2}" + (f", 1 in {step}" if step > 1 else "")
    assert [[letter == "#" for letter in line.strip()] for line in lines] == matrix[::step, ::step].tolist()


@pytest.mark.parametrize("name", [name for name in SECTIONS if name != "image_classification"])
def test_every_family_shows_what_its_batches_hold(name, tmp_path):
    task = make_task(family(name, str(tmp_path)))
    batch = task.batch(0)
    view = task.view(batch)
    for row in (0, 1):
        shown = "\n".join(show_row(view, row))
        for tokens in view.tokens:
            if tokens.tokenizer is not None:
                first = np.flatnonzero(tokens.segment_ids[row] == 1)
                text = tokens.tokenizer.decode(tokens.tokens[row][first].tolist())
                assert re.split("\n", text)[0][:100] in shown
    check_attention(name, view)


def check_attention(name: str, view: BatchView) -> None:
    """What is drawn, against segments, order and window."""
    causal = {"decoder": True}
    for attention, visible_in in view.attention.items():
        by_name = {tokens.name.split()[0]: np.asarray(tokens.segment_ids[1]) for tokens in view.tokens}
        own = by_name.get(attention.split(",")[0].split()[0], next(iter(by_name.values())))
        queries, keys = own, own
        if attention == "cross":
            queries, keys = by_name["decoder"], by_name["encoder"]
        expected = (queries[:, None] == keys) & (queries[:, None] != 0)
        if causal.get(attention.split(",")[0], False):
            expected &= np.tri(len(queries), dtype=bool)
        if name == "language_modeling":
            distance = np.arange(len(queries))[:, None] - np.arange(len(keys))
            expected &= np.abs(distance) < 13
        np.testing.assert_array_equal(np.asarray(visible_in(1)), expected, err_msg=attention)


def test_layers_with_and_without_a_window_have_a_picture_each(tmp_path):
    config = family("language_modeling", str(tmp_path))
    model = dataclasses.replace(config.model, attention_pattern=("local", "global"), num_decoder_layers=2)
    view = make_task(dataclasses.replace(config, model=model))
    attention = view.view(view.batch(0)).attention
    assert list(attention) == ["decoder, window 13", "decoder, window None"]
    local, all_layers = (np.asarray(visible(0)) for visible in attention.values())
    assert (local <= all_layers).all() and (local != all_layers).any()


def test_images_are_drawn(tmp_path):
    task = make_task(family("image_classification", str(tmp_path)))
    batch = task.batch(0)
    lines = list(show_row(task.view(batch), 0))
    label = task.classes.names[int(np.argmax(batch.label_weights[0]))]
    assert lines[0].startswith("image 8 x 8 x 1, values -1 to ") and lines[-1] == f"class {label} 1; loss weight 1"
    assert len(lines) == 2 + 8 and {len(line) for line in lines[1:-1]} == {16}
    brightest = np.unravel_index(np.argmax(batch.images[0, :, :, 0]), (8, 8))
    assert lines[1 + brightest[0]][2 * brightest[1]] == "@"
