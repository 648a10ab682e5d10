"""Settings that every test shares."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The tests compile hundreds of programs that run for milliseconds: effort spent on optimising them is lost.
# Four devices, so that what is sharded in production is sharded here.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_force_host_platform_device_count=4",
)

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")
