"""Every key of every experiment: its type, its default, what it means, what it may be.

A config file starts from :func:`default_config` and sets only what differs. Overrides from the command line go into
the same ``ConfigDict``; :func:`from_config_dict` then turns it once into the frozen dataclasses below, which the rest
of the code reads. All errors that can be found without data or devices appear there, before anything slow.
"""

import dataclasses
import json
import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from ml_collections import config_dict

from transformer.paths import as_path, is_remote
from transformer.types import UserError, nearest, one_of

CONFIG_VERSION = 6


@dataclasses.dataclass(frozen=True)
class DataConfig:
    # files (of what the task learns from) | phrases (generated pairs) | topics (documents: Python's help) |
    # images: digits (scikit-learn's) | image_folder | npz | csv | tfds (TensorFlow Datasets; pairs too)
    source: str = "phrases"
    source_language: str = "en"  # also the ending of the file names
    target_language: str = "de"
    # files, images: the folder of STEM.en and STEM.de, STEM.txt, ..., and of tar archives of them; tfds: NAME/CONFIG or
    # NAME/CONFIG:VERSION in TFDS_DATA_DIR, prepared there if it is not, or the folder of a prepared data set
    directory: Optional[str] = None
    wait_minutes: float = 360.0  # tfds: for another process, or host with the same disk, that prepares the data set
    # documents, files: what is a document: file | line | blank_line (ends at one) | heading (starts at "### ")
    documents: str = "file"
    train: tuple[str, ...] = ("train",)  # files: the stems that make the training split; tfds: the splits
    train_weights: tuple[int, ...] = ()  # how many times each stem is read in an epoch; () = once each
    validation: str = "val"  # files: the stem of the validation split; tfds: the split
    test: str = "test"  # files: the stem of the test split; tfds: the split
    # Training pairs that are left out, and counted: see data/cleaning.py
    cleaning: tuple[str, ...] = ()  # empty | non_printing | identical | duplicates
    cleaning_max_words: Optional[int] = None  # longer pairs on either side, in words between white space; None: none
    cleaning_max_ratio: Optional[float] = None  # pairs of which one side has more than so many times the other's words
    # files (one for each) | end (of the training files: test the last, validation before it; whole documents, but of a
    # single one the last characters) | random (examples drawn by the seed; images: so many of each class)
    split: str = "files"
    validation_share: float = 0.05  # end, random: of all characters; of images of each class
    test_share: float = 0.1  # end, random
    token_labels: str = "given"  # token_classification: given | case_and_punctuation (to be restored in plain text)
    num_phrases: int = 60_000  # phrases: size of the training split
    tokenizer: Optional[str] = None  # a tokenizer's file to use; None: one is made from the training split
    tokenizer_model: str = "bpe"  # bpe | unigram (SentencePiece) | character (those of the training split) | byte
    vocab_size: int = 8_000  # bpe, unigram: pieces, special ones included; of each side if there are two vocabularies
    joint_vocabulary: bool = True  # one vocabulary for both languages
    # bpe, unigram: it is learnt from so many training pairs, or lines of documents, drawn from all (always the same)
    vocabulary_sample: int = 500_000
    extra_ids: int = 0  # pieces that no text has, at the end of the vocabulary: masked_lm needs 1, span_corruption one
    # for each span that a row may lose; tokenizers that were made with such pieces need none
    cache_directory: Optional[str] = None  # tokenised corpora, on local disk; None: $XDG_CACHE_HOME or ~/.cache
    processes: Optional[int] = None  # that tokenise a large corpus; None: one for each core
    # bucket (a pair or document a row, few shapes) | pack (several a row, one shape; none sees another) |
    # stream (language_modeling: all documents as one text, cut into rows)
    batching: str = "bucket"
    tokens_per_batch: int = 25_000  # on the larger side of one update's batch, over all devices
    # tokens_per_batch is of positions, padding included: no batch has more. False: of real tokens, on average over an
    # epoch, as in the paper; Tensor2Tensor and fairseq count positions, and for each device
    count_padding: bool = True
    max_source_length: int = 256  # tokens, EOS included; longer training pairs are dropped and counted
    max_target_length: int = 256  # language_modeling: of a row; longer documents are cut (stream: wherever it falls)
    noise_density: float = 0.15  # masked_lm, span_corruption: the share of the tokens to be guessed
    mean_span_length: float = 3.0  # span_corruption: tokens of a span that is cut out
    whole_words: bool = False  # masked_lm: all pieces of a word or none
    examples_per_batch: int = 256  # images: of one update's batch, over all devices
    image_size: Optional[int] = None  # images are scaled to a square of so many pixels; None: as they are
    image_crop: Optional[float] = None  # the middle square of an image with this share of its shorter side is taken;
    # None: the whole image is made square
    image_resampling: str = "bicubic"  # how images are scaled: nearest | box | bilinear | hamming | bicubic | lanczos
    image_mean: tuple[float, ...] = (0.5,)  # of pixels in 0 to 1, for all channels or each; taken off
    image_std: tuple[float, ...] = (0.5,)  # then divided by
    augmentations: tuple[str, ...] = ()  # the names in data/augmentation.py, in training only, in this order
    crop_padding: int = 4  # crop: pixels that the image is enlarged by on each side
    mixup_alpha: float = 0.2  # mixup: of the Beta distribution that draws the share of the other image
    num_buckets: int = 8  # bucket: at most so many shapes
    prefetch_batches: int = 8  # built ahead of the step


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    variant: str = "encoder_decoder"  # encoder_decoder | decoder_only | encoder_only
    vocab_size: Optional[int] = None  # rows of the embedding, if more than the tokenizer's pieces; None: as many
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    num_kv_heads: Optional[int] = None  # key/value heads, each shared by num_heads / num_kv_heads; None: num_heads
    head_dim: Optional[int] = None  # None: d_model / num_heads
    qk_head_dim: Optional[int] = None  # of queries and keys, where it is less than that of values; None: head_dim
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    norm: str = "layer_norm"  # layer_norm | rms_norm
    norm_placement: str = "post"  # the names in models/layers.py
    norm_epsilon: float = 1e-6
    embedding_norm: bool = False  # normalise the sums of embeddings and positions, before their dropout (BERT)
    layer_scale: Optional[float] = None  # multiply each part's output by a trained vector that starts so; None: none
    stochastic_depth_rate: float = 0.0  # in training the last layer is left out for so many rows, others more rarely
    attention_implementation: str = "dense"  # the names in models/attention, or auto; cached steps are always dense
    attention_window: Optional[int] = None  # local layers see no key further away than window - 1; None: all do
    attention_pattern: tuple[str, ...] = ("local",)  # local | global, one for each layer, repeated over the depth
    attention_logit_softcap: Optional[float] = None  # logits become cap * tanh(logits / cap); None: they stay
    attention_biases: tuple[str, ...] = ("query", "key", "value", "output")  # the projections that have one
    # of the initial weights for queries, keys and values, on Glorot's standard deviation; None: 2**-0.5 with post, or 1
    qkv_init_scale: Optional[float] = None
    scale_attention: bool = True  # divide the dot products by the root of the size of queries and keys
    # decoder_only: the start of a row, so much as the seed draws, is seen whole from everywhere and not predicted; in
    # use, what is given
    prefix_lm: bool = False
    qk_norm: bool = False  # normalise each head's queries and keys (RMS, with a trained scale)
    position_encoding: str = "sinusoidal"  # the names in models/positions.py; for images learned | sincos_2d | none
    max_positions: int = 1_024  # learned: size of the table
    rotary_theta: float = 10_000.0  # rotary: the longest wavelength is 2 pi theta
    rotary_fraction: float = 1.0  # rotary: the share of a head's queries and keys that is turned
    rotary_scaling: str = "none"  # rotary: none | linear | ntk | llama3 | yarn, for longer texts than in training
    rotary_scaling_factor: float = 1.0  # rotary: how many times as long
    rotary_original_length: int = 512  # rotary: length in training; llama3 and yarn need it
    relative_num_buckets: int = 32  # relative_bias
    relative_max_distance: int = 128  # relative_bias: distances from there on share a bucket
    activation: str = "relu"  # the names in models/feed_forward.py
    feed_forward_bias: bool = True
    num_experts: int = 0  # of a mixture in place of the feed-forward; 0: none
    experts_every: int = 1  # every n-th layer has a mixture, the others a feed-forward
    experts_per_token: int = 2
    expert_dispatch: str = "dropless"  # dropless | capacity (tokens beyond an expert's capacity skip it)
    expert_capacity_factor: float = 1.25  # capacity: an expert takes factor * tokens * experts_per_token / num_experts
    expert_router: str = "softmax"  # softmax | sigmoid (with a bias for the choice that evens out the load)
    d_ff_shared: int = 0  # width of one more expert that every token passes; 0: none
    load_balancing_weight: float = 0.01  # of the load-balancing loss in the training loss
    router_z_weight: float = 0.001  # of the router's z-loss
    # all (source, target, softmax) | target (target, softmax) | inputs (source, target) | none; of models with one
    # kind of tokens: none (softmax weights of their own), else the softmax weights are the embeddings
    shared_embeddings: str = "all"
    scale_embeddings: bool = True  # multiply embeddings by sqrt(d_model)
    scale_logits: bool = False  # divide what goes into the softmax weights by sqrt(d_model) (T5 of 2019)
    output_bias: bool = False  # a trained bias on each token's logit
    token_types: int = 0  # encoder_only: kinds of segments that have an embedding (BERT: 2, the texts of a pair)
    pooling: str = "first"  # encoder_only: what stands for the whole input: first (class token) | mean
    pooler: bool = False  # encoder_only: a linear map and tanh on that (BERT)
    patch_size: int = 16  # images: pixels of a patch's side
    class_token: bool = True  # images: a trained vector before the patches
    num_registers: int = 0  # images: trained vectors behind it that are no output (Darcet et al. 2023)
    position_grid: Optional[int] = None  # images, learned: patches on a side of the table; None: those of image_size
    dropout_rate: float = 0.1  # on sub-layer outputs and on the sums of embeddings and positions
    attention_dropout_rate: float = 0.0  # on the attention weights; not in the paper's text
    activation_dropout_rate: float = 0.0  # after the activation of the feed-forward; not in the paper's text
    dtype: str = "float32"  # of the computation: float32 | bfloat16; parameters are float32
    scan_unroll: int = 1  # layers a turn of the scan holds
    # what the backward pass computes once more, for want of memory: none | attention (all but the outputs of linear
    # maps) | layer (all but each layer's input)
    rematerialize: str = "none"

    @property
    def head_size(self) -> int:
        """``head_dim``, or what it is by default."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def qk_head_size(self) -> int:
        """``qk_head_dim``, or what it is by default."""
        return self.qk_head_dim or self.head_size

    @property
    def qkv_scale(self) -> float:
        """``qkv_init_scale``, or what it is by default."""
        if self.qkv_init_scale is None:
            return 2**-0.5 if self.norm_placement == "post" else 1.0
        return self.qkv_init_scale

    @property
    def kv_heads(self) -> int:
        """``num_kv_heads``, or what it is by default."""
        return self.num_kv_heads or self.num_heads


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    num_steps: int = 100_000  # updates
    schedule: str = "paper"  # the names in training/schedules.py
    learning_rate: float = 1.0  # the peak; for `paper` a factor on d_model^-0.5 min(s^-0.5, s warmup^-1.5)
    warmup_steps: int = 4_000
    decay_steps: Optional[int] = None  # warmup_stable_decay: length of the decay at the end; None: a tenth
    final_learning_rate: float = 0.0  # linear, cosine, warmup_stable_decay: where the decay ends
    optimizer: str = "adam"  # adam | adamw | adafactor | lion
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    moment_dtype: str = "float32"  # adam, adamw, lion: of the first moment: float32 | bfloat16
    weight_decay: float = 0.0  # adamw, adafactor, lion: on matrices only
    gradient_clip: Optional[float] = None  # largest global norm; None: no clipping
    accumulation_steps: int = 1  # an update's batch is computed in so many parts
    # positions on the longer side that a device computes at a time: a batch that has more for each device is computed
    # in as many parts as that takes; None: in accumulation_steps parts. The update is the same but for dropout, which
    # each part draws anew: another number of parts, as other devices make it, draws another pattern
    max_tokens_per_device: Optional[int] = None
    ema_decay: Optional[float] = None  # of the exponential moving average of the weights; None: none is kept
    label_smoothing: float = 0.1
    label_smoothing_form: str = "uniform"  # the names in tasks/losses.py
    initialize_from: Optional[str] = None  # workdir whose parameters and tokenizer a new run starts from; what
    # --config=NAME.py:WORKDIR sets, with the keys of the model there, where a config has no variants
    trainable: tuple[str, ...] = ()  # the parts that are trained, as in the parameters' first names; (): all
    overfit_one_batch: bool = False  # debugging: see batch 0 at every step
    log_every: int = 100  # steps
    evaluate_every: int = 5_000  # steps
    checkpoint_every: int = 5_000  # steps
    keep_checkpoints: int = 5  # the newest so many, and the best
    best_metric: str = "bleu"  # of the validation scores; the checkpoint with the best is kept
    max_minutes: Optional[float] = None  # save and stop after so long, as if interrupted, but with exit code 0
    preempted_exit_code: int = 143  # after SIGTERM or Ctrl-C: saved, not finished


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    method: str = "beam"  # beam | greedy | sample
    beam_size: int = 4
    length_penalty: str = "gnmt"  # gnmt ((5 + n) / 6)^alpha | power n^alpha | none
    alpha: float = 0.6
    max_extra_tokens: int = 50  # an output has at most this many tokens more than its input
    max_source_length: int = 512  # longer inputs are cut with a warning
    temperature: float = 1.0  # sample
    seed: int = 0  # sample: another one gives other outputs
    top_k: int = 0  # sample: only the k likeliest pieces; 0: all
    top_p: float = 1.0  # sample: only the likeliest pieces that together have this probability
    min_p: float = 0.0  # sample: only pieces with at least this share of the likeliest one's probability
    repetition_penalty: float = 1.0  # decoder_only: a piece that has occurred gets a logit so many times as bad
    stop: tuple[str, ...] = ()  # decoder_only: an output ends before the first of these strings
    # translation: the data are Moses' tokens; outputs become text, by the rules of data.target_language, and so do the
    # references of a split
    detokenize: bool = False
    tokens_per_batch: int = 4_096  # source positions decoded at a time


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    beam_size: int = 4  # of the BLEU during training (1: greedy)
    max_examples: Optional[int] = None  # of the validation split that are translated during training; None: all
    window: Optional[int] = None  # language_modeling: tokens a window; None: max_target_length
    stride: Optional[int] = None  # language_modeling: tokens from window to window; None: half of the window


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    platform: str = "auto"  # auto | cpu | gpu | tpu: obeyed or an error
    # devices along each axis of the mesh, whose product they are; -1, of one axis: as many as are left
    data: int = -1  # share the rows of a batch
    fsdp: int = 1  # share the rows of a batch, and the parameters and the optimizer's state along the model's width
    expert: int = 1  # share the rows of a batch, and the experts of mixtures
    sequence: int = 1  # share the length of each row
    tensor: int = 1  # share heads, hidden units of feed-forwards, and the vocabulary
    distributed: bool = False  # several processes train together, each with devices of its own
    # which they are, where neither Slurm nor Kubernetes, Open MPI or Cloud TPU says so
    coordinator: Optional[str] = None  # HOST:PORT of the first, which the others can reach
    num_processes: Optional[int] = None
    process: Optional[int] = None  # the number of this one, from 0
    wait_seconds: int = 300  # for the others, at the start


@dataclasses.dataclass(frozen=True)
class Config:
    config_version: int = CONFIG_VERSION
    task: str = "translation"  # the names in tasks/__init__.py
    seed: int = 0
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    decoding: DecodingConfig = dataclasses.field(default_factory=DecodingConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)


MESH_AXES = ("data", "fsdp", "expert", "sequence", "tensor")
"""The axes of the mesh of devices, keys of ``mesh``."""

IMAGE_SOURCES = ("digits", "image_folder", "npz", "csv", "tfds")
"""The values of ``data.source`` that give images."""

IMAGE_PREPARATION = ("image_size", "image_crop", "image_resampling", "image_mean", "image_std")
"""The keys of ``data`` that say what becomes of an image before a model is given it."""

IMAGE_RESAMPLINGS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""The values of ``data.image_resampling``, each at its number in Pillow."""
TASKS_OF_PAIRS = ("translation", "sentence_embedding")
"""The values of ``task`` that learn from pairs of lines."""

VARIANTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "encoder_decoder": (("source", "target"), ("encoder", "decoder")),
    "decoder_only": (("target",), ("decoder",)),
    "encoder_only": (("source",), ("encoder",)),
}
"""Of each variant of the model: the sides of the data that have lengths, and the stacks that have layers."""

HARMLESS_KEYS = (
    "data.directory",  # the data's fingerprint is compared instead
    "data.cache_directory",
    "data.processes",
    "data.wait_minutes",
    "data.prefetch_batches",
    "decoding",
    "evaluation",
    "mesh",
    "model.rematerialize",
    "training.log_every",
    "training.evaluate_every",
    "training.checkpoint_every",
    "training.keep_checkpoints",
    "training.best_metric",
    "training.max_minutes",
    "training.max_tokens_per_device",  # of dropout it draws another pattern, as another number of devices does then
    "training.preempted_exit_code",
)
"""Keys, or sections, that may change when a run is continued: they leave the parameters as they are."""

COMPUTATION_KEYS = (
    "data.image_size",
    "model.attention_implementation",
    "model.dtype",
    "model.rotary_original_length",
    "model.rotary_scaling",
    "model.rotary_scaling_factor",
    "model.scan_unroll",
)
"""Keys that a trained model may be run under with other values: its parameters know nothing of them. So other kernels
serve where those of its training cannot, and longer texts or larger images can be read."""

