"""What kind of phrase is it: a number, a date, a time, ...? Generated text, so nothing is downloaded.

python train.py --config=configs/phrase_kinds.py --workdir=runs/kinds
python eval.py --workdir=runs/kinds --split=test
echo 'nineteen sixty-eight' | python generate.py --workdir=runs/kinds --num_best=3 --scores

Nine kinds, learnt from scratch in a minute of one CPU core: all 1,000 of the test split are right. Synthetic text,
no benchmark: it shows that every part works.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.task = "text_classification"
    config.data.num_phrases = 20_000
    config.data.vocab_size = 600
    config.data.tokens_per_batch = 2_048
    config.data.max_source_length = 64
    config.data.num_buckets = 3

    config.model.variant = "encoder_only"
    config.model.d_model = 64
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.model.num_encoder_layers = 2
    config.model.norm_placement = "pre"
    config.model.pooling = "mean"
    config.model.scan_unroll = 2

    config.training.num_steps = 200
    config.training.schedule = "linear"
    config.training.learning_rate = 2e-3
    config.training.warmup_steps = 20
    config.training.label_smoothing = 0.0
    config.training.log_every = 50
    config.training.checkpoint_every = 100
    config.training.evaluate_every = 100
    config.training.best_metric = "accuracy"
    return start_from(config, workdir)
