"""A GGUF file gives the model of the safetensors folder, with the rows of queries and keys in our order."""

import json

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from tests.interop.small import LLAMA, described, random_tensors
from transformer.interop.gguf_files import NAMES, PRE_TOKENIZERS, GgufFile, halves_from_neighbours
from transformer.interop.pretrained import import_pretrained
from transformer.models.positions import Rotation, rotate
from transformer.training.loading import load
from transformer.types import UserError

BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # those that GPT-2 writes as themselves
PIECES = [chr(byte) for byte in BYTES] + [chr(256 + i) for i in range(256 - len(BYTES))] + ["Ġa", "ab", "<|end|>"]
MERGES = ["Ġ a", "a b"]
SETTINGS = {**LLAMA, "vocab_size": len(PIECES), "rms_norm_eps": 2.0**-20, "attention_bias": True}


def neighbours_from_halves(rows, heads):
    """What llama.cpp's converter does to the rows of queries and keys, head by head, component by component."""
    size = len(rows) // heads
    order = [h * size + i + half * size // 2 for h in range(heads) for i in range(size // 2) for half in (0, 1)]
    return rows[order]


def write_gguf(path, tensors, settings=SETTINGS, kind="gpt2", pre="smollm", quantised=(), types=None, **metadata):
    """A file as llama.cpp's converter writes it.

    Args:
      quantised: modules whose tensors are in float16.
      types: module -> the type that its matrices are quantised to.
      metadata: more keys, in which __ stands for a dot, and tensors that are written as they are.
    """
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_embedding_length(settings["hidden_size"])
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_head_count(settings["num_attention_heads"])
    writer.add_head_count_kv(settings["num_key_value_heads"])
    writer.add_key_length(settings["head_dim"])
    writer.add_value_length(settings["head_dim"])
    writer.add_layer_norm_rms_eps(settings["rms_norm_eps"])
    writer.add_rope_freq_base(settings["rope_theta"])
    writer.add_rope_dimension_count(settings["head_dim"])
    writer.add_vocab_size(settings["vocab_size"])
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(PIECES)
    writer.add_token_merges(MERGES)
    writer.add_token_types([1] * (len(PIECES) - 1) + [3])
    writer.add_eos_token_id(len(PIECES) - 1)
    for key, value in metadata.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, np.ndarray: writer.add_tensor}
        add[type(value)](key.replace("__", "."), value)
    theirs = {name: short for short, name in NAMES.items()}
    for name, array in tensors.items():
        module, _, ending = name.rpartition(".")
        layer = module.split(".")[2] if ".layers." in module else None
        short = theirs[module if layer is None else module.split(".", 3)[3]]
        for kind, heads in (("attn_q", "num_attention_heads"), ("attn_k", "num_key_value_heads")):
            if short == kind:
                array = neighbours_from_halves(array, settings[heads])
        written = f"{short}.{ending}" if layer is None else f"blk.{layer}.{short}.{ending}"
        kind = (types or {}).get(short)
        if kind is not None:
            writer.add_tensor(written, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(written, array.astype(np.float16) if short in quantised else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    return random_tensors(SETTINGS, (), tmp_path_factory.mktemp("assets"))


def test_the_same_tensors_and_settings(tensors, tmp_path):
    file = GgufFile(write_gguf(tmp_path / "model.gguf", tensors, quantised=("ffn_up",)))
    assert set(file) == set(tensors)
    for name, array in tensors.items():
        expected = array.astype(np.float16).astype(np.float32) if "up_proj" in name else array
        np.testing.assert_array_equal(file[name], expected, err_msg=name)
        assert file[name].dtype == np.float32
    ours, theirs = (described(settings)[1] for settings in (SETTINGS, file.settings))
    assert ours == theirs


@pytest.mark.parametrize(
    ("kind", "error"), [("Q8_0", 0.01), ("Q4_0", 0.1), ("Q4_1", 0.1), ("Q5_1", 0.05), ("BF16", 0.01)]
)
def test_quantised_tensors_are_read_as_their_numbers(tmp_path, kind, error):
    """Queries too, whose rows change their order, which is another one of whole rows."""
    settings = SETTINGS | {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "attention_bias": False}
    tensors = random_tensors(settings, (), tmp_path / "assets")
    number = gguf.GGMLQuantizationType[kind]
    modules = ("attn_q", "attn_k", "ffn_up", "ffn_down", "token_embd")
    file = GgufFile(write_gguf(tmp_path / "model.gguf", tensors, settings, types=dict.fromkeys(modules, number)))
    assert set(file) == set(tensors)
    for name, array in tensors.items():
        quantised = any(name.endswith(f"{NAMES[short].split('.')[-1]}.weight") for short in modules)
        expected = gguf.dequantize(gguf.quantize(array, number), number) if quantised else array
        np.testing.assert_array_equal(file[name], expected, err_msg=name)
        if quantised:
            assert 0 < np.abs(file[name] - array).mean() < error * np.abs(array).mean()


def test_rows_are_turned_as_llama_cpp_turns_its_own():
    """Neighbours turned in its order are halves turned in ours, with the rows put back."""
    rng = np.random.default_rng(0)
    heads, size, positions = 3, 10, 5
    weight, x = rng.normal(size=(heads * size, 7)), rng.normal(size=(positions, 7))
    angles = np.arange(positions)[:, None] * 100.0 ** (-np.arange(0, size, 2) / size)
    theirs = (x @ neighbours_from_halves(weight, heads).T).reshape(positions, heads, size // 2, 2)
    complex_turn = (theirs[..., 0] + 1j * theirs[..., 1]) * np.exp(1j * angles)[:, None]
    theirs = np.stack([complex_turn.real, complex_turn.imag], axis=-1).reshape(positions, heads, size)
    back = halves_from_neighbours(neighbours_from_halves(weight, heads), heads)
    np.testing.assert_array_equal(back, weight)
    rotation = Rotation(jnp.cos(angles)[None], jnp.sin(angles)[None])
    ours = rotate(jnp.asarray((x @ back.T).reshape(1, positions, heads, size), jnp.float32), rotation)[0]
    products = [np.einsum("thk,shk->hts", turned, turned) for turned in (theirs, np.asarray(ours))]
    np.testing.assert_allclose(*products, rtol=1e-4, atol=1e-4)


def test_an_imported_file_continues_text(tensors, tmp_path):
    import_pretrained(write_gguf(tmp_path / "model.gguf", tensors), tmp_path / "workdir")
    run = load(tmp_path / "workdir")
    tokenizer = run.tokenizer
    ids = tokenizer.encode("ab a12")
    assert [PIECES[i] for i in ids] == ["ab", "Ġa", "1", "2"]
    assert tokenizer.decode(ids) == "ab a12"
    assert (tokenizer.eos_id, tokenizer.start_id) == (len(PIECES) - 1, None)
    assert "".join(tokenizer.decode([i]) for i in tokenizer.encode("<|end|>")) == "<|end|>"
    config = json.loads((tmp_path / "workdir" / "config.json").read_text())
    assert config["decoding"]["method"] == "greedy"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "llama"}, "tokenizer.ggml.model=llama is not read.*--tokenizer"),
        ({"pre": "deepseek-llm"}, "tokenizer.ggml.pre=deepseek-llm is not one of gpt-2, smollm"),
        ({"llama__expert_count": 4}, "llama.expert_count=4"),
        ({"llama__rope__scaling__factor": 2}, "factor=2"),
        ({"rope_freqs__weight": np.full(3, 2.0, np.float32)}, r"rope_freqs\.weight stretches .*folder of safetensors"),
        ({"pre": "llama-bpe"}, r"tokenizer\.ggml\.bos_token_id is missing; give .*--tokenizer=FOLDER"),
        ({"tokenizer__ggml__add_bos_token": True}, r"tokenizer\.ggml\.bos_token_id is missing"),
        ({"tokenizer__ggml__padding_token_id": 999}, r"padding_token_id=999 is no piece; give .*--tokenizer=FOLDER"),
    ],
)
def test_what_cannot_be_had_exactly_is_refused(tensors, tmp_path, options, message):
    path = write_gguf(tmp_path / "model.gguf", tensors, **options)
    with pytest.raises(UserError, match=message):
        import_pretrained(path, tmp_path / "workdir")
    assert not (tmp_path / "workdir").exists()


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"something else entirely")
    with pytest.raises(UserError, match=r"model\.gguf cannot be read"):
        GgufFile(tmp_path / "model.gguf")
    writer = gguf.GGUFWriter(str(tmp_path / "short.gguf"), "llama")
    writer.add_tensor("token_embd.weight", np.zeros((3, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match=r"short\.gguf: llama\.attention\.head_count is missing"):
        GgufFile(tmp_path / "short.gguf")


def llama3_divisors(factor: float, theta: float, size: int) -> np.ndarray:
    """As llama.cpp's converter makes them from a config.json of Llama 3.1, wavelength by wavelength."""
    divisors = []
    for i in range(0, size, 2):
        wavelength = 2 * np.pi * theta ** (i / size)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192 / 1:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def test_a_table_of_divisors_is_the_setting_it_was_made_from(tensors, tmp_path):
    settings = SETTINGS | {"head_dim": 64, "rope_theta": 500000}
    divisors = llama3_divisors(32.0, 5e5, 64)
    assert len(np.unique(divisors)) > 3
    tensors = random_tensors(settings, (), tmp_path / "assets")
    file = GgufFile(write_gguf(tmp_path / "model.gguf", tensors, settings, rope_freqs__weight=divisors))
    rope = {"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 8192}
    assert described(file.settings)[1] == described({**settings, "rope_scaling": rope})[1]
    assert set(file) == set(tensors)
    divisors[-1] *= 1.5
    with pytest.raises(UserError, match=r"rope_freqs\.weight stretches"):
        GgufFile(write_gguf(tmp_path / "other.gguf", tensors, settings, rope_freqs__weight=divisors))
    nothing = {"llama__rope__scaling__type": "none", "rope_freqs__weight": np.ones(32, np.float32)}
    file = GgufFile(write_gguf(tmp_path / "nothing.gguf", tensors, settings, **nothing))
    assert described(file.settings)[1].model == described(settings)[1].model


TEXT = "It's 12345 DON'T\n\n  a cafe\u0301 of \u00e9t\u00e9s,  {x}\r\n"
CUT = {
    "gpt-2": ["It", "'s", " 12345", " DON", "'", "T", "\n\n ", " a", " cafe", "\u0301", " of", " étés", ",", " ", " {",
              "x", "}", "\r\n"],
    "smollm": ["It", "'s", " ", "1", "2", "3", "4", "5", " DON", "'", "T", "\n\n ", " a", " cafe", "\u0301", " of",
               " étés", ",", " ", " {", "x", "}", "\r\n"],
    "llama-bpe": ["It", "'s", " ", "123", "45", " DON", "'T", "\n\n", " ", " a", " cafe", "\u0301", " of", " étés", ",",
                  " ", " {", "x", "}\r\n"],
    "qwen2": ["It", "'s", " ", "1", "2", "3", "4", "5", " DON", "'T", "\n\n", " ", " a", " café", " of", " étés", ",",
              " ", " {", "x", "}\r\n"],
}  # fmt: skip
"""What GPT-2's expression, that of tiktoken's cl100k and its kin give by hand; Qwen composes accents first."""


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_text_is_cut_as_the_file_says(tensors, tmp_path, pre):
    bos = {"tokenizer__ggml__bos_token_id": 5}
    GgufFile(write_gguf(tmp_path / "model.gguf", tensors, pre=pre, **bos)).save_tokenizer(tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = tokenizer.normalizer.normalize_str(TEXT) if tokenizer.normalizer else TEXT
    parts = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert [tokenizer.decoder.decode([part]) for part in parts] == CUT[pre]
    assert tokenizer.encode("ab").ids[:-1] == ([5] if pre == "llama-bpe" else [])


@pytest.mark.parametrize("begins", [True, False])
def test_what_a_text_begins_with_and_ends_at(tensors, tmp_path, caplog, begins):
    stated = {"add_bos_token": begins, "bos_token_id": 5, "eot_token_id": 7}
    stated = {f"tokenizer__ggml__{key}": value for key, value in stated.items()}
    pre = "llama-bpe" if not begins else "smollm"  # whose own ways are the other way round
    import_pretrained(write_gguf(tmp_path / "model.gguf", tensors, pre=pre, **stated), tmp_path / "workdir")
    tokenizer = load(tmp_path / "workdir").tokenizer
    assert tokenizer.start_id == (5 if begins else None)
    assert f"only '<|end|>' is heeded here: outputs will go on after '{PIECES[7]}'" in caplog.text