SCHEDULES_FREE_OF_NUM_STEPS = ("paper", "inverse_square_root", "constant_inverse_square_root", "constant")
"""Under these schedules ``training.num_steps`` may change too."""


def default_config() -> config_dict.ConfigDict:
    """All keys at their defaults, typed and locked: what every file in ``configs/`` starts from."""
    return to_config_dict(Config())


def start_from(config: config_dict.ConfigDict, workdir: str) -> config_dict.ConfigDict:
    """Make a config start from a workdir: from its parameters, with the keys of its model and its tokenizer.

    Images are prepared as they were there. All else stays what the config says. Config files that have no variants end
    with it, so that each takes a workdir: ``--config=configs/NAME.py:WORKDIR``.

    Args:
      config: is changed, and given back.
      workdir: of a run, or of imported weights; "": nothing is changed.

    Raises:
      UserError: if the workdir holds no config that can be read.
    """
    if not workdir:
        return config
    folder = as_path(workdir)
    try:
        there = from_json((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder / 'config.json'} cannot be read ({error}); give the workdir of a run, or of imported weights, "
            "after the colon"
        ) from None
    config.model = to_config_dict(there.model)
    if there.data.source in IMAGE_SOURCES:
        config.data.update({key: getattr(there.data, key) for key in IMAGE_PREPARATION})
    config.training.initialize_from = str(folder)
    return config


