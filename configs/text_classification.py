"""Sentiment of sentences, or any other labels of texts or of pairs of texts: fine-tuned, or from scratch.

python train.py --config=configs/text_classification.py:WORKDIR --config.data.directory=DIR --workdir=runs/sst2
python eval.py --workdir=runs/sst2 --split=validation

WORKDIR holds the weights to start from: those of a run of masked_lm, or of imported ones such as MiniLM's or BERT's.
Without it (``--config=configs/text_classification.py``) a small model learns from nothing but the labels. DIR holds
train and dev as .txt (label, space, text), .tsv (label, tab, text, and for pairs another tab and text) or .jsonl.

The numbers of steps are for SST-2's 6,920 sentences: about three epochs of fine-tuning, twelve from scratch. From
MiniLM the mean of three seeds was 87.8% of the 872 in dev, 14 minutes of one core each; from scratch 77.2%, in 3.

A classifier of means, as it is trained here, is none that files of BERT can hold. To export it, train it as theirs are:
--config.model.pooling=first --config.model.pooler=True.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.task = "text_classification"
    config.data.source = "files"
    config.data.validation = "dev"
    config.data.tokens_per_batch = 2_048  # about 75 sentences
    config.data.max_source_length = 128
    config.data.num_buckets = 4

    config.training.schedule = "linear"
    config.training.optimizer = "adamw"
    config.training.beta2 = 0.999
    config.training.epsilon = 1e-6
    config.training.weight_decay = 0.01
    config.training.gradient_clip = 1.0
    config.training.label_smoothing = 0.0
    config.training.log_every = 30
    config.training.keep_checkpoints = 1
    config.training.best_metric = "accuracy"
    if workdir:
        start_from(config, workdir)
        config.training.num_steps = 290
        config.training.learning_rate = 1e-4  # BERT-base wants 2e-5 to 5e-5; narrower models more
        config.training.warmup_steps = 29
    else:
        config.data.vocab_size = 4_000
        config.model.variant = "encoder_only"
        config.model.d_model = 128
        config.model.d_ff = 512
        config.model.num_heads = 4
        config.model.num_encoder_layers = 2
        config.model.norm_placement = "pre"
        config.model.scan_unroll = 2
        config.training.num_steps = 1_350
        config.training.learning_rate = 5e-4
        config.training.warmup_steps = 135
    config.training.evaluate_every = config.training.num_steps // 3
    config.training.checkpoint_every = config.training.num_steps // 3
    # The mean of all tokens' vectors: the first token's is trained by few pre-training objectives, and BERT's pooler
    # by one that is seldom used any more (next-sentence prediction).
    config.model.pooling = "mean"
    config.model.pooler = False
    config.model.dropout_rate = 0.1 if workdir else 0.3
    return config
