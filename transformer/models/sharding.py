"""Where activations lie on the mesh: a no-op until a trainer enters a mesh and the table of logical axes."""

import flax.linen as nn
from flax.linen.spmd import RulesFallback
from jaxtyping import Array, Float


def constrain(x: Float[Array, "..."], *names: str) -> Float[Array, "..."]:
    """Pin an activation's axes, named as in ``training/partitioning.py``. A name that is not there is an error."""
    return nn.with_logical_constraint(x, names, fallback=RulesFallback.RAISE_ERROR)
