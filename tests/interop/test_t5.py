"""T5: every tensor in its place and back bit for bit; with torch, the logits and the outputs of transformers."""

import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from tests.interop import generation, model_files
from transformer.config import DecodingConfig
from transformer.interop import pretrained, tables
from transformer.interop.computation import changed
from transformer.interop.families.t5 import T5
from transformer.models.attention.biases import distance_buckets
from transformer.training.loading import load
from transformer.types import UserError

TINY = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "is_encoder_decoder": True,
    "vocab_size": 37,
    "d_model": 22,
    "d_kv": 5,
    "d_ff": 26,
    "num_heads": 3,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 19,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "n_positions": 512,
}
GATED = TINY | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
V1_1_SMALL = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 1024,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu",
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "num_decoder_layers": 8,
    "num_heads": 6,
    "num_layers": 8,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "tie_word_embeddings": False,
    "vocab_size": 32128,
}
"""The published config of T5 1.1 small."""


def files(folder: pathlib.Path, settings: dict) -> dict[str, np.ndarray]:
    untied = settings.get("tie_word_embeddings") is False
    return model_files.make(folder, settings, heads=("lm_head.weight",) if untied else ("none",))


def names_of_layer(stack: str, layer: int, gated: bool) -> set[str]:
    attentions = ["SelfAttention"] if stack == "encoder" else ["SelfAttention", "EncDecAttention"]
    place = len(attentions)
    names = [f"{i}.{name}.{letter}.weight" for i, name in enumerate(attentions) for letter in "qkvo"]
    names += [f"{i}.layer_norm.weight" for i in range(place + 1)]
    names += [f"{place}.DenseReluDense.{name}.weight" for name in (["wi_0", "wi_1"] if gated else ["wi"]) + ["wo"]]
    return {f"{stack}.block.{layer}.layer.{name}" for name in names}


@pytest.mark.parametrize(("settings", "gated"), [(TINY, False), (GATED, True)], ids=["v1.0", "v1.1"])
def test_tensors_have_the_names_of_t5_and_come_back_bit_for_bit(tmp_path, settings, gated):
    tensors = files(tmp_path / "theirs", settings)
    expected = {"shared.weight", "encoder.final_layer_norm.weight", "decoder.final_layer_norm.weight"}
    for stack, depth in (("encoder", 2), ("decoder", 3)):
        expected.add(f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
        expected |= set().union(*(names_of_layer(stack, layer, gated) for layer in range(depth)))
    assert tensors.keys() == expected | ({"lm_head.weight"} if gated else set())

    model = model_files.read(tmp_path / "theirs")
    model_files.write(tmp_path / "exported", model)
    model_files.assert_same(model_files.tensors_of(tmp_path / "exported"), tensors)
    again = model_files.read(tmp_path / "exported")
    assert again.config == model.config
    model_files.assert_same(again.flat, model.flat)


def test_small_has_its_parameters(tmp_path):
    model_files.save(tmp_path, V1_1_SMALL, {"lm_head.weight": np.zeros(1, np.float32)})
    _, config = pretrained.read_config(pretrained.open_pretrained(tmp_path))
    _, shapes = model_files.module_of(config, 0)
    assert sum(math.prod(shape) for shape in shapes.values()) == 76_961_152
    assert tables.covering_rows(T5, config, shapes)


def test_settings_become_those_of_the_model(tmp_path):
    files(tmp_path / "first", TINY)
    model = model_files.read(tmp_path / "first").config.model
    assert (model.activation, model.shared_embeddings, model.scale_logits) == ("relu", "all", True)
    files(tmp_path / "second", GATED)
    model = model_files.read(tmp_path / "second").config.model
    assert (model.activation, model.shared_embeddings, model.scale_logits) == ("geglu", "inputs", False)


def test_newer_files_state_the_scale_and_call_tied_what_is_not(tmp_path):
    """As transformers 5 writes T5 1.1: the weights, not ``tie_word_embeddings``, tell what is tied."""
    stated = GATED | {"tie_word_embeddings": True, "scale_decoder_outputs": False}
    tied = model_files.make(tmp_path / "tied", stated)
    assert "lm_head.weight" not in tied
    model = model_files.read(tmp_path / "tied").config.model
    assert (model.shared_embeddings, model.scale_logits) == ("all", False)
    model_files.save(tmp_path / "untied", stated, tied | {"lm_head.weight": 2 * tied["shared.weight"]})
    model = model_files.read(tmp_path / "untied").config.model
    assert (model.shared_embeddings, model.scale_logits) == ("inputs", False)


def test_copies_and_what_older_files_have_left_over(tmp_path, caplog):
    tensors = files(tmp_path / "theirs", TINY)
    old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    more = {name: tensors["shared.weight"] for name in ("encoder.embed_tokens.weight", "lm_head.weight")}
    model_files.save(tmp_path / "more", TINY, tensors | more | {old: np.ones((8, 3), np.float32)})
    model_files.assert_same(model_files.read(tmp_path / "more").flat, model_files.read(tmp_path / "theirs").flat)
    assert old in caplog.text
    model_files.save(tmp_path / "other", TINY, tensors | {"lm_head.weight": 2 * tensors["shared.weight"]})
    with pytest.raises(UserError, match=r"lm_head\.weight and shared\.weight differ"):
        model_files.read(tmp_path / "other")


def test_a_workdir_goes_out_with_its_start_token(tmp_path):
    pieces = ["<pad>", "</s>", "<unk>", *"abcdefg", *(f"<extra_id_{number}>" for number in reversed(range(27)))]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([piece for piece in pieces if piece.startswith("<")])
    tensors = files(tmp_path / "theirs", TINY | {"vocab_size": 41})
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))

    config, _ = pretrained.import_pretrained(tmp_path / "theirs", tmp_path / "run")
    run = load(tmp_path / "run")
    assert (config.task, run.tokenizer.vocab_size, run.model.target_vocab_size) == ("span_corruption", 37, 41)
    assert (run.tokenizer.pad_id, run.tokenizer.bos_id, run.tokenizer.eos_id) == (0, 0, 1)

    pretrained.export_pretrained(tmp_path / "run", tmp_path / "exported")
    settings = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert [settings[f"{name}_token_id"] for name in ("decoder_start", "pad", "eos")] == [0, 0, 1]
    model_files.assert_same(model_files.tensors_of(tmp_path / "exported"), tensors)


