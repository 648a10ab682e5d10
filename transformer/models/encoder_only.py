"""Encoder-only models of text: one encoder, and what is put on top of it for each use."""

from typing import Any, Optional

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig
from transformer.models.dropout import dropout
from transformer.models.embeddings import TokenEmbedding, TokenScores
from transformer.models.feed_forward import ACTIVATIONS
from transformer.models.layers import single_stack_scales
from transformer.models.linear import Linear
from transformer.models.masks import AttentionMask, query_present
from transformer.models.norms import norm
from transformer.models.stacks import Stack


class TextEncoder(nn.Module):
    """Tokens to vectors that know what stands before and after them.

    Reference: Devlin et al., BERT (2019), section 3.
    """

    config: ModelConfig
    vocab_size: int

    def setup(self) -> None:
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        self.embedding = TokenEmbedding(self.vocab_size, config.d_model, config.scale_embeddings, dtype)
        if config.token_types:
            self.type_embedding = TokenEmbedding(config.token_types, config.d_model, config.scale_embeddings, dtype)
        scales = single_stack_scales(config, config.num_encoder_layers)
        self.stack = Stack(config, config.num_encoder_layers, bidirectional=True, scales=scales)

    def __call__(
        self,
        tokens_BT: Int[Array, "B T"],
        mask: AttentionMask,
        *,
        token_types_BT: Optional[Int[Array, "B T"]] = None,
        positions_BT: Optional[Int[Array, "#B T"]] = None,
        deterministic: bool,
    ) -> Float[Array, "B T D"]:
        """A vector for each token.

        Args:
          mask: without ``causal``; by lengths or segments.
          token_types_BT: below ``config.token_types``, of each token the kind of its segment; None: all 0.
          positions_BT: of each token in its text; None: 0, 1, 2, ...
        """
        x_BTD = self.embedding(tokens_BT)
        if self.config.token_types:
            x_BTD += self.type_embedding(jnp.zeros_like(tokens_BT) if token_types_BT is None else token_types_BT)
        x_BTD, _ = self.stack(x_BTD, positions_BT, mask, deterministic=deterministic)
        return x_BTD


class MaskedLM(nn.Module):
    """Scores of the tokens that stood at masked places: a linear map, the activation and a norm, then the embeddings.

    Reference: Devlin et al. 2019, section 3.1 (task 1), and its published code for the map before the softmax.
    """

    config: ModelConfig
    vocab_size: int

    def setup(self) -> None:
        config = self.config
        D = (config.d_model,)
        self.encoder = TextEncoder(config, self.vocab_size)
        self.transform = Linear(D, D, ("embed", "embed_output"), True, jnp.dtype(config.dtype))
        self.transform_norm = norm(config)
        self.output = TokenScores(config, self.vocab_size)

    def __call__(
        self,
        tokens_BT: Int[Array, "B T"],
        mask: AttentionMask,
        places_BM: Int[Array, "B M"],
        *,
        token_types_BT: Optional[Int[Array, "B T"]] = None,
        positions_BT: Optional[Int[Array, "#B T"]] = None,
        deterministic: bool,
    ) -> Float[Array, "B M V"]:
        """Logits, in float32, at M places of each row only: the softmax over the vocabulary is the larger part."""
        x_BTD = self.encoder(
            tokens_BT, mask, token_types_BT=token_types_BT, positions_BT=positions_BT, deterministic=deterministic
        )
        x_BMD = jnp.take_along_axis(x_BTD, places_BM[..., None], axis=1)
        x_BMD = self.transform_norm(ACTIVATIONS[self.config.activation].function(self.transform(x_BMD)))
        return self.output(x_BMD, self.encoder.embedding)


