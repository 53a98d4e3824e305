"""PURE: what a pending job wants of the pool, and on which nodes it may have it."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from slurm_plugin.choice import Slice

Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferNode:
    """What the offers need to know of a node that takes jobs."""

    name: str
    partitions: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()
    maintained: bool = False  # it takes jobs of a reservation only
    closing: bool = False  # an epilog runs there: Slurm starts nothing on it until that ends
    cpus: int = 0
    cpus_free: int = 0
    idle: tuple[Slice, ...] = ()  # may be offered as anything
    busy: tuple[tuple[Slice, str], ...] = ()  # with the class each is offered as


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A pending job that more slices would start; an array's elements are one with `tasks` > 1."""

    job_id: int
    priority: int
    gres_class: str
    count: int  # slices a node
    uid: int = 0
    array_id: int = 0
    nodes: int = 1
    tasks: int = 1
    partitions: tuple[str, ...] = ()
    wanted_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    features: tuple[frozenset[str], ...] = ()  # a node must have one of these whole; () for any
    reserved: bool = False
    cpus: int = 0  # in all
    behind: bool = False  # it had its turn and did not start: others come first
    strikes: int = 0  # how often so
    gathers: bool = True  # may slices be withheld for it until it has all it needs

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """In this order jobs claim: by priority, and those passed over behind, in turn."""
        return (self.behind, self.strikes if self.behind else 0, -self.priority, self.job_id)

    @property
    def cpus_a_node(self) -> int:
        return -(-self.cpus // max(1, self.nodes))

    @property
    def where(self) -> Key:
        """Demands with the same may run on the same nodes."""
        wanted = self.wanted_nodes if self.nodes <= len(self.wanted_nodes) else ()
        return (self.partitions, wanted, self.excluded_nodes, self.features, self.reserved)

    @property
    def key(self) -> Key:
        """When one demand finds nothing, no later one with the same key does."""
        return (self.gres_class, self.count, self.nodes, self.cpus_a_node, self.wanted_nodes, self.where)

    @property
    def single(self) -> bool:
        return self.nodes == 1 and self.count == 1

    def places(self, nodes: Sequence[OfferNode]) -> frozenset[int]:
        """Which of these nodes it may ever run on, as far as can be told cheaply: the loans see to the rest."""
        partitions, excluded = set(self.partitions), set(self.excluded_nodes)
        wanted = set(self.wanted_nodes) if self.nodes <= len(self.wanted_nodes) else set()
        return frozenset(
            nth
            for nth, node in enumerate(nodes)
            if not partitions.isdisjoint(node.partitions)
            and node.name not in excluded
            and (not wanted or node.name in wanted)
            and (not self.features or any(names <= node.features for names in self.features))
            and (self.reserved or not node.maintained)
        )
