"""A dry run: everything of a training run but the hours, looked at and checked on the machine that is there."""

import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import Config, flatten
from transformer.data.tfds_builders import require_prepared
from transformer.plan.checks import BatchChecks, Check, check_loss, check_special_ids, failed
from transformer.plan.memory import (
    QUICK_COMPILATION,
    bytes_on_a_device,
    device_limit,
    host_memory,
    kept_bytes,
    parts_of,
    state_bytes,
    temporary_bytes,
)
from transformer.plan.rows import show_attention, show_row
from transformer.report.reference import reference_of
from transformer.training.devices import select_platform
from transformer.training.loading import (
    checkpoint_items,
    count_examples,
    fingerprints,
    open_checkpoints,
    open_task,
    read_parts,
    require_fingerprints,
)
from transformer.training.optimizers import make_optimizer
from transformer.training.partitioning import (
    LOGICAL_AXES,
    count_row_shards,
    make_mesh,
    place_batch,
    require_even_shares,
)
from transformer.training.schedules import make_schedule, peak_rate
from transformer.training.state import TrainState, abstract_state, init_state
from transformer.training.step import count_parts, jit_train_step
from transformer.training.trainer import padding_share
from transformer.training.workdir import local_workdir, require_no_file, require_same_experiment
from transformer.types import Task, UserError

NUM_BATCHES = 100  # that are looked at; at most an epoch
NUM_SHOWN = 3  # of them are shown
ROWS_SHOWN = 2  # of each
REDUCED_POSITIONS = 1_024  # of the batch of the one real step, in about so many positions

logger = logging.getLogger(__name__)


def dry_run(config: Config, workdir: Path, name: str | None = None) -> int:
    """Build all that training would, run one step on a few rows, and print what it comes to.

    A minute, where the data is prepared and tokenised. Nothing is written but what training would keep in its caches
    too: vocabularies, tokenised text, fingerprints of the text and what cleaning found, compiled programs, copies of
    what lies in a bucket. Nothing is downloaded but that. The last line of standard output is one JSON object.

    Args:
      workdir: of the run, which need not be there; it is left as it is.
      name: of the config file with its variant; None: not known, and nothing published is shown.

    Returns:
      The exit code: 0, or 1 if a check failed.

    Raises:
      UserError: for mistakes in config or data, and for a data set that would have to be prepared first.
    """
    require_no_file(workdir)
    require_prepared(config.data)
    select_platform(config.mesh)
    mesh = make_mesh(config.mesh)
    require_even_shares(config.model, mesh)
    with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXES):
        result, checks = _DryRun(config, workdir, mesh, name).run()
    names = failed(checks)
    print(json.dumps({**result, "failed": names}))
    return 1 if names else 0


class _Batches(NamedTuple):
    """The first batches of a run.

    first   as many as are shown
    work    what each amounts to, see :meth:`transformer.types.Task.work`
    shapes  a batch of each shape that there is in the whole run, and how many of the first batches have it
    """

    first: list[Any]
    work: list[dict[str, float]]
    shapes: dict[str, tuple[Any, int]]


