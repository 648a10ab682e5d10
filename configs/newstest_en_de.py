"""WMT news test sets of 2008 to 2012, English to German, scored on 2013: 13,071 pairs of messy real text.

python train.py --config=configs/newstest_en_de.py --workdir=runs/newstest --config.data.directory=DIR

DIR holds news-test2008.en-de.en, news-test2008.en-de.de and so on. Far too little text to learn translation from: the
config shows that real lines pass through every part, and its score is low.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.data.source = "files"
    config.data.train = ("news-test2008", "newstest2009", "newstest2010", "newstest2011", "newstest2012")
    config.data.validation = "newstest2013"
    config.data.test = "newstest2013"
    config.data.vocab_size = 8_000
    config.data.batching = "pack"
    config.data.tokens_per_batch = 2_048
    config.data.max_source_length = 128
    config.data.max_target_length = 128

    config.model.d_model = 256
    config.model.d_ff = 1_024
    config.model.num_heads = 4
    config.model.num_encoder_layers = 3
    config.model.num_decoder_layers = 3
    config.model.norm_placement = "pre"
    config.model.dropout_rate = 0.3
    config.model.scan_unroll = 3

    config.training.num_steps = 200
    config.training.schedule = "cosine"
    config.training.learning_rate = 1e-3
    config.training.warmup_steps = 50
    config.training.log_every = 50
    config.training.checkpoint_every = 100
    config.training.evaluate_every = 200
    config.evaluation.beam_size = 1
    config.evaluation.max_examples = 100
    return start_from(config, workdir)
