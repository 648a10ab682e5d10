"""WMT14 English to German, the experiment of Attention Is All You Need: base and big, and what others made of them.

python train.py --config=configs/wmt14_en_de.py:base --workdir=runs/base
python eval.py --workdir=runs/base --split=test --checkpoint=average:5

The data is TFDS's (requirements-tfds.txt): 4,508,785 pairs; newstest2013 to look at during training, newstest2014 as
the test. Text files do as well: --config.data.source=files --config.data.directory=DIR, with their stems in
--config.data.train, --config.data.validation and --config.data.test.

variant   what                          parameters   paper   A100, hours   newstest2014, paper's score   sacreBLEU
base      512 wide, 100,000 steps       63,082,496     65M           3.3   27.3                          26.3 - 26.6
big       1,024 wide, 300,000 steps    214,245,376    213M            33   28.4                          27.5 - 27.8
modern    base in a design of today     63,086,592                   3.3   about base's, by estimate
t2t       transformer_base of T2T       60,880,896                   3.5   about base's, by estimate
fairseq   big with its training        209,911,808                    32   about big's, by estimate

The paper's score is of tokenised text with hyphenated compounds split. The last column rests on published figures, in
which it is 0.7 to 1.0 higher than sacreBLEU on the text itself; eval.py gave 0.2 lower to 1.0 higher for the 16 systems
of WMT17, and 0.05 to 0.4 higher for 12 of them. No vocabulary gives both of the paper's rounded numbers of parameters;
these are for 37,000 pieces (t2t and fairseq: 32,768). None of these was trained here.

Hardware: any. A batch of 25,000 tokens is computed in as many parts as the devices need: training.max_tokens_per_device
positions at a time. Where these are rows of 256 tokens, the longest, parameters, optimizer and step take 6.5 GiB for
base, 7.8 for modern, 6.7 for t2t and 8.4 for big, by XLA's count for a CPU, in float32. JAX is lent 12 of the 16 GB of
a GPU; other kinds of devices have other programs, and --dry_run says what this one needs.

The paper took 12 hours for base and 3.5 days for big on eight P100. The hours above are estimates, from our count of
FLOPs (1.1e18 for base, 1.1e19 for big) at 30% of the peak in bfloat16 (--config.model.dtype=bfloat16; the paper
computed in float32); four chips of TPU v4 would take 0.9 and 9. In that count 13 to 16% of the positions are padding,
by the lengths of 10,000 training pairs and of newstest2008-2012. There are 16 shapes, each compiled once. The 20
checkpoints of big that are averaged, with --checkpoint=average:20, take 52 GB.

Where this differs from the paper: its vocabulary of about 37,000 was learnt by another program on tokenised text; its
checkpoints were 10 minutes apart, which were 1,500 steps of base (0.4 s each) and 600 of big (1.0 s): here 1,250, which
divide the 100,000, and 600; the biases of the attention's projections, about which it says nothing, are there; pairs of
more than 256 tokens on a side are left out; a batch has 25,000 tokens on the larger side, on average, and somewhat
fewer on the other.
"""

from collections.abc import Callable
from typing import NamedTuple, Optional

from ml_collections import ConfigDict

from transformer.config import default_config, one_variant


class Published(NamedTuple):
    """A variant's parameters, and what was published of it.

    parameters   of the config as it stands, exactly
    millions     as the paper prints them, rounded; None: it prints none
    bleu         in percent, of tokenised, cased text with hyphenated compounds split; None: not known
    sacrebleu    the least and the most that is to be expected of sacreBLEU, 13a, cased; None: not known
    flops        of the training, as the paper estimates them; None: it does not
    perplexity   per piece of newstest2013; None: not known
    """

    parameters: int
    millions: Optional[int] = None
    bleu: Optional[float] = None
    sacrebleu: Optional[tuple[float, float]] = None
    flops: Optional[float] = None
    perplexity: Optional[float] = None


PUBLISHED = {
    "base": Published(63_082_496, 65, 27.3, (26.3, 26.6), 3.3e18),
    "big": Published(214_245_376, 213, 28.4, (27.5, 27.8), 2.3e19),
    "modern": Published(63_086_592),
    "t2t": Published(60_880_896),
    "fairseq": Published(209_911_808),  # its scores are of other batches
}
"""BLEU on newstest2014."""


