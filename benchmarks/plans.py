"""The plans of docs/reproduction.md: each in a process of its own, its text and its JSON in a folder, and a table.

python benchmarks/plans.py --folder=DIR [--only=NAME,NAME ...]

Needs libtpu (requirements-plan.txt) and no TPU; an hour or two. Plans that are in the folder are not made again.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from absl import app, flags

FOLDER = flags.DEFINE_string("folder", None, "where the plans are written", required=True)
ONLY = flags.DEFINE_list("only", [], "names of plans; none: all")

BASE, BIG = "configs/wmt14_en_de.py:base", "configs/wmt14_en_de.py:big"
LLAMA, SMALL = "configs/llama_7b.py", "configs/llama_small.py"
ALL_AT_ONCE = ("--tokens_per_device=16384", "--config.training.accumulation_steps=1")
HALF = "--config.model.dtype=bfloat16"
POD = "--tokens_per_device=4096"
STEP = "--nodecoding"

PLANS: dict[str, tuple[str, ...]] = {
    "base-v5e-4": (BASE, "v5e:2x2", HALF),
    "big-v5e-4": (BIG, "v5e:2x2", HALF),
    "base-v5e-256": (BASE, "v5e:16x16", HALF, POD),
    "big-v5e-256": (BIG, "v5e:16x16", HALF, POD),
    "base-v5p-512": (BASE, "v5p:8x8x8", HALF, POD),
    "big-v5p-512": (BIG, "v5p:8x8x8", HALF, POD),
    "base-v6e-256": (BASE, "v6e:16x16", HALF, POD),
    "big-v6e-256": (BIG, "v6e:16x16", HALF, POD),
    "base-2xv6e-256": (BASE, "2xv6e:16x16", HALF, POD),
    "big-2xv6e-256": (BIG, "2xv6e:16x16", HALF, POD),
    "llama-v5p-512": (LLAMA, "v5p:8x8x8", "--config.mesh.data=-1", "--config.mesh.fsdp=64"),
    # One that does not fit, and what a search finds
    "small-v5e-4": (SMALL, "v5e:2x2", *ALL_AT_ONCE),
    "small-v5e-4-search": (SMALL, "v5e:2x2", *ALL_AT_ONCE, "--search", STEP),
    # As many tokens for each chip, on 4 to 1,024 of them
    "weak-4": (BASE, "v5p:2x2x1", HALF, POD, STEP),
    "weak-16": (BASE, "v5p:2x2x4", HALF, POD, STEP),
    "weak-64": (BASE, "v5p:4x4x4", HALF, POD, STEP),
    "weak-1024": (BASE, "v5p:8x8x16", HALF, POD, STEP),
}
"""By name: config, topology, and what differs."""


def made(name: str, folder: Path) -> dict[str, Any]:
    """The result of a plan, which is made if it is not there."""
    path = folder / f"{name}.json"
    if not path.exists():
        config, topology, *rest = PLANS[name]
        command = [sys.executable, "-m", "transformer.plan", f"--config={config}", f"--topology={topology}", *rest]
        since = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        (folder / f"{name}.txt").write_text(f"$ {' '.join(command[1:])}\n{done.stdout}")
        if done.returncode not in (0, 1) or not done.stdout.strip():
            sys.exit(f"{name}: exit code {done.returncode}\n{done.stderr}")
        result = json.loads(done.stdout.splitlines()[-1])
        path.write_text(json.dumps({**result, "wall_seconds": round(time.monotonic() - since, 1)}, indent=1) + "\n")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def main(arguments: list[str]) -> None:
    del arguments
    folder = Path(FOLDER.value)
    folder.mkdir(parents=True, exist_ok=True)
    print("| plan | mesh | fits | GiB | sent GiB | bound | step ms | MFU | M tokens/s | compile s | in all s |")
    print("|" + 11 * "---|")
    for name in ONLY.value or PLANS:
        found = made(name, folder)
        mesh = " ".join(f"{axis} {size}" for axis, size in found["mesh"].items() if size > 1)
        used = found["bytes_per_device"]["total"] / 2**30
        row = [name, mesh, "yes" if found["fits"] else "no", f"{used:.2f}"]
        if found["fits"]:
            sent = sum(found["collective_bytes"].values()) / 2**30
            low, high = found["estimated_mfu"]
            row += [f"{sent:.2f}", found["bound"], f"{1e3 * found['estimated_step_seconds']:.3g}"]
            row += [f"{low:.0%}-{high:.0%}", f"{found['estimated_tokens_per_second'] / 1e6:.3g}"]
        else:
            row += [""] * 5
        row += [f"{found['compile_seconds']:.0f}", f"{found['wall_seconds']:.0f}"]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    app.run(main)
