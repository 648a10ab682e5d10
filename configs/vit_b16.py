"""ViT-B/16 for folders of images at 224 x 224 pixels: 86,567,656 parameters with 1,000 classes.

python train.py --config=configs/vit_b16.py --workdir=runs/vit-b16 --config.data.directory=DIR
python eval.py --workdir=runs/vit-b16 --split=validation

DIR holds `train/CLASS/*.jpg` and `val/CLASS/*.jpg`. The model is that of Dosovitskiy et al. 2021, table 1; of the
training the learning rate, its schedule, weight decay and clipping are those of Beyer et al. 2022, section 3 (90 epochs
of ImageNet-1k). Their RandAugment is not here, and `crop` moves the image instead of cutting out parts of any size, so
do not expect their score. It has not been trained with this code: it needs accelerators.
"""

from ml_collections import ConfigDict

from transformer.config import default_config, start_from


def get_config(workdir: str = "") -> ConfigDict:
    config = default_config()
    config.task = "image_classification"
    config.data.source = "image_folder"
    config.data.image_size = 224
    config.data.examples_per_batch = 1_024
    config.data.augmentations = ("flip", "crop", "mixup")
    config.data.crop_padding = 28

    config.model.variant = "encoder_only"
    config.model.patch_size = 16
    config.model.position_encoding = "learned"
    config.model.d_model = 768
    config.model.d_ff = 3_072
    config.model.num_heads = 12
    config.model.num_encoder_layers = 12
    config.model.norm_placement = "pre"
    config.model.activation = "gelu"
    config.model.dropout_rate = 0.0
    config.model.dtype = "bfloat16"

    config.training.num_steps = 112_590
    config.training.schedule = "cosine"
    config.training.learning_rate = 1e-3
    config.training.warmup_steps = 10_000
    config.training.optimizer = "adamw"
    config.training.beta2 = 0.999
    config.training.epsilon = 1e-8
    config.training.weight_decay = 0.1
    config.training.gradient_clip = 1.0
    config.training.label_smoothing = 0.0
    config.training.best_metric = "accuracy"
    return start_from(config, workdir)
