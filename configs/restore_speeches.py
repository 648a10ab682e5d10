"""Capitals and punctuation put back into speeches of US presidents, from scratch or from a model that knows English.

python train.py --config=configs/restore_speeches.py --config.data.directory=DIR --workdir=runs/restore
python train.py --config=configs/restore_speeches.py:WORKDIR --config.data.directory=DIR --workdir=runs/restore
python eval.py --workdir=runs/restore --split=test --checkpoint=best

DIR holds state_union.txt and inaugural.txt, or these with .gz, in which a line "### YEAR-NAME" is before each speech:
124 of them, 490,000 words. Whole speeches are held out, drawn by the seed. WORKDIR is that of a run, or of imported
weights, of an encoder: its model's keys and its tokenizer are used. eval.py gives the macro-F1 of the labels, and
beside it that of the most frequent label: from scratch 0.432 and 0.081 on the test split, after 25 minutes of one core.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.task = "token_classification"
    config.data.source = "files"
    config.data.documents = "heading"
    config.data.train = ("state_union", "inaugural")
    config.data.split = "random"
    config.data.validation_share = 0.05
    config.data.test_share = 0.1
    config.data.token_labels = "case_and_punctuation"
    config.data.vocab_size = 4_000
    config.data.tokens_per_batch = 4_096
    config.data.max_source_length = 128
    config.data.num_buckets = 2

    config.model.variant = "encoder_only"
    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.num_heads = 6
    config.model.num_encoder_layers = 4
    config.model.norm_placement = "pre"
    config.model.position_encoding = "rotary"
    config.model.activation = "gelu"
    config.model.dropout_rate = 0.1
    config.model.scan_unroll = 4

    config.training.num_steps = 1_500
    config.training.schedule = "warmup_stable_decay"
    config.training.learning_rate = 1e-3
    config.training.warmup_steps = 100
    config.training.decay_steps = 500
    config.training.label_smoothing = 0.0
    config.training.gradient_clip = 1.0
    config.training.log_every = 50
    config.training.checkpoint_every = 250
    config.training.evaluate_every = 250
    config.training.best_metric = "f1"
    if workdir:
        start_from(config, workdir)
        config.training.num_steps = 600
        config.training.learning_rate = 1e-4
        config.training.warmup_steps = 60
        config.training.decay_steps = 540
    return config
