"""Settings that every test shares."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The tests compile hundreds of tiny programs; effort spent on optimising them is lost.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(os.path.expanduser("~"), ".cache", "transformer-tests"))

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")
