"""Masked language modelling of American presidents' speeches, split by speech: an encoder to be fine-tuned.

python train.py --config=configs/speeches_bert.py --workdir=runs/speeches_bert --config.data.directory=DIR
python eval.py --workdir=runs/speeches_bert --split=test
echo 'The state of the <mask> is strong.' | python generate.py --workdir=runs/speeches_bert --num_best=5 --scores

DIR holds state_union.txt and inaugural.txt, plain or gzipped, in which a line "### YEAR-NAME" is before each speech.
28 minutes of one CPU core: 39.6% of the masked tokens of a held-out tenth of the speeches are right; always the
most frequent piece: 3.6%.
"""

from ml_collections import ConfigDict

from configs import topics_bert
from transformer.config import start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = topics_bert.get_config()
    config.data.source = "files"
    config.data.train = ("state_union", "inaugural")
    config.data.documents = "heading"
    config.data.split = "random"
    config.data.vocab_size = 4_000

    config.training.num_steps = 3_000
    config.training.warmup_steps = 300
    config.training.decay_steps = 1_200
    config.training.checkpoint_every = 500
    config.training.evaluate_every = 1_000
    return start_from(config, workdir)