class Pooler(nn.Module):
    """One vector for a whole input: the first token's or the mean of all, then with ``pooler`` a linear map and tanh.

    Reference: Devlin et al. 2019, section 3 ([CLS]), and its published code for the map; Reimers & Gurevych,
    Sentence-BERT (2019), section 3, for the mean.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: Float[Array, "B T D"], mask: AttentionMask) -> Float[Array, "B D"]:
        config = self.config
        if config.pooling == "first":
            pooled_BD = jnp.where(query_present(mask, (0, 1)), x_BTD[:, 0], 0)
        else:
            present_BT1: Any = jnp.broadcast_to(query_present(mask, (0, x_BTD.shape[1])), x_BTD.shape[:2])[..., None]
            total_BD = jnp.sum(jnp.where(present_BT1, x_BTD.astype(jnp.float32), 0), axis=1)
            pooled_BD = (total_BD / jnp.maximum(jnp.sum(present_BT1, axis=1), 1)).astype(x_BTD.dtype)
        if config.pooler:
            D = (config.d_model,)
            linear = Linear(D, D, ("embed", "embed_output"), True, jnp.dtype(config.dtype), name="linear")
            pooled_BD = jnp.tanh(linear(pooled_BD))
        return pooled_BD


class TextClassifier(nn.Module):
    """Scores of the classes of a text, or of a pair of texts in one row."""

    config: ModelConfig
    vocab_size: int
    num_classes: int

    def setup(self) -> None:
        self.encoder = TextEncoder(self.config, self.vocab_size)
        self.pooler = Pooler(self.config)
        self.classifier = Classifier(self.config, self.num_classes)

    def __call__(
        self,
        tokens_BT: Int[Array, "B T"],
        mask: AttentionMask,
        *,
        token_types_BT: Optional[Int[Array, "B T"]] = None,
        deterministic: bool,
    ) -> Float[Array, "B C"]:
        """Logits of C classes, in float32."""
        x_BTD = self.encoder(tokens_BT, mask, token_types_BT=token_types_BT, deterministic=deterministic)
        return self.classifier(self.pooler(x_BTD, mask), deterministic)


class TokenClassifier(nn.Module):
    """Scores of the classes of each token. Reference: Devlin et al. 2019, section 5.3."""

    config: ModelConfig
    vocab_size: int
    num_classes: int

    def setup(self) -> None:
        self.encoder = TextEncoder(self.config, self.vocab_size)
        self.classifier = Classifier(self.config, self.num_classes)

    def __call__(
        self, tokens_BT: Int[Array, "B T"], mask: AttentionMask, *, deterministic: bool
    ) -> Float[Array, "B T C"]:
        """Logits of C classes, in float32."""
        return self.classifier(self.encoder(tokens_BT, mask, deterministic=deterministic), deterministic)


class TextEmbedder(nn.Module):
    """A vector of length 1 for each text. Reference: Reimers & Gurevych, Sentence-BERT (2019), section 3."""

    config: ModelConfig
    vocab_size: int

    def setup(self) -> None:
        self.encoder = TextEncoder(self.config, self.vocab_size)
        self.pooler = Pooler(self.config)

    def __call__(
        self, tokens_BT: Int[Array, "B T"], mask: AttentionMask, *, deterministic: bool
    ) -> Float[Array, "B D"]:
        """In float32."""
        pooled_BD = self.pooler(self.encoder(tokens_BT, mask, deterministic=deterministic), mask).astype(jnp.float32)
        square_B1 = jnp.sum(pooled_BD**2, axis=-1, keepdims=True)
        return pooled_BD * jax.lax.rsqrt(jnp.maximum(square_B1, 1e-24))  # whose gradient at 0 is no NaN


class Classifier(nn.Module):
    """Dropout and a linear map to the logits of C classes, in float32."""

    config: ModelConfig
    num_classes: int

    @nn.compact
    def __call__(self, x: Float[Array, "*batch D"], deterministic: bool) -> Float[Array, "*batch C"]:
        config = self.config
        if config.dropout_rate and not deterministic:
            x = dropout(x, config.dropout_rate, self.make_rng("dropout"))
        axes = ("embed", "classes")
        linear = Linear((config.d_model,), (self.num_classes,), axes, True, jnp.dtype(jnp.float32), name="linear")
        return linear(x)
