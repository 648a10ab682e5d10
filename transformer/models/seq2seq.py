"""The encoder-decoder model of 2017."""

import dataclasses
from typing import Any, NamedTuple, Optional

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig, one_of
from transformer.models import cache as caches
from transformer.models.dropout import dropout
from transformer.models.embeddings import TokenEmbedding
from transformer.models.linear import Linear
from transformer.models.masks import AttentionMask
from transformer.models.positions import POSITION_ENCODINGS
from transformer.models.sharding import constrain
from transformer.models.stacks import Decoder, Encoder


class Seq2SeqMasks(NamedTuple):
    """Who sees whom: in the encoder, in the decoder, and from the decoder into the encoder's output."""

    encoder: AttentionMask
    decoder: AttentionMask
    cross: AttentionMask


class EncodedSource(NamedTuple):
    """What decoding keeps of a source: keys and values [L, B, S, G, K] for the decoder's layers."""

    keys: Any
    values: Any


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
        if config.shared_embeddings == "all":
            if self.source_vocab_size != self.target_vocab_size:
                raise ValueError(
                    f"one embedding for vocabularies of {self.source_vocab_size} and {self.target_vocab_size} pieces"
                )
            self.shared_embedding = TokenEmbedding(self.target_vocab_size, *embedding)
        else:
            self.source_embedding = TokenEmbedding(self.source_vocab_size, *embedding)
            self.target_embedding = TokenEmbedding(self.target_vocab_size, *embedding)
        if config.shared_embeddings == "none":
            self.output = Linear((config.d_model,), (self.target_vocab_size,), ("embed", "vocabulary"), False, dtype)
        self.position_encoding = one_of("model.position_encoding", config.position_encoding, POSITION_ENCODINGS)(config)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

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
        """Logits, in float32. Positions default to 0, 1, 2, ..."""
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
        embedding = self.shared_embedding if self.config.shared_embeddings == "all" else self.source_embedding
        x_BSD = self._embed(embedding, tokens_BS, positions_BS, deterministic)
        return EncodedSource(*self.decoder.project_encoded(self.encoder(x_BSD, mask, deterministic=deterministic)))

    def decode(
        self,
        tokens_BT: Int[Array, "B T"],
        source: EncodedSource,
        self_mask: AttentionMask,
        cross_mask: AttentionMask,
        *,
        positions_BT: Optional[Int[Array, "#B T"]] = None,
        cache: Optional[caches.Cache] = None,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "B T V"], Optional[caches.Cache]]:
        """Logits of the tokens that follow, in float32, and the cache with these tokens in it.

        Args:
          tokens_BT: T tokens a row, each with the position that it has in its text.
          self_mask: its matrix, if any, is over the cache's slots where there is a cache.
          cache: earlier tokens, or None: the T tokens are all there is. Positions must then be given.
        """
        embedding = self.shared_embedding if self.config.shared_embeddings == "all" else self.target_embedding
        x_BTD = self._embed(embedding, tokens_BT, positions_BT, deterministic)
        slot = None
        if cache is not None:
            if positions_BT is None:
                raise ValueError("decoding with a cache needs the positions of its tokens")
            cache, slot = caches.reserve(cache, positions_BT)
            self_mask = dataclasses.replace(self_mask, query_positions=positions_BT, key_positions=cache.positions)
        x_BTD, cache = self.decoder(
            x_BTD, tuple(source), self_mask, cross_mask, cache=cache, slot=slot, deterministic=deterministic
        )
        logits_BTV = self.output(x_BTD) if self.config.shared_embeddings == "none" else embedding.logits(x_BTD)
        return constrain(logits_BTV.astype(jnp.float32), "batch", "length", "vocabulary"), cache

    def _embed(self, embedding: Any, tokens_BT: Any, positions_BT: Any, deterministic: bool) -> Any:
        if positions_BT is None:
            positions_BT = jnp.arange(tokens_BT.shape[1])[None]
        x_BTD = self.position_encoding.add(embedding(tokens_BT), positions_BT)
        if self.config.dropout_rate and not deterministic:
            x_BTD = dropout(x_BTD, self.config.dropout_rate, self.make_rng("dropout"))
        return constrain(x_BTD, "batch", "length", "embed")
