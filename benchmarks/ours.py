"""Our side of the benchmarks: started by them, not by hand. See measure.py."""

import sys
from collections.abc import Callable
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import measure
import numpy as np
from measure import BATCH_SIZE, SOURCE_LENGTH, TARGET_LENGTH, VOCAB_SIZE

from transformer.config import DecodingConfig, MeshConfig, ModelConfig, TrainingConfig
from transformer.models.flops import TRAINING_FACTOR, seq2seq_forward_flops
from transformer.models.masks import AttentionMask
from transformer.models.seq2seq import Seq2Seq, Seq2SeqMasks
from transformer.tasks.losses import cross_entropy
from transformer.tasks.seq2seq_training import logits_and_sums
from transformer.tasks.translator import search
from transformer.training.devices import select_platform
from transformer.training.optimizers import make_optimizer
from transformer.training.partitioning import LOGICAL_AXES, make_mesh, place_batch, unbox
from transformer.training.schedules import make_schedule
from transformer.training.state import abstract_state, init_state
from transformer.training.step import make_train_step
from transformer.types import Params, Seq2SeqBatch, Sums

MODEL = ModelConfig(
    d_model=measure.D_MODEL,
    d_ff=measure.D_FF,
    num_heads=measure.NUM_HEADS,
    num_encoder_layers=measure.NUM_LAYERS,
    num_decoder_layers=measure.NUM_LAYERS,
    dropout_rate=measure.DROPOUT_RATE,
    scan_unroll=measure.NUM_LAYERS,
)
PAD_ID, BOS_ID = 0, 1


class RandomTranslation:
    """What ``make_train_step`` and ``init_state`` need of a task; the loss is TranslationTask's for ``bucket``."""

    def __init__(self) -> None:
        self.model = Seq2Seq(MODEL, VOCAB_SIZE, VOCAB_SIZE)

    def init(self, rng: Any) -> Params:
        tokens = jnp.zeros((1, 1), jnp.int32)
        masks = Seq2SeqMasks(AttentionMask(), AttentionMask(), AttentionMask())
        return self.model.init(rng, tokens, tokens, masks, deterministic=True)["params"]

    def loss(self, params: Params, batch: Seq2SeqBatch, rng: Any) -> Sums:
        return cross_entropy(
            logits_and_sums(self.model, params, batch, rng, packed=False)[0],
            batch.decoder_target_tokens,
            batch.decoder_loss_weights,
            label_smoothing=measure.LABEL_SMOOTHING,
        )


def random_tokens(length: int) -> np.ndarray:
    """[B, length] of pieces that are not special."""
    return np.random.default_rng(length).integers(4, VOCAB_SIZE, (BATCH_SIZE, length), dtype=np.int32)


def random_batch() -> Seq2SeqBatch:
    """Rows without padding."""
    targets = random_tokens(TARGET_LENGTH)
    sides = [np.ones((BATCH_SIZE, length), np.int32) for length in (SOURCE_LENGTH, TARGET_LENGTH)]
    positions = [np.cumsum(side, axis=1, dtype=np.int32) - 1 for side in sides]
    return Seq2SeqBatch(
        encoder_input_tokens=random_tokens(SOURCE_LENGTH),
        encoder_segment_ids=sides[0],
        encoder_positions=positions[0],
        decoder_input_tokens=np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID),
        decoder_target_tokens=targets,
        decoder_loss_weights=np.ones_like(targets, np.float32),
        decoder_segment_ids=sides[1],
        decoder_positions=positions[1],
    )