def test_a_tokenizer_without_sentinels_is_refused_with_what_can_be_done(tmp_path):
    pieces = {piece: i for i, piece in enumerate(["<pad>", "</s>", "<unk>", *"abcd", "<extra_id_0>", "<extra_id_1>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<extra_id_0>", "<extra_id_1>"])
    files(tmp_path / "theirs", TINY)
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    with pytest.raises(UserError, match=r"it lacks <extra_id_2> to <extra_id_25>, .*--tokenizer=FOLDER"):
        pretrained.import_pretrained(tmp_path / "theirs", tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj=gated-tanh"),
        ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}, "dense_act_fn=gelu"),
        ({"architectures": ["T5EncoderModel"]}, r"architectures=\['T5EncoderModel'\]"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder=False"),
        ({"layer_sharing": 2}, "layer_sharing=2"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_its_name(tmp_path, change, named):
    model_files.save(tmp_path, TINY | change, {"none": np.zeros(1, np.float32)})
    with pytest.raises(UserError, match=named):
        pretrained.read_config(pretrained.open_pretrained(tmp_path))


def test_a_model_that_is_no_t5_is_not_written_as_one(tmp_path):
    files(tmp_path, TINY)
    config = model_files.read(tmp_path).config
    family, _ = pretrained.written_config(config)
    assert family is T5
    for key, value in (("model.qk_norm", True), ("model.norm", "layer_norm"), ("model.scale_attention", True)):
        with pytest.raises(UserError, match=key):
            pretrained.written_config(changed(config, {key: value}))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_distances_fall_into_the_buckets_of_t5(bidirectional):
    torch, t5 = generation.torch_and("transformers.models.t5.modeling_t5")
    for num_buckets, max_distance in ((32, 128), (8, 19), (64, 256)):
        distances = np.arange(-700, 701)
        options = {"bidirectional": bidirectional, "num_buckets": num_buckets, "max_distance": max_distance}
        theirs = t5.T5Attention._relative_position_bucket(torch.tensor(distances), **options)
        buckets = jax.jit(lambda x, options=options: distance_buckets(x, **options))
        np.testing.assert_array_equal(buckets(jnp.asarray(distances)), theirs)


@pytest.fixture(scope="module", params=["v1.0", "v1.1", "tied without scale"])
def both(request, tmp_path_factory):
    """A random model of transformers, and what the tables make of its files."""
    torch, transformers = generation.torch_and("transformers")
    torch.manual_seed(11)
    settings = {key: value for key, value in TINY.items() if key not in ("architectures", "model_type", "n_positions")}
    if request.param != "v1.0":
        settings |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**settings)).eval()
    if request.param == "v1.1":
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.shared.weight))
    generation.make_talkative(theirs)
    folder = tmp_path_factory.mktemp("t5") / "theirs"
    theirs.save_pretrained(folder)
    return theirs, model_files.read(folder), request.param


def test_logits_are_those_of_transformers(both, tmp_path):
    theirs, ours, kind = both
    assert (ours.config.model.shared_embeddings == "inputs") == (kind == "v1.1")
    inputs = generation.inputs(vocab_size=37, pad_id=0, start_id=0, eos_id=1, longest=31)
    expected = generation.their_logits(theirs, inputs)
    np.testing.assert_allclose(generation.our_logits(ours, inputs), expected, atol=1e-4)

    import transformers

    model_files.write(tmp_path / "exported", ours, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    loaded = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "exported").eval()
    np.testing.assert_allclose(generation.their_logits(loaded, inputs), expected, atol=1e-6)
    model_files.assert_same(model_files.read(tmp_path / "exported").flat, ours.flat)


@pytest.mark.parametrize(
    ("decoding", "options"),
    [
        ({"method": "greedy"}, {}),
        ({"length_penalty": "power", "alpha": 0.6}, {"length_penalty": 0.6, "early_stopping": "never"}),
    ],
    ids=["greedy", "beam"],
)
def test_outputs_are_those_of_generate(both, decoding, options):
    theirs, ours, _ = both
    decoding = DecodingConfig(max_extra_tokens=5, **decoding)
    generation.assert_same_outputs(theirs, ours, decoding, options, pad_id=0, start_id=0, eos_id=1)
