"""A model small enough to compile in a second or two; its sizes are distinct primes where they may be."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import ModelConfig
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2Seq, Seq2SeqMasks
from transformer.training.partitioning import unbox

V = 23
CONFIG = ModelConfig(d_model=14, d_ff=17, num_heads=2, num_encoder_layers=2, num_decoder_layers=3, dropout_rate=0.1)
NO_MASKS = Seq2SeqMasks(AttentionMask(), AttentionMask(causal=True), AttentionMask())


def config(**changes) -> ModelConfig:
    return dataclasses.replace(CONFIG, **changes)


@functools.lru_cache
def model_and_params(model_config: ModelConfig = CONFIG, source_vocab_size: int = V, target_vocab_size: int = V):
    """Parameters are moved off their zeros and ones, so that a bias that is not used is seen."""
    model = Seq2Seq(model_config, source_vocab_size, target_vocab_size)
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = unbox(
        jax.jit(functools.partial(model.init, deterministic=True))(jax.random.key(0), tokens, tokens, NO_MASKS)
    )["params"]
    rng = np.random.default_rng(0)
    return model, jax.tree.map(lambda leaf: np.float32(leaf + rng.normal(size=leaf.shape) * 0.1), params)


@functools.partial(jax.jit, static_argnames=("model", "deterministic", "method", "mutable"))
def run(model, params, *arguments, **options):
    """The model, compiled as one program."""
    return model.apply({"params": params}, *arguments, **options)


def tokens(*shape: int, seed: int = 0, vocab_size: int = V):
    return jnp.asarray(np.random.default_rng(seed).integers(4, vocab_size, shape), jnp.int32)
