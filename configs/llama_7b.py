"""The sizes of Llama 2 7B (Touvron et al. 2023): 32 layers of 4,096, 6,738,415,616 parameters. Planned, never trained.

python -m transformer.plan --config=configs/llama_7b.py --topology=v5p:8x8x8 --config.mesh.data=-1 --config.mesh.fsdp=64
python train.py --config=configs/llama_7b.py --workdir=runs/llama_7b

RMS norms before each part, rotary positions, SwiGLU, no biases, softmax weights of their own, rows of 4,096 tokens,
batches of 4 million, 500,000 updates for 2 trillion tokens. As it stands it learns from Python's documentation, byte by
byte: a check that it runs. With --config.data.source=files and --config.data.directory=DIR it learns from train.txt
there; trained weights come with their own vocabulary, see transformer/interop.

Planned for 512 chips of TPU v5p with mesh.data=8 and mesh.fsdp=64: 8.6 GiB of the 95 of each chip, 50 GiB sent by each
chip in a step, bound by compute; by estimate 1.5 s a step, MFU 55 to 75%, 209 hours. On 16 chips of v5e with
mesh.data=4 and mesh.fsdp=4 it does not fit: 50 GiB of 16. See docs/reproduction.md.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.task = "language_modeling"
    config.data.source = "topics"
    config.data.tokenizer_model = "byte"
    config.data.batching = "stream"
    config.data.tokens_per_batch = 4_194_304
    config.data.max_target_length = 4_096

    config.model.variant = "decoder_only"
    config.model.vocab_size = 32_000
    config.model.d_model = 4_096
    config.model.d_ff = 11_008
    config.model.num_heads = 32
    config.model.num_decoder_layers = 32
    config.model.shared_embeddings = "none"
    config.model.norm = "rms_norm"
    config.model.norm_placement = "pre"
    config.model.norm_epsilon = 1e-5
    config.model.position_encoding = "rotary"
    config.model.activation = "swiglu"
    config.model.attention_biases = ()
    config.model.feed_forward_bias = False
    config.model.attention_implementation = "auto"
    config.model.scale_embeddings = False
    config.model.dropout_rate = 0.0
    config.model.dtype = "bfloat16"
    config.model.rematerialize = "layer"

    config.training.num_steps = 500_000
    config.training.schedule = "cosine"
    config.training.learning_rate = 3e-4
    config.training.final_learning_rate = 3e-5
    config.training.warmup_steps = 2_000
    config.training.optimizer = "adamw"
    config.training.beta2 = 0.95
    config.training.epsilon = 1e-5
    config.training.weight_decay = 0.1
    config.training.gradient_clip = 1.0
    config.training.max_tokens_per_device = 8_192
    config.training.label_smoothing = 0.0
    config.training.evaluate_every = 5_000
    config.training.checkpoint_every = 1_000
    config.training.best_metric = "nll_per_token"

    config.decoding.method = "sample"
    config.decoding.top_p = 0.95
    config.decoding.max_source_length = 2_048
    config.decoding.max_extra_tokens = 512

    config.mesh.data = 1
    config.mesh.fsdp = -1
    return start_from(config, workdir)
