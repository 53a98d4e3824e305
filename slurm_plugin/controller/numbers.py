"""PURE: whose a GPU is where pool.yaml names GPUs by number.

The driver numbers the GPUs that it finds. When one is gone after a boot those behind it move up, and a number of the
pool's may mean a GPU of somebody else's. So numbers are believed while all of a node's GPUs are there; else a GPU is
the pool's by its UUID, if it was when they last were.
"""

from collections.abc import Sequence
from dataclasses import replace

from slurm_plugin.model import Gpu
from slurm_plugin.pool import NodeGroup


def all_there(group: NodeGroup, gpus: Sequence[Gpu], before: Sequence[Gpu]) -> bool:
    """Are these a node's GPUs, or only some? `before`: those when all were last there."""
    if group.gpus is None:
        return True
    return len(gpus) == group.count if group.count else len(gpus) >= len(before)


def as_numbered_now(group: NodeGroup, gpus: Sequence[Gpu], before: Sequence[Gpu]) -> NodeGroup:
    """The entry for a node some of whose GPUs are missing, with the numbers that the pool's have now."""
    ours = {gpu.uuid for gpu in before if gpu.uuid and group.takes(gpu.index)}
    numbers = tuple(gpu.index for gpu in gpus if gpu.uuid in ours)
    return replace(group, gpus=numbers, count=group.count or len(before))
