"""The training loop, top to bottom."""

import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from transformer.config import Config
from transformer.data.pipeline import prefetch
from transformer.paths import reaching
from transformer.progress import progress
from transformer.tasks import check_training
from transformer.training import hosts
from transformer.training import workdir as workdirs
from transformer.training.devices import peak_flops, select_platform
from transformer.training.loading import (
    checkpoint_items,
    count_examples,
    fingerprints,
    open_checkpoints,
    open_task,
    read_parts,
    require_fingerprints,
)
from transformer.training.metrics_log import MetricsLog
from transformer.training.optimizers import make_optimizer
from transformer.training.partitioning import (
    EVALUATION_AXES,
    LOGICAL_AXES,
    RowShare,
    count_row_shards,
    make_mesh,
    place_batch,
    require_even_shares,
    row_share,
)
from transformer.training.profile import Profile
from transformer.training.record import Session, environment
from transformer.training.schedules import make_schedule, peak_rate
from transformer.training.signals import Preempted, SharedStop, StopSignals
from transformer.training.state import TrainState, abstract_state, count_active_parameters, init_state
from transformer.training.step import count_parts, first_non_finite, jit_train_step
from transformer.types import UserError

SAVING_SECONDS = 1_800.0  # in which the first process has read and sealed a checkpoint that all have written

logger = logging.getLogger(__name__)


def train(
    config: Config,
    workdir: Path,
    *,
    name: str | None = None,
    at_end: Callable[[Path], None] | None = None,
    profile: range | None = None,
) -> int:
    """Train to ``training.num_steps``, from the newest whole checkpoint of the workdir if it has one.

    Args:
      config: of the run.
      workdir: on local disk.
      name: of the config, for reports.
      at_end: called by the first process, with the workdir, when training has stopped, in whatever way.
      profile: steps of which a profile is written to ``profile`` in the workdir; None: no profile.

    Returns:
      The exit code: 0 when done (or out of ``training.max_minutes``), ``training.preempted_exit_code`` after a signal.

    Raises:
      UserError: for mistakes in config or data, and for a loss that is not finite.
    """
    since = time.monotonic()
    select_platform(config.mesh)
    with hosts.together():
        code = _train(config, workdir, name, at_end, profile, since)
    hosts.end()
    return code


def _train(
    config: Config,
    workdir: Path,
    name: str | None,
    at_end: Callable[[Path], None] | None,
    profile: range | None,
    since: float,
) -> int:
    """The same, of each of several processes."""
    mesh = make_mesh(config.mesh)
    require_even_shares(config.model, mesh)
    rules = nn.logical_axis_rules(LOGICAL_AXES)
    bucket, stop = reaching(workdirs.checkpoints_folder(workdir)), SharedStop() if hosts.several() else StopSignals()
    with bucket, workdirs.opened(workdir, config), jax.set_mesh(mesh), rules, stop as signals:
        try:
            with signals.interruptible():  # fetching data may take hours, and there is nothing to save
                trainer = Trainer(config, workdir, mesh, signals)
        except Preempted:
            logger.info("ended before the first step")
            return config.training.preempted_exit_code
        try:
            with trainer.open_session(name, since):
                return trainer.run(Profile(workdir, profile, trainer.step))
        finally:
            trainer.close(at_end)


class Built(NamedTuple):
    """Rows of a batch that this process has built, which of it they are, and in how many parts it is computed."""

    batch: Any
    share: RowShare
    parts: int


