"""GPT-2 small (Radford et al. 2019): 12 layers of 768, 1,024 learned positions, 124,439,808 parameters.

python train.py --config=configs/gpt2_small.py --workdir=runs/gpt2
python eval.py --workdir=runs/gpt2 --split=test

As it stands it learns from Python's documentation, byte by byte: a check that it runs, for which the text is far too
small. With --config.data.source=files and --config.data.directory=DIR it learns from train.txt there (val.txt and
test.txt are held out). The embedding has the 50,257 rows of GPT-2's vocabulary whatever the tokenizer; one with fewer
pieces leaves rows unused. Initial weights are those of all our models, not GPT-2's. Trained weights of GPT-2 come with
their own vocabulary: see transformer/interop.

Needs a GPU with 24 GB or more, in bfloat16. Not measured yet.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.task = "language_modeling"
    config.data.source = "topics"
    config.data.tokenizer_model = "byte"
    config.data.batching = "stream"
    config.data.tokens_per_batch = 65_536
    config.data.max_target_length = 1_024

    config.model.variant = "decoder_only"
    config.model.vocab_size = 50_257
    config.model.d_model = 768
    config.model.d_ff = 3_072
    config.model.num_heads = 12
    config.model.num_decoder_layers = 12
    config.model.norm_placement = "pre"
    config.model.norm_epsilon = 1e-5
    config.model.position_encoding = "learned"
    config.model.max_positions = 1_024
    config.model.activation = "gelu_tanh"
    config.model.scale_embeddings = False
    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.1
    config.model.dtype = "bfloat16"

    config.training.num_steps = 20_000
    config.training.schedule = "cosine"
    config.training.learning_rate = 6e-4
    config.training.final_learning_rate = 6e-5
    config.training.warmup_steps = 1_000
    config.training.optimizer = "adamw"
    config.training.beta2 = 0.95
    config.training.epsilon = 1e-8
    config.training.weight_decay = 0.1
    config.training.gradient_clip = 1.0
    config.training.accumulation_steps = 4
    config.training.label_smoothing = 0.0
    config.training.evaluate_every = 1_000
    config.training.checkpoint_every = 1_000
    config.training.best_metric = "nll_per_token"

    config.decoding.method = "sample"
    config.decoding.top_p = 0.95
    config.decoding.max_source_length = 512
    config.decoding.max_extra_tokens = 256
    return start_from(config, workdir)
