"""cuDNN's attention (``fused``) on one NVIDIA GPU: checked against ``dense`` in float32, then timed beside ``dense``.

    PYTHONPATH=. python benchmarks/attention_gpu.py

Takes less than 8 minutes and needs jax with CUDA, flax and jaxtyping, nothing else of our requirements.

Checked are outputs and gradients in bfloat16 (once in float16) against the same numbers in float32, row by row: the
error of a row is the root mean square of the difference, over that of the row plus that of all rows (plus 0.001).
What stands in padding is NaN. Rows that see nothing must give zeros. Some inputs have logits near -120 throughout:
there the backward kernels of some cuDNN versions give NaN, at lengths that are 64 mod 128 or without a padding mask.

Timed is causal attention in bfloat16, 16,384 tokens in rows of 512 to 16,384, 16 heads of 64 numbers, forward alone and
forward with backward. ``dense`` is timed while its temporaries fit. FLOP/s count what the causal mask lets through, and
a backward pass as 2.5 forward passes.

The tables are for people; the last line is the same as one JSON object. The exit code is 1 if a check fails, 2 without
a GPU.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from transformer.models.attention import attend, fused
from transformer.models.masks import AttentionMask

LARGEST_ERROR = 0.02  # of a row, see above; bfloat16 has steps of 2^-8
SECONDS = 420.0  # of the 8 minutes; what has not been timed by then is left out

TOKENS, NUM_HEADS, HEAD_DIM = 16_384, 16, 64
LENGTHS = (512, 1_024, 2_048, 4_096, 8_192, 16_384)
ROUND_SECONDS, ROUNDS = 0.2, 5

RESULTS = ("output", "dq", "dk", "dv")


class Case(NamedTuple):
    """T queries and S keys, H and G heads of K numbers; ``low``: all logits are near -120."""

    name: str
    T: int
    S: int
    mask: AttentionMask = AttentionMask()
    H: int = 4
    G: int = 4
    K: int = 64
    dtype: str = "bfloat16"
    low: bool = False


def lengths(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def cases() -> Iterator[Case]:
    """Two rows each. 192, 704 and 1,088 are 64 mod 128."""
    causal = AttentionMask(causal=True)
    for length in (704, 1_088, 1_000, 37):
        yield Case(f"no mask, {length}", length, length)
        yield Case(f"causal, {length}", length, length, causal)
    yield Case("no mask, more keys", 192, 1_088)
    yield Case("no mask, more queries", 1_088, 192)
    yield Case("one query", 1, 704)
    for window in (1, 64, 100, 2_000):
        yield Case(f"window {window}", 1_088, 1_088, AttentionMask(causal=True, window=window))
    for groups in (1, 2):
        yield Case(f"4 heads over {groups}", 704, 704, causal, G=groups)
    for head_dim in sorted({8, 40, 128, fused.largest_head_dim(fused.compute_capability())}):
        yield Case(f"heads of {head_dim}", 704, 704, causal, K=head_dim)
    yield Case("float16", 704, 704, causal, dtype="float16")

    def padded(*values: int, **options: Any) -> AttentionMask:
        return AttentionMask(query_lengths=lengths(*values), key_lengths=lengths(*values), **options)

    yield Case("query lengths", 704, 704, AttentionMask(query_lengths=lengths(704, 300)))
    yield Case("key lengths", 704, 704, AttentionMask(key_lengths=lengths(704, 300)))
    yield Case("key lengths, causal", 704, 704, AttentionMask(causal=True, key_lengths=lengths(704, 300)))
    yield Case("both lengths", 704, 704, padded(640, 321))
    yield Case("both lengths, causal, grouped", 704, 704, padded(640, 321, causal=True), G=2)
    yield Case("both lengths, window", 704, 704, padded(640, 321, causal=True, window=100))
    cross = AttentionMask(query_lengths=lengths(192, 64), key_lengths=lengths(1, 1_000))
    yield Case("both lengths, more keys, grouped", 192, 1_088, cross, G=2)
    yield Case("a row without keys", 704, 704, AttentionMask(key_lengths=lengths(0, 320)))
    yield Case("a row without queries", 704, 704, padded(0, 320, causal=True))
    beyond = AttentionMask(causal=True, window=50, key_lengths=lengths(100, 0))
    yield Case("queries beyond the keys' window", 704, 704, beyond)
    for length in (704, 640):
        yield Case(f"low logits, {length}", length, length, low=True)
        yield Case(f"low logits, causal, {length}", length, length, causal, low=True)
        yield Case(f"low logits, window, {length}", length, length, AttentionMask(causal=True, window=100), low=True)
        yield Case(f"low logits, both lengths, {length}", length, length, padded(length, 321), low=True)
        yield Case(
            f"low logits, both lengths, causal, {length}", length, length, padded(length, 321, causal=True), low=True
        )
    yield Case("low logits, one query", 1, 128, low=True)


def inputs(case: Case) -> tuple[list[Any], Any]:
    """Queries, keys and values with NaN in their padding, and the output's cotangent, in the case's dtype."""
    rng = np.random.default_rng(0)
    shapes = (2, case.T, case.H, case.K), (2, case.S, case.G, case.K), (2, case.S, case.G, case.K)
    query, key, value = (rng.normal(size=shape) for shape in shapes)
    if case.low:
        query, key = query * 0.1, key * 0.1
        query[..., 0], key[..., 0] = 1, -120 * case.K**0.5
    if case.mask.query_lengths is not None:
        query[np.arange(case.T) >= case.mask.query_lengths[:, None]] = np.nan
    if case.mask.key_lengths is not None:
        padding = np.arange(case.S) >= case.mask.key_lengths[:, None]
        key[padding] = value[padding] = np.nan
    cotangent = jnp.asarray(rng.normal(size=shapes[0]), case.dtype)
    return [jnp.asarray(array, case.dtype) for array in (query, key, value)], cotangent


def output_and_gradients(case: Case, implementation: str, qkv: list[Any], cotangent: Any) -> list[np.ndarray]:
    """In float64; ``qkv`` and the cotangent are of one dtype, in which the implementation computes."""

    @jax.jit
    def run(qkv: list[Any], cotangent: Any, mask: AttentionMask) -> list[Any]:
        output, pullback = jax.vjp(lambda *qkv: attend(*qkv, mask, implementation=implementation), *qkv)
        return [output, *pullback(cotangent)]

    with jax.default_matmul_precision("highest"):  # no TF32
        return [np.asarray(array, np.float64) for array in run(qkv, cotangent, case.mask)]


def check(case: Case) -> dict[str, Any]:
    """The largest error of a row in the output and in each gradient, and what is wrong, if anything."""
    qkv, cotangent = inputs(case)
    try:
        got = output_and_gradients(case, "fused", qkv, cotangent)
    except Exception as error:  # cuDNN's refusals come in several types; the other cases shall still be seen
        return {"name": case.name, "errors": {}, "faults": [f"{type(error).__name__}: {str(error).splitlines()[0]}"]}
    wanted = output_and_gradients(
        case, "dense", [array.astype(jnp.float32) for array in qkv], cotangent.astype(jnp.float32)
    )
    errors, faults = {}, []
    for name, array, reference in zip(RESULTS, got, wanted, strict=True):
        if not np.isfinite(array).all():
            faults.append(f"{name} is not finite at {np.mean(~np.isfinite(array)):.1%} of its places")
            continue
        if case.low and name in ("dq", "dk"):  # one place holds what makes the logits low: a sum of large numbers
            array, reference = array[..., 1:], reference[..., 1:]
        errors[name] = largest_error(array, reference)
        if errors[name] > LARGEST_ERROR:
            faults.append(f"{name} is off by {errors[name]:.4f}, more than {LARGEST_ERROR}")
    sees_nothing_BTH = ~wanted[0].any(axis=-1)
    faults += [
        f"{name} is not zero where a query sees nothing"
        for name, array in zip(RESULTS[:2], got[:2], strict=True)
        if array[sees_nothing_BTH].any()
    ]
    return {"name": case.name, "errors": errors, "faults": faults}


def largest_error(got: np.ndarray, wanted: np.ndarray) -> float:
    def size(array: np.ndarray, axis: Optional[int]) -> Any:
        return np.sqrt(np.mean(np.square(array), axis=axis))

    return float(np.max(size(got - wanted, -1) / (size(wanted, -1) + size(wanted, None) + 1e-3)))


def forward(implementation: str) -> Callable[..., Any]:
    mask = AttentionMask(causal=True)
    return lambda *qkv: attend(*qkv, mask, implementation=implementation)


def forward_and_backward(implementation: str) -> Callable[..., Any]:
    def loss(*qkv: Any) -> Any:
        return jnp.sum(forward(implementation)(*qkv).astype(jnp.float32))

    return jax.grad(loss, argnums=(0, 1, 2))


PASSES = {"forward": (forward, 1.0), "forward and backward": (forward_and_backward, 3.5)}


def measure(implementation: str, name: str, length: int) -> dict[str, Any]:
    """Milliseconds a call, TFLOP/s and GiB of temporaries; or why there are none."""
    make, factor = PASSES[name]
    rows = TOKENS // length
    keys = jax.random.split(jax.random.key(0), 3)
    qkv = [jax.random.normal(key, (rows, length, NUM_HEADS, HEAD_DIM), jnp.bfloat16) for key in keys]
    found: dict[str, Any] = {"implementation": implementation, "pass": name, "length": length, "rows": rows}
    try:
        compiled = jax.jit(make(implementation)).lower(*qkv).compile()
        temporaries = compiled.memory_analysis().temp_size_in_bytes
        found["temporary_gib"] = temporaries / 2**30
        limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", float("inf"))
        if temporaries > 0.9 * limit:
            return {**found, "not_measured": f"{temporaries / 2**30:.0f} GiB of temporaries do not fit"}
        seconds = time_a_call(lambda: compiled(*qkv))
    except jax.errors.JaxRuntimeError as error:
        return {**found, "not_measured": str(error).splitlines()[0][:100]}
    flops = factor * 4 * rows * NUM_HEADS * HEAD_DIM * length * (length + 1) / 2
    return {**found, "milliseconds": seconds * 1e3, "tflops_per_second": flops / seconds / 1e12}


def time_a_call(call: Callable[[], Any]) -> float:
    """Seconds: the median over rounds of many calls that are waited for together."""

    def calls(number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            result = call()
        jax.block_until_ready(result)
        return (time.perf_counter() - start) / number

    calls(1)  # starts what is started once
    number = max(1, min(1_000, int(ROUND_SECONDS / calls(3))))
    return statistics.median(calls(number) for _ in range(ROUNDS))


def check_all() -> list[dict[str, Any]]:
    print(f"\n{'largest error of a row':46}" + "".join(f"{name:>9}" for name in RESULTS))
    checks = []
    for case in cases():
        checks.append(found := check(case))
        errors = "".join(
            f"{found['errors'][name]:9.4f}" if name in found["errors"] else f"{'-':>9}" for name in RESULTS
        )
        print(f"{case.name:46}{errors}  {'; '.join(found['faults']) or 'ok'}", flush=True)
    return checks


def time_all(until: float) -> list[dict[str, Any]]:
    print(f"\n{'causal, bfloat16':24}{'tokens':>8}{'rows':>6}{'ms':>20}{'TFLOP/s':>10}{'GiB':>8}")
    times = []
    for length, name, implementation in itertools.product(LENGTHS, PASSES, ("fused", "dense")):
        if time.perf_counter() > until:
            found = {"implementation": implementation, "pass": name, "length": length, "not_measured": "out of time"}
        else:
            found = measure(implementation, name, length)
        times.append(found)
        print(f"{name:24}{length:8,}{TOKENS // length:6}  {implementation:8}", end="")
        if "not_measured" in found:
            print(f"  not measured: {found['not_measured']}", flush=True)
        else:
            print(
                f"{found['milliseconds']:10.3f}{found['tflops_per_second']:10.1f}{found['temporary_gib']:8.2f}",
                flush=True,
            )
    return times


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if jax.default_backend() != "gpu":
        print(
            f"this needs an NVIDIA GPU, but JAX runs on {jax.default_backend()} here; on a machine with one install "
            "jax[cuda13]",
            file=sys.stderr,
        )
        return 2
    start = time.perf_counter()
    device = jax.local_devices()[0].device_kind
    versions = {name: version(name) for name in ("jax", "jaxlib", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")}
    versions = {name: number for name, number in versions.items() if number is not None}
    print(f"{device}; {', '.join(f'{name} {number}' for name, number in versions.items())}", flush=True)
    checks = check_all()
    failed = [found["name"] for found in checks if found["faults"]]
    print(f"{len(checks) - len(failed)} of {len(checks)} checks passed in {time.perf_counter() - start:.0f} s")
    times = time_all(until=start + SECONDS)
    report = {
        "benchmark": "attention_gpu",
        "device": device,
        "versions": versions,
        "passed": not failed,
        "checks": checks,
        "times": times,
        "seconds": time.perf_counter() - start,
    }
    print(json.dumps(report))
    return 1 if failed else 0


def version(name: str) -> Optional[str]:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