def one_variant(file: str, name: str, variants: Mapping[str, Any]) -> Any:
    """The entry of a config file's variants.

    Args:
      file: its path, for the message.
      name: what stands after the colon of ``--config=FILE:NAME``.
      variants: by name.

    Raises:
      UserError: if there is none of that name; for a folder with the key that starts from it.
    """
    if name not in variants and as_path(name).is_dir():
        raise UserError(
            f"{file}:{name}: this file has variants ({', '.join(variants)}), and takes no workdir after the colon; to "
            f"start from its parameters and tokenizer: --config.training.initialize_from={name}"
        )
    return one_of(f"variant of {file}", name, variants)


def to_config_dict(config: Any) -> config_dict.ConfigDict:
    """The dataclasses as a ``ConfigDict`` that refuses unknown keys and wrong types."""
    result = config_dict.ConfigDict()
    for field, kind in _fields(config):
        value = getattr(config, field)
        if dataclasses.is_dataclass(value):
            result[field] = to_config_dict(value)
        elif _optional(kind):
            result[field] = config_dict.placeholder(_optional(kind))
            if value is not None:
                result[field] = value
        else:
            result[field] = value
    return result.lock()


def from_config_dict(values: Mapping[str, Any] | config_dict.ConfigDict) -> Config:
    """The dataclasses, checked.

    Raises:
      UserError: for an unknown key (with the nearest name), a wrong type, or values that do not go together.
    """
    if isinstance(values, config_dict.ConfigDict):
        values = values.to_dict()
    if values.get("config_version") != CONFIG_VERSION:
        raise UserError(
            f"config_version={values.get('config_version')} was written by another version of this code; "
            f"this one reads {CONFIG_VERSION}"
        )
    config = _build(Config, values, "")
    check(config)
    return config


def to_json(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str) -> Config:
    return from_config_dict(json.loads(text))


