"""How many tokens a second one host can build batches of, beside what one accelerator takes in.

    PYTHONPATH=. python benchmarks/feed.py --config=configs/wmt14_en_de.py:base --config.data.source=files \
        --config.data.directory=DIR --config.data.vocab_size=8000 [...]

Batches are built as training builds them, from the memory-mapped store and the plan, by one thread; seconds are of its
processor time, so that other work on the machine counts little. What an accelerator takes is the peak of its data sheet
times ``MFU``, over the FLOPs of a token by our formula.
"""

import dataclasses
import json
import time

from absl import app
from ml_collections import config_flags

from transformer import commands
from transformer.tasks import make_task
from transformer.training.devices import PEAK_FLOPS

CONFIG = config_flags.DEFINE_config_file("config", None, "as of train.py")
MFU = 0.5
DEVICES = ("TPU v5e", "NVIDIA H200")
SECONDS = 10.0  # of processor time for each way to make batches


def measure(config: object) -> dict[str, float]:
    """Real tokens of both sides for a second of one core, and the FLOPs of one of them."""
    task = make_task(config)
    task.batch(0)  # the store and the plan, which are made once
    tokens = flops = 0.0
    step, start = 0, time.process_time()
    while (seconds := time.process_time() - start) < SECONDS:
        batch = task.batch(step)
        seconds_of_count = time.process_time()
        work = task.work(batch)
        tokens += sum(value for name, value in work.items() if name.endswith("_tokens"))
        flops += work["flops"]
        start += time.process_time() - seconds_of_count  # counting is not building
        step += 1
    return {"tokens_per_core_second": tokens / seconds, "flops_per_token": flops / tokens, "batches": step}


def main(arguments: list[str]) -> None:
    config = commands.read_config(CONFIG)
    for batching in ("bucket", "pack"):
        data = dataclasses.replace(config.data, batching=batching)
        found = measure(dataclasses.replace(config, data=data))
        for device in DEVICES:
            taken = MFU * PEAK_FLOPS[device] / found["flops_per_token"]
            found[f"times what one {device} takes"] = found["tokens_per_core_second"] / taken
        print(json.dumps({"batching": batching, **{name: float(f"{value:.4g}") for name, value in found.items()}}))


if __name__ == "__main__":
    app.run(main)
