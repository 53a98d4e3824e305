"""PURE: what a pending job wants of the pool, and on which nodes it may have it."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nsmallest

from slurm_plugin.choice import Slice
from slurm_plugin.ports import QueuedJob

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
    passed: bool = False  # it let its turn pass, or a job of the same user's that asks for the same did
    opened: frozenset[str] = frozenset()  # slices kept for its account that the last pass offered for it
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

    @property
    def picky(self) -> bool:
        """Does it say more of its nodes than their partition?"""
        return any(self.where[1:])


class Places:
    """Which of some nodes jobs may ever run on, as far as can be told cheaply: the loans see to the rest."""

    def __init__(self, nodes: Sequence[OfferNode]) -> None:
        self._nodes = nodes
        self._number: dict[str, int] = {}  # once a node is named
        self._like: dict[Key, frozenset[int]] = {}  # by all but the names of nodes
        self._of: dict[Key, frozenset[int]] = {}

    def of(self, demand: Demand) -> frozenset[int]:
        found = self._of.get(demand.where)
        if found is None:
            found = self._of[demand.where] = self._named(demand)
        return found

    def _named(self, demand: Demand) -> frozenset[int]:
        kind = (demand.partitions, demand.features, demand.reserved)
        found = self._like.get(kind)
        if found is None:
            found = self._like[kind] = self._alike(demand)
        if demand.nodes <= len(demand.wanted_nodes):
            found &= self._numbers(demand.wanted_nodes)
        return found - self._numbers(demand.excluded_nodes) if demand.excluded_nodes else found

    def _alike(self, demand: Demand) -> frozenset[int]:
        partitions, features = set(demand.partitions), demand.features
        return frozenset(
            nth
            for nth, node in enumerate(self._nodes)
            if not partitions.isdisjoint(node.partitions)
            and (not features or any(names <= node.features for names in features))
            and (demand.reserved or not node.maintained)
        )

    def _numbers(self, names: Sequence[str]) -> set[int]:
        self._number = self._number or {node.name: nth for nth, node in enumerate(self._nodes)}
        return {self._number[name] for name in names if name in self._number}


def fair(ranked: Sequence[Demand], most: int) -> tuple[Sequence[Demand], Sequence[Demand]]:
    """The demands of `most` sets of nodes, and the others, both in their order.

    No user's jobs, each for nodes of its own, keep out all others: those that any node of their partition will do for
    come first, then the first set that each user's jobs name, then the second.
    """
    wheres = {id(demand.where): demand.where for demand in ranked}  # most queues have few, each of them one object
    if len(wheres) <= most:
        return ranked, ()
    same = {where: where for where in wheres.values()}
    number = {one: id(same[where]) for one, where in wheres.items()}
    turns: dict[int, tuple[bool, int, int]] = {}  # set -> its turn: the best that a user gives it
    own: dict[tuple[int, bool], dict[int, int]] = {}
    for nth, demand in enumerate(ranked):
        where, picky = number[id(demand.where)], demand.picky
        mine = own.setdefault((demand.uid, picky), {})
        if where not in mine:
            mine[where] = len(mine)
            turns[where] = min(turns.get(where, (True, len(ranked), 0)), (picky, mine[where], nth))
    chosen = set(nsmallest(most, turns, key=turns.__getitem__))
    able = [demand for demand in ranked if number[id(demand.where)] in chosen]
    return able, [demand for demand in ranked if number[id(demand.where)] not in chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What each job that waits asked for in the last pass. It saves work, and decides nothing."""

    terms: Hashable = None  # what of a pool.yaml it depends on
    by_job: Mapping[int, tuple[QueuedJob, tuple[Demand, ...]]] = field(default_factory=dict)
