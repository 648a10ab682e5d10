"""The commands, as a user types them: imported weights are scored, continue text, and go out as they came."""

import pytest

from tests.interop.small import GPT2, random_tensors, write_folder
from tests.system.scripts import last_json, mistake, run
from transformer.interop.safetensors_files import SafetensorsFolder

pytestmark = pytest.mark.slow


def test_import_generate_score_export(tmp_path):
    tensors = random_tensors(GPT2, (), tmp_path / "assets")
    source, workdir, exported = write_folder(tmp_path / "source", GPT2, tensors), tmp_path / "workdir", tmp_path / "out"
    interop = ("-m", "transformer.interop")
    result = run(*interop, "import", f"--from={source}", f"--workdir={workdir}")
    number = sum(array.size for array in tensors.values())
    assert f"{number:,} parameters of the family gpt2 for task=language_modeling" in result.stderr.decode()
    text = tmp_path / "text.txt"
    text.write_text("a b c d\ne f\n")
    lines = run("generate.py", f"--workdir={workdir}", f"--input={text}").stdout.decode().splitlines()
    assert len(lines) == 2 and set("".join(lines)) - set(" ") <= set("abcdefghijklmnopqr[UNK]MASE")
    scores = last_json(run("eval.py", f"--workdir={workdir}", f"--text={text}"))
    assert scores["num_examples"] == 1 and scores["nll_per_token"] > 0
    run(*interop, "export", f"--workdir={workdir}", f"--to={exported}")
    found = SafetensorsFolder(exported)
    assert {name: array.tobytes() for name, array in found.items()} == {k: v.tobytes() for k, v in tensors.items()}
    assert "holds checkpoints" in mistake(*interop, "import", f"--from={source}", f"--workdir={workdir}")
    assert "--workdir=gs://b/x must be on local disk" in mistake(
        *interop, "import", f"--from={source}", "--workdir=gs://b/x"
    )
    assert "is not one of import, export; did you mean import?" in mistake(*interop, "imprt")
