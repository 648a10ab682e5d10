"""A plan: what a run would be on devices that nobody here has, compiled for them, with an estimate of its speed."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from transformer.config import Config
from transformer.plan.collectives import bytes_by_axes
from transformer.plan.draft import Draft, Program
from transformer.plan.estimates import Sizes, repeated_flops, sizes_of, traffic
from transformer.plan.roofline import Times, Work, sent_bytes, times
from transformer.plan.search import POLICIES, compile_best, ranked, sizes_by_policy, with_candidate
from transformer.plan.topologies import Topology, devices_of
from transformer.training.devices import peak_flops
from transformer.training.schedules import make_schedule, peak_rate
from transformer.types import UserError

NUM_SENT = 8  # of the largest things that devices send each other are shown
LONG = 1_024  # tokens of a row from which on another attention may save memory


def plan(
    config: Config,
    topology: Topology,
    *,
    tokens_per_device: int | None = None,
    search: bool = False,
    decoding: bool = True,
) -> int:
    """Compile the step of a run, and its search for outputs, for a topology, and print what they come to.

    No data is read: the text is made up, see :mod:`transformer.plan.stand_in`. The last line of standard output is one
    JSON object.

    Args:
      config: of the run.
      topology: for which :func:`transformer.plan.topologies.prepare` has been called.
      tokens_per_device: positions on the longer side in one update's batch, for each device; None: as the config says.
      search: whether to look for the best mesh and the best rematerialisation, instead of taking the config's.
      decoding: whether to compile the search for outputs too.

    Returns:
      The exit code: 0, or 1 if the step or the search for outputs does not fit.

    Raises:
      UserError: for mistakes in config or topology.
    """
    if search and topology.chip is None:
        raise UserError(
            f"--search --topology={topology.text}: there are no figures of CPUs to rank meshes by; use TPUs"
        )
    devices = devices_of(topology)
    planned = with_batch(config, len(devices), tokens_per_device)
    return _Plan(config, topology, devices, planned).run(search, decoding)


def with_batch(config: Config, num_devices: int, tokens_per_device: int | None) -> Config:
    """The config with a batch of so many positions for each device; None: as it is."""
    if tokens_per_device is None:
        return config
    data = dataclasses.replace(config.data, tokens_per_batch=tokens_per_device * num_devices)
    return dataclasses.replace(config, data=data)


class _Plan:
    """A method for each section of what is printed.

    Args:
      config: of the run.
      planned: the same, with another batch perhaps.
    """

    def __init__(self, config: Config, topology: Topology, devices: Sequence[Any], planned: Config):
        self.config, self.topology, self.devices, self.planned = config, topology, devices, planned
        self.flops = peak_flops(devices[0]) or math.nan  # a second
        self.result: dict[str, Any] = {"topology": topology.text}

    def run(self, search: bool, decoding: bool) -> int:
        self.show_devices()
        program = self.search() if search else self.compile()
        self.show_mesh()
        self.show_batch()
        self.show_memory(program)
        if program.fits:
            self.show_sent(program)
            self.show_speed(program)
        fits = program.fits and (not decoding or self.show_decoding())
        print(json.dumps(self.result))
        return 0 if fits else 1

    def show_devices(self) -> None:
        device, chip = self.devices[0], self.topology.chip
        _title(f"Devices: {len(self.devices):,} of {self.topology.text} ({device.device_kind}), none of which is here")
        if chip is None:
            print("  virtual CPUs: their program is not that of an accelerator, and no speed follows from it")
            return
        _say("memory", f"{_gibibytes(chip.memory)} each, of which the compiler keeps a little for itself")
        speeds = f"{self.flops / 1e12:,.0f} TFLOP/s in bfloat16, HBM {chip.memory_bandwidth / 1e9:,.0f} GB/s"
        _say("at their best", f"{speeds}, {chip.link_bandwidth / 1e9:,.0f} GB/s along a dimension of the slice")

    def compile(self) -> Program:
        """The step on the mesh that the config states."""
        self.draft = Draft(self.planned, self.devices)
        all_bytes = None
        if self.planned.model.rematerialize != POLICIES[0]:
            all_bytes = sizes_of(Draft(with_candidate(self.planned, {}, POLICIES[0]), self.devices)).row_bytes
        self.sizes = sizes_of(self.draft, all_bytes)
        return self.draft.compile()

    def search(self) -> Program:
        """The best of other meshes, and of other rematerialisation, in place of the config's."""
        _title("Search: meshes and rematerialisation, ranked by estimate; the first are compiled")
        assert self.topology.chip is not None
        sizes, number = sizes_by_policy(self.planned, self.devices), len(self.devices)
        candidates = ranked(self.planned, sizes, self.topology.chip, number, self.topology.slices, self.flops)
        best = compile_best(candidates, self.planned, sizes, self.devices, self.estimate)
        print(f"  {len(candidates)} candidates, {sum(each.fits for each in candidates)} of which fit by estimate")
        for each in best.table:
            mesh = ", ".join(f"{axis} {size}" for axis, size in each["sizes"].items() if size > 1)
            print(f"  {mesh:<30} rematerialize={each['rematerialize']:<10}", end=" ")
            print(f"{_milliseconds(each['seconds']):>12} {_gibibytes(each['memory']):>14}  {_verdict(each)}")
        self.draft, self.sizes = best.draft, best.sizes
        flags = [
            f"--config.mesh.{axis}={size}" for axis, size in self.draft.mesh.shape.items() if size > 1 or axis == "data"
        ]
        print(f"  take {' '.join(flags)} --config.model.rematerialize={self.draft.config.model.rematerialize}")
        self.result["search"] = best.table
        return best.program

    def show_mesh(self) -> None:
        draft = self.draft
        sizes = {axis: size for axis, size in draft.mesh_shape.items() if size > 1 or axis == "data"}
        _title("Mesh: " + ", ".join(f"{axis} {size}" for axis, size in sizes.items()))
        _say("parameters", f"{draft.num_parameters:,}")
        _say("rematerialised", draft.config.model.rematerialize)
        self.result |= {
            "mesh": draft.mesh_shape,
            "rematerialize": draft.config.model.rematerialize,
            "num_parameters": draft.num_parameters,
        }

    def show_batch(self) -> None:
        draft, batch, own = self.draft, self.draft.batch, self.config.data.tokens_per_batch
        _title("Batch of one update; its text is made up, and every row as long as the config allows")
        tokens = batch.real_rows * batch.length
        filled = f", filled up to {batch.rows:,}" if batch.rows > batch.real_rows else ""
        _say("rows", f"{batch.real_rows:,} of {batch.length:,}{filled}: {tokens:,} tokens on the longer side")
        group = draft.mesh.size // draft.num_shares
        shares = f"{draft.num_shares:,}" + (f" x {group}" if group > 1 else "")
        _say("parts", f"{draft.parts}, each of {self.rows_at_a_time} rows on each of {shares} devices")
        if batch.rows > 1.5 * batch.real_rows:
            _say("idle", f"{1 - batch.real_rows / batch.rows:.0%} of the rows are padding; state --tokens_per_device")
        self.result |= {"tokens_per_step": tokens, "rows": batch.rows, "row_length": batch.length, "parts": draft.parts}
        factor = draft.config.data.tokens_per_batch / own
        if factor != 1:
            self.show_learning_rate(factor)

    @property
    def rows_at_a_time(self) -> int:
        """Of a device."""
        return self.draft.batch.rows // (self.draft.parts * self.draft.num_shares)

    def show_learning_rate(self, factor: float) -> None:
        """What follows from another batch than the config's."""
        training = self.config.training
        schedule = make_schedule(training, self.config.model.d_model)
        peak, _ = peak_rate(schedule, training.warmup_steps, training.num_steps)
        steps = max(round(training.num_steps / factor), 1)
        rooted, proportional = training.learning_rate * factor**0.5, training.learning_rate * factor
        _say("size", f"{factor:.4g} times the config's {self.config.data.tokens_per_batch:,} tokens")
        _say("steps", f"training.num_steps={steps:,} see as many tokens as {training.num_steps:,} did")
        _say("learning rate", f"training.learning_rate={rooted:.4g}, not {training.learning_rate:.4g}: by the root of")
        print(f"    that factor for Adam (Malladi et al. 2022), a peak of {peak * factor**0.5:.2g}, not {peak:.2g};")
        print(f"    in proportion, as for SGD, it would be {proportional:.4g} (Goyal et al. 2017). Beyond a size that")
        print("    depends on the gradient's noise a larger batch gains little (McCandlish et al. 2018).")
        self.result |= {"batch_factor": factor, "learning_rate": rooted, "num_steps": steps}

    def show_memory(self, program: Program) -> None:
        chip = self.topology.chip
        _title(f"Memory of each device, by the compiler's count; it took {program.seconds:.1f} s")
        for name, size in program.bytes.items():
            _say(name, _gibibytes(size))
        total = sum(program.bytes.values())
        if program.needed is None:
            _say("total", _gibibytes(total) + (f" of {_gibibytes(chip.memory)}" if chip else ""))
        else:
            _say("temporaries", f"{_gibibytes(program.needed)}: OUT OF MEMORY. The largest buffers:")
            print(*(f"    {buffer}" for buffer in program.largest_buffers), sep="\n")
            self.show_remedies()
        kept = self.rows_at_a_time * self.sizes.row_bytes / (self.draft.mesh.size / self.draft.num_shares)
        print(f"  Temporaries hold gradients and activations; these come to {_gibibytes(kept)} by our own estimate.")
        sizes = {**program.bytes, "total": total}
        if program.needed is not None and math.isfinite(program.needed):
            sizes |= {"temporaries": int(program.needed), "total": int(total + program.needed)}
        self.result |= {
            "fits": program.fits,
            "bytes_per_device": sizes,
            "estimated_activation_bytes": int(kept),
            "hbm_bytes": chip.memory if chip else None,
            "compile_seconds": round(program.seconds, 1),
            "largest_buffers": list(program.largest_buffers),
        }

    def show_remedies(self) -> None:
        """What needs less memory."""
        model, batch, rows = self.draft.config.model, self.draft.batch, self.rows_at_a_time
        print("  What needs less:")
        if rows > 1:
            half = batch.length * (rows // 2)
            print(f"    fewer rows at a time than {rows}: --config.training.max_tokens_per_device={half}")
        if model.rematerialize != POLICIES[-1]:
            less = POLICIES[POLICIES.index(model.rematerialize) + 1]
            print(f"    keeping less for the backward pass: --config.model.rematerialize={less}")
        if batch.length >= LONG and model.attention_implementation == "dense":
            print("    no matrix of all pairs of tokens: --config.model.attention_implementation=auto")
        if self.draft.mesh.shape["fsdp"] < self.draft.mesh.size:
            print("    parameters and optimizer shared out further: a larger mesh.fsdp")
        print("    --search looks for a mesh and for what to rematerialise")

    def show_sent(self, program: Program) -> None:
        totals = bytes_by_axes(program.sent)
        _title("What each device sends in a step, by axes of the mesh")
        for axes, size in totals.items():
            _say(axes, _gibibytes(size))
        if not totals:
            print("  nothing")
        for each in sorted(program.sent, key=lambda each: -each.sent * each.times)[:NUM_SENT]:
            shapes = ", ".join(f"{shape.dtype}{list(shape.dims)}" for shape in each.shapes[:2])
            more = f" and {len(each.shapes) - 2} more" if len(each.shapes) > 2 else ""
            often = f"{each.times} times" if each.exact else f"{each.times} times or more"
            print(f"    {_gibibytes(each.sent * each.times)}: {each.kind} over {'+'.join(each.axes)}, {often},")
            print(f"      of {shapes}{more}, for {_origin(each.name)}")
        self.result["collective_bytes"] = {axes: int(size) for axes, size in totals.items()}

    def work_of(self, draft: Draft, sizes: Sizes, program: Program) -> Work:
        """What a device does in a step: what it sends is known, the rest is estimated."""
        flops = draft.work["flops"] / draft.mesh.size * (1 + repeated_flops(draft.config.model, draft.batch.length))
        links, network = sent_bytes(program.sent, draft.mesh_shape)
        return Work(flops, traffic(sizes, draft.mesh.shape, draft.parts), links, network)

    def estimate(self, draft: Draft, sizes: Sizes, program: Program) -> Times:
        """Seconds of a step, part by part."""
        assert self.topology.chip is not None
        return times(self.work_of(draft, sizes, program), self.topology.chip, self.flops)

    def show_speed(self, program: Program) -> None:
        """The roofline."""
        draft, work = self.draft, self.work_of(self.draft, self.sizes, program)
        model_flops = draft.work["flops"] / draft.mesh.size
        sent = work.link_bytes + work.network_bytes
        _title("Speed: an estimate, from the figures of a chip; no device was asked")
        again = f", and {work.flops - model_flops:.3g} for what is computed again" if work.flops > model_flops else ""
        _say("FLOPs", f"{model_flops:.4g} of matrix products on each device in a step{again}")
        _say(
            "HBM",
            f"{_gibibytes(work.memory_bytes)} read and written: {work.flops / work.memory_bytes:,.0f} FLOPs a byte",
        )
        _say("sent", f"{_gibibytes(sent)}" + (f": {work.flops / sent:,.0f} FLOPs a byte" if sent else ""))
        self.result |= {"flops_per_device_step": model_flops, "memory_bytes_per_device_step": int(work.memory_bytes)}
        if self.topology.chip is None:
            self.result |= {"bound": None, "estimated_step_seconds": None}
            return
        found = times(work, self.topology.chip, self.flops)
        _say("alone", ", ".join(f"{name} {_milliseconds(value)}" for name, value in found._asdict().items() if value))
        _say("bound", f"{found.bound} takes longest")
        _say("a step", f"{_milliseconds(found.estimate)} one after the other, {_milliseconds(found.least)} all at once")
        mfu = [model_flops / (seconds * self.flops) for seconds in (found.estimate, found.least)]
        _say("MFU", f"{mfu[0]:.0%} to {mfu[1]:.0%}; kernels that do not reach the chip's best lower it further")
        tokens = draft.batch.real_rows * draft.batch.length / found.estimate
        _say("tokens", f"{tokens:,.0f} a second on the longer side, padding not counted: all rows are full")
        steps = self.config.training.num_steps * self.config.data.tokens_per_batch / self.planned.data.tokens_per_batch
        hours, flops = steps * found.estimate / 3600, steps * draft.work["flops"]
        _say("the run", f"{hours:,.2f} hours for {steps:,.0f} such steps, {flops:.3g} FLOPs")
        self.result |= {
            "bound": found.bound,
            "estimated_seconds_alone": found._asdict(),
            "estimated_step_seconds": found.estimate,
            "estimated_mfu": mfu,
            "estimated_tokens_per_second": tokens,
            "estimated_hours_of_run": hours,
            "flops_of_run": flops,
        }

    def show_decoding(self) -> bool:
        """The search for outputs, which training comes to when it evaluates; gives whether it fits."""
        program, decoding, chip = self.draft.compile_decoding(), self.draft.config.decoding, self.topology.chip
        if program is None:
            return True
        method = f"beam {decoding.beam_size}" if decoding.method == "beam" else decoding.method
        _title(f"Decoding ({method}) a full batch of inputs of {decoding.max_source_length} tokens")
        _say("state", f"{_gibibytes(program.bytes['state'])}, optimizer included: training evaluates with it there")
        needed = program.bytes["temporaries"] if program.needed is None else program.needed
        _say("temporaries", f"{_gibibytes(needed)}, the cache of keys and values among them")
        total = program.bytes["state"] + needed
        fits = program.fits and (chip is None or total <= chip.memory)
        _say("total", _gibibytes(total) + ("" if fits else ": OUT OF MEMORY; set decoding.tokens_per_batch lower"))
        once = {axes: int(size) for axes, size in bytes_by_axes(program.sent).items()}
        for axes, size in once.items():
            _say(axes, f"{_gibibytes(size)} sent for the inputs and one step of the search")
        _say("compiled", f"in {program.seconds:.1f} s")
        self.result["decoding"] = {
            "fits": fits,
            "bytes_per_device": {"state": program.bytes["state"], "temporaries": needed, "total": total},
            "collective_bytes": once,
            "compile_seconds": round(program.seconds, 1),
        }
        return fits


def _title(text: str) -> None:
    print(f"\n{text}", flush=True)


def _say(what: str, text: str) -> None:
    print(f"  {what:<16} {text}")


def _gibibytes(size: int | float) -> str:
    return f"{size / 2**30:,.3f} GiB" if size >= 2**20 else f"{size / 2**10:,.3f} KiB"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms"


def _verdict(row: dict[str, Any]) -> str:
    """What became of a candidate of a search."""
    if "refused" in row:
        return "no such mesh here"
    if "compiled_fits" not in row:
        return "" if row["fits"] else "too large by estimate"
    seconds = row["compiled_seconds"]
    return f"compiled: {_milliseconds(seconds)}" if row["compiled_fits"] else "compiled: out of memory"


def _origin(name: str) -> str:
    """The end of an operation's name, which says most."""
    return "/".join(name.split("/")[-4:]) or "no name"
