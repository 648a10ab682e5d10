"""Transformers in JAX: attention, stacks, training and decoding, small enough to read.

import transformer
run = transformer.load("runs/demo")
run.predict(["twenty-one"])
"""

from typing import Any


def load(*arguments: Any, **options: Any) -> Any:
    """Model, parameters, tokenizer and ``predict`` of a workdir: see ``transformer.training.loading.load``."""
    from transformer.training.loading import load  # JAX is imported when it is needed

    return load(*arguments, **options)
