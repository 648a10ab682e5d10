"""Measure two implementations on one machine, in turns.

Each side is a process of its own with all cores. It prepares its jobs, then waits on its pipe and does one repetition
when it is told to, so that only one side works at a time and neither's threads disturb the other. Repetitions
alternate: what slows the machine down for a while slows both sides down. Reported are the medians, and the median of
the ratios of neighbouring repetitions.

This module needs the standard library only: the peer's interpreter may lack everything of ours.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
UNTIMED_TURNS = 2  # the first compiles or fills caches
PAUSE = 0.05  # seconds between repetitions, in which the threads of the last one cease to spin

D_MODEL, D_FF, NUM_HEADS, NUM_LAYERS, VOCAB_SIZE = 256, 1_024, 4, 3, 8_000
DROPOUT_RATE, LABEL_SMOOTHING = 0.1, 0.1
BATCH_SIZE, SOURCE_LENGTH, TARGET_LENGTH = 64, 32, 32

PRODUCTS = (
    (BATCH_SIZE * TARGET_LENGTH, D_MODEL, D_FF),
    (BATCH_SIZE * TARGET_LENGTH, D_FF, D_MODEL),
    (D_MODEL, BATCH_SIZE * TARGET_LENGTH, D_FF),
)
"""(m, k, n) of the float32 matrix products whose best rate stands for what the machine can do: a feed-forward's."""

Job = Callable[[], float]
"""One repetition. Gives its seconds, or, where it is named ``products``, the FLOP/s of the fastest product."""


class Offer(NamedTuple):
    """What a side can do: its jobs by name, the versions of what they run on, and the arithmetic of a repetition."""

    jobs: Mapping[str, Job]
    versions: Mapping[str, str]
    flops: Mapping[str, float]


def seconds(run: Callable[[], Any]) -> float:
    """The time that ``run`` takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def best_product_rate(products: Mapping[tuple[int, int, int], Callable[[], Any]]) -> float:
    """FLOP/s of the fastest of the products, each done ten times."""
    return max(2.0 * m * k * n / min(seconds(run) for _ in range(10)) for (m, k, n), run in products.items())


# A worker's side


def serve(prepare: Callable[[str], Offer]) -> None:
    """Be a worker: prepare for the benchmark that the command line names, then do the job that each line names."""
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints
    try:
        offer = prepare(sys.argv[1])
    except ImportError as error:
        print(json.dumps({"missing": f"{error} in {sys.executable}"}), file=pipe)
        return
    print(json.dumps({"versions": offer.versions, "flops": offer.flops}), file=pipe)
    for line in sys.stdin:
        print(json.dumps(offer.jobs[line.strip()]()), file=pipe)


# The benchmark's side


class Worker:
    """A process that serves the jobs of a benchmark.

    missing: why it cannot, or None; versions, flops: as in ``Offer``.
    """

    def __init__(self, python: str, script: str, benchmark: str):
        self._name = f"{python} {script} {benchmark}"
        environment = {
            "OMP_NUM_THREADS": str(os.cpu_count()),
            **os.environ,
            "PYTHONPATH": str(FOLDER.parent),
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",  # nothing is fetched: weights are random
        }
        self._process = subprocess.Popen(
            [python, str(FOLDER / script), benchmark],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        found = self._read()
        self.missing: str | None = found.get("missing")
        self.versions: dict[str, str] = found.get("versions", {})
        self.flops: dict[str, float] = found.get("flops", {})

    def run(self, job: str) -> float:
        """One repetition."""
        assert self._process.stdin is not None
        self._process.stdin.write(job + "\n")
        self._process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with exit code {self._process.wait()}")
        return json.loads(line)


class Measured(NamedTuple):
    """What was found.

    values   {job: {side: one number a repetition}}; a side that is missing is not in it
    flops    {job: floating-point operations of a repetition of ours}
    facts    for the report: machine, versions, what is missing
    """

    values: dict[str, dict[str, list[float]]]
    flops: dict[str, float]
    facts: dict[str, Any]

    def compare(self, job: str, units: Mapping[str, int]) -> dict[str, Any]:
        """The numbers of a job for the report.

        Args:
          units: what a repetition makes, by name; becomes a rate of each side.

        Returns:
          ``seconds`` and ``UNIT_per_second`` by side; ``flops_per_second`` and ``share_of_matrix_rate`` of ours;
          ``times_as_fast_as_peer``: the median of the ratios of neighbouring repetitions, None without a peer.
        """
        medians = {side: statistics.median(values) for side, values in self.values[job].items()}
        pairs = zip(self.values[job].get("peer", []), self.values[job]["ours"], strict=False)
        ratios = [peer / ours for peer, ours in pairs]
        flops_per_second = self.flops[job] / medians["ours"]
        return {
            "seconds": medians,
            **{
                f"{unit}_per_second": {side: number / median for side, median in medians.items()}
                for unit, number in units.items()
            },
            "flops_per_second": flops_per_second,
            "share_of_matrix_rate": flops_per_second / self.matrix_rate(),
            "times_as_fast_as_peer": statistics.median(ratios) if ratios else None,
        }

    def matrix_rate(self) -> float:
        """FLOP/s of the fastest product of either side: this machine's own."""
        return max(max(rates) for rates in self.values["products"].values())


