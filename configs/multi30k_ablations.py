"""Multi30k with each ingredient of training taken away once: a small stand-in for a table like the paper's Table 3.

python train.py --config=configs/multi30k_ablations.py:full --workdir=runs/full --config.data.directory=DIR
python train.py --config=configs/multi30k_ablations.py:no_dropout,fr --workdir=runs/fr --config.data.directory=DIR
PYTHONPATH=. python benchmarks/ablations.py --directory=DIR --workdir=runs/ablations

The model of `multi30k_en_de.py`, English to German or French, for 4,000 updates: about 20 epochs and, by estimate, 45
minutes on two CPU cores. DIR is as there; French needs train.fr and so on. The last command trains and scores the whole
table.

variant               what is taken away
full                  nothing
no_label_smoothing    label smoothing
no_dropout            all dropout
no_warmup             the way up to the peak of the rate, which is held for as many updates instead

Averaging checkpoints and beam search are taken away without training: --checkpoint=latest and
--config.decoding.method=greedy in eval.py. The scores are not measured yet.
"""

from ml_collections import ConfigDict

from configs import multi30k_en_de
from transformer.config import one_variant
from transformer.types import UserError

VARIANTS: dict[str, dict[str, float | str]] = {
    "full": {},
    "no_label_smoothing": {"training.label_smoothing": 0.0},
    "no_dropout": {"model.dropout_rate": 0.0},
    "no_warmup": {"training.schedule": "constant_inverse_square_root"},
}
"""What differs from the full recipe, as dotted keys."""

LANGUAGES = ("de", "fr")


def get_config(argument: str = "full") -> ConfigDict:
    """
    Args:
      argument: a name in ``VARIANTS``, and after a comma ``fr`` for French.
    """
    variant, _, language = argument.partition(",")
    config = multi30k_en_de.get_config()
    config.update_from_flattened_dict(one_variant("configs/multi30k_ablations.py", variant, VARIANTS))
    config.data.target_language = language or "de"
    if config.data.target_language not in LANGUAGES:
        raise UserError(f"configs/multi30k_ablations.py: the language {language} is not one of {', '.join(LANGUAGES)}")
    config.training.num_steps = 4_000
    config.training.evaluate_every = 4_000
    return config
