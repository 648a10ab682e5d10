"""How much arithmetic a batch is, by our own count: XLA's counts the body of a scan once, however often it runs."""

from transformer.config import ModelConfig

TRAINING_FACTOR = 3  # a matrix product's backward pass is two more of its size


def seq2seq_forward_flops(
    config: ModelConfig, target_vocab_size: int, batch_size: int, source_length: int, target_length: int
) -> float:
    """Floating-point operations of the matrix products of one forward pass: 2 m n k each, padding included.

    Element-wise work, norms and softmaxes are left out, as usual for model FLOPs. A causal mask saves nothing here: the
    dense kernel computes both triangles.
    """
    D, F = config.d_model, config.d_ff
    width = config.num_heads * (config.head_dim or D // config.num_heads)
    B, S, T = batch_size, source_length, target_length

    def attention(queries: int, keys: int) -> int:
        projections = 2 * queries * D * width + 2 * keys * D * width  # query and output; key and value
        return B * 2 * (projections + 2 * queries * keys * width)

    def feed_forward(tokens: int) -> int:
        return B * 2 * tokens * 2 * D * F

    encoder = config.num_encoder_layers * (attention(S, S) + feed_forward(S))
    decoder = config.num_decoder_layers * (attention(T, T) + attention(T, S) + feed_forward(T))
    return float(encoder + decoder + B * 2 * T * D * target_vocab_size)
