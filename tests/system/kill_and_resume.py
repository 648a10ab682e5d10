"""Kill a training run at random moments, start it again each time, and compare it with one that was left alone.

    python -m tests.system.kill_and_resume --config=configs/phrases_en_de.py --kills=5 -- \
        --config.training.num_steps=60 --config.training.checkpoint_every=10 ...

What follows ``--`` goes to ``train.py``, the same in every start. Each run makes its tokenizer and its tokenised corpus
anew, so that kills may fall into that too. Two of the kills are aimed at a save, one while Orbax writes and one before
the manifest is there; saves are slowed down to be hit. ``training.log_every=1`` gives the finest moments. Parameters,
moving average, optimiser state and the next batch must be the same bit for bit. Exit code: 0 if they are, else 1.
"""

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from transformer.tasks import make_task
from transformer.training.checkpoints import MANIFEST, UNFINISHED, Checkpoints
from transformer.training.workdir import CHECKPOINTS, read_config

ROOT = Path(__file__).parents[2]
SECONDS_BETWEEN_LOOKS = 0.005
WRITING, SEALING = "while Orbax wrote", "after Orbax, before the manifest of"

# The real script, with sleeps in the background part of a save, and a file that says when what earlier kills left half
# written is gone: until then it would look like a save under way.
SLOW_TRAINING = """
import pathlib, runpy, sys, time
import orbax.checkpoint as ocp
from transformer.training import checkpoints

_, seconds, clean, *command = sys.argv

def slowly(function):
    def call(*arguments, **options):
        time.sleep(float(seconds))
        return function(*arguments, **options)
    return call

def prepare_folder(self, original=checkpoints.Checkpoints._prepare_folder):
    original(self)
    pathlib.Path(clean).touch()

ocp.CompositeCheckpointHandler.finalize = slowly(ocp.CompositeCheckpointHandler.finalize)
checkpoints._seal_files = slowly(checkpoints._seal_files)
checkpoints.Checkpoints._prepare_folder = prepare_folder
sys.argv = command
runpy.run_path(command[0], run_name="__main__")
"""


class Pace(NamedTuple):
    """Of the run that was left alone: seconds until its first step, seconds from there to the end, its last step."""

    before: float
    training: float
    steps: int


class Moment(NamedTuple):
    """When to kill: after ``step`` was logged, when a save comes to ``phase``, or ``delay`` seconds later."""

    step: float
    phase: str | None
    delay: float


class Run:
    """A workdir and the command that trains in it."""

    def __init__(self, workdir: Path, options: Sequence[str], slow_save: float):
        self.workdir = workdir
        self.checkpoints = Checkpoints(workdir / CHECKPOINTS)
        self._metrics = workdir / "metrics.jsonl"
        self._log = workdir.with_suffix(".log")
        self._clean = workdir.with_suffix(".clean")
        self._command = [
            *(
                sys.executable,
                "-c",
                SLOW_TRAINING,
                str(slow_save),
                str(self._clean),
                "train.py",
                f"--workdir={workdir}",
            ),
            *(*options, f"--config.data.cache_directory={workdir / 'cache'}"),
        ]

    @contextlib.contextmanager
    def started(self) -> Iterator[subprocess.Popen]:
        """The process; it does not outlive the block."""
        self._clean.unlink(missing_ok=True)
        with open(self._log, "ab") as log:
            process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def finish(self) -> Pace:
        """Start it and let it come to its end."""
        begin = first = time.monotonic()
        with self.started() as process:
            while process.poll() is None:
                if first == begin and (self.steps_logged() or self.save_under_way()):
                    first = time.monotonic()
                time.sleep(SECONDS_BETWEEN_LOOKS)
        self._require(process.returncode == 0, process)
        return Pace(first - begin, time.monotonic() - first, self.steps_logged())

    def kill(self, moment: Moment) -> bool:
        """Start it and kill it; False if it ended before the moment came."""
        reached, earlier = None, self._metrics_written()
        with self.started() as process:
            while process.poll() is None:
                logged = self.steps_logged() if self._metrics_written() != earlier else 0
                if reached is None and logged >= moment.step:
                    reached = time.monotonic()
                if reached is not None and (
                    self.save_under_way()[:1] == [moment.phase]
                    if moment.phase
                    else time.monotonic() - reached >= moment.delay
                ):
                    break
                time.sleep(SECONDS_BETWEEN_LOOKS)
        self._require(process.returncode in (0, -signal.SIGKILL), process)
        return process.returncode != 0

    def _require(self, well: bool, process: subprocess.Popen) -> None:
        if not well:
            sys.exit(f"train.py ended with exit code {process.returncode}; see the end of {self._log}")

    def save_under_way(self) -> list[Any]:
        """The phase and the step of a save that is not complete; empty if there is none."""
        if not self._clean.exists():
            return []
        whole = self.checkpoints.steps()
        for path in self.checkpoints.folder.glob("[0-9]*"):
            step, _, unfinished = path.name.partition(UNFINISHED)
            if path.name.endswith(UNFINISHED):
                return [WRITING, int(step)]
            newest = step.isdecimal() and not unfinished and int(step) > max(whole, default=-1)
            if newest and not (path / MANIFEST).exists():  # it may have been sealed since they were listed
                return [SEALING, int(step)]
        return []

    def steps_logged(self) -> int:
        """The step of the last whole line of the metrics."""
        text = self._metrics.read_text() if self._metrics.exists() else ""
        lines = text.rpartition("\n")[0].splitlines()
        return json.loads(lines[-1])["step"] if lines else 0

    def _metrics_written(self) -> int:
        """When, in nanoseconds: a new start writes them anew, without the steps it is going to repeat."""
        return self._metrics.stat().st_mtime_ns if self._metrics.exists() else 0

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array of the newest checkpoint, checked to be whole, and of the batch that would come next."""
        restored = self.checkpoints.restore({})
        if restored is None:
            sys.exit(f"{self.workdir} has no checkpoint")
        folder = self.checkpoints.folder / str(restored.step)
        result = {"step": np.asarray(restored.step)}
        for item in sorted(path.name for path in folder.iterdir() if path.is_dir()):
            result |= named(item, read_as_numpy(folder / item))
        task = make_task(read_config(self.workdir), self.workdir)
        return result | named("next batch", task.batch(restored.step)._asdict())


def named(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree.leaves_with_path(tree)
    return {
        f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}": np.asarray(leaf) for path, leaf in leaves
    }


def read_as_numpy(folder: Path) -> Any:
    """An Orbax item as it is, whatever its structure."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        tree = reader.metadata(folder).item_metadata.tree
        arguments = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return reader.restore(folder, ocp.args.PyTreeRestore(restore_args=arguments))


