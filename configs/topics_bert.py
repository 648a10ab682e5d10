"""Masked language modelling of Python's own documentation, which every Python brings: nothing is downloaded.

python train.py --config=configs/topics_bert.py --workdir=runs/topics_bert
python eval.py --workdir=runs/topics_bert --split=test
echo 'The statement is used to <mask> a name.' | python generate.py --workdir=runs/topics_bert --num_best=5 --scores

About 370,000 characters to learn from; whole topics are held out. 12 minutes of one CPU core: 58.6% of the
masked tokens of the test topics are right; always the most frequent piece: 29.8%.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.task = "masked_lm"
    config.data.source = "topics"
    config.data.vocab_size = 2_000
    config.data.extra_ids = 1
    config.data.tokens_per_batch = 4_096
    config.data.max_source_length = 128
    config.data.num_buckets = 1  # nearly all texts are as long as may be

    config.model.variant = "encoder_only"
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.num_encoder_layers = 4
    config.model.norm_placement = "pre"
    config.model.position_encoding = "rotary"
    config.model.activation = "gelu"
    config.model.output_bias = True
    config.model.dropout_rate = 0.1
    config.model.scan_unroll = 4

    config.training.num_steps = 1_200
    config.training.schedule = "warmup_stable_decay"
    config.training.learning_rate = 2e-3
    config.training.warmup_steps = 100
    config.training.decay_steps = 500
    config.training.label_smoothing = 0.0
    config.training.gradient_clip = 1.0
    config.training.log_every = 100
    config.training.checkpoint_every = 400
    config.training.evaluate_every = 400
    config.training.best_metric = "nll_per_token"
    return start_from(config, workdir)
