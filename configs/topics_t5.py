"""Span corruption of Python's own documentation by a small T5 (version 1.1): nothing is downloaded.

python train.py --config=configs/topics_t5.py --workdir=runs/topics_t5
python eval.py --workdir=runs/topics_t5 --split=test
echo 'The <extra_id_0> statement is used <extra_id_1> a loop.' | python generate.py --workdir=runs/topics_t5

About 370,000 characters to learn from; whole topics are held out. 10 minutes of one CPU core: 41.1% of the
target tokens of the test topics are right, 3.49 nats a token. As in T5 1.1: RMS norms, relative positions, gated
feed-forwards, no biases, attention that is not scaled, softmax weights of their own.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.task = "span_corruption"
    config.data.source = "topics"
    config.data.vocab_size = 2_000
    config.data.extra_ids = 8
    config.data.tokens_per_batch = 4_096
    config.data.max_source_length = 128
    config.data.num_buckets = 1  # nearly all texts are as long as may be
    config.data.max_target_length = 32

    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.model.num_encoder_layers = 3
    config.model.num_decoder_layers = 3
    config.model.norm = "rms_norm"
    config.model.norm_placement = "pre"
    config.model.attention_biases = ()
    config.model.scale_attention = False
    config.model.position_encoding = "relative_bias"
    config.model.activation = "geglu"
    config.model.feed_forward_bias = False
    config.model.shared_embeddings = "inputs"
    config.model.scale_embeddings = False
    config.model.dropout_rate = 0.1
    config.model.scan_unroll = 3

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

    config.decoding.method = "greedy"
    return start_from(config, workdir)