def parse_arguments(description: str | None) -> argparse.Namespace:
    """The flags that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peer",
        default=sys.executable,
        metavar="PYTHON",
        help="an interpreter that has torch and transformers (default: this one)",
    )
    parser.add_argument("--repetitions", type=int, default=15, help="timed repetitions of each job (default: 15)")
    return parser.parse_args()


def take_turns(benchmark: str, jobs: Sequence[str], arguments: argparse.Namespace) -> Measured:
    """Run every job on both sides alternately: job 1 of ours, of the peer, job 2 of ours, ..., and again."""
    load_before = os.getloadavg()
    workers = {
        "ours": Worker(sys.executable, "ours.py", benchmark),
        "peer": Worker(arguments.peer, "peer.py", benchmark),
    }
    able = {side: worker for side, worker in workers.items() if worker.missing is None}
    values: dict[str, dict[str, list[float]]] = {job: {side: [] for side in able} for job in jobs}
    for turn in range(UNTIMED_TURNS + arguments.repetitions):
        for job in jobs:
            for side, worker in able.items():
                time.sleep(PAUSE)
                value = worker.run(job)
                if turn >= UNTIMED_TURNS:
                    values[job][side].append(value)
    facts = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "versions": {name: version for worker in workers.values() for name, version in worker.versions.items()},
        "repetitions": arguments.repetitions,
        "not_measured": {side: worker.missing for side, worker in workers.items() if worker.missing is not None},
    }
    for worker in workers.values():
        worker.close()
    return Measured(values, workers["ours"].flops, facts)


def cpu_model() -> str:
    """As the kernel calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def report(benchmark: str, measured: Measured, units: Mapping[str, Mapping[str, int]]) -> None:
    """Print what was measured where, a table, and all of it as JSON on the last line.

    Args:
      units: for each job, what a repetition makes.
    """
    facts = measured.facts
    before, after = (", ".join(f"{load:.2f}" for load in facts["load_average"][when]) for when in ("before", "after"))
    print(f"{facts['cpu']}, {facts['cores']} cores; load average {before} before, {after} after")
    print(", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    matrix_rates = {side: max(rates) for side, rates in measured.values["products"].items()}
    for side, rate in matrix_rates.items():
        print(f"best float32 matrix product, {side}: {rate / 1e9:.0f} GFLOP/s")
    jobs = {job: measured.compare(job, made) for job, made in units.items()}
    for job, found in jobs.items():
        for unit in units[job]:
            for side in ("ours", "peer"):
                rate = found[f"{unit}_per_second"].get(side)
                what = f"{job}, {unit.replace('_', ' ')} a second, {side}:"
                print(f"{what} {rate:,.1f}" if rate else f"{what} not measured: {facts['not_measured'][side]}")
        ratio = found["times_as_fast_as_peer"]
        print(
            f"{job}, ours: {found['flops_per_second'] / 1e9:.1f} GFLOP/s, "
            f"{found['share_of_matrix_rate']:.1%} of the best matrix product's rate"
            + (f"; {ratio:.2f} times as fast as the peer" if ratio else "")
        )
    print(json.dumps({"benchmark": benchmark, **facts, "matrix_flops_per_second": matrix_rates, "jobs": jobs}))
