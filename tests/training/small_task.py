"""A task over random pairs, with a model that compiles in seconds."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from tests.models.small import NO_MASKS, V, config
from transformer.models.seq2seq import Seq2Seq
from transformer.tasks.losses import cross_entropy
from transformer.tasks.seq2seq_training import logits_and_sums
from transformer.types import Seq2SeqBatch, Task


class SmallTask(Task):
    """What ``make_train_step`` needs of a task."""

    def __init__(self, dropout_rate: float = 0.0):
        self.model = Seq2Seq(config(num_encoder_layers=1, num_decoder_layers=1, dropout_rate=dropout_rate), V, V)

    def init(self, rng):
        ids = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(rng, ids, ids, NO_MASKS, deterministic=True)["params"]

    def loss(self, params, batch, rng) -> Mapping:
        scores, _ = logits_and_sums(self.model, params, batch, rng, packed=False)
        return cross_entropy(
            scores, batch.decoder_target_tokens, batch.decoder_loss_weights, label_smoothing=0.1, form="uniform"
        )

    def batch(self, step: int) -> Seq2SeqBatch:
        return make_batch(5, 7, 6, seed=step)


def make_batch(rows: int, S: int, T: int, seed: int = 0) -> Seq2SeqBatch:
    """Random pairs of very different lengths, right-padded."""
    rng = np.random.default_rng(seed)
    tokens = {name: rng.integers(4, V, (rows, S if name.startswith("encoder") else T)) for name in Seq2SeqBatch._fields}
    source, target = (np.arange(size) < rng.integers(1, size + 1, (rows, 1)) for size in (S, T))
    return jax.tree.map(
        lambda array: np.asarray(array, np.int32),
        Seq2SeqBatch(
            encoder_input_tokens=np.where(source, tokens["encoder_input_tokens"], 0),
            encoder_segment_ids=source,
            encoder_positions=np.where(source, np.arange(S), 0),
            decoder_input_tokens=np.where(target, tokens["decoder_input_tokens"], 0),
            decoder_target_tokens=np.where(target, tokens["decoder_target_tokens"], 0),
            decoder_loss_weights=target,
            decoder_segment_ids=target,
            decoder_positions=np.where(target, np.arange(T), 0),
        ),
    )._replace(decoder_loss_weights=target.astype(np.float32))