def flatten(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values."""
    for field, _ in _fields(config):
        value = getattr(config, field)
        if dataclasses.is_dataclass(value):
            yield from flatten(value, f"{prefix}{field}.")
        else:
            yield prefix + field, value


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Keys whose change makes another experiment of a run: ``{dotted key: (old, new)}``."""
    harmless = list(HARMLESS_KEYS)
    if old.training.schedule in SCHEDULES_FREE_OF_NUM_STEPS:
        harmless.append("training.num_steps")
    changed = dict(flatten(new))
    return {
        key: (value, changed[key])
        for key, value in flatten(old)
        if value != changed[key] and not any(key == name or key.startswith(name + ".") for name in harmless)
    }


def check(config: Config) -> None:
    """Raise a ``UserError`` for values that cannot work; those that need the data are checked where it is read."""
    data, model, training, decoding = config.data, config.model, config.training, config.decoding

    _at_least("seed", config.seed, 0)
    _at_least("decoding.seed", decoding.seed, 0)
    _one_of("data.source", data.source, ("files", "phrases", "topics", *IMAGE_SOURCES))
    _one_of("data.documents", data.documents, ("file", "line", "blank_line", "heading"))
    _one_of("data.split", data.split, ("files", "end", "random"))
    _one_of("data.token_labels", data.token_labels, ("given", "case_and_punctuation"))
    _one_of("data.tokenizer_model", data.tokenizer_model, ("bpe", "unigram", "character", "byte"))
    _one_of("data.batching", data.batching, ("bucket", "pack", "stream"))
    for key in (
        "num_phrases",
        "vocab_size",
        "vocabulary_sample",
        "tokens_per_batch",
        "num_buckets",
        "examples_per_batch",
    ):
        _at_least(f"data.{key}", getattr(data, key), 1)
    one_of("model.variant", model.variant, VARIANTS)
    sides, stacks = VARIANTS[model.variant]
    for key in (f"max_{side}_length" for side in sides):
        _at_least(f"data.{key}", getattr(data, key), 2)
        if getattr(data, key) > data.tokens_per_batch:
            raise UserError(
                f"data.{key}={getattr(data, key)} does not fit into data.tokens_per_batch={data.tokens_per_batch}; "
                "make the batch larger or the limit smaller"
            )
        limit = training.max_tokens_per_device
        if limit is not None and getattr(data, key) > limit:
            raise UserError(
                f"training.max_tokens_per_device={limit} is less than a row of data.{key}={getattr(data, key)} "
                "tokens; make it larger or the rows shorter"
            )
    if training.max_tokens_per_device is not None:
        if training.accumulation_steps != 1:
            raise UserError(
                f"training.accumulation_steps={training.accumulation_steps} would follow from "
                f"training.max_tokens_per_device={training.max_tokens_per_device}; set one of them"
            )
        if config.task in ("image_classification", "sentence_embedding"):
            raise UserError(
                f"training.max_tokens_per_device: of task={config.task} the parts of a batch are no matter of tokens; "
                "use training.accumulation_steps"
            )
    if not data.count_padding and (config.task == "image_classification" or data.batching == "stream"):
        what = "images have" if config.task == "image_classification" else "data.batching=stream has"
        raise UserError(f"data.count_padding=False does nothing: {what} no padding; take the key away")
    _at_least("data.prefetch_batches", data.prefetch_batches, 0)
    for key in ("validation_share", "test_share"):
        _within(f"data.{key}", getattr(data, key), 0.0, 1.0)
    if data.split != "files" and not 0 < data.validation_share + data.test_share < 1:
        raise UserError(
            f"data.validation_share={data.validation_share} and data.test_share={data.test_share} must leave something "
            f"for training and hold something out, or there is no data.split={data.split}"
        )
    _within("data.noise_density", data.noise_density, 0.0, 1.0)
    if data.mean_span_length < 1:
        raise UserError(f"data.mean_span_length={data.mean_span_length} must be at least 1 token")
    _at_least("data.extra_ids", data.extra_ids, 0)
    _at_least("data.crop_padding", data.crop_padding, 0)
    _one_of("data.image_resampling", data.image_resampling, IMAGE_RESAMPLINGS)
    if data.image_crop is not None and (data.image_size is None or not 0 < data.image_crop <= 1):
        raise UserError(
            f"data.image_crop={data.image_crop} must lie above 0 and at most at 1, and data.image_size="
            f"{data.image_size} must say what the square is scaled to"
        )
    if any(value <= 0 for value in (*data.image_std, data.mixup_alpha, data.image_size or 1)):
        raise UserError(
            f"data.image_std={data.image_std}, data.mixup_alpha={data.mixup_alpha} and data.image_size="
            f"{data.image_size} must be above 0"
        )
    if data.source == "files" and data.directory is None:
        two = config.task == "translation"
        names = " and ".join(f"{data.train[0]}.{end}" for end in (data.source_language, data.target_language))
        named = f"holds {names}" if two else f"holds the files of {data.train[0]}"
        raise UserError(f"data.directory is not set; give the folder that {named}: --config.data.directory=DIR")
    for name in data.cleaning:
        _one_of("data.cleaning", name, ("empty", "non_printing", "identical", "duplicates"))
    for key in ("cleaning", "cleaning_max_words", "cleaning_max_ratio"):
        value = getattr(data, key)
        if value and (data.source not in ("files", "tfds") or config.task not in TASKS_OF_PAIRS):
            raise UserError(
                f"data.{key}={value} cleans the pairs of data.source=files or tfds, and task={config.task} reads "
                f"data.source={data.source}; take the key away"
            )
    if data.cleaning_max_words is not None:
        _at_least("data.cleaning_max_words", data.cleaning_max_words, 1)
    if data.cleaning_max_ratio is not None and data.cleaning_max_ratio < 1:
        raise UserError(f"data.cleaning_max_ratio={data.cleaning_max_ratio} must be at least 1")
    if data.processes is not None:
        _at_least("data.processes", data.processes, 1)
    if data.cache_directory is not None and is_remote(data.cache_directory):
        raise UserError(
            f"data.cache_directory={data.cache_directory} must be on local disk, for tokenised text is mapped into "
            "memory; leave it out, or give a folder there"
        )
    if data.wait_minutes < 0:
        raise UserError(f"data.wait_minutes={data.wait_minutes} must be at least 0")
    if data.train_weights and len(data.train_weights) != len(data.train):
        raise UserError(
            f"data.train_weights={data.train_weights} must have one number for each of data.train={data.train}"
        )
    if any(weight < 1 for weight in data.train_weights):
        raise UserError(f"data.train_weights={data.train_weights} must all be whole numbers from 1 up")

    _one_of("model.shared_embeddings", model.shared_embeddings, ("all", "target", "inputs", "none"))
    _one_of("model.dtype", model.dtype, ("float32", "bfloat16"))
    for key in ("norm_epsilon", "load_balancing_weight", "router_z_weight"):
        if getattr(model, key) < 0:
            raise UserError(f"model.{key}={getattr(model, key)} must be at least 0")
    _one_of("model.pooling", model.pooling, ("first", "mean"))
    for key in ("token_types", "num_registers"):
        _at_least(f"model.{key}", getattr(model, key), 0)
    for key in ("vocab_size", "position_grid", "patch_size", "head_dim"):
        if getattr(model, key) is not None:
            _at_least(f"model.{key}", getattr(model, key), 1)
    for key in ("d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers", "scan_unroll"):
        _at_least(f"model.{key}", getattr(model, key), 1)
    for key in ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate", "stochastic_depth_rate"):
        _within(f"model.{key}", getattr(model, key), 0.0, 1.0)
    _check_attention(model)
    _check_experts(model)
    if model.num_experts and model.expert_dispatch == "capacity" and data.batching == "pack":
        raise UserError(
            "model.expert_dispatch=capacity with data.batching=pack lets the texts of a row take each other's "
            "capacity; use data.batching=bucket or model.expert_dispatch=dropless"
        )
    if model.prefix_lm:
        for key, value, reason in (
            ("model.variant", model.variant != "decoder_only" and model.variant, "has no prefix; use decoder_only"),
            ("data.batching", data.batching == "pack" and "pack", "has several texts in a row; use bucket or stream"),
            ("model.attention_window", model.attention_window, "hides what a prefix shows; use None"),
        ):
            if value:
                raise UserError(f"model.prefix_lm=True: {key}={value} {reason}")
    turn = math.lcm(len(model.attention_pattern), model.experts_every if model.num_experts else 1)
    for key in (f"num_{stack}_layers" for stack in stacks):
        if getattr(model, key) % turn:
            raise UserError(
                f"model.{key}={getattr(model, key)} is no multiple of {turn}, after which "
                f"model.attention_pattern={','.join(model.attention_pattern)} and "
                f"model.experts_every={model.experts_every} repeat"
            )
    if model.position_encoding == "learned":
        lengths = {f"data.max_{side}_length": getattr(data, f"max_{side}_length") for side in sides}
        if "decoder" in stacks:
            name = "decoding.max_source_length + decoding.max_extra_tokens"
            lengths[name] = decoding.max_source_length + decoding.max_extra_tokens
        for name, length in lengths.items():
            if length > model.max_positions:
                raise UserError(
                    f"{name}={length} is more than model.max_positions={model.max_positions} can tell apart"
                )
    if model.shared_embeddings in ("all", "inputs") and not data.joint_vocabulary:
        raise UserError(
            f"model.shared_embeddings={model.shared_embeddings} needs one vocabulary for both languages; set "
            "data.joint_vocabulary=True or model.shared_embeddings=target"
        )

    _one_of("training.optimizer", training.optimizer, ("adam", "adamw", "adafactor", "lion"))
    _one_of("training.moment_dtype", training.moment_dtype, ("float32", "bfloat16"))
    if training.optimizer == "adafactor" and training.moment_dtype != "float32":
        raise UserError("training.optimizer=adafactor keeps no first moment; leave training.moment_dtype=float32")
    if training.weight_decay and training.optimizer == "adam":
        raise UserError(f"training.weight_decay={training.weight_decay} does nothing under adam; use adamw")
    for key in ("num_steps", "accumulation_steps", "log_every", "evaluate_every", "checkpoint_every"):
        _at_least(f"training.{key}", getattr(training, key), 1)
    _at_least("training.keep_checkpoints", training.keep_checkpoints, 1)
    _at_least("training.warmup_steps", training.warmup_steps, 0)
    _within("training.label_smoothing", training.label_smoothing, 0.0, 1.0)
    if training.ema_decay is not None:
        _within("training.ema_decay", training.ema_decay, 0.0, 1.0)
    if training.learning_rate <= 0:
        raise UserError(f"training.learning_rate={training.learning_rate} must be above 0")
    if not 1 <= training.preempted_exit_code <= 255:
        raise UserError(f"training.preempted_exit_code={training.preempted_exit_code} must lie in 1 to 255")

    _one_of("decoding.method", decoding.method, ("beam", "greedy", "sample"))
    _one_of("decoding.length_penalty", decoding.length_penalty, ("gnmt", "power", "none"))
    for key in ("beam_size", "max_extra_tokens", "tokens_per_batch"):
        _at_least(f"decoding.{key}", getattr(decoding, key), 1)
    _at_least("decoding.max_source_length", decoding.max_source_length, 2)
    _at_least("decoding.top_k", decoding.top_k, 0)
    if decoding.temperature <= 0:
        raise UserError(f"decoding.temperature={decoding.temperature} must be above 0; use decoding.method=greedy")
    if not 0 < decoding.top_p <= 1:
        raise UserError(f"decoding.top_p={decoding.top_p} must lie above 0 and at most at 1")
    if not 0 <= decoding.min_p <= 1:
        raise UserError(f"decoding.min_p={decoding.min_p} must lie in 0 to 1")
    if decoding.repetition_penalty <= 0:
        raise UserError(f"decoding.repetition_penalty={decoding.repetition_penalty} must be above 0; 1 is none")
    if decoding.detokenize and config.task != "translation":
        raise UserError(f"decoding.detokenize is for task=translation, not task={config.task}; leave it at False")
    if "" in decoding.stop:
        raise UserError("decoding.stop holds an empty string, at which every output would end")
    _at_least("evaluation.beam_size", config.evaluation.beam_size, 1)
    window, stride = config.evaluation.window, config.evaluation.stride
    if window is not None:
        _at_least("evaluation.window", window, 2)
    window = window or data.max_target_length
    if stride is not None and not 1 <= stride <= window:
        raise UserError(
            f"evaluation.stride={stride} must lie in 1 to the window of {window} tokens, or tokens would be left out"
        )
    _one_of("mesh.platform", config.mesh.platform, ("auto", "cpu", "gpu", "tpu"))
    sizes = {axis: getattr(config.mesh, axis) for axis in MESH_AXES}
    for axis, size in sizes.items():
        if size != -1:
            _at_least(f"mesh.{axis}", size, 1)
    open_axes = [f"mesh.{axis}" for axis, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        raise UserError(f"{' and '.join(open_axes)} are -1, as many devices as are left; state all of them but one")
    _check_processes(config.mesh)


def _check_processes(mesh: MeshConfig) -> None:
    _at_least("mesh.wait_seconds", mesh.wait_seconds, 1)
    keys = {"coordinator": mesh.coordinator, "num_processes": mesh.num_processes, "process": mesh.process}
    stated = [f"mesh.{key}" for key, value in keys.items() if value is not None]
    if stated and not mesh.distributed:
        raise UserError(f"{' and '.join(stated)} have no effect without mesh.distributed=True")
    if mesh.num_processes is None or mesh.process is None or mesh.coordinator is None:
        if len(stated) in (1, 2):
            raise UserError(
                f"{' and '.join(stated)} alone do not say who the processes are; set mesh.coordinator, "
                "mesh.num_processes and mesh.process, or none of them where the cluster says it"
            )
        return
    _at_least("mesh.num_processes", mesh.num_processes, 1)
    if not 0 <= mesh.process < mesh.num_processes:
        raise UserError(
            f"mesh.process={mesh.process} must lie in 0 to mesh.num_processes - 1 = {mesh.num_processes - 1}"
        )
    if not mesh.coordinator.rpartition(":")[2].isdecimal() or ":" not in mesh.coordinator:
        raise UserError(f"mesh.coordinator={mesh.coordinator} has no port; write HOST:PORT")


def _check_attention(model: ModelConfig) -> None:
    if model.head_dim is None and model.d_model % model.num_heads:
        divisors = [str(n) for n in range(1, model.d_model + 1) if model.d_model % n == 0][:12]
        raise UserError(
            f"model.num_heads={model.num_heads} does not divide model.d_model={model.d_model}; "
            f"use one of {', '.join(divisors)}, or state model.head_dim"
        )
    if model.qk_head_dim is not None and not 1 <= model.qk_head_dim <= model.head_size:
        raise UserError(
            f"model.qk_head_dim={model.qk_head_dim} must lie in 1 to the size of a head's values, {model.head_size}; "
            "set model.head_dim too"
        )
    if model.num_kv_heads is not None:
        divisors = [str(n) for n in range(1, model.num_heads + 1) if model.num_heads % n == 0]
        if str(model.num_kv_heads) not in divisors:
            raise UserError(
                f"model.num_kv_heads={model.num_kv_heads} does not divide model.num_heads={model.num_heads}; "
                f"use one of {', '.join(divisors)}"
            )
    if not model.attention_pattern:
        raise UserError("model.attention_pattern is empty; use local, or for example local,local,local,global")
    for name in model.attention_pattern:
        _one_of("model.attention_pattern", name, ("local", "global"))
    if model.attention_window is not None:
        _at_least("model.attention_window", model.attention_window, 1)
        if "local" not in model.attention_pattern:
            raise UserError(
                f"model.attention_window={model.attention_window} does nothing: model.attention_pattern="
                f"{','.join(model.attention_pattern)} has no local layer"
            )
    elif "global" in model.attention_pattern and "local" in model.attention_pattern:
        raise UserError(
            f"model.attention_pattern={','.join(model.attention_pattern)} does nothing without model.attention_window"
        )
    for key in ("attention_logit_softcap", "qkv_init_scale"):
        value = getattr(model, key)
        if value is not None and value <= 0:
            raise UserError(f"model.{key}={value} must be above 0, or None")
    for name in model.attention_biases:
        _one_of("model.attention_biases", name, ("query", "key", "value", "output"))
    _one_of("model.rotary_scaling", model.rotary_scaling, ("none", "linear", "ntk", "llama3", "yarn"))
    if model.rotary_scaling != "none":
        for key, value, idle in (
            ("rotary_scaling_factor", model.rotary_scaling_factor, model.rotary_scaling_factor == 1),
            ("position_encoding", model.position_encoding, model.position_encoding != "rotary"),
        ):
            if idle:
                raise UserError(f"model.rotary_scaling={model.rotary_scaling} does nothing with model.{key}={value}")
    if model.position_encoding == "rotary":
        turned = model.qk_head_size * model.rotary_fraction
        if turned != int(turned) or turned % 2 or not 2 <= turned <= model.qk_head_size:
            raise UserError(
                f"model.rotary_fraction={model.rotary_fraction} of a head of {model.qk_head_size} is {turned:g} "
                "components; it must be an even number of them, at least 2"
            )
        if model.rotary_scaling == "ntk" and turned == 2:
            raise UserError("model.rotary_scaling=ntk needs heads of which more than 2 components are turned")
        if model.rotary_scaling_factor < 1 or model.rotary_theta <= 1 or model.rotary_original_length < 1:
            raise UserError(
                f"model.rotary_scaling_factor={model.rotary_scaling_factor} and model.rotary_original_length="
                f"{model.rotary_original_length} must be at least 1, model.rotary_theta={model.rotary_theta} above 1"
            )
    if model.position_encoding == "relative_bias":
        buckets, distance = model.relative_num_buckets, model.relative_max_distance
        if buckets < 4 or buckets % 4 or distance <= buckets // 2:
            raise UserError(
                f"model.relative_num_buckets={buckets} must be a multiple of 4, and "
                f"model.relative_max_distance={distance} more than half of it"
            )
    if model.position_encoding == "learned":
        _at_least("model.max_positions", model.max_positions, 1)


def _check_experts(model: ModelConfig) -> None:
    _at_least("model.num_experts", model.num_experts, 0)
    _at_least("model.experts_every", model.experts_every, 1)
    _one_of("model.expert_dispatch", model.expert_dispatch, ("dropless", "capacity"))
    _one_of("model.expert_router", model.expert_router, ("softmax", "sigmoid"))
    _at_least("model.d_ff_shared", model.d_ff_shared, 0)
    if model.d_ff_shared and not model.num_experts:
        raise UserError(f"model.d_ff_shared={model.d_ff_shared} does nothing without model.num_experts")
    if model.num_experts and not 1 <= model.experts_per_token <= model.num_experts:
        raise UserError(
            f"model.experts_per_token={model.experts_per_token} must lie in 1 to model.num_experts={model.num_experts}"
        )
    if model.num_experts > 1 and model.expert_router == "sigmoid" and model.experts_per_token == 1:
        raise UserError(
            "model.expert_router=sigmoid with model.experts_per_token=1 gives every chosen expert the weight 1: the "
            "router learns nothing from the output; use softmax, or more experts for a token"
        )
    if model.expert_capacity_factor <= 0:
        raise UserError(f"model.expert_capacity_factor={model.expert_capacity_factor} must be above 0")


def _one_of(key: str, value: str, names: tuple[str, ...]) -> None:
    one_of(key, value, dict.fromkeys(names))


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"{key}={value} must be at least {least}")


def _within(key: str, value: float, least: float, below: float) -> None:
    if not least <= value < below:
        raise UserError(f"{key}={value} must be at least {least:g} and below {below:g}")


def _fields(config: Any) -> list[tuple[str, Any]]:
    hints = typing.get_type_hints(type(config) if not isinstance(config, type) else config)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(config)]


