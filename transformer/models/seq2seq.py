"""The encoder-decoder model of 2017."""

from typing import Any, NamedTuple, Optional

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig
from transformer.models.cache import Cache
from transformer.models.embeddings import TokenEmbedding, TokenScores
from transformer.models.layers import BranchScales
from transformer.models.masks import AttentionMask
from transformer.models.stacks import Stack


class Seq2SeqMasks(NamedTuple):
    """Who sees whom: in the encoder, in the decoder, and from the decoder into the encoder's output."""

    encoder: AttentionMask
    decoder: AttentionMask
    cross: AttentionMask


EncodedSource = tuple[Any, ...]
"""What decoding keeps of a source: for each layer of the decoder's pattern, keys and values [L, B, S, G, K]."""


class Seq2Seq(nn.Module):
    """Scores of target tokens given a source and the target tokens before them.

    Post-norm, ReLU, sinusoids, three tied embeddings and dropout on sub-layer outputs and on the sums of embeddings
    and positions by default. Reference: Vaswani et al. 2017, section 3.
    """

    config: ModelConfig
    source_vocab_size: int
    target_vocab_size: int

    def setup(self) -> None:
        config = self.config
        dtype = jnp.dtype(config.dtype)
        embedding = (config.d_model, config.scale_embeddings, dtype)
        if config.shared_embeddings in ("all", "inputs"):
            if self.source_vocab_size != self.target_vocab_size:
                raise ValueError(
                    f"one embedding for vocabularies of {self.source_vocab_size} and {self.target_vocab_size} pieces"
                )
            self.shared_embedding = TokenEmbedding(self.target_vocab_size, *embedding)
        else:
            self.source_embedding = TokenEmbedding(self.source_vocab_size, *embedding)
            self.target_embedding = TokenEmbedding(self.target_vocab_size, *embedding)
        self.output = TokenScores(config, self.target_vocab_size)
        encoder_scales, decoder_scales = branch_scales(config)
        self.encoder = Stack(config, config.num_encoder_layers, bidirectional=True, scales=encoder_scales)
        self.decoder = Stack(
            config, config.num_decoder_layers, bidirectional=False, cross_attends=True, scales=decoder_scales
        )

    def __call__(
        self,
        encoder_input_tokens_BS: Int[Array, "B S"],
        decoder_input_tokens_BT: Int[Array, "B T"],
        masks: Seq2SeqMasks,
        *,
        encoder_positions_BS: Optional[Int[Array, "B S"]] = None,
        decoder_positions_BT: Optional[Int[Array, "B T"]] = None,
        deterministic: bool,
    ) -> Float[Array, "B T V"]:
        """Logits, in float32. Positions default to 0, 1, 2, ...

        They place embeddings and rotations. What masks and biases compare are the positions in the mask, by default the
        slots, which is the same where the tokens of a text are neighbours (packed rows too): more kernels serve that.
        """
        source = self.encode(
            encoder_input_tokens_BS, masks.encoder, positions_BS=encoder_positions_BS, deterministic=deterministic
        )
        logits_BTV, _ = self.decode(
            decoder_input_tokens_BT,
            source,
            masks.decoder,
            masks.cross,
            positions_BT=decoder_positions_BT,
            deterministic=deterministic,
        )
        return logits_BTV

    def encode(
        self,
        tokens_BS: Int[Array, "B S"],
        mask: AttentionMask,
        *,
        positions_BS: Optional[Int[Array, "B S"]] = None,
        deterministic: bool = True,
    ) -> EncodedSource:
        """Run the encoder, and project its output once for all layers of the decoder."""
        encoded_BSD, _ = self.encoder(
            self._embedding("source")(tokens_BS), positions_BS, mask, deterministic=deterministic
        )
        return self.decoder.project_encoded(encoded_BSD)

    def decode(
        self,
        tokens_BT: Int[Array, "B T"],
        source: EncodedSource,
        self_mask: AttentionMask,
        cross_mask: AttentionMask,
        *,
        positions_BT: Optional[Int[Array, "#B T"]] = None,
        cache: Optional[Cache] = None,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "B T V"], Optional[Cache]]:
        """Logits of the tokens that follow, in float32, and the cache with these tokens in it.

        Args:
          tokens_BT: T tokens a row, each with the position that it has in its text.
          self_mask: its matrix, if any, is over all tokens in the order in which they came, those in the cache first.
          cache: earlier tokens, or None: the T tokens are all there is. Positions must then be given.
        """
        embedding = self._embedding("target")
        x_BTD, cache = self.decoder(
            embedding(tokens_BT),
            positions_BT,
            self_mask,
            encoded=source,
            cross_mask=cross_mask,
            cache=cache,
            deterministic=deterministic,
        )
        return self.output(x_BTD, embedding), cache

    def _embedding(self, side: str) -> TokenEmbedding:
        shared = self.config.shared_embeddings in ("all", "inputs")
        embedding: TokenEmbedding = getattr(self, "shared_embedding" if shared else f"{side}_embedding")
        return embedding


def branch_scales(config: ModelConfig) -> tuple[BranchScales, BranchScales]:
    """Of encoder and decoder: 1, or DeepNorm's alpha and beta for N encoder and M decoder layers.

    Reference: Wang et al., DeepNet (2022), figure 2.
    """
    if config.norm_placement != "deep_norm":
        return BranchScales(), BranchScales()
    N, M = config.num_encoder_layers, config.num_decoder_layers
    both = N**4 * M
    return (
        BranchScales(skip=0.81 * both ** (1 / 16), init=0.87 * both ** (-1 / 16)),
        BranchScales(skip=(3 * M) ** (1 / 4), init=(12 * M) ** (-1 / 4)),
    )
