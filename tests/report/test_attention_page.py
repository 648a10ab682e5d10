"""What the page holds: enough to compute every weight, little enough to be sent, and no text that is read as HTML."""

import base64
import json
import re

import numpy as np
import pytest

from tests.report.looks import AWKWARD, encoder_look, image_look, translation_look
from transformer.report.attention_page import page, page_data, recomputed_weights, weights_difference
from transformer.types import UserError

FACTS = {"task": "<b>test</b>"}


def decoded(text: str, dtype) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


@pytest.mark.parametrize(
    "look", [encoder_look(), translation_look(), image_look()], ids=["encoder", "translation", "image"]
)
def test_what_is_stored_is_enough_for_every_weight(look):
    data = page_data(look, FACTS)
    assert [stack["name"] for stack in data["stacks"]] == list(look.attention)
    for stack in data["stacks"]:
        T, S, H = stack["T"], stack["S"], stack["heads"]
        for stored, layer in zip(stack["layers"], look.attention[stack["name"]], strict=True):
            dtype = f"<f{stored['bits'] // 8}"
            shapes = {"query": (H, T, -1), "key": (stack["groups"], S, -1), "value": (stack["groups"], S, -1)}
            arrays = {name: decoded(stored[name], dtype).reshape(shape) for name, shape in shapes.items()}
            bits = np.unpackbits(decoded(data["masks"][stored["mask"]], np.uint8))[: T * S]
            bias = None
            if stored["bias"] is not None:
                found = data["biases"][stored["bias"]]
                bias = decoded(found["values"], "<f4")
                if found["byDistance"]:
                    places = np.arange(S)[None] - np.arange(T)[:, None] + T - 1
                    bias = bias.reshape(H, -1)[:, places]
                bias = bias.reshape(H, T, S)
            read = layer._replace(
                query=arrays["query"].astype("f4"),
                key=arrays["key"].astype("f4"),
                visible=bits.reshape(T, S).astype(bool),
                bias=bias,
                scale=stored["scale"],
                softcap=stored["softcap"],
            )
            np.testing.assert_allclose(recomputed_weights(read), layer.weights, atol=2e-3)
            np.testing.assert_allclose(arrays["value"], layer.value, rtol=2e-3, atol=1e-4)


def test_float16_is_kept_where_it_is_exact_enough_and_only_there():
    look = encoder_look()
    stored = page_data(look, FACTS)["stacks"][0]["layers"]
    layers = look.attention["encoder"]
    assert weights_difference(layers[-1], np.float16) > 1e-3
    assert [layer["bits"] for layer in stored] == [16] * (len(layers) - 1) + [32]
    overflowing = layers[0]._replace(query=layers[0].query * 1e6, key=layers[0].key / 1e6)
    assert weights_difference(overflowing, np.float16) == np.inf
    assert weights_difference(overflowing, np.float32) < 1e-5


def test_masks_and_biases_are_stored_once():
    look = encoder_look()
    twice = look._replace(
        attention={"encoder": look.attention["encoder"] * 2}, experts={"encoder": look.experts["encoder"] * 2}
    )
    once, doubled = page_data(look, FACTS), page_data(twice, FACTS)
    assert len(once["masks"]) == 6 and len(once["biases"]) == 3
    assert doubled["masks"] == once["masks"] and doubled["biases"] == once["biases"]
    # Positions that start anew make the bias more than a matter of the distance between slots.
    assert [bias["byDistance"] for bias in once["biases"]] == [True, False, True]


def test_thirty_tokens_of_a_base_model_stay_below_three_megabytes():
    look = translation_look(S=30, T=30, layers=1, heads=8, size=64)
    attention = {stack: layers * 6 for stack, layers in look.attention.items()}
    look = look._replace(attention=attention, experts=dict.fromkeys(look.experts, (None,) * 6))
    assert len(page(look, FACTS).encode()) < 3e6


@pytest.mark.parametrize("look", [encoder_look(), image_look()], ids=["text", "image"])
def test_no_text_is_read_as_html_and_nothing_comes_from_elsewhere(look):
    text = page(look, FACTS)
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert json.loads(data)["sides"]["encoder"]["pieces"] == [piece.text for piece in look.pieces["encoder"]]
    assert text.count("</script>") == text.count("<script") and "<b>bold" not in text and "alert(1)</" not in text
    assert "\u2028" not in text
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", text) and "@import" not in text and "fetch(" not in text
    assert not re.findall(r"https?://(?!www\.w3\.org/)", text)


def test_a_bias_and_a_mask_of_a_cross_attention_have_their_own_sizes():
    data = page_data(translation_look(), FACTS)
    cross = data["stacks"][2]
    assert (cross["T"], cross["S"], cross["querySide"], cross["keySide"]) == (5, 6, "decoder", "encoder")
    assert data["sides"]["decoder"]["written"]["pieces"] == ["w0", "▁w1", "▁w2", "w3", "<eos>"]
    assert data["sides"]["decoder"]["written"]["words"] == [0, 1, 2, 2, 3]
    assert data["sides"]["decoder"]["pieces"][0] == "<bos>" and data["sides"]["decoder"]["special"] == [1, 0, 0, 0, 0]


def test_weights_that_are_no_numbers_are_refused():
    look = translation_look()
    broken = look.attention["encoder"][1]._replace(weights=np.full((3, 6, 6), np.nan))
    attention = {**look.attention, "encoder": (look.attention["encoder"][0], broken)}
    with pytest.raises(UserError, match="encoder, layer 2"):
        page(look._replace(attention=attention), FACTS)


def test_more_places_than_a_page_is_made_for_are_refused():
    look = translation_look()
    with pytest.raises(UserError, match="1,537 places"):
        page(look._replace(pieces={**look.pieces, "encoder": look.pieces["encoder"][:1] * 1_537}), FACTS)


def test_awkward_tokens_are_all_there():
    assert page_data(encoder_look(), FACTS)["sides"]["encoder"]["pieces"] == list(AWKWARD)
