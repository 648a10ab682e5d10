"""Tokens to vectors, and vectors to scores of tokens."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


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
        initializer = nn.with_logical_partitioning(
            nn.initializers.normal(self.d_model**-0.5), ("vocabulary", "embedding")
        )
        self.embedding: Any = self.param("embedding", initializer, (self.vocab_size, self.d_model), jnp.float32)

    def __call__(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Vectors of tokens. Ids outside the vocabulary give NaN: the data is checked when it is read."""
        vectors_BTD = jnp.take(self.embedding, tokens_BT, axis=0, mode="fill", fill_value=jnp.nan)
        return (vectors_BTD * (self.d_model**0.5 if self.scale else 1.0)).astype(self.dtype)

    def logits(self, hidden_BTD: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Scores of all tokens, in float32."""
        rows = hidden_BTD.astype(self.dtype).reshape(-1, self.d_model)
        logits = jnp.dot(rows, self.embedding.astype(self.dtype).T, preferred_element_type=jnp.float32)
        return logits.reshape(*hidden_BTD.shape[:-1], self.vocab_size)
