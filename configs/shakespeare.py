"""A character-level language model of tiny Shakespeare (Karpathy 2015), 1.1 MB of plays, for two CPU cores.

python train.py --config=configs/shakespeare.py --workdir=runs/shakespeare --config.data.directory=DIR
python eval.py --workdir=runs/shakespeare --split=test
echo 'ROMEO:' | python generate.py --workdir=runs/shakespeare --num_best=3

DIR holds input.txt (or input.txt.gz), from data/tinyshakespeare of github.com/karpathy/char-rnn. Its last 10% are the
test split, as in nanoGPT, the 1% before them the validation split, the rest is learnt from: 56% of the speeches of the
test are of characters who speak in the 5% before it. The score is in nats per character, each scored once with half a
row or more before it. nanoGPT reports 1.88 for its setting for CPUs (4 layers of 128, 2,000 small batches), and 1.47
for 11 million parameters on a GPU.

1.3 million parameters, 10.1 million characters (10 times through the text): by their speed 29 minutes on two CPU cores.
The test split had 1.485 nats a character; with num_steps=4_200 and decay_steps=1_800 it had 1.464.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.task = "language_modeling"
    config.data.source = "files"
    config.data.train = ("input",)
    config.data.split = "end"
    config.data.test_share = 0.1
    config.data.validation_share = 0.01
    config.data.tokenizer_model = "character"
    config.data.batching = "stream"
    config.data.tokens_per_batch = 3_072
    config.data.max_target_length = 192

    config.model.variant = "decoder_only"
    config.model.d_model = 128
    config.model.d_ff = 384
    config.model.num_heads = 4
    config.model.num_decoder_layers = 6
    config.model.norm = "rms_norm"
    config.model.norm_placement = "pre"
    config.model.position_encoding = "rotary"
    config.model.activation = "swiglu"
    config.model.attention_biases = ()
    config.model.feed_forward_bias = False
    config.model.dropout_rate = 0.2
    config.model.scan_unroll = 6

    config.training.num_steps = 3_300
    config.training.schedule = "warmup_stable_decay"
    config.training.learning_rate = 2.5e-3
    config.training.warmup_steps = 100
    config.training.decay_steps = 1_400
    config.training.optimizer = "adamw"
    config.training.beta2 = 0.99
    config.training.epsilon = 1e-8
    config.training.weight_decay = 0.1
    config.training.gradient_clip = 1.0
    config.training.label_smoothing = 0.0
    config.training.log_every = 100
    config.training.checkpoint_every = 500
    config.training.evaluate_every = 500
    config.training.best_metric = "nll_per_token"

    config.decoding.method = "sample"
    config.decoding.temperature = 0.8
    config.decoding.max_extra_tokens = 300
    return start_from(config, workdir)
