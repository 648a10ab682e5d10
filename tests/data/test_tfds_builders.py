"""The real builders of TensorFlow Datasets prepare tiny archives of statmt.org, which then are read and trained on
without TensorFlow: `make test-tfds`."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import statmt
from tests.system.scripts import ROOT, SMALL
from transformer.data import phrases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow_datasets") is None or importlib.util.find_spec("tensorflow") is None,
        reason="no tensorflow_datasets with TensorFlow: make test-tfds, or pip install -r requirements-tfds.txt",
    ),
]

CORPORA = {
    "de": ("europarl", "commoncrawl", "news", "newstest2013", "newstest2014"),
    "fr": ("europarl", "commoncrawl", "un", "news", "giga", "newstest2013", "newstest2014"),
}
PAIRS_EACH = 60


def corpora(language: str) -> dict[str, statmt.Pairs]:
    names = CORPORA[language]
    generated = phrases.generate("train", language, PAIRS_EACH * len(names), 0)
    pairs = [(phrase.source, phrase.target) for phrase in generated]
    found = {name: pairs[PAIRS_EACH * n : PAIRS_EACH * (n + 1)] for n, name in enumerate(names)}
    found["europarl"] = [("", "ein leerer Satz"), *found["europarl"], ("an empty one", "")]
    return found


def put_into_the_download_cache(root: Path, language: str) -> None:
    """Under the names by which the download manager knows what it has fetched: it then asks nobody for them."""
    from etils import epath
    from tensorflow_datasets.core.download import checksums, resource

    known = checksums.get_all_url_infos()
    for address, files in statmt.members(language, corpora(language)).items():
        name = address.rpartition("/")[2]
        path = root / "downloads" / "wmt14_translate" / resource.get_dl_fname(address, known[address].checksum)
        statmt.write_archive(path.with_name(name), files).rename(path)
        resource.write_info_file(
            url=address,
            path=epath.Path(path),
            dataset_name="wmt14_translate",
            original_fname=name,
            url_info=known[address],
        )


def environment(root: Path, tmp_path: Path, *, tensorflow: bool) -> dict[str, str]:
    """Of a process that finds its data and its cache here, and, unless it may use it, a TensorFlow that cannot be."""
    blocked = tmp_path / "blocked"
    (blocked / "tensorflow").mkdir(parents=True, exist_ok=True)
    (blocked / "tensorflow" / "__init__.py").write_text('raise ImportError("TensorFlow must not be loaded here")\n')
    path = [str(ROOT)] if tensorflow else [str(blocked), str(ROOT)]
    return {
        **os.environ,
        "TFDS_DATA_DIR": str(root),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(path),
        "JAX_PLATFORMS": "cpu",
    }


def run(code: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1500, cwd=ROOT, **options)


READ = """
import json, sys
from transformer.config import DataConfig
from transformer.data.sources import make_source
language = sys.argv[1]
config = DataConfig(source="tfds", directory=f"wmt14_translate/{language}-en", target_language=language,
                    validation="validation")
if __name__ == "__main__":
    source = make_source(config, 0)
    pairs = {split: list(source.pairs(split)) for split in ("train", "validation", "test")}
    assert all(source.size(split) == len(found) for split, found in pairs.items())
    print(json.dumps([pairs, source.fingerprint_of("train"), "tensorflow" in sys.modules]))
"""


@pytest.fixture(scope="module", params=["de", "fr"])
def prepared(request, tmp_path_factory):
    """A data directory in which the builder of a language pair has run, by our own way to it."""
    root, language = tmp_path_factory.mktemp(f"tfds-{request.param}"), request.param
    put_into_the_download_cache(root, language)
    result = run(READ, language, env=environment(root, root.parent / f"first-{language}", tensorflow=True))
    assert result.returncode == 0, result.stderr[-4000:]
    return root, language, json.loads(result.stdout.splitlines()[-1])


def test_what_was_prepared_is_what_was_fetched(prepared):
    root, language, (pairs, _, loaded) = prepared
    expected = corpora(language)
    train = [name for name in CORPORA[language] if not name.startswith("newstest")]
    wanted = {"train": [pair for name in train for pair in expected[name] if all(pair)]}
    wanted |= {"validation": expected["newstest2013"], "test": expected["newstest2014"]}
    for split, found in wanted.items():
        assert sorted(map(tuple, pairs[split])) == sorted(found)
    assert not loaded  # TensorFlow ran in a process of its own
    info = root / "wmt14_translate" / f"{language}-en" / "1.0.0" / "dataset_info.json"
    assert json.loads(info.read_text())["fileFormat"] == "array_record"


def test_it_is_read_without_tensorflow(prepared, tmp_path):
    root, language, (pairs, fingerprint, _) = prepared
    result = run(READ, language, env=environment(root, tmp_path, tensorflow=False))
    assert result.returncode == 0, result.stderr[-4000:]
    assert json.loads(result.stdout.splitlines()[-1]) == [pairs, fingerprint, False]


def test_preparing_again_gives_the_same_fingerprint(prepared, tmp_path):
    _, language, (_, fingerprint, _) = prepared
    put_into_the_download_cache(tmp_path / "again", language)
    result = run(READ, language, env=environment(tmp_path / "again", tmp_path, tensorflow=True))
    assert result.returncode == 0, result.stderr[-4000:]
    assert json.loads(result.stdout.splitlines()[-1])[1] == fingerprint


def test_a_model_is_trained_on_it(prepared, tmp_path):
    root, language, _ = prepared
    command = [
        *(sys.executable, "train.py", "--config=configs/phrases_en_de.py", f"--workdir={tmp_path / 'run'}"),
        *(flag for flag in SMALL if "num_phrases" not in flag and "num_steps" not in flag),
        "--config.training.num_steps=1",
        "--config.data.source=tfds",
        f"--config.data.directory=wmt14_translate/{language}-en:1.0.0",
        f"--config.data.target_language={language}",
        "--config.data.validation=validation",
        "--config.data.cleaning=empty,duplicates",
        "--config.data.cleaning_max_words=175",
    ]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=1500,
        cwd=ROOT,
        env=environment(root, tmp_path, tensorflow=False),
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert f"translating from en to {language}; the first two training pairs:" in result.stderr
    assert "cleaning left out of" in result.stderr and "finished at step 1" in result.stderr
