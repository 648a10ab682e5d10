"""Attention against length: every implementation that runs here, and PyTorch's, in turns.

    python benchmarks/attention.py [--lengths=256,512,...] [--peer=PYTHON] [--repetitions=5] [--plot=FILE.svg]
    python benchmarks/attention.py --window=128 [--lengths=...]        all of ours with a window, without the peer

Forward and backward pass (output, and gradients of queries, keys and values) of causal self-attention of one row of 8
heads of 64 in float32, without padding or bias. ``local`` has a window of 256 besides, which the others have not.
``torch`` is ``torch.nn.functional.scaled_dot_product_attention(..., is_causal=True)`` in the interpreter PYTHON.

At each length all take turns, a repetition each; see measure.py. Reported are the median seconds, and the median ratios
of neighbouring repetitions. Temporary memory is what the compiled program asks for beyond its arguments and results,
by XLA's own account; torch gives none. What would ask for more than half of the machine's memory is not run, and its
memory is reported all the same.

The tables are for people; the last line is the same as one JSON object. ``--plot`` draws both over the length, on
logarithmic axes, and needs matplotlib. Where PYTHON has no torch, only ours are measured.
"""

import argparse
import functools
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import measure

NUM_HEADS, HEAD_DIM, WINDOW = 8, 64, 256
LENGTHS = (256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)

Found = dict[str, Any]
"""For an implementation at a length: ``temporary_bytes``, ``seconds`` and ``times_as_fast_as``, by implementation."""


# A worker's side: job "NAME LENGTH" is a repetition, job "NAME LENGTH bytes" gives the temporary memory


def prepare(benchmark: str) -> measure.Offer:
    """What ``serve`` needs; a worker is started for "ours LENGTHS WINDOW" or "torch LENGTHS"."""
    side, lengths, *window = benchmark.split()
    numbers = [int(length) for length in lengths.split(",")]
    return prepare_ours(numbers, int(window[0])) if side == "ours" else prepare_torch(numbers)


def prepare_ours(lengths: Sequence[int], window: int) -> measure.Offer:
    """Programs are compiled, and inputs made, when they are first asked for. ``window`` 0: ``local`` alone has one."""
    import jax
    import numpy as np

    from transformer.models.attention import KERNELS, attend
    from transformer.models.attention.request import Request
    from transformer.models.masks import AttentionMask
    from transformer.training.devices import keep_freed_memory

    keep_freed_memory()  # as the scripts do

    def mask(name: str) -> AttentionMask:
        return AttentionMask(causal=True, window=window or (WINDOW if name == "local" else None))

    def shape(length: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, length, NUM_HEADS, HEAD_DIM), np.float32)

    @functools.cache
    def inputs(length: int) -> list[Any]:
        draw = np.random.default_rng(length).standard_normal
        return [jax.device_put(draw(shape(length).shape, np.float32)) for _ in range(4)]

    @functools.cache
    def program(name: str, length: int) -> Any:
        def run(query: Any, key: Any, value: Any, d_output: Any) -> Any:
            def forward(query: Any, key: Any, value: Any) -> Any:
                return attend(query, key, value, mask(name), implementation=name)

            output, pullback = jax.vjp(forward, query, key, value)
            return output, pullback(d_output)

        return jax.jit(run).lower(*[shape(length)] * 4).compile()

    def repetition(name: str, length: int) -> float:
        compiled, arrays = program(name, length), inputs(length)
        return measure.seconds(lambda: jax.block_until_ready(compiled(*arrays)))

    def temporary_bytes(name: str, length: int) -> float:
        return float(program(name, length).memory_analysis().temp_size_in_bytes)

    jobs: dict[str, measure.Job] = {}
    flops = {}
    for length in lengths:
        for name, kernel in KERNELS.items():
            if kernel.refusal(Request.of(shape(length), shape(length), mask(name), None, None, 0.0)) is None:
                jobs[f"{name} {length}"] = functools.partial(repetition, name, length)
                jobs[f"{name} {length} bytes"] = functools.partial(temporary_bytes, name, length)
                flops[f"{name} {length}"] = visible_flops(length, mask(name).window)
    return measure.Offer(jobs, {"python": sys.version.split()[0], "jax": jax.__version__}, flops)


