"""Numbers, dates, times and the like in words, English to German: generated, so nothing is downloaded.

python train.py --config=configs/phrases_en_de.py --workdir=runs/demo

Synthetic text, no benchmark: it shows that every part works.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.data.vocab_size = 600
    config.data.tokens_per_batch = 2_048
    config.data.max_source_length = 64
    config.data.max_target_length = 64
    config.data.batching = "pack"

    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.num_encoder_layers = 3
    config.model.num_decoder_layers = 3
    config.model.dropout_rate = 0.0
    config.model.scan_unroll = 3

    config.training.num_steps = 600
    config.training.schedule = "warmup_stable_decay"
    config.training.learning_rate = 1e-3
    config.training.warmup_steps = 100
    config.training.decay_steps = 250
    config.training.label_smoothing = 0.0
    config.training.log_every = 100
    config.training.checkpoint_every = 100
    config.training.evaluate_every = 300
    return start_from(config, workdir)
