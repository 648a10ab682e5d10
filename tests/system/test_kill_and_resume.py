"""The short form of ``kill_and_resume.py``: two kills, both inside a save."""

import pytest

from tests.system.kill_and_resume import compare
from tests.system.scripts import SMALL


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_left_alone(tmp_path):
    options = ["--config=configs/phrases_en_de.py", *SMALL, "--config.training.log_every=1"]
    assert compare(tmp_path, options, kills=2, seed=0, slow_save=0.3)