class _DryRun:
    """A run that is not run: its parts, and a method for each section of what is printed."""

    def __init__(self, config: Config, workdir: Path, mesh: jax.sharding.Mesh, name: str | None):
        self.config, self.workdir, self.mesh, self.name = config, workdir, mesh, name
        self.num_shares = count_row_shards(mesh)
        self.schedule = make_schedule(config.training, config.model.d_model)
        self.optimizer = make_optimizer(config.training, self.schedule)
        self.checkpoints = open_checkpoints(workdir, config)
        self.checks: list[Check] = []
        self.result: dict[str, Any] = {}
        self.programs: dict[Any, Any] = {}

    def run(self) -> tuple[dict[str, Any], list[Check]]:
        """Print all sections; give the figures, and what was checked."""
        self.show_config()
        self.open_task()
        self.abstract = abstract_state(self.task, self.optimizer, self.config.training.ema_decay is not None, self.mesh)
        self.show_workdir()
        self.show_parameters()
        self.show_schedule()
        self.look_at_splits()
        batches = self.look_at_batches()
        self.show_batches(batches)
        self.show_flops(batches.work)
        self.show_rows(batches.first)
        self.show_step(batches.first[0])
        self.show_memory([batch for batch, _ in batches.shapes.values()])
        self.show_checks()
        return self.result, self.checks

    def show_config(self) -> None:
        _title("Config")
        defaults = dict(flatten(Config()))
        print(f"  task={self.config.task}, seed={self.config.seed}; all else that differs from the defaults:")
        for key, value in flatten(self.config):
            if value != defaults[key] and key not in ("task", "seed"):
                print(f"  {key} = {value!r} (default {defaults[key]!r})")
        kind = self.mesh.devices.flat[0].device_kind
        shape = ", ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items())
        print(f"  mesh: {shape}, of {self.mesh.size} {self.mesh.devices.flat[0].platform} device(s), {kind}")

    def open_task(self) -> None:
        """The task as training would open it; another experiment's workdir is not touched."""
        self.refusal = ""
        try:
            require_same_experiment(self.workdir, self.config)
        except UserError as error:
            self.refusal = str(error)
        goes_on = bool(self.checkpoints.steps()) and not self.refusal
        self.task: Task = open_task(self.config, self.workdir if goes_on else None)

    def show_workdir(self) -> None:
        """What the command would find there without --dry_run."""
        _title("Workdir")
        num_steps, start = self.config.training.num_steps, 0
        if not self.refusal:
            try:
                found = self.checkpoints.newest(checkpoint_items(self.abstract))
                if found is not None:
                    start, metadata = found
                    place = f"{start} in {self.checkpoints.folder}"
                    require_fingerprints(fingerprints(self.task), metadata, place)
            except UserError as error:
                self.refusal = str(error)
        if self.refusal:
            text = f"training would refuse it: {self.refusal}"
        elif start:
            left = max(num_steps - start, 0)
            text = f"{self.workdir} holds this run: it would go on from step {start:,}, with {left:,} steps left"
        else:
            text = f"{self.workdir} {'holds no checkpoint' if self.workdir.exists() else 'is not there yet'}: a new run"
        print("\n".join(f"  {line}" for line in text.splitlines()))
        self.checks.append(Check("workdir", not self.refusal, text.splitlines()[0]))
        self.result["start_step"] = start

    def show_parameters(self) -> None:
        _title("Parameters")
        parts = parts_of(self.abstract.params, self.config.model)
        sparse = parts[-1].active != parts[-1].total
        for name, total, active in parts:
            indent = "    " if "/" in name else "  "
            print(f"{indent + name:<34}{total:>16,}" + (f"{active:>16,} active" if sparse else ""))
        self.result |= {"num_parameters": parts[-1].total, "num_active_parameters": parts[-1].active}
        for published in list(reference_of(self.name).published.values())[:1]:  # each test set has the same numbers
            paper = "none" if published.millions is None else f"{published.millions}M"
            print(f"  {'as the config states':<32}{published.parameters:>16,}")
            print(f"  {'as the paper prints, rounded':<32}{paper:>16}")
            self.result |= {"stated_parameters": published.parameters, "paper_parameters_millions": published.millions}

    def show_schedule(self) -> None:
        training = self.config.training
        _title(f"Learning rate ({training.schedule}, {training.num_steps:,} steps)")
        highest, peak = peak_rate(self.schedule, training.warmup_steps, training.num_steps)
        steps = {
            1,
            training.warmup_steps // 2,
            training.warmup_steps,
            peak,
            training.num_steps // 2,
            training.num_steps,
        }
        for step in sorted(step for step in steps if 1 <= step <= training.num_steps):
            print(f"  step {step:>9,}: {float(self.schedule(step - 1)):.4g}{' (the peak)' if step == peak else ''}")
        self.result["peak_learning_rate"] = highest

    def look_at_splits(self) -> None:
        """Read what training would ask for late, at its first evaluation, and what it leaves to eval.py."""
        for split in ("validation", "test"):
            try:
                found, passed = f"{count_examples(self.task, self.config, split):,} examples", True
            except UserError as error:
                found, passed = str(error), False
            self.checks.append(Check(f"{split} split", passed, found))

    def look_at_batches(self) -> _Batches:
        """Build the first batches and one of each shape that comes later, and check all of them."""
        checks, first, work = BatchChecks(), [], []
        shapes: dict[str, tuple[Any, int]] = {}
        number_looked_at = min(NUM_BATCHES, self.task.steps_per_epoch())
        later = () if self.config.training.overfit_one_batch else self.task.steps_of_shapes()
        for number in (*range(number_looked_at), *(step for step in later if step >= number_looked_at)):
            batch = self.task.batch(number)
            view = self.task.view(batch)
            checks.add(number, view)
            if number == 0:
                self.checks.append(check_special_ids(view))
            if number < NUM_SHOWN:
                first.append(batch)
            _, count = shapes.get(shape := _shapes(batch), (batch, 0))
            if number < number_looked_at:
                work.append(dict(self.task.work(batch)))
                count += 1
            shapes[shape] = batch, count
        self.checks += checks.results()
        return _Batches(first, work, shapes)

    def show_batches(self, batches: _Batches) -> None:
        work, per_epoch, training = batches.work, self.task.steps_per_epoch(), self.config.training
        _title(f"Batches: the first {len(work)} of {per_epoch:,} an epoch")
        for name in (name for name in work[0] if name != "flops"):
            values = [each[name] for each in work]
            figures = {"mean": np.mean(values), "least": min(values), "most": max(values)}
            print(f"  {name:<16}", "   ".join(f"{what} {value:>10,.0f}" for what, value in figures.items()))
        totals = {name: sum(each[name] for each in work) for name in work[0]}
        share = padding_share(totals)
        print(f"  padding          {share:.1%} of the positions")
        for shape, (batch, number) in sorted(batches.shapes.items(), key=lambda item: -item[1][1]):
            parts, rows = self.parts_and_rows(batch)
            print(f"  shapes           {shape}: {number} of these batches, each in {_count(parts, 'part')} of", end=" ")
            group = self.mesh.size // self.num_shares
            sharing = _count(self.num_shares, "device") if group == 1 else f"{self.num_shares} x {group} devices"
            print(f"{_count(rows, 'row')} on each of {sharing}")
        epochs = training.num_steps / per_epoch
        print(f"  the run          {training.num_steps:,} steps, {epochs:,.2f} epochs", end="")
        print(" of batch 0 (training.overfit_one_batch)" if training.overfit_one_batch else "")
        tokens = {name: total / len(work) for name, total in totals.items() if name.endswith("_tokens")}
        self.result |= {
            "batches_per_epoch": per_epoch,
            "epochs": epochs,
            "tokens_per_step": tokens,
            "padding_share": share,
        }

    def show_flops(self, work: list[dict[str, float]]) -> None:
        """Of matrix products, by models/flops.py."""
        _title("FLOPs of matrix products, forward and backward, padding included")
        a_step = float(np.mean([each["flops"] for each in work]))
        tokens = sum(self.result["tokens_per_step"].values())
        run = a_step * self.config.training.num_steps
        print(f"  a step           {a_step:.4g}, the mean of these batches")
        print(f"  a real token     {a_step / tokens:.4g}, of all sides together")
        print(f"  the run          {run:.3g}")
        self.result |= {"flops_per_step": a_step, "flops_per_token": a_step / tokens, "flops_of_run": run}

    def show_rows(self, batches: list[Any]) -> None:
        for number, batch in enumerate(batches):
            view = self.task.view(batch)
            for row in range(min(ROWS_SHOWN, len(jax.tree.leaves(batch)[0]))):
                _title(f"Batch {number}, row {row}")
                for line in show_row(view, row):
                    print(f"  {line}")
        view = self.task.view(batches[0])
        if view.attention:
            _title("Who sees whom in batch 0, row 0")
            for line in show_attention(view.attention, 0):
                print(f"  {line}")

    def parts_and_rows(self, batch: Any) -> tuple[int, int]:
        """In how many parts a batch is computed, and how many rows of each a device has."""
        parts = count_parts(self.config.training, self.task.size_of(batch), self.num_shares)
        return parts, -(-len(jax.tree.leaves(batch)[0]) // (parts * self.num_shares))

    def largest_of(self, batches: list[Any]) -> Any:
        """That of batches of different shapes whose parts need most memory.

        It is that with most positions, or where attention outweighs all else that with the longest rows.
        """
        sizes = []
        for batch in batches:
            leaves, (_, rows) = jax.tree.leaves(batch), self.parts_and_rows(batch)
            length = max((leaf.shape[1] for leaf in leaves if leaf.ndim == 2), default=1)
            sizes.append((rows * self.task.work(batch)["positions"] / len(leaves[0]), rows * length**2))
        candidates = np.unique(np.argmax(sizes, axis=0)).tolist()
        if len(candidates) == 1:
            return batches[candidates[0]]

        def needed(batch: Any) -> int:
            return kept_bytes(self.task, self.abstract.params, batch, self.parts_and_rows(batch)[1])

        return max((batches[candidate] for candidate in candidates), key=needed)

    def show_memory(self, batches: list[Any]) -> None:
        """For the largest of the batches, one of each shape."""
        device = self.mesh.devices.flat[0]
        _title(f"Memory of each of {self.mesh.size} {device.platform} device(s)")

        batch = self.largest_of(batches)
        parts, rows = self.parts_and_rows(batch)
        placed = place_batch(self.mesh, batch, parts)
        compiled = self.compile(placed, parts, QUICK_COMPILATION.get(device.platform))
        sizes = {**state_bytes(self.abstract), "batch": bytes_on_a_device(placed)}
        for name, size in sizes.items():
            print(f"  {name:<16} {_gibibytes(size)}")
        temporaries = temporary_bytes(compiled)
        if temporaries is None:
            print("  temporaries      not known: XLA does not say here")
        else:
            print(f"  temporaries      {_gibibytes(temporaries)} for gradients, activations and logits, by XLA's count")
            sizes["temporaries"] = temporaries
        total = sum(sizes.values())
        in_parts = f", in {parts} parts of {_count(rows, 'row')}" if parts > 1 else ""
        most = ", the one that needs most" if len(batches) > 1 else ""
        print(f"  total            {_gibibytes(total)} with a batch of {_shapes(batch)}{in_parts}{most}")
        print(
            f"  Exact but for the temporaries: those are of XLA's program for {device.device_kind}, and another kind of"
        )
        print("  device has another program.")
        limit = device_limit(device)
        if limit is not None:
            found = f"{_gibibytes(total).strip()} of {_gibibytes(limit).strip()}"
            if total > limit:
                found += "; set training.max_tokens_per_device lower, or the size of a batch"
            self.checks.append(Check("memory", total <= limit, found))
        self.result["bytes_per_device"] = {**sizes, "total": total}

    def show_step(self, batch: Any) -> None:
        """One real update, on a few rows of a batch."""
        training = self.config.training
        parts = min(count_parts(training, self.task.size_of(batch), self.num_shares), 2)
        rows, reduced = self.reduce(batch, parts)
        _title(f"One step on {rows} rows of batch 0" + (f", in {parts} parts" if parts > 1 else ""))
        placed = place_batch(self.mesh, reduced, parts)
        since = time.monotonic()
        compiled = self.compile(placed, parts)
        compile_seconds = time.monotonic() - since
        missing = self.missing_memory(compiled)
        if missing:
            print(f"  not run: {missing}")
            self.result |= {"loss_at_start": None, "step_seconds": None}
            return
        since = time.monotonic()
        state = jax.block_until_ready(self.fresh_state())
        init_seconds = time.monotonic() - since
        since = time.monotonic()
        _, sums = compiled(state, placed, jnp.array(True))
        sums = jax.device_get(sums)
        step_seconds = time.monotonic() - since
        nll = float(sums["nll"][0] / max(sums["nll"][1], 1))
        norm = float(sums["gradient_norm"][0])
        choices = self.task.view(reduced).num_choices
        chance = None if choices is None else float(np.log(choices))
        print(
            f"  nll              {nll:.4f} nats" + (f"; ln {choices:,} = {chance:.4f}" if choices is not None else "")
        )
        print(f"  gradient norm    {norm:.4g}")
        print(f"  seconds          {step_seconds:.2f}, which says nothing of a whole step's time;", end=" ")
        print(f"{compile_seconds:.1f} before to compile it, {init_seconds:.1f} for the parameters")
        if training.initialize_from is None and choices is not None:
            self.checks.append(check_loss(nll, choices, self.config.model.d_model))
        self.checks.append(Check("finite loss and gradients", bool(sums["finite"][0]), f"gradient norm {norm:.4g}"))
        self.result |= {
            "loss_at_start": nll if np.isfinite(nll) else None,  # JSON knows no NaN
            "loss_of_chance": chance,
            "gradient_norm": norm if np.isfinite(norm) else None,
            "step_seconds": step_seconds,
        }

    def compile(self, placed: Any, parts: int, options: Any = None) -> Any:
        """The program of an update with batches of such shapes, made once.

        Args:
          parts: the batch is computed in so many.
          options: of the compiler.
        """
        key = (parts, *(leaf.shape for leaf in jax.tree.leaves(placed)))
        if key not in self.programs:
            step = jit_train_step(self.task, self.optimizer, self.config, self.abstract, parts)
            self.programs[key] = step.lower(self.abstract, placed, jnp.array(True)).compile(options)
        return self.programs[key]

    def reduce(self, batch: Any, parts: int) -> tuple[int, Any]:
        """The first rows of a batch: about ``REDUCED_POSITIONS``, at least two, one for each part and device."""
        leaves = jax.tree.leaves(batch)
        positions_a_row = self.task.work(batch)["positions"] / len(leaves[0])
        least = max(2, parts * self.num_shares)
        rows = min(max(int(REDUCED_POSITIONS / positions_a_row), least), len(leaves[0]))
        return rows, jax.tree.map(lambda leaf: leaf[:rows], batch)

    def missing_memory(self, compiled: Any) -> str:
        """Why the step cannot run here, if CPUs stand in for devices and the state is too large for this machine."""
        available = host_memory()
        if self.mesh.devices.flat[0].platform != "cpu" or available is None:
            return ""
        needed = self.mesh.size * (sum(state_bytes(self.abstract).values()) + (temporary_bytes(compiled) or 0))
        if needed <= available:
            return ""
        return f"it needs {_gibibytes(needed).strip()}, and {_gibibytes(available).strip()} are free"

    def fresh_state(self) -> TrainState:
        """The state of a new run."""
        params = None
        source = self.config.training.initialize_from
        if source is not None and not self.checkpoints.steps():
            with tempfile.TemporaryDirectory() as folder:
                self.task.save_assets(Path(folder))
                params = read_parts(local_workdir(source), self.config, self.task, Path(folder))
        return init_state(self.task, self.optimizer, self.abstract, self.config.seed, params)

    def show_checks(self) -> None:
        _title("Checks")
        for check in self.checks:
            print(f"  {'ok' if check.passed else 'FAILED':<8}{check.name}: {check.found}")


def _title(text: str) -> None:
    print(f"\n{text}")


def _gibibytes(size: int) -> str:
    return f"{size / 2**30:>9.3f} GiB" if size >= 2**20 else f"{size / 2**10:>9.3f} KiB"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number > 1 else "")


def _shapes(batch: Any) -> str:
    """The different shapes of the arrays of a batch of one or two sides: ``32 x 64 and 32 x 48``."""
    shapes = dict.fromkeys(leaf.shape for leaf in jax.tree.leaves(batch) if leaf.ndim > 1)
    return " and ".join(" x ".join(map(str, shape)) for shape in shapes)
