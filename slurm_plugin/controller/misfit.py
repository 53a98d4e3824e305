"""PURE: where a pool.yaml is wrong about the Slurm and the GPUs that are there. Applied, it would break the pool.

One node that has lost a GPU, or is not there yet, makes no file wrong: an entry is wrong when it fits none of its
nodes.
"""

from collections.abc import Iterator, Mapping, Sequence

from slurm_plugin.catalogue import Catalogue
from slurm_plugin.config_promises import promises
from slurm_plugin.controller.offered import geometry, offered
from slurm_plugin.errors import ConfigError
from slurm_plugin.guarantees import Supply, impossible
from slurm_plugin.mig.products import product_of
from slurm_plugin.model import Gpu, GpuProfile
from slurm_plugin.nearest import nearest
from slurm_plugin.planning import Follow
from slurm_plugin.pool import NodeGroup, PoolConfig
from slurm_plugin.ports import SlurmNode
from slurm_plugin.slurm.hostlist import compress

Partitions = Mapping[str, Mapping[str, str]]  # name -> fields, as scontrol prints them


def mistakes(
    config: PoolConfig,
    partitions: Partitions,
    gpus: Mapping[str, Sequence[Gpu]],
    slurm: Mapping[str, SlurmNode],
) -> list[str]:
    """A line for each. `gpus`: those of each node whose agent has told."""
    seen = {host: [gpu.index for gpu in there] for host, there in gpus.items()}
    wrong = [*with_slurm(config, partitions), *with_gpus(config, seen)]
    if seen.keys() == set(config.hosts):  # else a class may be for GPUs that have not told yet
        groups = {host: group for group in config.groups for host in group.hosts}
        facts = {h: (geometry(tuple(there), groups[h]), slurm[h]) for h, there in gpus.items() if h in slurm}
        made = offered(config, facts, ())
        if made:
            wrong += [*made.problems, *with_promises(config, made.catalogue, gpus)]
    return wrong


def with_slurm(config: PoolConfig, partitions: Partitions) -> Iterator[str]:
    """The pool's partitions must be there, and that in which requests wait must let no job start."""
    names = sorted(partitions.keys() - {config.wait_partition})
    for name in config.partitions:
        if name not in partitions:
            yield f"partitions: Slurm has no partition '{name}'{_meant(name, names)}"
    wait = partitions.get(config.wait_partition)
    if wait is None:
        down = sorted(name for name, fields in partitions.items() if fields.get("State") == "DOWN")
        yield f"wait_partition: Slurm has no partition '{config.wait_partition}'{_meant(config.wait_partition, down)}"
    elif wait.get("State") != "DOWN":
        yield f"wait_partition: {config.wait_partition} is {wait.get('State')}, not DOWN: jobs would start in it"


def with_gpus(config: PoolConfig, seen: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """`seen`: the NVML indices of all GPUs of each node whose agent has told."""
    for group in config.groups:
        told = {host: seen[host] for host in group.hosts if host in seen}
        if told:
            yield from _group(group, told)


def with_promises(config: PoolConfig, catalogue: Catalogue, gpus: Mapping[str, Sequence[Gpu]]) -> Iterator[str]:
    """Guarantees that these GPUs, which are all that the pool has, could never keep."""
    try:
        promised = promises(config, catalogue)
    except ConfigError:
        return  # a class that the pool does not have is told as that
    for guarantee, why in impossible(promised, list(_supply(config, gpus))):
        yield f"planning.guarantees: '{guarantee.text}' can never hold: {why}"


def _supply(config: PoolConfig, gpus: Mapping[str, Sequence[Gpu]]) -> Iterator[Supply]:
    for group in config.groups:
        counts: dict[tuple[str, tuple[GpuProfile, ...]], dict[str, int]] = {}
        for host in group.hosts:
            for one in gpus.get(host, ()):
                if group.takes(one.index) and one.profiles:
                    product = product_of(one.name)
                    of = counts.setdefault((product.key if product else "", one.profiles), {})
                    of[host] = of.get(host, 0) + 1
        for (product_key, profiles), gpus_of in counts.items():
            yield Supply(
                product=product_key,
                profiles={profile.name: profile for profile in profiles},
                gpus_of=gpus_of,
                shares=group.shares if config.follow(group) is Follow.LAYOUT else (),
            )


def _group(group: NodeGroup, told: Mapping[str, Sequence[int]]) -> Iterator[str]:
    counts = {len(indices) for indices in told.values()}
    has = f"{compress(told)} {'has' if len(told) == 1 else 'have'} {' or '.join(map(str, sorted(counts)))} GPUs"
    if group.count and group.count not in counts:
        yield f"nodes: {has}, and count says {group.count}"
    for index in group.gpus or ():
        if all(index not in indices for indices in told.values()):
            yield f"nodes: {has}, and gpus names {index} (they are numbered from 0)"


def _meant(name: str, names: Sequence[str]) -> str:
    near = nearest(name, names)
    return f"; did you mean '{near}'?" if near else f" (it has {', '.join(names[:10]) or 'none'})"