class Trainer:
    """A run: its task, its state, its checkpoints, its log, and the loop over its steps."""

    def __init__(self, config: Config, workdir: Path, mesh: jax.sharding.Mesh, signals: StopSignals | SharedStop):
        check_training(config)
        training = config.training
        self.config, self.mesh, self.signals = config, mesh, signals
        self.schedule = make_schedule(training, config.model.d_model)
        self.checkpoints = open_checkpoints(workdir, config)
        self.workdir = workdir
        self.task = open_task(config, workdir if self.checkpoints.steps() else None)
        count_examples(self.task, config, "validation")  # or the run would end at its first evaluation
        self.fingerprints = fingerprints(self.task)
        if hosts.is_first():
            self.task.save_assets(workdir)
        self._copy_to_bucket()
        self._agree()
        self.optimizer = make_optimizer(training, self.schedule)
        self.work_before: dict[str, float] = {}  # of the updates before this process, as `Task.work` counts it
        self.work: dict[str, float] = {}  # of those since, as far as this process built their batches
        self.seconds = 0.0  # that they took
        self.state = self._restore_or_init()
        self.step = int(self.state.step)
        self.metrics = MetricsLog(workdir, self.step, writes=hosts.is_first())
        self.train_step = functools.cache(
            lambda parts: jit_train_step(self.task, self.optimizer, config, self.state, parts)
        )
        self.healthy: Any = np.array(True)
        self.interval = Interval()
        self.shapes: set[Any] = set()

    def open_session(self, name: str | None, since: float) -> Session:
        """The record of what this process does; ``name`` and ``since`` as of :func:`train` and :class:`Session`."""
        training = self.config.training
        rate, update = peak_rate(self.schedule, training.warmup_steps, training.num_steps)
        params = self.state.params
        facts = {
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
            "active_parameters": count_active_parameters(params, self.config.model),
            "peak_learning_rate": {"rate": rate, "update": update},
        }
        if name is not None:
            facts["config"] = name
        if self.step < training.num_steps:  # or the data would be opened for this alone
            facts["data"] = self.task.data_facts()
        session = Session(
            self.workdir,
            facts,
            environment(self.mesh),
            step=self.step,
            training_seconds=self.seconds,
            since=since,
        )
        self.session = session
        return session

    def run(self, profile: Profile) -> int:
        """Every step that is left, with what is due after it; gives the exit code."""
        training = self.config.training
        started = time.monotonic()
        stop = False
        if self.step and self._evaluation_is_due():
            missing = hosts.totals({"missing": float(self.checkpoints.metric(self.step) is None)})["missing"]
            if missing:  # the run ended between this checkpoint and its evaluation
                stop = not self._evaluate()
        batches = self._batches()
        while self.step < training.num_steps and not stop:
            since = time.monotonic()
            profile.before(self.step)
            built = next(batches)
            self.interval.add("data", since)
            self._update(built)
            profile.after(self.step, self.state.step)

            stop = self.signals.poll() or self._out_of_time(started)
            last = stop or self.step == training.num_steps
            if last or self.step % training.log_every == 0:
                self._report()
            if last or self.step % training.checkpoint_every == 0 or self._evaluation_is_due():
                self._save()
            if self._evaluation_is_due() and not self.signals.received:
                stop = not self._evaluate() or stop
        self.checkpoints.wait()
        hosts.barrier("the last checkpoint", SAVING_SECONDS)
        if self.step == training.num_steps and not stop:
            logger.info("finished at step %d, after %.1f minutes of training", self.step, self.seconds / 60)
            self.session.end("finished")
            return 0
        logger.info("stopped at step %d of %d; the same command goes on from there", self.step, training.num_steps)
        self.session.end("a signal" if self.signals.received else "training.max_minutes")
        return training.preempted_exit_code if self.signals.received else 0

    def close(self, at_end: Callable[[Path], None] | None) -> None:
        try:
            self.checkpoints.close()
        finally:
            self.metrics.close()
            if at_end is not None and hosts.is_first():
                at_end(self.workdir)
            self._copy_to_bucket()

    def _restore_or_init(self) -> TrainState:
        """The state to go on from, and with it what was done so far."""
        training = self.config.training
        abstract = abstract_state(self.task, self.optimizer, training.ema_decay is not None, self.mesh)
        number = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract.params))
        active = count_active_parameters(abstract.params, self.config.model)
        logger.info(
            "%s parameters%s on %d %s device(s)",
            f"{number:,}",
            f" ({active:,} active for a token)" if active != number else "",
            self.mesh.size,
            self.mesh.devices.flat[0].platform,
        )
        restored = self.checkpoints.restore(checkpoint_items(abstract))
        if restored is None:
            params = None
            if training.initialize_from is not None:
                earlier = workdirs.local_workdir(training.initialize_from)
                params = read_parts(earlier, self.config, self.task, self.workdir)
            return init_state(self.task, self.optimizer, abstract, self.config.seed, params)
        require_fingerprints(self.fingerprints, restored.metadata, f"{restored.step} in {self.checkpoints.folder}")
        logger.info("going on from step %d in %s", restored.step, self.checkpoints.folder)
        saved = restored.items
        self.work_before, self.seconds = restored.metadata["work"], restored.metadata["seconds"]
        return TrainState(saved["state"]["step"], saved["params"], saved["state"]["optimizer"], saved.get("ema"))

    def _batches(self) -> Iterator[Built]:
        """The batches of the steps that are left, built ahead."""
        training = self.config.training
        if training.overfit_one_batch:
            logger.warning("training.overfit_one_batch: every step sees batch 0")
        batches = prefetch(self._build, self.step, training.num_steps, self.config.data.prefetch_batches)
        return progress(batches, "training", training.num_steps, unit="step", done=self.step, plain_lines=False)

    def _number(self, step: int) -> int:
        """The number of the batch of a step."""
        return 0 if self.config.training.overfit_one_batch else step

    def _share(self, step: int) -> tuple[RowShare, int]:
        """Which rows of the batch of a step this process has, and in how many parts the batch is computed."""
        size = self.task.batch_size(self._number(step))
        parts = count_parts(self.config.training, size, count_row_shards(self.mesh))
        return row_share(self.mesh, size[0], parts), parts

    def _build(self, step: int) -> Built:
        """These rows."""
        share, parts = self._share(step)
        return Built(self.task.batch(self._number(step), share.rows), share, parts)

    def _update(self, built: Built) -> None:
        """One step; its loss is looked at one step later, so that the device need not wait for the host."""
        batch, share, parts = built
        placed = place_batch(self.mesh, batch, parts, share)
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(placed))
        work = {name: value / share.copies for name, value in self.task.work(batch).items()}
        since = time.monotonic()
        self.state, sums = self.train_step(parts)(self.state, placed, self.healthy)
        previous, self.healthy = self.healthy, sums["finite"][0]
        if shapes in self.shapes:
            self._require_finite(previous)
            self.interval.count(sums, work)
        else:
            self._require_finite(self.healthy)
            self.shapes.add(shapes)
            self.interval.count(sums, {})
            self.interval.add("compile", since)
            named = " and ".join(" x ".join(map(str, shape)) for shape in sorted(set(shapes)))
            in_parts = f", computed in {parts} parts of {shapes[0][0] // parts} rows," if parts > 1 else ""
            logger.info("compiled the step for batches of %s%s in %.1f s", named, in_parts, time.monotonic() - since)
        self.step += 1
        self.work = {name: self.work.get(name, 0.0) + value for name, value in work.items()}

    def _require_finite(self, healthy: Any) -> None:
        if bool(healthy):
            return
        step = int(self.state.step)  # nothing was changed from the bad step on
        self.session.note_non_finite(step)
        batch, share, parts = self._build(step)
        placed = place_batch(self.mesh, batch, parts, share)
        name = first_non_finite(self.task, self.state, placed, self.config.seed, parts)
        self.checkpoints.wait()
        raise UserError(
            f"step {step}: the loss is not finite; the first bad tensor is {name}. The newest checkpoint is from step "
            f"{max(self.checkpoints.steps(), default='none')}. Lower training.learning_rate, lengthen "
            "training.warmup_steps, or set training.gradient_clip"
        )

    def _report(self) -> None:
        """Log what the steps since the last report came to."""
        self._require_finite(self.healthy)
        since = time.monotonic()
        values = {
            **self.interval.values(self.mesh),
            "learning_rate": float(self.schedule(self.step - 1)),
            "epoch": self.step / self.task.steps_per_epoch(),
        }
        self.seconds += self.interval.elapsed()
        values["minutes"] = self.seconds / 60
        self.session.note(self.step, self.seconds)
        self.metrics.write(self.step, values)
        shown = (f"{name} {values[name]:.4g}" for name in SHOWN if name in values)
        logger.info("step %d: %s", self.step, ", ".join(shown))
        self.interval = Interval()
        self.interval.add("log", since)

    def _save(self) -> None:
        self._require_finite(self.healthy)
        since = time.monotonic()
        metadata = {
            **self.fingerprints,
            "seconds": self.seconds + self.interval.elapsed(),
            "work": self._all_work(),
            "peak_learning_rate": peak_rate(self.schedule, self.config.training.warmup_steps, self.step)[0],
        }
        state = {"step": self.state.step, "optimizer": self.state.optimizer}
        self.checkpoints.save(self.step, self.state.params, state, ema=self.state.ema, metadata=metadata)
        self._copy_to_bucket()
        self.interval.add("save", since)

    def _all_work(self) -> dict[str, float]:
        """Of all updates so far, by all processes."""
        since = hosts.totals(self.work)
        return {name: self.work_before.get(name, 0.0) + since.get(name, 0.0) for name in self.work_before | since}

    def _out_of_time(self, started: float) -> bool:
        """Whether ``training.max_minutes`` are over; several processes, whose clocks differ, ask at reports only."""
        limit = self.config.training.max_minutes
        if limit is None or (hosts.several() and self.step % self.config.training.log_every):
            return False
        over = time.monotonic() - started > 60 * limit
        return hosts.totals({"over": float(over)})["over"] > 0

    def _agree(self) -> None:
        """See that all processes have the same data and the same tokenizer."""
        hosts.barrier("reading the data", max(60 * self.config.data.wait_minutes, SAVING_SECONDS))
        for name, value in self.fingerprints.items():
            hosts.require_same(name, value, SAVING_SECONDS, "give all hosts the same data")

    def _copy_to_bucket(self) -> None:
        if hosts.is_first():
            workdirs.copy_to_bucket(self.workdir)

    def _evaluation_is_due(self) -> bool:
        training = self.config.training
        return self.step % training.evaluate_every == 0 or self.step == training.num_steps

    def _evaluate(self) -> bool:
        """Scores of the validation split; False if a signal came in the midst of it."""
        since = time.monotonic()
        weights = self.state.params if self.state.ema is None else self.state.ema
        try:
            with self.signals.interruptible(), nn.logical_axis_rules(EVALUATION_AXES):
                scores = self.task.evaluate(weights, "validation", during_training=True)
        except Preempted:
            return False
        finally:
            self.interval.leave_out(time.monotonic() - since)
        numbers = {f"validation_{name}": value for name, value in scores.items() if isinstance(value, (int, float))}
        self.metrics.write(self.step, numbers)
        metric = self.config.training.best_metric
        if metric not in scores:
            raise UserError(f"training.best_metric={metric} is not one of {', '.join(scores)}")
        self.checkpoints.set_metric(self.step, scores[metric])
        best = " (the best so far)" if self.checkpoints.best() == self.step else ""
        shown = ", ".join(f"{name} {value:.4g}" for name, value in scores.items() if isinstance(value, float))
        logger.info("step %d: validation: %s%s", self.step, shown, best)
        return True