def prepare_torch(lengths: Sequence[int]) -> measure.Offer:
    """The peer's way of ordering the axes: heads before positions."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count() or 1)

    def repetition(length: int) -> float:
        query, key, value, d_output = (torch.randn(1, NUM_HEADS, length, HEAD_DIM) for _ in range(4))
        qkv = [array.requires_grad_() for array in (query, key, value)]

        def run() -> None:
            output = torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
            torch.autograd.grad(output, qkv, d_output)

        return measure.seconds(run)

    jobs = {f"torch {length}": functools.partial(repetition, length) for length in lengths}
    flops = {f"torch {length}": visible_flops(length) for length in lengths}
    return measure.Offer(jobs, {"torch": torch.__version__}, flops)


def visible_flops(length: int, window: int | None = None) -> float:
    """Six products, two of them forward, over the pairs of a query and a key that it sees: 2 K operations a pair."""
    most = min(length, window or length)
    pairs = most * (most + 1) // 2 + (length - most) * most
    return 6.0 * 2 * HEAD_DIM * NUM_HEADS * pairs


# The benchmark's side


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--lengths",
        type=lambda text: sorted({int(length) for length in text.split(",")}),
        default=LENGTHS,
        metavar="N,N,...",
        help="queries, and keys, of each comparison (default: powers of two from 256 to 16,384)",
    )
    parser.add_argument("--peer", default=sys.executable, metavar="PYTHON", help="an interpreter that has torch")
    parser.add_argument("--repetitions", type=int, default=5, help="timed repetitions of each (default: 5)")
    parser.add_argument("--window", type=int, default=0, help="of all of ours (default: 256 for local, none else)")
    parser.add_argument("--plot", metavar="FILE", help="where to draw the results; .svg, .png or .pdf")
    arguments = parser.parse_args()
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error(f"--plot needs matplotlib: {sys.executable} -m pip install matplotlib")
    return arguments


def compare(length: int, workers: Mapping[str, measure.Worker], repetitions: int) -> dict[str, Found]:
    """Everything that serves one length, in turns: {implementation: what was found}."""
    found: dict[str, Found] = {}
    turns: list[tuple[str, measure.Worker]] = []
    for worker in workers.values():
        for name in [job.split()[0] for job in worker.flops if job.endswith(f" {length}")]:
            needed = None if name == "torch" else worker.run(f"{name} {length} bytes")
            found[name] = {"temporary_bytes": needed}
            if needed is None or needed < memory_bytes() / 2:
                turns.append((name, worker))
    values: dict[str, list[float]] = {name: [] for name, _ in turns}
    for turn in range(measure.UNTIMED_TURNS + repetitions):
        for name, worker in turns:
            time.sleep(measure.PAUSE)
            value = worker.run(f"{name} {length}")
            if turn >= measure.UNTIMED_TURNS:
                values[name].append(value)
    for name, worker in turns:
        seconds = statistics.median(values[name])
        found[name] |= {
            "seconds": seconds,
            "visible_flops_per_second": worker.flops[f"{name} {length}"] / seconds,
            "times_as_fast_as": {
                other: statistics.median(theirs / own for theirs, own in zip(values[other], values[name], strict=True))
                for other in values
                if other != name
            },
        }
    return found


def memory_bytes() -> int:
    """Of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def print_table(title: str, lengths: Mapping[int, dict[str, Found]], key: str, unit: float, digits: int) -> None:
    """One line a length, one column an implementation; a dash where there is no number."""
    names = list(dict.fromkeys(name for found in lengths.values() for name in found))
    print(f"\n{title:<28}" + "".join(f"{name:>12}" for name in names))
    for length, found in lengths.items():
        numbers = [found.get(name, {}).get(key) for name in names]
        cells = ["-" if number is None else f"{number / unit:,.{digits}f}" for number in numbers]
        print(f"{length:<28,}" + "".join(f"{cell:>12}" for cell in cells))


def plot(file: str, lengths: Mapping[int, dict[str, Found]], window: int) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (times, memory) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name in dict.fromkeys(name for found in lengths.values() for name in found):
        label = f"{name}, window {window or WINDOW}" if window or name == "local" else name
        for axes, key, unit in ((times, "seconds", 1), (memory, "temporary_bytes", 2**20)):
            points = [
                (length, found[name][key] / unit) for length, found in lengths.items() if found.get(name, {}).get(key)
            ]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=label)
    times.set_ylabel("seconds, forward and backward")
    memory.set_ylabel("temporary memory, MiB")
    for axes in (times, memory):
        axes.set_xlabel("length")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.grid(True, alpha=0.3)
        axes.legend()
    figure.savefig(file)


def main() -> None:
    arguments = parse_arguments()
    load_before = os.getloadavg()
    lengths = ",".join(map(str, arguments.lengths))
    workers = {"ours": measure.Worker(sys.executable, "attention.py", f"ours {lengths} {arguments.window}")}
    if not arguments.window:
        workers["torch"] = measure.Worker(arguments.peer, "attention.py", f"torch {lengths}")
    able = {side: worker for side, worker in workers.items() if worker.missing is None}
    found = {length: compare(length, able, arguments.repetitions) for length in arguments.lengths}
    for worker in workers.values():
        worker.close()
    facts = {
        "cpu": measure.cpu_model(),
        "cores": os.cpu_count(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "versions": {name: version for worker in workers.values() for name, version in worker.versions.items()},
        "repetitions": arguments.repetitions,
        "window": arguments.window,
        "not_measured": {side: worker.missing for side, worker in workers.items() if worker.missing is not None},
    }
    before, after = (", ".join(f"{load:.2f}" for load in facts["load_average"][when]) for when in ("before", "after"))
    print(f"{facts['cpu']}, {facts['cores']} cores; load average {before} before, {after} after")
    print(", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    for side, reason in facts["not_measured"].items():
        print(f"{side} not measured: {reason}")
    print_table("milliseconds", found, "seconds", 1e-3, 1)
    print_table("temporary memory, MiB", found, "temporary_bytes", 2**20, 1)
    print_table("GFLOP/s over what is seen", found, "visible_flops_per_second", 1e9, 1)
    if arguments.plot:
        plot(arguments.plot, found, arguments.window)
    print(json.dumps({"benchmark": "attention", **facts, "lengths": found}))


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].partition(" ")[0] in ("ours", "torch"):
        measure.serve(prepare)
    else:
        main()