def training_step(mesh: jax.sharding.Mesh) -> measure.Job:
    """The trainer's step, jitted as the trainer does it."""
    task: Any = RandomTranslation()
    config = TrainingConfig(optimizer="adam")
    optimizer = make_optimizer(config, make_schedule(config, MODEL.d_model))
    state = init_state(task, optimizer, abstract_state(task, optimizer, False, mesh), seed=0)
    step = jax.jit(
        make_train_step(task, optimizer, seed=0, accumulation_steps=1, ema_decay=None),
        donate_argnums=0,
        out_shardings=(jax.tree.map(lambda leaf: leaf.sharding, state), None),
    )
    batch, healthy = place_batch(mesh, random_batch()), jnp.array(True)

    def run() -> None:
        nonlocal state, healthy
        state, sums = step(state, batch, healthy)
        healthy = sums["finite"][0]
        if not jax.block_until_ready((state, healthy))[1]:
            raise RuntimeError("the loss is not finite")

    return lambda: measure.seconds(run)


def decoding(method: str, beam_size: int) -> measure.Job:
    """A search under random weights. EOS has an id that the vocabulary lacks: it cannot come."""
    model = Seq2Seq(MODEL, VOCAB_SIZE, VOCAB_SIZE)
    params = jax.jit(lambda rng: unbox(RandomTranslation().init(rng)))(jax.random.key(0))
    assert TARGET_LENGTH >= SOURCE_LENGTH
    config = DecodingConfig(method=method, beam_size=beam_size, max_extra_tokens=TARGET_LENGTH - SOURCE_LENGTH)
    tokens, lengths = random_tokens(SOURCE_LENGTH), np.full(BATCH_SIZE, SOURCE_LENGTH, np.int32)

    def run() -> None:
        found = jax.device_get(
            search(
                model,
                params,
                tokens,
                lengths,
                np.arange(BATCH_SIZE, dtype=np.int32),
                decoding=config,
                num_best=1,
                special_ids=(PAD_ID, BOS_ID, VOCAB_SIZE),
            )
        )
        if not (found.lengths == TARGET_LENGTH).all():
            raise RuntimeError(f"outputs of other lengths than {TARGET_LENGTH}: {sorted(set(found.lengths.ravel()))}")

    return lambda: measure.seconds(run)


def products() -> measure.Job:
    """The matrix products whose rate is the machine's."""
    multiply = jax.jit(jnp.dot)

    def product(m: int, k: int, n: int) -> Callable[[], Any]:
        left, right = jnp.full((m, k), 0.5), jnp.full((k, n), 0.5)
        return lambda: jax.block_until_ready(multiply(left, right))

    runs = {sizes: product(*sizes) for sizes in measure.PRODUCTS}
    return lambda: measure.best_product_rate(runs)


def training_flops() -> float:
    """Of one step, by the model's own formula."""
    forward = seq2seq_forward_flops(MODEL, VOCAB_SIZE, BATCH_SIZE, SOURCE_LENGTH, TARGET_LENGTH)
    return TRAINING_FACTOR * forward


def decoding_flops(beam_size: int) -> float:
    """Of one search: as if W times as many rows were scored, less what the hypotheses of a sentence share.

    They share the encoder and its keys and values in the decoder, which is what scoring no target would compute.
    """
    all_rows = seq2seq_forward_flops(MODEL, VOCAB_SIZE, BATCH_SIZE * beam_size, SOURCE_LENGTH, TARGET_LENGTH)
    return all_rows - seq2seq_forward_flops(MODEL, VOCAB_SIZE, BATCH_SIZE * (beam_size - 1), SOURCE_LENGTH, 0)


def prepare(mesh: jax.sharding.Mesh, benchmark: str) -> measure.Offer:
    if benchmark == "train_step":
        jobs = {"step": training_step(mesh)}
        flops = {"step": training_flops()}
    else:
        jobs = {"beam_1": decoding("greedy", 1), "beam_4": decoding("beam", 4)}
        flops = {"beam_1": decoding_flops(1), "beam_4": decoding_flops(4)}
    versions = {"python": sys.version.split()[0], "jax": jax.__version__, "flax": flax.__version__}
    return measure.Offer({**jobs, "products": products()}, versions, flops)


if __name__ == "__main__":
    select_platform(MeshConfig(platform="cpu"))
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXES):
        measure.serve(lambda benchmark: prepare(mesh, benchmark))
