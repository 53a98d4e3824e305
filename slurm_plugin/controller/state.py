"""PURE: what the controller knows when it decides, and what it decided."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slurm_plugin.choice import Slice, slices_of
from slurm_plugin.controller.held import Held
from slurm_plugin.controller.loans import Loans
from slurm_plugin.controller.recuts import Recuts
from slurm_plugin.controller.wants import Asked
from slurm_plugin.guarantees import Margin, Promise
from slurm_plugin.model import Gpu, Grant, Step
from slurm_plugin.planning import Reach
from slurm_plugin.pool import NodeGroup, PoolConfig
from slurm_plugin.ports import GresItem, QueuedJob, SlurmNode

WITHHELD = ""  # the class of a slice that is offered as nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Which profiles serve a class, and what an idle slice that nobody claims is offered as."""

    profiles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # class -> profiles, best first
    home: Mapping[str, str] = field(default_factory=dict)  # profile -> class

    @classmethod
    def of(cls, profiles: Mapping[str, tuple[str, ...]], default: str) -> "Serving":
        """A slice is at home in the default class when it is the best that class has, else in its exact class."""
        best = profiles.get(default, ())[:1]
        known = {profile for served in profiles.values() for profile in served}
        home = {p: default if p in best else p for p in known if p in profiles or p in best}
        return cls(profiles=profiles, home=home)

    def serves(self, gres_class: str, profile: str) -> bool:
        return profile in self.profiles.get(gres_class, ())


