"""Training speed: our whole step beside that of transformers' MarianMTModel, in turns.

    python benchmarks/train_step.py [--peer=PYTHON] [--repetitions=15]

d_model 256, d_ff 1,024, 4 heads, 3 + 3 layers, 8,000 pieces in one table for source, target and softmax, post-norm,
ReLU, dropout 0.1, label smoothing 0.1, Adam, float32; 64 rows of 32 source and 32 target tokens, no padding. Ours is
the trainer's own step (gradient, its norm, the check that all is finite, update; loss, nats and accuracy reported)
with masks by length; the peer's is forward, ``torch.nn.functional.cross_entropy``, backward and ``torch.optim.Adam``,
without masks. A repetition is one step. FLOP/s are the model's matrix products by our own formula (models/flops.py)
over the step's time; their share is of the best rate that this machine reached in the same run at float32 products of
a feed-forward's size, in JAX or torch.

The table is for people; the last line is the same as one JSON object. Where PYTHON has no torch or transformers, only
our side is measured.
"""

import measure
from measure import BATCH_SIZE, TARGET_LENGTH


def main() -> None:
    measured = measure.take_turns("train_step", ["step", "products"], measure.parse_arguments(__doc__))
    measure.report("train_step", measured, {"step": {"target_tokens": BATCH_SIZE * TARGET_LENGTH}})


if __name__ == "__main__":
    main()