SHOWN = ("loss", "nll_per_token", "accuracy", "learning_rate", "gradient_norm", "target_tokens_per_second", "epoch")
"""Of a report's numbers, those that are printed."""


def padding_share(work: Mapping[str, float]) -> float:
    """The share of all positions that hold no token, of what :meth:`transformer.types.Task.work` gives."""
    return 1 - sum(value for name, value in work.items() if name.endswith("_tokens")) / work["positions"]


class Interval:
    """What the steps since the last report add up to, and where the host's time went."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._seconds = {"data": 0.0, "save": 0.0, "log": 0.0, "compile": 0.0}
        self._sums: list[Any] = []
        self._work: dict[str, float] = {}

    def add(self, part: str, since: float) -> None:
        """The time from ``since`` until now went into a part that is not the step."""
        self._seconds[part] += time.monotonic() - since

    def leave_out(self, seconds: float) -> None:
        """As if the time had not passed."""
        self._start += seconds

    def count(self, sums: Any, work: Mapping[str, float]) -> None:
        """A step; no work is counted for one whose time went into compiling."""
        self._sums.append(sums)
        for name, value in work.items():
            self._work[name] = self._work.get(name, 0.0) + value

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def values(self, mesh: jax.sharding.Mesh) -> dict[str, float]:
        """Means weighted by tokens over all steps; rates over the time without compiling."""
        sums = jax.device_get(self._sums)
        values = {}
        for name in sums[0]:
            total, count = (np.sum([pairs[name][i] for pairs in sums], dtype=np.float64) for i in (0, 1))
            values[name] = float(total / max(count, 1))
        del values["finite"]
        values["nll_per_token"] = values.pop("nll")
        values["perplexity"] = float(np.exp(values["nll_per_token"]))
        elapsed = self.elapsed()
        seconds = elapsed - self._seconds["compile"]
        outside = sum(self._seconds[part] for part in ("data", "save", "log"))
        values["share_outside_step"] = outside / elapsed
        values["seconds_compiling"] = self._seconds["compile"]
        values["seconds_saving"] = self._seconds["save"]  # that the loop stood still; the rest is done meanwhile
        work = hosts.totals(self._work)
        if work:
            values["padding_share"] = padding_share(work)
            del work["positions"]
            values |= {f"{name}_per_second": value / seconds for name, value in work.items()}
            peak = peak_flops(mesh.devices.flat[0])
            if peak is not None:
                values["mfu"] = values["flops_per_second"] / (peak * mesh.size)
        return values