class Agent(StrEnum):
    CONNECTED = "connected"
    EXPECTED = "expected"  # gone or not yet come, not long ago: nothing of its node changes meanwhile
    AWAY = "away"  # for so long that its node takes no new vgpu job


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as its agent last told, taken apart once for the many passes that follow."""

    gpus: tuple[Gpu, ...] = ()
    slices: tuple[Slice, ...] = ()  # usable ones of the pool's GPUs, in a fixed order
    holder: Mapping[str, Grant] = field(default_factory=dict)  # slice -> who has it
    held: tuple[tuple[tuple[int, int], str], ...] = ()  # of each usable slice that is held: (job, started at), profile
    bound: Mapping[tuple[int, int], float] = field(default_factory=dict)  # (job, started at) of every grant -> made at
    waiting: frozenset[int] = frozenset()  # jobs whose prologs wait for a slice
    garbled: frozenset[int] = frozenset()  # jobs whose grants can't be read: what they have is in no slice here

    @classmethod
    def of(
        cls,
        gpus: tuple[Gpu, ...],
        grants: tuple[Grant, ...],
        group: NodeGroup,
        waiting: Iterable[int] = (),
        garbled: Iterable[int] = (),
    ) -> "NodeView":
        usable = (gpu for gpu in gpus if group.takes(gpu.index) and not gpu.fault)
        holder = {uuid: grant for grant in grants for uuid in grant.slices}
        slices = tuple(piece for gpu in usable for piece in slices_of(gpu, holder))
        runs = ((grant.run, piece.profile) for piece in slices if (grant := holder.get(piece.uuid)))
        return cls(
            gpus=gpus,
            slices=slices,
            holder=holder,
            held=tuple(((run.job_id, run.started_at), profile) for run, profile in runs),
            bound={(grant.run.job_id, grant.run.started_at): grant.made_at for grant in grants},
            waiting=frozenset(waiting),
            garbled=frozenset(garbled),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    name: str
    group: NodeGroup
    view: NodeView = NodeView()
    agent: Agent = Agent.CONNECTED
    spoke: bool = True  # its agent has told of it since the controller started: what jobs hold there is known
    slurm: SlurmNode | None = None  # None: Slurm does not know the node, or was not asked yet
    fault: str = ""  # why no new vgpu job may start there now
    total: int = 0  # of our GRES there when it was last seen; 0: never
    weight: int = 0  # the same of the memory's GRES
    contested: bool = False  # somebody else writes its Gres too, again and again
    gone: frozenset[str] = frozenset()  # every GRES that somebody has left out of this node's Gres, by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Nothing is re-cut: since when, by whom and why."""

    since: float  # Unix seconds
    uid: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some nodes are decided alone, between two decisions about the pool."""

    freed: frozenset[str]  # slices that are idle since the last one; no other offer changes but those withheld
    waiting: frozenset[int]  # jobs that did not find what they need in the last one; the others have it elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything the decision depends on. Slurm was read after the agents' views were taken, never before.

    That order matters: a job that starts in between then shows as used and not yet bound, which is safe to count; the
    other way round it would show as neither.
    """

    config: PoolConfig
    serving: Serving
    nodes: Mapping[str, NodeState]
    jobs: tuple[QueuedJob, ...] = ()
    asked: Asked = field(default_factory=Asked, compare=False, repr=False)  # by the jobs of the last decision
    present: Mapping[str, str] = field(default_factory=dict)  # slice -> class it is offered as now
    assigned: Mapping[str, int] = field(default_factory=dict)  # GPU -> which share of its group
    loans: Loans = field(default_factory=Loans)  # what pending jobs had of the offers so far
    held_gpus: frozenset[str] = frozenset()  # a step is under way there, or failed not long ago
    failed_gpus: frozenset[str] = frozenset()  # ... of these, where it failed
    recuts: Recuts = field(default_factory=Recuts)  # of GPUs whose layouts follow the queue
    promises: tuple[Promise, ...] = ()  # the guarantees
    held: Held | None = None  # what counts towards them, once it was counted for this state
    reaches: Mapping[str, Reach] = field(default_factory=dict)  # class -> where it may be cut; others anywhere
    paused: bool = False  # nothing is re-cut
    forgotten: frozenset[str] = frozenset()  # nodes where, in the last one, a job ran that Slurm says waits
    quiet_min: int = 0  # minutes of quiet hours left: nothing is re-cut but for guarantees
    now: float = 0.0  # Unix seconds
    part: Part | None = None  # None: `nodes` is the whole pool

    @property
    def begins(self) -> bool:
        """Agents have yet to say for the first time what their nodes have: what a guarantee lacks is not known."""
        return any(node.agent is Agent.EXPECTED and not node.spoke for node in self.nodes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferOut:
    slice: str
    gres_class: str
    ask: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LostProlog:
    """A run that Slurm counts as running and that does not: nobody carries its prolog on, or it has `ended`."""

    job_id: int
    started_at: int
    uid: int
    nodes: tuple[str, ...]  # those on which it was lost
    ended: bool = False


class Action(StrEnum):
    KEEP = "keep"
    CHANGE = "change"
    WAIT = "wait"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """What becomes of one GPU, and why. Placements are (profile, start)."""

    node: str
    gpu: str
    index: int
    action: Action
    why: str = ""
    keep: tuple[tuple[str, int], ...] = ()
    destroy: tuple[tuple[str, int], ...] = ()
    create: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    gres: Mapping[str, tuple[GresItem, ...]]  # node -> whole Gres to publish; only nodes that differ
    offers: Mapping[str, tuple[OfferOut, ...]]  # node -> every slice's offer
    steps: Mapping[str, tuple[Step, ...]]  # node -> steps that may go now
    plan: tuple[GpuPlan, ...]
    assigned: Mapping[str, int]
    problems: Mapping[str, tuple[str, ...]]  # node -> lines; "" for the pool's own
    waiting: frozenset[int] = frozenset()  # jobs that did not find what they need
    loans: Loans = field(default_factory=Loans)
    recuts: Recuts = field(default_factory=Recuts)
    asked: Asked = field(default_factory=Asked, compare=False, repr=False)  # for the next one
    margins: tuple[Margin, ...] = ()  # of the guarantees; empty too when that can't be told
    lost: tuple[LostProlog, ...] = ()  # what to send back
    forgotten: frozenset[str] = frozenset()  # nodes where a job runs that Slurm says waits
    first: Mapping[int, int] = field(default_factory=dict)  # job -> priority with which it has what is kept for it

    def without(self, names: Collection[str], newer: "Decision") -> "Decision":
        """The same, but nothing is done about these nodes, whose offers are those of a newer decision."""
        return replace(
            self,
            gres={name: gres for name, gres in self.gres.items() if name not in names},
            steps={name: steps for name, steps in self.steps.items() if name not in names},
            offers={**self.offers, **{name: newer.offers[name] for name in names if name in newer.offers}},
        )

    def with_part(self, part: "Decision") -> "Decision":
        """The same, with what was decided since about some nodes."""
        return replace(self, offers={**self.offers, **part.offers})
