"""A character-level language model of Python's own documentation, which every Python brings: nothing is downloaded.

python train.py --config=configs/topics_lm.py --workdir=runs/topics
python eval.py --workdir=runs/topics --split=test
echo 'The "for" statement' | python generate.py --workdir=runs/topics

About 370,000 characters to learn from; whole topics are held out. 12 minutes of one CPU core:
1.13 nats a character, 1.62 bits a byte on the test topics.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.task = "language_modeling"
    config.data.source = "topics"
    config.data.tokenizer_model = "character"
    config.data.batching = "stream"
    config.data.tokens_per_batch = 4_096
    config.data.max_target_length = 256

    config.model.variant = "decoder_only"
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.num_decoder_layers = 4
    config.model.norm_placement = "pre"
    config.model.position_encoding = "rotary"
    config.model.activation = "gelu"
    config.model.dropout_rate = 0.1
    config.model.scan_unroll = 4

    config.training.num_steps = 1_000
    config.training.schedule = "warmup_stable_decay"
    config.training.learning_rate = 2e-3
    config.training.warmup_steps = 100
    config.training.decay_steps = 400
    config.training.label_smoothing = 0.0
    config.training.gradient_clip = 1.0
    config.training.log_every = 100
    config.training.checkpoint_every = 250
    config.training.evaluate_every = 500
    config.training.best_metric = "bits_per_byte"

    config.decoding.method = "sample"
    config.decoding.temperature = 0.8
    config.decoding.max_extra_tokens = 200
    return start_from(config, workdir)
