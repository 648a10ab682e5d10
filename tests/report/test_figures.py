"""Figures for papers, where matplotlib is installed; and what is said where it is not, or nothing is to be drawn."""

import sys

import numpy as np
import pytest

from tests.report.looks import encoder_look, image_look, translation_look
from transformer.report.figures import all_heads, labels, one_head, over_patches, write_figure
from transformer.types import UserError


def test_a_figure_shows_the_weights_with_their_tokens(tmp_path):
    pytest.importorskip("matplotlib", reason="no matplotlib; make browser installs it")
    look = translation_look()
    axes, bar = one_head(look, "cross", 1, 2).axes
    np.testing.assert_array_equal(axes.images[0].get_array(), look.weights["cross"][1][2])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["w0", "▁w1", "▁w2", "w3", "<eos>"]
    assert bar.get_ylim()[0] == 0
    for suffix in ("svg", "png", "pdf"):
        path = tmp_path / "new" / f"figure.{suffix}"
        write_figure(path, look, "decoder", 1, 2)
        assert path.stat().st_size > 1_000


def test_all_heads_of_a_layer_and_over_an_image(tmp_path):
    pytest.importorskip("matplotlib", reason="no matplotlib; make browser installs it")
    assert len(all_heads(encoder_look(), "encoder", 0).axes) == 6
    look = image_look()
    maps = [axes.images[0].get_array() for axes in all_heads(look, "encoder", 2).axes]
    np.testing.assert_array_equal(maps[1], look.weights["encoder"][2][1][0, 2:].reshape(2, 3))
    write_figure(tmp_path / "awkward.png", encoder_look(), None, None, None)


def test_patches_are_looked_at_by_the_class_token_or_by_all():
    look = image_look()
    weights = look.weights["encoder"][0][0]
    np.testing.assert_array_equal(over_patches(look, weights), weights[0, 2:].reshape(2, 3))
    image = look.image._replace(first_patch=0, rows=2, columns=4)
    found = over_patches(look._replace(image=image), weights)
    np.testing.assert_allclose(found, weights.mean(axis=0).reshape(2, 4))


def test_a_dollar_sign_begins_no_formula():
    look = translation_look()
    pieces = {**look.pieces, "encoder": (look.pieces["encoder"][0]._replace(text="$5"), *look.pieces["encoder"][1:])}
    assert labels(look._replace(pieces=pieces), "encoder")[1][0] == r"\$5"


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (("crosss", None, None), "did you mean cross?"),
        (("cross", 3, None), "--layer=3: cross has 2 layers"),
        ((None, None, 4), "--head=4: there are 3 heads"),
    ],
)
def test_what_is_not_there_cannot_be_drawn(tmp_path, choice, said):
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        write_figure(tmp_path / "figure.svg", translation_look(), *choice)


def test_without_matplotlib_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"requirements-figures\.txt"):
        write_figure(tmp_path / "figure.svg", translation_look(), None, None, None)