def differences(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> list[str]:
    """What is not the same, bit for bit."""
    found = []
    for name in sorted(left.keys() | right.keys()):
        if name not in left or name not in right:
            found.append(f"{name} is only in one of them")
        elif (left[name].dtype, left[name].shape) != (right[name].dtype, right[name].shape):
            found.append(f"{name} is {left[name].dtype} {left[name].shape} and {right[name].dtype} {right[name].shape}")
        elif left[name].tobytes() != right[name].tobytes():
            largest = np.max(np.abs(left[name].astype(np.float64) - right[name].astype(np.float64)))
            found.append(f"{name} differs by up to {largest:g}")
    return found


def plan_kills(number: int, pace: Pace, choose: random.Random) -> list[Moment]:
    """In random order: two in a save, one before the first step, the others anywhere; each later in the training."""
    kinds = ["writing", "sealing", "starting", *["anywhere"] * number][:number]
    choose.shuffle(kinds)
    part = 1 / (number + 1)
    moments = []
    for index, kind in enumerate(kinds):
        step = pace.steps * choose.uniform(index, index + 1) * part
        if kind == "starting":
            moments.append(Moment(0, None, choose.uniform(0, pace.before)))
        elif kind == "anywhere":
            moments.append(Moment(step, None, choose.uniform(0, pace.training * part / 2)))
        else:
            moments.append(Moment(step, WRITING if kind == "writing" else SEALING, 0))
    return moments


def compare(folder: Path, options: Sequence[str], *, kills: int, seed: int, slow_save: float) -> bool:
    """Whether the run that is killed ends as the one that is not; prints how it went."""
    calm = Run(folder / "calm", options, slow_save)
    pace = calm.finish()
    print(f"uninterrupted: {pace.before:.1f} s to its first step, {pace.training:.1f} s from there", flush=True)

    killed = Run(folder / "killed", options, slow_save)
    number = hits = 0
    for moment in plan_kills(kills, pace, random.Random(seed)):
        begin = time.monotonic()
        if not killed.kill(moment):
            print("it came to its end before the next kill", flush=True)
            break
        number += 1
        phase = killed.save_under_way()
        hits += bool(phase)
        print(
            f"kill {number}: after {time.monotonic() - begin:.1f} s, last step logged {killed.steps_logged()}, "
            f"newest whole checkpoint {max(killed.checkpoints.steps(), default='none')}: "
            + (f"{phase[0]} checkpoint {phase[1]}" if phase else "outside of a save"),
            flush=True,
        )
    killed.finish()

    one, other = calm.arrays(), killed.arrays()
    found = differences(one, other)
    for line in found:
        print(line)
    print(f"{number} kills, {hits} of them inside a save; {len(one)} arrays at step {one['step']}, {len(found)} differ")
    enough = number == kills and hits >= min(1, kills)
    verdict = "the same bit for bit" if not found else "NOT THE SAME"
    print(f"verdict: {verdict}{'' if enough else ', but with fewer kills than asked for: train longer'}")
    return not found and enough


def main(arguments: Sequence[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # and end what was started
    parser = argparse.ArgumentParser(description="Kill and resume training, and compare with an uninterrupted run.")
    parser.add_argument("--config", required=True, help="the experiment")
    parser.add_argument("--folder", type=Path, help="for both workdirs, must be new; default: a temporary one")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--slow_save", type=float, default=0.5, help="seconds that each phase of a save takes longer")
    parser.add_argument("options", nargs="*", help="for train.py, after --")
    flags = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = flags.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=flags.folder is None)
        options = [f"--config={flags.config}", *flags.options]
        same = compare(folder.absolute(), options, kills=flags.kills, seed=flags.seed, slow_save=flags.slow_save)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
