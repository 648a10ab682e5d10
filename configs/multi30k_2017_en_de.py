"""Multi30k under the design of 2017, to compare `multi30k_modern_en_de.py` with at the same number of parameters.

python train.py --config=configs/multi30k_2017_en_de.py --workdir=runs/m30k-2017 --config.data.directory=DIR

Post-norm, LayerNorm, sinusoids, ReLU, full heads, biases; sizes, data and training are those of `multi30k_en_de.py`.
After an hour of one core's time, 5,054 updates, --checkpoint=average:4 had BLEU 38.1 on the test split, and the config
of today 39.7: docs/reproduction.md, section 11.
"""

from ml_collections import ConfigDict

from configs import multi30k_en_de
from transformer.config import start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = multi30k_en_de.get_config()
    config.model.norm_placement = "post"
    return start_from(config, workdir)
