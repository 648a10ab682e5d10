"""The platform that was asked for, what it can do, and the cache of compiled programs."""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import sys

import jax

from transformer.config import MeshConfig
from transformer.training.hosts import join
from transformer.types import UserError

PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 1153.5e12,  # half a chip
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
}
"""Dense bf16 FLOP/s of one device, from the makers' data sheets; the longest name that a device's kind starts with."""


def select_platform(config: MeshConfig) -> None:
    """Make ``mesh.platform`` the platform of this process, and turn on the cache of compiled programs.

    With ``mesh.distributed`` the devices of all processes are then to be had.

    Raises:
      UserError: if JAX has no such platform here (it never falls back), or other processes are missing.
    """
    name = config.platform
    if name == "cpu" or (name == "auto" and not _accelerator_installed()):
        keep_freed_memory()
    if name != "auto":
        jax.config.update("jax_platforms", {"gpu": "cuda"}.get(name, name))
    join(config)
    try:
        found = jax.devices()[0].platform
    except (RuntimeError, AssertionError) as error:  # a CUDA that is not there is an assertion without a text
        reason = f" ({str(error).splitlines()[0]})" if str(error) else ""
        raise UserError(
            f"mesh.platform={name} is not to be had here{reason}. Install the JAX for it "
            "(see README, 'On TPU and GPU') or use mesh.platform=auto"
        ) from None
    if name not in ("auto", found):
        raise UserError(f"mesh.platform={name}, but JAX gives {found}; unset JAX_PLATFORMS or use mesh.platform=auto")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        root = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(root / "transformer" / "compiled" / machine_name()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def keep_freed_memory() -> None:
    """Tell glibc to keep what is freed for the next allocation; elsewhere does nothing. Before JAX starts its threads.

    On CPU, XLA allocates a program's scratch space anew at every call. glibc maps large blocks one by one and gives
    them back to the system when they are freed: a training step spent a fifth of its processor time on page faults.
    Not for hosts of accelerators: there many threads allocate at once, and would wait for the one arena.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8  # malloc.h
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
        mallopt(m_arena_max, 1)  # no other arena can hold a block of more than 64 MiB


def _accelerator_installed() -> bool:
    """Whether JAX may find more than CPUs, without starting it."""
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return bool(plugins) or importlib.util.find_spec("libtpu") is not None


def machine_name() -> str:
    """This CPU's model and a digest of its flags: a program compiled for other flags may crash or compute wrongly."""
    model, flags = processor()
    name = "".join(letter if letter.isalnum() else "-" for letter in model)
    return f"{name}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def processor() -> tuple[str, str]:
    """This CPU's model and its flags, as far as the system says."""
    model, flags = platform.machine(), ""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            if key.strip() in ("flags", "Features"):
                flags = value.strip()
    except OSError:
        pass  # no Linux: the model of the machine has to do
    return model, flags


def peak_flops(device: jax.Device) -> float | None:
    """FLOP/s of one device at its best, where known."""
    names = [name for name in PEAK_FLOPS if device.device_kind.startswith(name)]
    return PEAK_FLOPS[max(names, key=len)] if names else None