def _optional(kind: Any) -> Any:
    """The type T of Optional[T], else None."""
    arguments = typing.get_args(kind)
    return arguments[0] if type(None) in arguments else None


def _build(kind: Any, values: Mapping[str, Any], prefix: str) -> Any:
    fields = dict(_fields(kind))
    for key in values:
        if key not in fields:
            raise UserError(f"unknown config key {prefix}{key}{nearest(key, fields)}")
    arguments = {}
    for field, wanted in fields.items():
        if field not in values:
            raise UserError(f"config key {prefix}{field} is missing")
        value = values[field]
        if dataclasses.is_dataclass(wanted):
            arguments[field] = _build(wanted, value, f"{prefix}{field}.")
        else:
            arguments[field] = _convert(prefix + field, value, wanted)
    return kind(**arguments)


def _convert(key: str, value: Any, wanted: Any) -> Any:
    inner = _optional(wanted)
    if inner is not None:
        return None if value is None else _convert(key, value, inner)
    if typing.get_origin(wanted) is tuple:
        if isinstance(value, str) or not isinstance(value, (tuple, list)):
            raise UserError(f"{key}={value!r} must be a list, for example --config.{key}=\"('a', 'b')\"")
        if len(value) == 1 and isinstance(value[0], str) and key != "decoding.stop":
            # What a flag --config.KEY=a,b comes as. A stop string may hold a comma itself.
            value = [item for item in map(str.strip, value[0].split(",")) if item]
        return tuple(_convert(key, item, typing.get_args(wanted)[0]) for item in value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise UserError(f"{key}={value!r} must be of type {wanted.__name__}, not {type(value).__name__}")
    return value
