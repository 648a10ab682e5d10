"""A Vision Transformer from scratch on small colour images: 2,000 of CIFAR-10, for example.

python train.py --config=configs/cifar_vit.py --workdir=runs/cifar --config.data.directory=DIR
python eval.py --workdir=runs/cifar --split=validation

DIR holds one .npz with x_train, y_train, x_val and y_val (uint8 images [n, 32, 32, 3], one label each). So few images
are too few for a good score: this is to be put beside the features of a model that was trained on many. 46.0% of the
500 were right after 32 minutes of one core; of a linear classifier on such features, in docs/reproduction.md, 68.2%.
"""

from ml_collections import ConfigDict

from configs import digits_vit
from transformer.config import start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = digits_vit.get_config()
    config.data.source = "npz"
    config.data.split = "files"
    config.data.augmentations = ("flip", "crop", "mixup")
    config.data.crop_padding = 4

    config.model.patch_size = 4
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_encoder_layers = 6
    config.model.scan_unroll = 6
    config.model.dropout_rate = 0.1
    config.model.stochastic_depth_rate = 0.1

    config.training.num_steps = 3_000
    config.training.learning_rate = 1e-3
    config.training.evaluate_every = 500
    config.training.checkpoint_every = 500
    return start_from(config, workdir)
