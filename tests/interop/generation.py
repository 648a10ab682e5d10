"""The same inputs to models of transformers and of ours, and what both generate."""

import importlib
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop.model_files import Model
from transformer.config import DecodingConfig
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2SeqMasks
from transformer.tasks.translator import search


def torch_and(name: str) -> tuple[Any, Any]:
    """torch and a module of transformers, or skip the test with the reason."""
    torch = pytest.importorskip("torch", reason="needs what requirements-parity.txt lists")
    pytest.importorskip("transformers", reason="needs what requirements-parity.txt lists")
    return torch, importlib.import_module(name)


def make_talkative(theirs: Any) -> None:
    """Random norms and biases and larger maps: with those of a new model a token is mostly followed by itself."""
    import torch

    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.normal_()
            elif parameter.ndim == 1:
                parameter.normal_(std=0.1)
            elif "block" in name or "layers" in name:
                parameter *= 1.5


class Inputs(NamedTuple):
    """Sources: tokens [B, S] of lengths [B], closed by EOS, then padding. Targets: decoder_tokens [B, T], unpadded."""

    tokens: np.ndarray
    lengths: np.ndarray
    decoder_tokens: np.ndarray


def inputs(*, vocab_size: int, pad_id: int, start_id: int, eos_id: int, longest: int) -> Inputs:
    rng = np.random.default_rng(5)
    lengths = np.array([longest, 2, 1, 7, 5, 11], np.int32)
    text = [i for i in range(vocab_size) if i not in (pad_id, eos_id)]
    tokens = rng.choice(text, (len(lengths), longest)).astype(np.int32)
    tokens[np.arange(len(lengths)), lengths - 1] = eos_id
    tokens[np.arange(longest) >= lengths[:, None]] = pad_id
    decoder_tokens = rng.choice(text, (len(lengths), 13)).astype(np.int32)
    decoder_tokens[:, 0] = start_id
    return Inputs(tokens, lengths, decoder_tokens)


def their_logits(theirs: Any, given: Inputs) -> np.ndarray:
    import torch

    present = np.arange(given.tokens.shape[1]) < given.lengths[:, None]
    with torch.no_grad():
        outputs = theirs(
            input_ids=torch.tensor(given.tokens, dtype=torch.long),
            attention_mask=torch.tensor(present.astype(np.int64)),
            decoder_input_ids=torch.tensor(given.decoder_tokens, dtype=torch.long),
        )
    return outputs.logits.numpy()


def our_logits(ours: Model, given: Inputs) -> np.ndarray:
    lengths = jnp.asarray(given.lengths)
    masks = Seq2SeqMasks(
        AttentionMask(query_lengths=lengths, key_lengths=lengths),
        AttentionMask(causal=True),
        AttentionMask(key_lengths=lengths),
    )
    return np.asarray(ours.apply(jnp.asarray(given.tokens), jnp.asarray(given.decoder_tokens), masks))


def assert_same_outputs(
    theirs: Any,
    ours: Model,
    decoding: DecodingConfig,
    options: dict[str, Any],
    *,
    pad_id: int,
    start_id: int,
    eos_id: int,
) -> None:
    """Token for token, some outputs ending by themselves and, unless short ones are favoured, some at their limit; of
    beams the scores too.

    EOS is a piece that the model produces in about half of its outputs. ``generate`` is given one text at a time, as
    its limit is one for all; padding, which is the start too, is forbidden, as here.
    """
    import torch

    vocab_size = ours.config.model.vocab_size
    assert vocab_size is not None
    given = inputs(vocab_size=vocab_size, pad_id=pad_id, start_id=start_id, eos_id=eos_id, longest=13)

    def found_with(eos_id: int) -> Any:
        return search(
            ours.module,
            ours.params,
            jnp.asarray(given.tokens),
            jnp.asarray(given.lengths),
            jnp.arange(len(given.lengths)),
            decoding=decoding,
            num_best=1,
            special_ids=(pad_id, start_id, eos_id),
            num_pieces=vocab_size,
        )

    first = found_with(eos_id)
    outputs = [
        set(row[0, :size].tolist()) for row, (size,) in zip(np.asarray(first.tokens), first.lengths, strict=True)
    ]
    half = len(outputs) / 2
    pieces = sorted(range(vocab_size), key=lambda piece: abs(sum(piece in output for output in outputs) - half))
    for eos_id in pieces[:4]:
        found = found_with(eos_id)
        ended = np.asarray(found.finished[:, 0])
        if ended.any() and not ended.all():
            break
    favours_short = decoding.method == "beam" and (decoding.length_penalty == "none" or decoding.alpha < 0)
    assert ended.any() and (favours_short or not ended.all())
    for row, length in enumerate(given.lengths):
        limit = int(length) + decoding.max_extra_tokens
        with torch.no_grad():
            output = theirs.generate(
                torch.tensor(given.tokens[row : row + 1, :length], dtype=torch.long),
                max_new_tokens=limit,
                use_cache=False,  # which T5's wants as many decoder layers as encoder layers for
                num_beams=decoding.beam_size if decoding.method == "beam" else 1,
                do_sample=False,
                eos_token_id=eos_id,
                bad_words_ids=[[pad_id]],
                return_dict_in_generate=True,
                output_scores=True,
                **options,
            )
        expected = output.sequences[0, 1:].tolist()
        expected = expected[: expected.index(eos_id)] if eos_id in expected else expected
        size = int(found.lengths[row, 0])
        assert np.asarray(found.tokens[row, 0, :size]).tolist() == expected
        if decoding.method == "beam":
            np.testing.assert_allclose(found.scores[row, 0], output.sequences_scores[0], atol=1e-4, rtol=1e-5)
