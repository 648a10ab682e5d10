"""Table 3 of Attention Is All You Need: the base model for English to German with one thing changed, a row each.

python train.py --config=configs/wmt14_table3.py:A1 --workdir=runs/A1
python eval.py --workdir=runs/A1 --split=validation

Scored on newstest2013 (the validation split), beam 4, without averaging: the last checkpoint. In sacreBLEU (13a, cased)
0.7 to 1.0 less than the paper's score is to be expected. Data and hardware are those of `wmt14_en_de.py:base`; the
hours are for one A100, estimated as there. Memory, counted as there, is at most 10.5 GiB (C5; A4 9.9, C3 8.0).
Perplexities are per piece and depend on the vocabulary.

row   changed                          parameters   paper   hours   perplexity   BLEU (the paper's score)
base                                   63,082,496     65M   3.3         4.92   25.8
A1    num_heads=1                      63,082,496           3.3         5.29   24.9
A2    num_heads=4                      63,082,496           3.3         5.00   25.5
A3    num_heads=16                     63,082,496           3.3         4.91   25.8
A4    num_heads=32                     63,082,496           3.3         5.01   25.4
B1    qk_head_dim=16                   55,990,784     58M   2.9         5.16   25.1
B2    qk_head_dim=32                   58,354,688     60M   3.0         5.01   25.4
C1    2 + 2 layers                     33,656,832     36M   1.8         6.11   23.7
C2    4 + 4 layers                     48,369,664     50M   2.5         5.19   25.3
C3    8 + 8 layers                     77,795,328     80M   4.0         4.88   25.5
C4    d_model=256                      26,834,944     28M   1.4         5.75   24.5
C5    d_model=1024                    163,889,152    168M   8.5         4.66   26.0
C6    d_ff=1024                        50,487,296     53M   2.6         5.12   25.4
C7    d_ff=4096                        88,272,896     90M   4.5         4.75   26.2
D1    dropout_rate=0.0                 63,082,496           3.3         5.77   24.6
D2    dropout_rate=0.2                 63,082,496           3.3         4.95   25.5
D3    label_smoothing=0.0              63,082,496           3.3         4.67   25.3
D4    label_smoothing=0.2              63,082,496           3.3         5.47   25.7
E     position_encoding=learned        64,131,072           3.3         4.92   25.7
big   see `wmt14_en_de.py:big`        214,245,376    213M    33         4.33   26.4

In A, heads of 512, 128, 32 and 16 components; in B, queries and keys are smaller than values, which stay at 64. E has
1,024 positions for each stack: the paper does not say how many. Rows for which it prints no number of parameters have
those of its base.
"""

from typing import Any, NamedTuple

from ml_collections import ConfigDict

from configs import wmt14_en_de
from configs.wmt14_en_de import Published
from transformer.config import one_variant


class Row(NamedTuple):
    """A row: what differs from the base model, as dotted keys, and what was published of it."""

    changes: dict[str, Any]
    published: Published


def _row(
    parameters: int, millions: int | None, perplexity: float, bleu: float, changes: dict[str, Any] | None = None
) -> Row:
    return Row(changes or {}, Published(parameters, millions, bleu, perplexity=perplexity))


def _layers(number: int) -> dict[str, Any]:
    return {"model.num_encoder_layers": number, "model.num_decoder_layers": number}


ROWS: dict[str, Row] = {
    "base": _row(63_082_496, 65, 4.92, 25.8),
    "A1": _row(63_082_496, None, 5.29, 24.9, {"model.num_heads": 1}),
    "A2": _row(63_082_496, None, 5.00, 25.5, {"model.num_heads": 4}),
    "A3": _row(63_082_496, None, 4.91, 25.8, {"model.num_heads": 16}),
    "A4": _row(63_082_496, None, 5.01, 25.4, {"model.num_heads": 32}),
    "B1": _row(55_990_784, 58, 5.16, 25.1, {"model.qk_head_dim": 16}),
    "B2": _row(58_354_688, 60, 5.01, 25.4, {"model.qk_head_dim": 32}),
    "C1": _row(33_656_832, 36, 6.11, 23.7, _layers(2)),
    "C2": _row(48_369_664, 50, 5.19, 25.3, _layers(4)),
    "C3": _row(77_795_328, 80, 4.88, 25.5, _layers(8)),
    "C4": _row(26_834_944, 28, 5.75, 24.5, {"model.d_model": 256}),
    "C5": _row(163_889_152, 168, 4.66, 26.0, {"model.d_model": 1_024}),
    "C6": _row(50_487_296, 53, 5.12, 25.4, {"model.d_ff": 1_024}),
    "C7": _row(88_272_896, 90, 4.75, 26.2, {"model.d_ff": 4_096}),
    "D1": _row(63_082_496, None, 5.77, 24.6, {"model.dropout_rate": 0.0}),
    "D2": _row(63_082_496, None, 4.95, 25.5, {"model.dropout_rate": 0.2}),
    "D3": _row(63_082_496, None, 4.67, 25.3, {"training.label_smoothing": 0.0}),
    "D4": _row(63_082_496, None, 5.47, 25.7, {"training.label_smoothing": 0.2}),
    "E": _row(64_131_072, None, 4.92, 25.7, {"model.position_encoding": "learned"}),
    "big": _row(214_245_376, 213, 4.33, 26.4),
}

PUBLISHED = {name: row.published for name, row in ROWS.items()}
"""BLEU and perplexity on newstest2013."""


def get_config(row: str = "base") -> ConfigDict:
    changes = one_variant("configs/wmt14_table3.py", row, ROWS).changes
    config = wmt14_en_de.get_config("big" if row == "big" else "base")
    config.update_from_flattened_dict(changes)
    return config
