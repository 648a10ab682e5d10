"""WMT14 English to French, the other experiment of Attention Is All You Need; see `wmt14_en_de.py` for what is common.

python train.py --config=configs/wmt14_en_fr.py:big --workdir=runs/big-fr
python eval.py --workdir=runs/big-fr --split=test --checkpoint=average:20

The data is TFDS's: about 40.8 million pairs, of which the paper's 36 million are expected to be left when pairs of more
than 175 words and of a length ratio above 1.5 are taken out; newstest2013 to look at during training, newstest2014 as
the test. One vocabulary of 32,000 pieces.

variant   what                          parameters   paper   A100, hours   newstest2014, paper's score   sacreBLEU
base      512 wide, 100,000 steps       60,522,496     65M             3   38.1                          about 36.3
big       1,024 wide, 300,000 steps    209,125,376    213M            32   41.8                          about 40.0
modern    base in a design of today     60,526,592                     3   about base's, by estimate
t2t       transformer_base of T2T       60,880,896                   3.5   about base's, by estimate

The paper prints one number of parameters for both languages. In sacreBLEU (13a, cased) fairseq's model has 1.8 less
than in the paper's score (Ott et al., Scaling Neural Machine Translation, 2018); base and big are taken to have as much
less. fairseq has no variant here: its French has another vocabulary and other cleaning.

Hardware, memory and hours are those of German, a little less with fewer pieces: the batches and the steps are the same.
The paper's big model for French has dropout 0.1, not 0.3.
"""

from ml_collections import ConfigDict

from configs import wmt14_en_de
from configs.wmt14_en_de import Published
from transformer.config import one_variant

PUBLISHED = {
    "base": Published(60_522_496, 65, 38.1, (36.3, 36.3), 3.3e18),
    "big": Published(209_125_376, 213, 41.8, (40.0, 40.0), 2.3e19),
    "modern": Published(60_526_592),
    "t2t": Published(60_880_896),
}
"""BLEU on newstest2014."""


def get_config(variant: str = "base") -> ConfigDict:
    one_variant("configs/wmt14_en_fr.py", variant, PUBLISHED)
    config = wmt14_en_de.get_config(variant)
    config.data.directory = "wmt14_translate/fr-en"
    config.data.target_language = "fr"
    config.data.cleaning_max_words = 175
    config.data.cleaning_max_ratio = 1.5
    if variant != "t2t":
        config.data.vocab_size = 32_000
    if variant == "big":
        config.model.dropout_rate = 0.1
    return config
