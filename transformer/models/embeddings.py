"""Tokens to vectors, and vectors to scores of tokens."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig
from transformer.models.linear import glorot, product_of_rows
from transformer.models.sharding import constrain
from transformer.types import UserError


def embedding_rows(config: ModelConfig, num_pieces: int) -> int:
    """V: the rows of the embedding for a tokenizer of so many pieces, which has the first of them.

    Raises:
      UserError: if ``model.vocab_size`` asks for fewer than there are pieces.
    """
    if config.vocab_size is not None and config.vocab_size < num_pieces:
        raise UserError(
            f"model.vocab_size={config.vocab_size} is less than the {num_pieces} pieces of the tokenizer; leave it "
            "unset to have as many rows as pieces"
        )
    return config.vocab_size or num_pieces


class TokenEmbedding(nn.Module):
    """A table of vectors, normal with variance 1 / D, so that scaled by sqrt(D) they have variance 1.

    The same table can score tokens: the softmax weights of Press & Wolf 2017, shared as in Vaswani et al. 2017,
    section 3.4.
    """

    vocab_size: int
    d_model: int
    scale: bool
    dtype: Any

    def setup(self) -> None:
        initializer = nn.with_logical_partitioning(nn.initializers.normal(self.d_model**-0.5), ("vocabulary", "embed"))
        self.embedding: Any = self.param("embedding", initializer, (self.vocab_size, self.d_model), jnp.float32)

    def __call__(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Vectors of tokens. Ids outside the vocabulary give NaN: the data is checked when it is read."""
        # Whole vectors: left to itself, the partitioner would look up parts of them for the tokens of all devices.
        table_VD = constrain(self.embedding, "vocabulary", "features")
        vectors_BTD = jnp.take(table_VD, tokens_BT, axis=0, mode="fill", fill_value=jnp.nan)
        return (vectors_BTD * (self.d_model**0.5 if self.scale else 1.0)).astype(self.dtype)

    def products(self, hidden_BTD: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Dot products with all tokens' vectors, in float32."""
        return _products(hidden_BTD, self.embedding.astype(self.dtype).T)


class TokenScores(nn.Module):
    """Logits of all tokens: by the embedding, or by weights of their own where ``shared_embeddings`` says so."""

    config: ModelConfig
    vocab_size: int

    @nn.compact
    def __call__(self, hidden_BTD: Float[Array, "B T D"], embedding: TokenEmbedding) -> Float[Array, "B T V"]:
        """In float32.

        Args:
          embedding: whose vectors are the softmax weights, unless they are apart.
        """
        config = self.config
        hidden_BTD = hidden_BTD.astype(config.dtype)
        if config.scale_logits:
            hidden_BTD *= config.d_model**-0.5
        if config.shared_embeddings in ("none", "inputs"):
            initializer = nn.with_logical_partitioning(glorot(1, 2), ("embed", "vocabulary"))
            kernel: Any = self.param("kernel", initializer, (config.d_model, self.vocab_size), jnp.float32)
            logits_BTV = _products(hidden_BTD, kernel.astype(config.dtype))
        else:
            logits_BTV = embedding.products(hidden_BTD)
        if config.output_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), ("vocabulary",))
            bias: Any = self.param("bias", zeros, (self.vocab_size,), jnp.float32)
            logits_BTV += bias
        return constrain(logits_BTV, "batch", "length", "vocabulary")


def _products(hidden_BTD: Any, weights_DV: Any) -> Any:
    return product_of_rows(hidden_BTD.astype(weights_DV.dtype), weights_DV, preferred_element_type=jnp.float32)
