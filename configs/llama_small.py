"""A small model in the style of Llama, with the sizes of SmolLM2-135M: 30 layers of 576, grouped heads.

python train.py --config=configs/llama_small.py --workdir=runs/llama
python eval.py --workdir=runs/llama --split=test

RMS norms before each part, rotary positions, SwiGLU, no biases, 9 query heads to 3 key/value heads, tied embeddings of
49,152 rows: 134,515,008 parameters, as many as SmolLM2-135M has (Allal et al. 2025). As it stands it learns from
Python's documentation, byte by byte: a check that it runs, for which the text is far too small. With
--config.data.source=files and --config.data.directory=DIR it learns from train.txt there (val.txt and test.txt are held
out). Trained weights of that model come with their own vocabulary: see transformer/interop.

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
    config.data.max_target_length = 2_048

    config.model.variant = "decoder_only"
    config.model.vocab_size = 49_152
    config.model.d_model = 576
    config.model.d_ff = 1_536
    config.model.num_heads = 9
    config.model.num_kv_heads = 3
    config.model.num_decoder_layers = 30
    config.model.norm = "rms_norm"
    config.model.norm_placement = "pre"
    config.model.norm_epsilon = 1e-5
    config.model.position_encoding = "rotary"
    config.model.rotary_theta = 100_000.0
    config.model.activation = "swiglu"
    config.model.attention_biases = ()
    config.model.feed_forward_bias = False
    config.model.scale_embeddings = False
    config.model.dropout_rate = 0.0
    config.model.dtype = "bfloat16"

    config.training.num_steps = 20_000
    config.training.schedule = "warmup_stable_decay"
    config.training.learning_rate = 3e-3
    config.training.warmup_steps = 1_000
    config.training.decay_steps = 4_000
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
    config.decoding.max_source_length = 1_024
    config.decoding.max_extra_tokens = 256
    return start_from(config, workdir)
