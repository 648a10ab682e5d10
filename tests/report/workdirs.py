"""Workdirs as training leaves them, written by hand: what the run report is made of."""

import json
from pathlib import Path

from transformer.config import Config, DataConfig, ModelConfig, TrainingConfig, to_json
from transformer.training.checkpoints import MANIFEST, _checksum_of_content

AWKWARD = "</script><b>&amp; שלום 🙂"
SESSION = {"seconds": 70.0, "training_seconds": 60.0, "non_finite_step": None, "devices": 1, "platform": "cpu"}


def a_run(workdir: Path, *, steps: int = 130, every: int = 10, dropout: float = 0.1, seed: int = 0) -> Path:
    """A run of translation that was killed after step 73 and went on from 60; half a minute a report.

    Its checkpoints, of steps 60 and ``steps``, saw 7 source and 11 target tokens an update, from there twice as many.
    """
    workdir.mkdir(parents=True)
    data = DataConfig(directory=f"data/{workdir.name}", source="files")
    training = TrainingConfig(schedule="constant", warmup_steps=0, learning_rate=0.01)
    config = Config(seed=seed, data=data, model=ModelConfig(dropout_rate=dropout), training=training)
    (workdir / "config.json").write_text(to_json(config))
    lines = []
    for step in range(every, steps + 1, every):
        lines.append(training_line(step, every))
        if step % 50 == 0:
            scores = {"bleu": step / 10, "nll_per_token": 200 / step, "num_examples": 17}
            lines.append({"step": step, **{f"validation_{name}": value for name, value in scores.items()}})
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sessions = [
        {"started": "2026-01-01", "from_step": 0, "to_step": 73, "ended": None},
        {"started": "2026-01-02", "from_step": 60, "to_step": steps, "ended": "finished"},
    ]
    sessions = [SESSION | {"device_kind": "cpu", "processor": "a processor"} | session for session in sessions]
    record = {"parameters": 1234567, "config": "none.py", "sessions": sessions}
    (workdir / "run.json").write_text(json.dumps(record))
    checkpoint(workdir, 60, 60)
    checkpoint(workdir, steps, 60 + 2 * (steps - 60))
    return workdir


def training_line(step: int, every: int) -> dict[str, float]:
    return {
        "step": step,
        "loss": 300 / step,
        "nll_per_token": 200 / step,
        "accuracy": 1 - 5 / (step + 5),
        "gradient_norm": 1 / step,
        "learning_rate": 0.01,
        "source_tokens_per_second": 7.0 * step,
        "target_tokens_per_second": 11.0 * step,
        "padding_share": 0.05,
        "share_outside_step": 0.001,
        "expert_load_max": 1.5,
        "minutes": step / every / 2,
    }


def checkpoint(workdir: Path, step: int, updates: int) -> None:
    """A manifest alone, whose parameters saw so many updates' tokens."""
    work = {"source_tokens": 7.0 * updates, "target_tokens": 11.0 * updates, "positions": 20.0 * updates, "flops": 1e9}
    metadata = {"work": work, "seconds": 60.0, "peak_learning_rate": 0.01, "data_fingerprint": "0"}
    content = {"step": step, "metadata": metadata, "files": {}, "arrays": {}}
    folder = workdir / "checkpoints" / str(step)
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps({"content": content, "sha256": _checksum_of_content(content)}))


def outputs(workdir: Path, name: str, steps: list[int], texts: list[str]) -> None:
    """What eval.py leaves of an evaluation of the test split."""
    folder = workdir / "outputs"
    folder.mkdir(exist_ok=True)
    records = [
        {"source": f"source {i} {AWKWARD}", "reference": f"das {i}", "output": text} for i, text in enumerate(texts)
    ]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    scores = {"split": "test", "checkpoint": "latest", "weights": "raw", "steps": steps, "bleu": float(steps[-1])}
    decoding = {"method": "beam", "beam_size": 4, "length_penalty": "gnmt", "alpha": 0.6}
    record = {"scored": f"2026-01-0{steps[-1] % 9}", "code": {}, "changed": {}, "decoding": decoding}
    (folder / f"{name}.scores.json").write_text(json.dumps({**record, "scores": scores | {"num_examples": len(texts)}}))
