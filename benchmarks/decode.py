"""Decoding speed: our search beside ``generate`` of transformers' MarianMTModel, in turns.

    python benchmarks/decode.py [--peer=PYTHON] [--repetitions=15]

The model is that of train_step.py, with random weights, float32. 64 sentences of 32 source tokens are decoded at once
into exactly 32 tokens each, by greedy search (``beam_1``) and with a beam of 4. Both sides do equal work: no output
ends early, because ours is told that EOS has an id outside of the vocabulary, and the peer is given
``min_new_tokens=32, max_new_tokens=32``; both check what came out. Encoding is part of the time, tokenising text is
not. Target tokens are those of the outputs, not of all hypotheses. FLOP/s are the model's matrix products over all
hypotheses, by our own formula (models/flops.py), with attention over 32 tokens at every step; their share is of the
best rate that this machine reached in the same run at float32 products of a feed-forward's size, in JAX or torch.

The table is for people; the last line is the same as one JSON object. Where PYTHON has no torch or transformers, only
our side is measured.
"""

import measure
from measure import BATCH_SIZE, TARGET_LENGTH


def main() -> None:
    measured = measure.take_turns("decode", ["beam_1", "beam_4", "products"], measure.parse_arguments(__doc__))
    made = {"sentences": BATCH_SIZE, "target_tokens": BATCH_SIZE * TARGET_LENGTH}
    measure.report("decode", measured, {"beam_1": made, "beam_4": made})


if __name__ == "__main__":
    main()
