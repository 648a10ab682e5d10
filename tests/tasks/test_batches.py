"""A batch is the same whoever builds it: a host builds the rows of its devices, of every family."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from tests.plan.families import SECTIONS, family
from transformer.tasks import make_task

VARIANTS = {task: {} for task in SECTIONS} | {
    "language_modeling stream": {"batching": "stream", "tokens_per_batch": 5 * 89},
    "language_modeling prefix": {"batching": "bucket", "num_buckets": 2},
    "masked_lm pack": {"batching": "pack", "tokens_per_batch": 3 * 53},
    "image_classification mixup": {"augmentations": ("crop", "mixup")},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_a_batch_are_those_of_the_whole(variant, tmp_path):
    name, _, kind = variant.partition(" ")
    config = family(name, str(tmp_path))
    model = dataclasses.replace(config.model, prefix_lm=kind == "prefix")
    task = make_task(
        dataclasses.replace(config, data=dataclasses.replace(config.data, **VARIANTS[variant]), model=model)
    )
    for step in (0, task.steps_per_epoch() + 1):
        whole = task.batch(step)
        rows = len(jax.tree.leaves(whole)[0])
        assert rows > 1 and task.batch_size(step) == task.size_of(whole)
        cuts = [0, 1, rows // 2 + 1, rows + 3, rows + 5]
        parts = [task.batch(step, slice(*bounds)) for bounds in itertools.pairwise(cuts)]
        assert [len(jax.tree.leaves(part)[0]) for part in parts] == [1, rows // 2, rows - rows // 2 - 1, 0]
        jax.tree.map(lambda array, *arrays: np.testing.assert_array_equal(array, np.concatenate(arrays)), whole, *parts)
