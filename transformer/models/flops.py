"""How much arithmetic a batch is, by our own count: XLA's counts the body of a scan once, however often it runs."""

from typing import Optional

from transformer.config import ModelConfig
from transformer.models.cache import layer_pattern
from transformer.models.feed_forward import ACTIVATIONS

TRAINING_FACTOR = 3  # a matrix product's backward pass is two more of its size


def seq2seq_forward_flops(
    config: ModelConfig, target_vocab_size: int, batch_size: int, source_length: int, target_length: int
) -> float:
    """Floating-point operations of the matrix products of one forward pass: 2 m n k each, padding included.

    Element-wise work, norms and softmaxes are left out, as usual for model FLOPs. A causal mask saves nothing here, a
    window what lies outside it; of experts those count that a token visits.
    """
    B, S, T = batch_size, source_length, target_length
    encoder = _stack(config, config.num_encoder_layers, S)
    decoder = _stack(config, config.num_decoder_layers, T) + config.num_decoder_layers * _attention(config, T, S, None)
    return float(B * (encoder + decoder + 2 * T * config.d_model * target_vocab_size))


def causal_lm_forward_flops(config: ModelConfig, vocab_size: int, batch_size: int, length: int) -> float:
    """The same of the decoder-only model."""
    layers = _stack(config, config.num_decoder_layers, length)
    return float(batch_size * (layers + 2 * length * config.d_model * vocab_size))


def encoder_forward_flops(config: ModelConfig, batch_size: int, length: int) -> float:
    """The same of an encoder's stack, without what stands before and after it."""
    return float(batch_size * _stack(config, config.num_encoder_layers, length))


def _stack(config: ModelConfig, num_layers: int, length: int) -> float:
    """A row of so many tokens through so many layers of self-attention."""
    pattern = layer_pattern(config)
    turn = sum(
        _attention(layer, length, length, layer.attention_window) + _feed_forward(layer, length) for layer in pattern
    )
    return num_layers * turn / len(pattern)


def _attention(config: ModelConfig, queries: int, keys: int, window: Optional[int]) -> int:
    sizes = config.qk_head_size + config.head_size  # queries and output, keys and values, dot products and sums
    projections = (queries * config.num_heads + keys * config.kv_heads) * config.d_model * sizes
    seen = keys if window is None else min(keys, 2 * window - 1)
    return 2 * (projections + queries * seen * config.num_heads * sizes)


def _feed_forward(config: ModelConfig, tokens: int) -> int:
    matrices = 3 if ACTIVATIONS[config.activation].gated else 2
    if not config.num_experts:
        return 2 * tokens * matrices * config.d_model * config.d_ff
    visited = config.experts_per_token * config.d_ff + config.d_ff_shared
    return 2 * tokens * config.d_model * (matrices * visited + config.num_experts)
