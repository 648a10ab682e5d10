"""Multi30k English to German: 29,000 image captions, a real task that two CPU cores can learn.

python train.py --config=configs/multi30k_en_de.py --workdir=runs/m30k --config.data.directory=DIR

DIR holds train.en, train.de, val.en, val.de and test_2016_flickr.en, .de, plain or gzipped (task 1, raw text, of
github.com/multi30k/dataset). It took 106 minutes on two cores that had other work too; --checkpoint=average:10 had BLEU
39.1 on the test split. More in docs/reproduction.md.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.data.source = "files"
    config.data.test = "test_2016_flickr"
    config.data.vocab_size = 6_000
    config.data.batching = "pack"
    config.data.tokens_per_batch = 2_560
    config.data.max_source_length = 64
    config.data.max_target_length = 64

    # 4 + 4 layers of width 128 and much dropout: on so little text larger models overfit sooner and score less.
    # Reference: Wu et al., Good for Misconceived Reasons (2021), section 4.2.
    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 4
    config.model.norm_placement = "pre"
    config.model.dropout_rate = 0.3
    config.model.scan_unroll = 4

    config.training.num_steps = 9_300
    config.training.schedule = "inverse_square_root"
    config.training.learning_rate = 5e-3
    config.training.warmup_steps = 500
    config.training.gradient_clip = 1.0
    config.training.log_every = 100
    config.training.checkpoint_every = 200
    config.training.keep_checkpoints = 10
    config.training.evaluate_every = 1_000

    config.decoding.beam_size = 5
    config.evaluation.beam_size = 1
    return start_from(config, workdir)
