"""PURE: what a pending job wants of the pool, and on which nodes it may have it."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from slurm_plugin.choice import Slice

Key = tuple[Hashable, ...]
_KEYS = 1024  # a long queue says the same few again and again


@lru_cache(_KEYS)
def _shared(key: Key) -> Key:
    """One object for all that are equal."""
    return key


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
    account: str = ""
    qos: str = ""
    submitted_at: int = 0  # Unix seconds
    limit_s: int = 0  # time limit; 0: none
    array_limit: int = 0  # most elements that may run at once; 0: no limit. `tasks` is no more than it leaves room for
    first_come: bool = False  # by its age instead of its priority
    behind: bool = False  # it had its turn and did not start: others come first
    strikes: int = 0  # how often so
    gathers: bool = True  # may slices be withheld for it until it has all it needs
    where: Key = field(init=False, compare=False, repr=False)  # demands with the same may run on the same nodes
    key: Key = field(init=False, compare=False, repr=False)  # when one finds nothing, no later one with the same does

    def __post_init__(self) -> None:
        """Both keys are looked at often in a pass, and a demand lives for many."""
        wanted = self.wanted_nodes if self.nodes <= len(self.wanted_nodes) else ()
        where = _shared((self.partitions, wanted, self.excluded_nodes, self.features, self.reserved))
        key = _shared((self.gres_class, self.count, self.nodes, self.cpus_a_node, self.wanted_nodes, where))
        object.__setattr__(self, "where", where)
        object.__setattr__(self, "key", key)

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """In this order jobs claim: by priority, or by age, and those passed over behind, in turn."""
        turn = self.submitted_at if self.first_come else -self.priority
        return (self.behind, self.strikes if self.behind else 0, turn, self.job_id)

    @property
    def cpus_a_node(self) -> int:
        return -(-self.cpus // max(1, self.nodes))

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
