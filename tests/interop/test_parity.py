"""The same logits and the same text as transformers, for random models of each family; and back into transformers."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop.small import BERT, GPT2, LLAMA, PIECES, write_tokenizer
from transformer.interop.pretrained import export_pretrained, import_pretrained
from transformer.interop.safetensors_files import SafetensorsFolder
from transformer.models.masks import AttentionMask
from transformer.tasks.text_generator import TextGenerator
from transformer.training.loading import load

torch = pytest.importorskip("torch", reason="needs what requirements-parity.txt lists")
transformers = pytest.importorskip("transformers", reason="needs what requirements-parity.txt lists")

LONGER = {"rope_theta": 500.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama tied": ("LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 14}),
    "llama untied, grouped, biased": (
        "LlamaForCausalLM",
        {**LLAMA, "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    ),
    "llama3": (
        "LlamaForCausalLM",
        {
            **{key: value for key, value in LLAMA.items() if key != "rope_theta"},
            "rope_parameters": {**LONGER, "original_max_position_embeddings": 31},
        },
    ),
    "yarn": (
        "LlamaForCausalLM",
        {
            **{key: value for key, value in LLAMA.items() if key != "rope_theta"},
            "rope_parameters": {
                "rope_theta": 500.0,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 31,
            },
        },
    ),
    "mistral": ("MistralForCausalLM", {**LLAMA, "model_type": "mistral", "sliding_window": 5}),
    "qwen2": ("Qwen2ForCausalLM", {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": False}),
}
PROMPTS = ["a b c d e f g", "h", "p q r", "", "c c c c c c c c c c c", "r a", "g f e d", "b b", "o n m l k j i"]
NEW_TOKENS = 13


def random_model(architecture, settings, folder):
    """A model of transformers with sharp outputs, no zero or one among its parameters, and its folder."""
    config = transformers.AutoConfig.for_model(**{**settings, "attn_implementation": "eager"})
    config.eos_token_id, config.pad_token_id, config.bos_token_id = 3, 0, 2
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


@pytest.fixture(scope="module", params=MODELS)
def decoder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    theirs = random_model(*MODELS[request.param], folder / "theirs")
    import_pretrained(folder / "theirs", folder / "workdir")
    return theirs, load(folder / "workdir"), folder


def logits_of(theirs, tokens):
    with torch.no_grad():
        return theirs(torch.tensor(tokens)).logits.numpy()


TOKENS = np.random.default_rng(0).integers(1, len(PIECES), (3, 29))


def test_logits(decoder):
    theirs, run, _ = decoder
    (ours, _) = run.model.apply(
        {"params": run.params}, jnp.asarray(TOKENS), AttentionMask(causal=True), deterministic=True
    )
    expected = logits_of(theirs, TOKENS)
    assert np.ptp(expected) > 2
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)


def test_greedy_text(decoder):
    theirs, run, _ = decoder
    decoding = dataclasses.replace(run.config.decoding, method="greedy", max_extra_tokens=NEW_TOKENS)
    generate = TextGenerator(run.model, run.tokenizer, decoding)
    num_new = 0
    for prompt, (candidate,) in zip(PROMPTS, generate(run.params, PROMPTS, 1), strict=True):
        if not prompt:
            assert candidate.text == ""
            continue
        ids = run.tokenizer.encode(prompt)
        found = theirs.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            suppress_tokens=[run.tokenizer.pad_id, run.tokenizer.bos_id],
        )[0].tolist()
        assert prompt + candidate.text == run.tokenizer.decode(found)
        num_new += len(found) - len(ids)
    assert num_new > NEW_TOKENS + len(PROMPTS)  # more than one end each


def test_beam_text(decoder):
    """``early_stopping="never"``: with False ``generate`` may stop before the best output is found."""
    theirs, run, _ = decoder
    decoding = dataclasses.replace(
        run.config.decoding, method="beam", beam_size=4, length_penalty="power", alpha=1.0, max_extra_tokens=NEW_TOKENS
    )
    generate = TextGenerator(run.model, run.tokenizer, decoding)
    prompts = [prompt for prompt in PROMPTS if prompt][:5]
    lengths = set()
    for prompt, (candidate,) in zip(prompts, generate(run.params, prompts, 1), strict=True):
        ids = run.tokenizer.encode(prompt)
        found = theirs.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            num_beams=4,
            length_penalty=1.0,
            early_stopping="never",
            max_new_tokens=NEW_TOKENS,
            bad_words_ids=[[run.tokenizer.pad_id], [run.tokenizer.bos_id]],
            return_dict_in_generate=True,
            output_scores=True,
        )
        sequence = found.sequences[0].tolist()
        assert prompt + candidate.text == run.tokenizer.decode(sequence)
        np.testing.assert_allclose(candidate.score, found.sequences_scores[0], atol=1e-4)
        lengths.add(len(sequence) - len(ids))
    assert lengths != {0}


def test_export_loads(decoder):
    theirs, run, folder = decoder
    export_pretrained(folder / "workdir", folder / "exported")
    again = type(theirs).from_pretrained(folder / "exported", attn_implementation="eager").eval()
    np.testing.assert_array_equal(logits_of(again, TOKENS), logits_of(theirs, TOKENS))
    first, second = (SafetensorsFolder(folder / name) for name in ("theirs", "exported"))
    assert set(first) == set(second)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    import_pretrained(folder / "exported", folder / "again")
    assert load(folder / "again").config == run.config


def bert(architecture, tmp_path, **changes):
    theirs = random_model(architecture, {**BERT, "vocab_size": 23, **changes}, tmp_path / "theirs")
    import_pretrained(tmp_path / "theirs", tmp_path / "workdir")
    return theirs, load(tmp_path / "workdir")


LENGTHS = np.array([29, 7, 1])
PRESENT = np.arange(29) < LENGTHS[:, None]
TYPES = np.random.default_rng(1).integers(0, 2, TOKENS.shape)


def bert_output(model):
    with torch.no_grad():
        arguments = {"attention_mask": torch.tensor(PRESENT), "token_type_ids": torch.tensor(TYPES)}
        return model(torch.tensor(TOKENS), **arguments)


def our_output(run, *places, **options):
    mask = AttentionMask(query_lengths=jnp.asarray(LENGTHS), key_lengths=jnp.asarray(LENGTHS))
    return run.model.apply({"params": run.params}, jnp.asarray(TOKENS), mask, *places, deterministic=True, **options)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_bert_guesses_the_same(tmp_path, activation):
    theirs, run = bert("BertForMaskedLM", tmp_path, hidden_act=activation)
    assert run.config.task == "masked_lm"
    places = jnp.broadcast_to(jnp.arange(29), TOKENS.shape)
    ours, expected = our_output(run, places, token_types_BT=jnp.asarray(TYPES)), bert_output(theirs).logits.numpy()
    assert np.ptp(expected) > 2
    np.testing.assert_allclose(np.asarray(ours)[PRESENT], expected[PRESENT], rtol=0, atol=1e-4)
    export_pretrained(tmp_path / "workdir", tmp_path / "exported")
    again = type(theirs).from_pretrained(tmp_path / "exported", attn_implementation="eager").eval()
    np.testing.assert_array_equal(bert_output(again).logits, expected)


def test_bert_classifies_the_same(tmp_path):
    labels = {0: "no", 1: "yes", 2: "perhaps"}
    theirs, run = bert("BertForSequenceClassification", tmp_path, id2label=labels)
    expected = bert_output(theirs).logits.numpy()
    np.testing.assert_allclose(our_output(run, token_types_BT=jnp.asarray(TYPES)), expected, rtol=0, atol=1e-4)
    assert run.task.labels.names == ("no", "yes", "perhaps")
    export_pretrained(tmp_path / "workdir", tmp_path / "exported")
    again = type(theirs).from_pretrained(tmp_path / "exported", attn_implementation="eager").eval()
    assert again.config.id2label == labels
    np.testing.assert_array_equal(bert_output(again).logits, expected)


def test_bert_labels_tokens_the_same(tmp_path):
    theirs, run = bert("BertForTokenClassification", tmp_path, id2label={0: "A", 1: "B", 2: "C"})
    with torch.no_grad():
        expected = theirs(torch.tensor(TOKENS), attention_mask=torch.tensor(PRESENT)).logits.numpy()
    np.testing.assert_allclose(np.asarray(our_output(run))[PRESENT], expected[PRESENT], rtol=0, atol=1e-4)
