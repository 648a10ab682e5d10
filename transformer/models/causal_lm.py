"""The decoder-only model: each token predicts the next."""

from typing import Optional

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig
from transformer.models.cache import Cache
from transformer.models.embeddings import TokenEmbedding, TokenScores
from transformer.models.layers import single_stack_scales
from transformer.models.masks import AttentionMask
from transformer.models.stacks import Stack


class CausalLM(nn.Module):
    """Scores of the token after each token, given those up to it: ``num_decoder_layers`` layers of self-attention.

    The softmax weights are the embeddings unless ``shared_embeddings`` is ``none``. With ``prefix_lm`` tokens of a
    prefix see those after them in it, which masks must say; the biases of positions are then of both directions.

    Reference: Radford et al., GPT (2018) and GPT-2 (2019); Liu et al., Generating Wikipedia (2018), section 4.2.3; of
    prefixes Raffel et al., T5 (2020), section 3.2.1.
    """

    config: ModelConfig
    vocab_size: int

    def setup(self) -> None:
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        self.embedding = TokenEmbedding(self.vocab_size, config.d_model, config.scale_embeddings, dtype)
        self.output = TokenScores(config, self.vocab_size)
        self.decoder = Stack(
            config,
            config.num_decoder_layers,
            bidirectional=config.prefix_lm,
            scales=single_stack_scales(config, config.num_decoder_layers),
        )

    def __call__(
        self,
        tokens_BT: Int[Array, "B T"],
        mask: AttentionMask,
        *,
        positions_BT: Optional[Int[Array, "#B T"]] = None,
        cache: Optional[Cache] = None,
        deterministic: bool,
    ) -> tuple[Float[Array, "B T V"], Optional[Cache]]:
        """Logits, in float32, and the cache with these tokens in it.

        Args:
          mask: usually causal. Its matrix, if any, is over all tokens in the order in which they came, those in the
            cache first.
          positions_BT: of each token in its text, for embeddings and rotations; None: 0, 1, 2, ... Masks and biases
            compare those in the mask, by default the slots: the same where the tokens of a text are neighbours.
          cache: earlier tokens, or None: the T tokens are all there is. Positions must then be given.
        """
        x_BTD, cache = self.decoder(
            self.embedding(tokens_BT), positions_BT, mask, cache=cache, deterministic=deterministic
        )
        return self.output(x_BTD, self.embedding), cache
