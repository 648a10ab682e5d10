"""Import, export, import: the same tensors, config and tokenizer, and between them scores on one line of JSON."""

import json
from pathlib import Path

import pytest

from tests.interop.folders import EXTRA_IDS, FOLDERS, write_images
from tests.interop.model_files import assert_same, tensors_of
from tests.system.scripts import last_json, run
from transformer.interop.pretrained import export_pretrained, import_pretrained
from transformer.training.loading import load
from transformer.types import UserError

TOKEN_SCORES = {"nll_per_token", "perplexity"}
SCORES = {
    "bert masked_lm": TOKEN_SCORES | {"accuracy"},
    "bert labels": {"accuracy", "f1"},
    "bert tokens": {"accuracy", "f1"},
    "bert embedding": {"accuracy"},
    "gpt2": TOKEN_SCORES | {"bits_per_byte"},
    "llama": TOKEN_SCORES | {"bits_per_byte"},
    "t5": TOKEN_SCORES | {"accuracy"},
    "marian": TOKEN_SCORES | {"bleu"},
    "vit": {"accuracy", "f1"},
}
"""What of the scores that the last line must have applies."""


def files_to_score(name: str, folder: Path) -> list[str]:
    """Arguments of eval.py."""
    text, other = folder / "text.txt", folder / "other.txt"
    lines = {"bert labels": "no a b c\nyes d e\n", "bert tokens": "a no\nb yes\n\nc perhaps\n"}
    text.write_text(lines.get(name, "a b c d e f g\nh i j k l\n"))
    other.write_text("b c d\ne f g\n")
    if name == "vit":
        write_images(folder / "images")
        return [f"--text={folder / 'images'}", "--config.data.image_size=21"]
    return [f"--source={text}", f"--reference={other}"] if name in ("bert embedding", "marian") else [f"--text={text}"]


def assert_same_workdirs(first: Path, second: Path) -> None:
    """But for the checkpoints, and the card that the scores of the first one are in."""
    others = ("log.txt", "card.md", "card.json")
    names = {path.name for path in first.iterdir() if path.is_file() and path.name not in others}
    assert names >= {"config.json"}
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@pytest.mark.parametrize("name", ["t5", "marian", "bert embedding"])
def test_all_that_belongs_to_a_model_goes_out_and_comes_back(name, tmp_path):
    source = FOLDERS[name](tmp_path / "source")
    import_pretrained(source, tmp_path / "first")
    export_pretrained(tmp_path / "first", tmp_path / "exported")
    import_pretrained(tmp_path / "exported", tmp_path / "second")
    assert_same(tensors_of(tmp_path / "exported"), tensors_of(source))
    assert_same_workdirs(tmp_path / "first", tmp_path / "second")
    loaded = load(tmp_path / "second")
    if name == "t5":
        assert len(loaded.tokenizer.sentinel_ids) == EXTRA_IDS
    elif name == "marian":
        assert loaded.task.source_tokenizer.encode("abc") != loaded.tokenizer.encode("abc")
    else:
        assert (loaded.config.model.pooling, loaded.config.data.max_source_length) == ("first", 19)


def test_decoders_start_from_what_the_files_say(tmp_path):
    source = FOLDERS["t5"](tmp_path / "source")
    settings = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(settings | {"decoder_start_token_id": 7}))
    with pytest.raises(UserError, match="decoder_start_token_id=7, but the tokenizer has 0 for decoders to start from"):
        import_pretrained(source, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCORES)
def test_the_commands(name, tmp_path):
    interop, source = ("-m", "transformer.interop"), FOLDERS[name](tmp_path / "source")
    run(*interop, "import", f"--from={source}", f"--workdir={tmp_path}/first")
    scores = last_json(run("eval.py", f"--workdir={tmp_path}/first", *files_to_score(name, tmp_path)))
    assert scores["num_examples"] > 0 and SCORES[name] <= scores.keys()
    assert not any("majority" in score for score in scores)  # which no file of weights tells
    run(*interop, "export", f"--workdir={tmp_path}/first", f"--to={tmp_path}/exported")
    run(*interop, "import", f"--from={tmp_path}/exported", f"--workdir={tmp_path}/second")
    assert_same(tensors_of(tmp_path / "exported"), tensors_of(source))
    assert_same_workdirs(tmp_path / "first", tmp_path / "second")
