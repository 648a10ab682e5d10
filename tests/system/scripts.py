"""How tests run the real scripts."""

import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = [
    "--config.data.num_phrases=600",
    "--config.data.vocab_size=400",
    "--config.data.tokens_per_batch=512",
    "--config.model.d_model=16",
    "--config.model.d_ff=24",
    "--config.model.num_heads=2",
    "--config.model.num_encoder_layers=1",
    "--config.model.num_decoder_layers=1",
    "--config.model.dropout_rate=0.1",
    "--config.training.num_steps=12",
    "--config.training.schedule=constant",
    "--config.training.log_every=2",
    "--config.training.checkpoint_every=4",
    "--config.training.evaluate_every=12",
    "--config.training.ema_decay=0.9",
    "--config.evaluation.beam_size=1",
    "--config.evaluation.max_examples=8",
]
TRAIN = ["--config=configs/phrases_en_de.py", *SMALL]


def run(script: str, *arguments: str, stdin: bytes = b"", code: int = 0) -> subprocess.CompletedProcess:
    """Run a script and look at its exit code; its output is bytes."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])  # as on one machine
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    result = subprocess.run(
        [sys.executable, script, *arguments], cwd=ROOT, input=stdin, capture_output=True, env=environment, timeout=300
    )
    assert result.returncode == code, f"exit code {result.returncode}\n{result.stderr.decode()[-4000:]}"
    return result


def mistake(script: str, *arguments: str, stdin: bytes = b"") -> str:
    """The message of a user's mistake, which comes without a traceback."""
    errors = run(script, *arguments, stdin=stdin, code=2).stderr.decode()
    assert "Traceback" not in errors
    return errors.strip().splitlines()[-1] if "holds another" not in errors else errors


def last_json(result: subprocess.CompletedProcess) -> dict:
    return json.loads(result.stdout.decode().splitlines()[-1])