def get_config(variant: str = "base") -> ConfigDict:
    config = default_config()
    config.data.source = "tfds"
    config.data.directory = "wmt14_translate/de-en"
    config.data.source_language = "en"
    config.data.target_language = "de"
    config.data.cleaning = ("empty",)
    config.data.validation = "validation"
    config.data.test = "test"
    config.data.vocab_size = 37_000
    config.data.tokens_per_batch = 25_000
    config.data.count_padding = False
    config.data.num_buckets = 16
    # The defaults of model, training and decoding are the paper's base model.
    config.training.max_tokens_per_device = 4_096
    config.training.checkpoint_every = 1_250
    config.training.evaluate_every = 5_000
    one_variant("configs/wmt14_en_de.py", variant, VARIANTS)(config)
    return config


def base(config: ConfigDict) -> None:
    """Table 2 and 3 of the paper."""


def big(config: ConfigDict) -> None:
    """Table 2 and 3 of the paper."""
    config.model.d_model = 1_024
    config.model.d_ff = 4_096
    config.model.num_heads = 16
    config.model.dropout_rate = 0.3
    config.training.num_steps = 300_000
    config.training.max_tokens_per_device = 2_048
    config.training.checkpoint_every = 600
    config.training.keep_checkpoints = 20
    config.training.evaluate_every = 12_000


def modern(config: ConfigDict) -> None:
    """The design of configs/multi30k_modern_en_de.py with as many parameters as base; data and training are base's."""
    config.model.norm = "rms_norm"
    config.model.norm_placement = "pre"
    config.model.position_encoding = "rotary"
    config.model.num_kv_heads = 4
    config.model.activation = "swiglu"
    config.model.attention_biases = ()
    config.model.feed_forward_bias = False
    config.model.d_ff = 1_626


def t2t(config: ConfigDict) -> None:
    """What the paper's authors trained later: ``transformer_base`` (version 3) of Tensor2Tensor, on eight devices.

    Batches are of 4,096 positions a device, padding included; the vocabulary is that of ``translate_ende_wmt32k``.
    """
    config.data.vocab_size = 32_768
    config.data.tokens_per_batch = 8 * 4_096
    config.data.count_padding = True
    config.model.norm_placement = "pre"
    config.model.position_encoding = "sinusoidal_half_split"
    config.model.attention_biases = ()
    config.model.attention_dropout_rate = 0.1
    config.model.activation_dropout_rate = 0.1
    config.training.learning_rate = 2.0
    config.training.warmup_steps = 8_000
    config.training.beta2 = 0.997
    config.training.label_smoothing_form = "others"


def fairseq(config: ConfigDict) -> None:
    """``transformer_vaswani_wmt_en_de_big`` of fairseq as its ``examples/scaling_nmt`` trains it on eight devices.

    Batches are of 3,584 positions a device, padding included. Its warm-up starts at 1e-7 where ours starts at 0. It
    averages the checkpoints of the last ten epochs (here every 5,000 steps) and searches with beam 4 and n^0.6. Its
    text is that of WMT16, which comes cleaned and cut into pieces; here it is that of WMT14. Its published scores, 29.3
    and 28.6 in sacreBLEU, are of 16 times the batch: --config.data.tokens_per_batch=458752, and then
    --config.training.learning_rate=1e-3.
    """
    big(config)
    config.data.vocab_size = 32_768
    config.data.tokens_per_batch = 8 * 3_584
    config.data.count_padding = True
    config.model.position_encoding = "sinusoidal_half_split"
    config.model.norm_epsilon = 1e-5
    config.training.schedule = "inverse_square_root"
    config.training.learning_rate = 5e-4
    config.training.epsilon = 1e-8
    config.training.label_smoothing_form = "others"
    config.training.checkpoint_every = 5_000
    config.training.keep_checkpoints = 10
    config.training.evaluate_every = 5_000
    config.decoding.length_penalty = "power"


VARIANTS: dict[str, Callable[[ConfigDict], None]] = {
    "base": base,
    "big": big,
    "modern": modern,
    "t2t": t2t,
    "fairseq": fairseq,
}
