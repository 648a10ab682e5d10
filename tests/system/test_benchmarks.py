"""The benchmarks start, take turns and end with their JSON; what they measure is for docs/reproduction.md."""

import dataclasses
import json
import os
import pathlib
import runpy
import subprocess
import sys
import types

import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
WITHOUT = """
import runpy, sys
sys.modules["ml_collections"] = sys.modules["optax"] = sys.modules["orbax"] = sys.modules["sentencepiece"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent), "JAX_PLATFORMS": "cpu"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, check=False)


def test_ablations_say_what_was_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = types.SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "ablations.py")))
    trained, calls = {"steps": 40}, []

    def evaluate(params, split):
        return {"bleu": 30.0, "bleu_paper": 31.5, "chrf": 50.0, "perplexity": 7.0, "bleu_signature": "sign",
                "bleu_paper_definition": "defined"}  # fmt: skip

    def load(workdir, checkpoint, config):
        steps = list(range(4, trained["steps"] + 1, 4))[-10:]
        found = {"steps": steps if ":" in checkpoint else steps[-1:], "metadata": {"seconds": 90.0}}
        return types.SimpleNamespace(task=types.SimpleNamespace(evaluate=evaluate), params=None, checkpoint=found)

    def train(config, workdir):
        calls.append(workdir.name)
        workdir.mkdir(parents=True, exist_ok=True)
        return 0

    script.scores_of.__globals__.update(train=train, load=load)
    row = script.ROWS[0]
    config = script.configure(row, 0, str(tmp_path), 40)
    found = script.scores_of(row, config, tmp_path)
    assert max(found["steps"]) == 40 and found["minutes_of_training"] == 1.5
    assert script.scores_of(row, config, tmp_path) == found and calls == ["full-de-0"]  # kept
    script.print_table({each.name: [found] * len(each.seeds) for each in script.ROWS})
    assert "| full | 3 | 40 | 30.0 (30.0 - 30.0) | +0.0 | 31.5 | 50.0 | 7.00 | 2 |" in capsys.readouterr().out
    trained["steps"] = 4_000  # what stands there has gone further
    with pytest.raises(SystemExit, match="is at step 4000, not 20; give another --workdir"):
        script.scores_of(row, script.configure(row, 0, str(tmp_path), 20), tmp_path)
    assert list(json.loads((tmp_path / "full-de-0" / "ablations.json").read_text())) == ["40 average:10 beam"]


@pytest.mark.slow
def test_attention_against_length():
    done = run(str(BENCHMARKS / "attention.py"), "--lengths=64,128", "--repetitions=1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    heads, *rows = done.stdout.partition("milliseconds")[2].splitlines()[:3]
    kernels = heads.split()
    assert {"dense", "blockwise", "local"} <= set(kernels)
    assert [row.split()[0] for row in rows] == list(found["lengths"]) == ["64", "128"]
    for length in found["lengths"].values():
        assert list(length) == kernels and all(kernel["seconds"] > 0 for kernel in length.values())


@pytest.mark.slow
def test_the_check_of_cudnn_needs_little_and_says_that_there_is_no_gpu():
    done = run("-c", WITHOUT, str(BENCHMARKS / "attention_gpu.py"))
    assert done.returncode == 2 and "GPU" in done.stdout + done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_preparing_a_corpus_leaves_out_what_was_planted(tmp_path):
    sizes = "--millions=0.02", "--vocab_size=2000", "--plan_millions=0.1", "--processes=2"
    done = run(str(BENCHMARKS / "prepare_corpus.py"), f"--folder={tmp_path}", *sizes)
    assert done.returncode == 0, done.stderr
    rules = ("empty", "non_printing", "max_words", "max_ratio", "identical")
    counts = ", ".join(f"{rule} 200" for rule in rules)
    assert f"20,000 training pairs: {counts}, duplicates 400; 18,600 stay" in done.stderr
    assert "20,000 pairs, 18,600 after cleaning" in done.stdout
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("| ")]
    parts = ["write the corpus", "fingerprint", "clean", "vocabulary", "store", "batches"]
    assert rows[1:7] == parts and rows[-2:] == ["corpus", "cache"]


@pytest.mark.slow
def test_length_extrapolation(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # leave the user's cache alone
    script = runpy.run_path(str(BENCHMARKS / "length_extrapolation.py"))
    main = script["main"]
    configure = script["configure"]

    def short(*arguments):
        config = configure(*arguments)
        model = dataclasses.replace(config.model, d_model=16, d_ff=16, num_heads=2, num_decoder_layers=1)
        training = dataclasses.replace(config.training, num_steps=3, warmup_steps=1, decay_steps=1, evaluate_every=3)
        return dataclasses.replace(config, model=model, training=training)

    main.__globals__.update(
        configure=short,
        LENGTHS=(128, 256),
        BOUNDS=(0, 128, 256),
        SCHEMES={name: script["SCHEMES"][name] for name in ("rotary", "rotary + yarn", "alibi")},
    )
    monkeypatch.setattr(sys, "argv", ["length_extrapolation.py", f"--workdir={tmp_path / 'runs'}", "--quick"])
    main()
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert set(found["schemes"]) == {"rotary", "rotary + yarn", "alibi"}
    nats = {name: scheme["nats"] for name, scheme in found["schemes"].items()}
    assert nats["rotary"]["128"] == nats["rotary + yarn"]["128"] != nats["alibi"]["128"]
    assert nats["rotary"]["256"] != nats["rotary + yarn"]["256"]
    assert "| alibi |" in out
    schemes = {name: {"nats": {256: scheme["256"]}} for name, scheme in nats.items()}
    nearest = min(("rotary", "rotary + yarn"), key=lambda name: abs(nats[name]["256"] - nats["alibi"]["256"]))
    assert script["nearest_pair"](schemes) == (nearest, "alibi")  # of one training are the other two
