"""The platform that was asked for, what it can do, and the cache of compiled programs."""

import hashlib
import os
import pathlib
import platform

import jax

from transformer.types import UserError

PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
}
"""Dense bf16 FLOP/s of one device, from the makers' data sheets; the longest name that a device's kind starts with."""


def select_platform(name: str) -> None:
    """Make ``mesh.platform`` the platform of this process, and turn on the cache of compiled programs.

    Raises:
      UserError: if JAX has no such platform here. It never falls back.
    """
    if name != "auto":
        jax.config.update("jax_platforms", {"gpu": "cuda"}.get(name, name))
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


def machine_name() -> str:
    """This CPU's model and a digest of its flags: a program compiled for other flags may crash or compute wrongly."""
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
    name = "".join(letter if letter.isalnum() else "-" for letter in model)
    return f"{name}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def peak_flops(device: jax.Device) -> float | None:
    """FLOP/s of one device at its best, where known."""
    names = [name for name in PEAK_FLOPS if device.device_kind.startswith(name)]
    return PEAK_FLOPS[max(names, key=len)] if names else None
