"""What every task says of its training data: in what JSON can hold, and agreeing with its batches."""

import json

import pytest

from tests.plan.families import SECTIONS, family
from transformer.tasks import TASKS, make_task

COUNTED = {
    "translation": "pairs",
    "span_corruption": "documents",
    "language_modeling": "documents",
    "masked_lm": "documents",
    "text_classification": "texts",
    "token_classification": "words",
    "sentence_embedding": "pairs",
    "image_classification": "images",
}


@pytest.mark.parametrize("name", TASKS)
def test_facts_are_those_of_the_data(name, tmp_path):
    assert set(COUNTED) == set(SECTIONS) == set(TASKS)
    task = make_task(family(name, str(tmp_path)))
    found = task.data_facts()
    assert json.loads(json.dumps(found)) == found
    assert found["batches_per_epoch"] == task.steps_per_epoch()
    number = found[COUNTED[name]]
    if name == "image_classification":
        assert number == len(task._source.split("train")) and found["vocabulary_sizes"] == []
        return
    work = [task.work(task.batch(step)) for step in range(task.steps_per_epoch())]
    if COUNTED[name] in ("documents", "pairs"):
        assert number == task._source.size("train")
    else:
        assert number == sum(each["words" if COUNTED[name] == "words" else "examples"] for each in work)
    if "examples_per_epoch" in found:
        assert sum(found["left_out_by_length"].values()) + found["examples_per_epoch"] >= number
        mean = found["mean_tokens_per_batch"]
        for side in mean:
            assert mean[side] == pytest.approx(sum(each[f"{side}_tokens"] for each in work) / len(work))
    assert found["vocabulary_sizes"] == [task.tokenizer.vocab_size]
