"""What a run would be on devices that are only described: compiled for them, on any machine.

python -m transformer.plan --config=configs/NAME.py --topology=v5e:4x4 [--config.SECTION.KEY=VALUE ...] [--search]

A topology is a slice of TPUs (v4, v5e, v5p, v6e, tpu7x), several of them (2xv6e:16x16), or virtual CPUs (cpu:8). TPUs
need libtpu: pip install -r requirements-plan.txt. No data is read. Printed are the memory of each device, what devices
send each other, and an estimate of the speed; the last line of standard output is one JSON object.

Exit code: 0; 1 if it does not fit; 2 for a mistake in flags or config.
"""

from absl import flags
from ml_collections import config_flags

from transformer import commands

CONFIG = config_flags.DEFINE_config_file("config", None, "the experiment; --config.SECTION.KEY=VALUE overrides a key")
flags.mark_flag_as_required("config")
TOPOLOGY = flags.DEFINE_string("topology", None, "v5e:4x4, 2xv6e:16x16 or cpu:8", required=True)
TOKENS = flags.DEFINE_integer(
    "tokens_per_device", None, "positions on the longer side in one update's batch, for each device", lower_bound=1
)
SEARCH = flags.DEFINE_bool("search", False, "look for the best mesh and rematerialisation")
DECODING = flags.DEFINE_bool("decoding", True, "plan the search for outputs too, which takes longer")


def main() -> int:
    config = commands.read_config(CONFIG)
    from transformer.plan import topologies

    topology = topologies.parse(TOPOLOGY.value)
    topologies.prepare(topology)  # before JAX is imported
    from transformer.plan.planning import plan

    return plan(config, topology, tokens_per_device=TOKENS.value, search=SEARCH.value, decoding=DECODING.value)


if __name__ == "__main__":
    commands.run(main)
