"""Marian: every tensor in its place and back bit for bit; with torch, the logits and the outputs of transformers."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import generation, model_files
from transformer.config import DecodingConfig, ModelConfig
from transformer.interop import pretrained
from transformer.interop.computation import changed
from transformer.interop.families.marian import MARIAN
from transformer.models.positions import SinusoidalHalfSplit
from transformer.types import UserError

TINY = {
    "_num_labels": 3,
    "activation_function": "swish",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["MarianMTModel"],
    "bad_words_ids": [[36]],
    "classif_dropout": 0.0,
    "d_model": 22,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 26,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 3,
    "decoder_start_token_id": 36,
    "decoder_vocab_size": 37,
    "dropout": 0.1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 26,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 2,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "is_encoder_decoder": True,
    "max_length": 512,
    "max_position_embeddings": 512,
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "num_beams": 6,
    "num_hidden_layers": 2,
    "pad_token_id": 36,
    "scale_embedding": True,
    "share_encoder_decoder_embeddings": True,
    "static_position_embeddings": True,
    "vocab_size": 37,
}
"""The keys that OPUS-MT's files have."""


def names_of_layer(stack: str, layer: int) -> set[str]:
    attentions = ["self_attn"] if stack == "encoder" else ["self_attn", "encoder_attn"]
    linears = [f"{name}.{letter}_proj" for name in attentions for letter in ("q", "k", "v", "out")] + ["fc1", "fc2"]
    norms = [*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"]
    kinds = ("weight", "bias")
    return {f"model.{stack}.layers.{layer}.{name}.{kind}" for name in linears + norms for kind in kinds}


def test_tensors_have_the_names_of_marian_and_come_back_bit_for_bit(tmp_path):
    tensors = model_files.make(tmp_path / "theirs", TINY, heads=("final_logits_bias",))
    layers = (
        names_of_layer(stack, layer) for stack, depth in (("encoder", 2), ("decoder", 3)) for layer in range(depth)
    )
    assert tensors.keys() == {"model.shared.weight", "final_logits_bias"}.union(*layers)
    assert tensors["final_logits_bias"].shape == (1, 37)

    model = model_files.read(tmp_path / "theirs")
    model_files.write(tmp_path / "exported", model)
    model_files.assert_same(model_files.tensors_of(tmp_path / "exported"), tensors)
    again = model_files.read(tmp_path / "exported")
    assert again.config.model == model.config.model
    model_files.assert_same(again.flat, model.flat)


def test_outputs_are_searched_as_the_files_say(tmp_path):
    model_files.make(tmp_path, TINY | {"length_penalty": 1.3}, heads=("final_logits_bias",))
    decoding = model_files.read(tmp_path).config.decoding
    assert (decoding.beam_size, decoding.length_penalty, decoding.alpha) == (6, "power", 1.3)


def test_copies_and_tables_of_sinusoids_are_accounted_for(tmp_path):
    tensors = model_files.make(tmp_path / "theirs", TINY, heads=("final_logits_bias",))
    copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    more = {name: tensors["model.shared.weight"] for name in copies}
    more |= {
        f"model.{stack}.embed_positions.weight": np.ones((512, 22), np.float32) for stack in ("encoder", "decoder")
    }
    model_files.save(tmp_path / "more", TINY, tensors | more)
    model_files.assert_same(model_files.read(tmp_path / "more").flat, model_files.read(tmp_path / "theirs").flat)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_function", "tanh"),
        ("share_encoder_decoder_embeddings", False),
        ("tie_word_embeddings", False),
        ("decoder_vocab_size", 41),
        ("decoder_ffn_dim", 31),
        ("decoder_attention_heads", 11),
        ("normalize_before", True),
        ("static_position_embeddings", False),
        ("encoder_layerdrop", 0.1),
        ("layernorm_variant", "xlm"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_its_name(tmp_path, key, value):
    model_files.save(tmp_path, TINY | {key: value}, {"none": np.zeros(1, np.float32)})
    with pytest.raises(UserError, match=f"{key}={value}"):
        pretrained.read_config(pretrained.open_pretrained(tmp_path))


def test_a_model_that_is_no_marian_is_not_written_as_one(tmp_path):
    model_files.make(tmp_path, TINY)
    config = model_files.read(tmp_path).config
    assert not config.model.output_bias
    assert pretrained.written_config(config)[0] is MARIAN
    for key, value in (("position_encoding", "sinusoidal"), ("norm_epsilon", 1e-6), ("head_dim", 7)):
        with pytest.raises(UserError, match=f"model.{key}={value}"):
            pretrained.written_config(changed(config, {f"model.{key}": value}))


@pytest.mark.parametrize("width", [22, 26, 13])
def test_positions_are_the_sinusoids_of_marian(width):
    _, marian = generation.torch_and("transformers.models.marian.modeling_marian")
    theirs = marian.MarianSinusoidalPositionalEmbedding(131, width).create_weight().numpy()
    config = ModelConfig(d_model=width)
    ours = SinusoidalHalfSplit(config, True).add(jnp.zeros((1, 131, width)), jnp.arange(131)[None])
    np.testing.assert_allclose(ours[0], theirs, atol=2e-5)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A random model of transformers, its bias on the logits too, and what the tables make of its files."""
    torch, transformers = generation.torch_and("transformers")
    torch.manual_seed(13)
    ours = (
        "architectures",
        "model_type",
        "_num_labels",
        "bad_words_ids",
        "max_length",
        "num_beams",
        "num_hidden_layers",
    )
    settings = {key: value for key, value in TINY.items() if key not in ours}
    config = transformers.MarianConfig(**settings, init_std=0.3)
    theirs = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        theirs.final_logits_bias.normal_()
    generation.make_talkative(theirs)
    theirs.generation_config.forced_eos_token_id = None  # outputs that reach their limit are cut here, and not closed
    folder = tmp_path_factory.mktemp("marian") / "theirs"
    theirs.save_pretrained(folder)
    return theirs, model_files.read(folder)


def test_logits_are_those_of_transformers(both, tmp_path):
    theirs, ours = both
    inputs = generation.inputs(vocab_size=37, pad_id=36, start_id=36, eos_id=0, longest=31)
    expected = generation.their_logits(theirs, inputs)
    np.testing.assert_allclose(generation.our_logits(ours, inputs), expected, atol=1e-4)

    import transformers

    model_files.write(tmp_path / "exported", ours, pad_token_id=36, eos_token_id=0, decoder_start_token_id=36)
    loaded = transformers.MarianMTModel.from_pretrained(tmp_path / "exported").eval()
    np.testing.assert_allclose(generation.their_logits(loaded, inputs), expected, atol=1e-6)
    model_files.assert_same(model_files.read(tmp_path / "exported").flat, ours.flat)


@pytest.mark.parametrize(
    ("decoding", "options"),
    [
        ({"method": "greedy"}, {}),
        ({"length_penalty": "power", "alpha": 1.0}, {"length_penalty": 1.0, "early_stopping": "never"}),
        ({"length_penalty": "power", "alpha": -0.7}, {"length_penalty": -0.7, "early_stopping": False}),
        ({"length_penalty": "none"}, {"length_penalty": 0.0, "early_stopping": False}),
    ],
    ids=["greedy", "alpha 1", "alpha below 0", "no penalty"],
)
def test_outputs_are_those_of_generate(both, decoding, options):
    """With ``early_stopping=False`` and an alpha above 0 ``generate`` may stop before the best output is found, as it
    reckons with the penalty of the present length only; with ``"never"`` it finds what is found here.
    """
    theirs, ours = both
    decoding = DecodingConfig(max_extra_tokens=5, **decoding)
    generation.assert_same_outputs(theirs, ours, decoding, options, pad_id=36, start_id=36, eos_id=0)
