"""Masked language modelling of American presidents' speeches, split by speech: an encoder to be fine-tuned.

python train.py --config=configs/speeches_bert.py --workdir=runs/speeches_bert --config.data.directory=DIR
python eval.py --workdir=runs/speeches_bert --split=test
echo 'The state of the <mask> is strong.' | python generate.py --workdir=runs/speeches_bert --num_best=5 --scores

DIR holds state_union.txt and inaugural.txt, plain or gzipped, in which a line "### YEAR-NAME" is before each speech.
"""

from ml_collections import ConfigDict

from transformer.config import default_config


def get_config() -> ConfigDict:
    config = default_config()
    config.task = "masked_lm"
    config.data.source = "files"
    config.data.train = ("state_union", "inaugural")
    config.data.documents = "heading"
    config.data.split = "random"
    config.data.vocab_size = 4_000
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

    config.training.num_steps = 3_000
    config.training.schedule = "warmup_stable_decay"
    config.training.learning_rate = 2e-3
    config.training.warmup_steps = 300
    config.training.decay_steps = 1_200
    config.training.label_smoothing = 0.0
    config.training.gradient_clip = 1.0
    config.training.log_every = 100
    config.training.checkpoint_every = 500
    config.training.evaluate_every = 1_000
    config.training.best_metric = "nll_per_token"
    return config
