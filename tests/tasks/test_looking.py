"""What is seen inside a model is what it computes, whatever implementation, positions, heads and layers it has."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.models import small
from tests.plan.families import SECTIONS, family
from transformer.looks import CanBeLookedInto
from transformer.models.causal_lm import CausalLM
from transformer.models.masks import AttentionMask, visible
from transformer.models.seq2seq import Seq2Seq, Seq2SeqMasks
from transformer.report.attention_page import recomputed_weights
from transformer.tasks import make_task
from transformer.tasks.looking import predictions, run_and_look
from transformer.training.partitioning import unbox
from transformer.types import UserError

VARIANTS = {
    "alibi, cap, blockwise": {
        "position_encoding": "alibi",
        "attention_logit_softcap": 2.0,
        "attention_implementation": "blockwise",
    },
    "rotary, grouped, normalised, small queries": {
        "position_encoding": "rotary",
        "num_kv_heads": 1,
        "num_heads": 4,
        "head_dim": 6,
        "qk_head_dim": 4,
        "qk_norm": True,
    },
    "relative bias, no scale, experts": {
        "position_encoding": "relative_bias",
        "scale_attention": False,
        "num_experts": 5,
    },
}
SEGMENTS_S = np.array([[1, 1, 1, 1, 1], [1, 1, 2, 2, 0]])
SEGMENTS_T = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 2, 2, 2, 0]])


def drawn(init, *arguments):
    """Parameters of the shapes that a model has: quicker than to compile how it makes them."""
    rng = np.random.default_rng(0)
    shapes = unbox(jax.eval_shape(init, jax.random.key(0), *arguments))
    return jax.tree.map(lambda leaf: np.float32(rng.normal(size=leaf.shape) * 0.3), shapes)


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_follow_from_queries_keys_masks_and_biases(name):
    config = small.config(**{**VARIANTS[name], "num_decoder_layers": 3, "num_encoder_layers": 2})
    model = Seq2Seq(config, small.V, small.V)
    source, target = small.tokens(2, 5), small.tokens(2, 7)
    masks = Seq2SeqMasks(
        AttentionMask(query_segment_ids=SEGMENTS_S, key_segment_ids=SEGMENTS_S),
        AttentionMask(causal=True, query_segment_ids=SEGMENTS_T, key_segment_ids=SEGMENTS_T),
        AttentionMask(query_segment_ids=SEGMENTS_T, key_segment_ids=SEGMENTS_S),
    )
    params = drawn(functools.partial(model.init, deterministic=True), source, target, masks)["params"]
    plain = small.run(model, params, source, target, masks, deterministic=True)
    logits, attention, experts = run_and_look(model, params, source, target, masks, row=1)
    np.testing.assert_allclose(logits[SEGMENTS_T > 0], plain[SEGMENTS_T > 0], atol=2e-4)
    shapes = {"encoder": (5, 5), "decoder": (7, 7), "cross": (7, 5)}
    assert {stack: {layer.weights.shape[1:] for layer in layers} for stack, layers in attention.items()} == {
        stack: {shape} for stack, shape in shapes.items()
    }
    for stack, layers in attention.items():
        seen = visible(getattr(masks, stack), *((0, size) for size in shapes[stack]))[1]
        for layer in layers:
            np.testing.assert_allclose(recomputed_weights(layer), layer.weights, atol=1e-5)
            np.testing.assert_array_equal(layer.visible, seen)
            sums = layer.weights.sum(axis=-1)
            np.testing.assert_allclose(sums, np.broadcast_to(seen.any(axis=-1), sums.shape), atol=1e-5)
        assert len({layer.weights.tobytes() for layer in layers}) == len(layers)
    assert [one is not None for one in experts["encoder"]] == 2 * ["experts" in name]
    if "experts" in name:
        last = experts["decoder"][2]
        assert last.numbers.shape == (7, 2) and last.numbers.max() < 5
        np.testing.assert_allclose(last.weights.sum(axis=-1), 1, atol=1e-5)


def test_layers_of_a_pattern_stand_in_their_order():
    config = dataclasses.replace(
        small.CONFIG,
        variant="decoder_only",
        num_decoder_layers=4,
        attention_window=3,
        attention_pattern=("local", "global"),
        position_encoding="rotary",
    )
    model, tokens = CausalLM(config, small.V), small.tokens(1, 11)
    mask = AttentionMask(causal=True)
    params = drawn(functools.partial(model.init, deterministic=True), tokens, mask)
    _, attention, _ = run_and_look(model, params["params"], tokens, mask)
    assert list(attention) == ["decoder"]
    assert [layer.window for layer in attention["decoder"]] == [3, None, 3, None]
    assert [int(layer.visible[10].sum()) for layer in attention["decoder"]] == [3, 11, 3, 11]
    for layer in attention["decoder"]:
        np.testing.assert_allclose(recomputed_weights(layer), layer.weights, atol=1e-5)


LINES = {
    "translation": "the number seven",
    "span_corruption": "the <extra_id_0> saw",
    "masked_lm": "the <mask>at saw",
    "image_classification": None,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("families"))


@pytest.mark.parametrize("name", SECTIONS)
def test_every_task_can_be_looked_into(name, folder, tmp_path):
    from PIL import Image

    task = make_task(family(name, folder))
    assert isinstance(task, CanBeLookedInto)
    params = drawn(task.init)
    line = LINES.get(name, "the cat saw NATO")
    if line is None:
        line = str(tmp_path / "image.png")
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(line)
    seq2seq = name in ("translation", "span_corruption")
    found = task.look(params, line, "seven <extra_id_1>") if seq2seq else task.look(params, line)
    assert found.input == line
    for stack, layers in found.weights.items():
        keys = found.pieces["decoder" if stack == "decoder" else "encoder"]
        queries = found.pieces["encoder" if stack == "encoder" else "decoder"]
        assert all(weights.shape == (2, len(queries), len(keys)) for weights in layers)
        np.testing.assert_allclose(layers[0].sum(axis=-1), 1, atol=1e-5)
    for side, of_side in found.predictions.items():
        assert all(0 <= place < len(found.pieces[side]) for place in of_side)
        for one in of_side.values():
            probabilities = [probability for _, probability in one.alternatives]
            assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) < 1 + 1e-5
    if seq2seq:
        written = [found.predictions["decoder"][place].text for place in range(len(found.pieces["decoder"]))]
        assert written[:5] == list("seven") and written[-1] == "<eos>" and found.pieces["decoder"][0].text == "<bos>"
        assert [piece.text for piece in found.pieces["decoder"][1:]] == written[:-1]
        assert ("<extra_id_1>" in written) == (name == "span_corruption")
    else:
        with pytest.raises(UserError, match="no target"):
            task.look(params, line, "seven")


def test_the_look_is_at_the_output_that_is_given(folder):
    task = make_task(family("translation", folder))
    params = drawn(task.init)
    found = task.look(params, "the number seven")
    ((best,),) = task.candidates(params, ["the number seven"], 1)
    assert found.output == best.text
    log_prob = sum(np.log(found.predictions["decoder"][place].probability) for place in found.predictions["decoder"])
    length = len(found.pieces["decoder"])
    assert log_prob / ((5 + length) / 6) ** 0.6 == pytest.approx(best.score, abs=1e-3)


def test_an_empty_line_is_refused(folder):
    task = make_task(family("translation", folder))
    with pytest.raises(UserError, match="no text"):
        task.look(None, "  ")


def test_predictions_name_what_was_chosen_and_the_likeliest():
    logits = np.log(np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]]))
    chosen, free = predictions(logits, [2, -1], ["a", "b", "c"])
    assert chosen.text == "c" and chosen.probability == pytest.approx(0.3)
    assert [text for text, _ in chosen.alternatives] == ["b", "c", "a"]
    assert free.text == "a" and free.probability == pytest.approx(0.5)
