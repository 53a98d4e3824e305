"""`overflow:` of fed.yaml: the virtual nodes of the Slurm here, and when its waiting jobs may go to them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from federation.config_schema import FedFile, OverflowRuleSection, OverflowSection, VirtualNodesSection

if TYPE_CHECKING:  # a daemon without an overflow starts without all of that
    from federation.overflow.facts import Rule
    from slurm_plugin.slurm.process import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNodes:
    """Nodes PREFIX-1..count, which slurmd serves on a gateway, and the pool that their jobs run in."""

    prefix: str
    count: int
    pool: str  # SITE/POOL
    gateway: str  # host
    cpus: int  # of each node
    memory_mib: int  # of each node
    most_jobs: int  # of all of them together, at once
    shared_files: bool  # the pool sees the same files: nothing is staged

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}-{nth}" for nth in range(1, self.count + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowConfig:
    cluster: str  # Slurm's name of itself
    slurm: "Site"
    socket: Path  # where the gateway's proxies come
    partition: str  # of the virtual nodes
    wait_partition: str
    longest_wait_s: int  # that a job may wait at the far side
    pool_yaml: Path | None  # whose controller is asked when jobs would start here; None: only Slurm
    nodes: Mapping[str, VirtualNodes]  # by prefix
    rules: "Mapping[str, Rule]"  # by the partition that users ask for

    def serving(self, node: str) -> VirtualNodes | None:
        """The virtual nodes that this one is of; None: it is none of ours."""
        prefix, _, nth = node.rpartition("-")
        found = self.nodes.get(prefix)
        return found if found is not None and node in found.names and nth else None


def overflow_config(section: OverflowSection) -> OverflowConfig:
    from slurm_plugin.slurm.process import Site

    return OverflowConfig(
        cluster=section.cluster,
        slurm=Site(conf=section.conf, bin_dir=section.bin_dir),
        socket=section.socket,
        partition=section.partition,
        wait_partition=section.wait_partition,
        longest_wait_s=section.longest_wait_s,
        pool_yaml=section.pool_yaml,
        nodes={prefix: _nodes(prefix, nodes) for prefix, nodes in section.nodes.items()},
        rules={partition: _rule(rule) for partition, rule in section.rules.items()},
    )


def unknown_pool(file: FedFile, section: OverflowSection) -> tuple[str, str] | None:
    """The first virtual nodes whose pool can't be, by their prefix, and why."""
    for prefix, nodes in section.nodes.items():
        site, _, pool = nodes.pool.partition("/")
        if site == file.site and pool not in file.pools:
            return prefix, f"this site has no pool {pool}"
        if site != file.site and site not in file.peers:
            return prefix, f"there is no site {site}: known are {', '.join((file.site, *file.peers))}"
    return None


def _nodes(prefix: str, nodes: VirtualNodesSection) -> VirtualNodes:
    return VirtualNodes(
        prefix=prefix,
        count=nodes.count,
        pool=nodes.pool,
        gateway=nodes.gateway,
        cpus=nodes.cpus,
        memory_mib=nodes.memory_mib,
        most_jobs=nodes.most_jobs,
        shared_files=nodes.shared_files,
    )


def _rule(rule: OverflowRuleSection) -> "Rule":
    from federation.overflow.facts import Opt, Rule

    return Rule(
        opt=Opt(rule.opt),
        after_s=rule.after_s,
        start_later_s=rule.start_later_s,
        least_waiting=rule.least_waiting,
        least_priority=rule.least_priority,
        qos=frozenset(rule.qos),
        accounts=frozenset(rule.accounts),
        most_jobs=rule.most_jobs,
        spend_per_day=rule.spend_per_day,
        most_input_bytes=rule.most_input_mib << 20,
        recall=rule.recall,
    )
