"""How far a position scheme carries beyond the length of training: a character-level model trained at 128 tokens.

PYTHONPATH=. python benchmarks/length_extrapolation.py --workdir=runs/extrapolation

trains this config once for each scheme, scores each at 128 to 1,024 tokens, and prints the table. One scheme alone:

python train.py --config=configs/length_extrapolation.py --workdir=runs/alibi --config.model.position_encoding=alibi

About 4 million characters, 11 times through the text: 5 to 13 minutes a scheme on two cores that had other work too. At
1,024 tokens, eight times the length of training, alibi has 1.26 nats per character and sinusoidal 3.13; all figures
stand in section 10 of docs/reproduction.md.
"""

from ml_collections import ConfigDict

from transformer.config import default_config


def get_config() -> ConfigDict:
    config = default_config()
    config.task = "language_modeling"
    config.data.source = "topics"
    config.data.tokenizer_model = "character"
    config.data.batching = "stream"  # so that every position of a row is trained on equally much text
    config.data.tokens_per_batch = 4_096
    config.data.max_target_length = 128

    config.model.variant = "decoder_only"
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.num_decoder_layers = 4
    config.model.norm_placement = "pre"
    config.model.position_encoding = "sinusoidal"
    config.model.rotary_original_length = 128
    config.model.max_positions = 1_024  # learned: those from 128 on stay as they were drawn
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
    config.training.keep_checkpoints = 2
    config.training.evaluate_every = 1_000
    config.training.best_metric = "nll_per_token"
    return config
