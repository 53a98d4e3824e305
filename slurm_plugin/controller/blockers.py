"""PURE: where slices for a job could be, and which jobs have to end for them.

By time limits: of all ways to make room, on nodes where the job may run, the one that is free first. Several slices on
a node are gathered one by one, so that a cleverer set of jobs may exist for them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from slurm_plugin.controller.demand import is_open, offer_node
from slurm_plugin.controller.state import NodeState, State
from slurm_plugin.controller.wants import Demand, Places
from slurm_plugin.explanation import Blocker
from slurm_plugin.mig.geometry import mask
from slurm_plugin.mig.layouts import remaining
from slurm_plugin.model import Gpu, GpuProfile, MigMode
from slurm_plugin.planning import Follow

_NEVER = 1 << 62  # an end that is not known comes last
_MEMO = 20_000  # states of a GPU remembered; GPUs in the same state share one


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One place where a slice could be, and the jobs that have to end for it."""

    node: str
    gpu: Gpu
    bits: int  # memory slices
    jobs: frozenset[int]
    free_at: int  # _NEVER: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The nodes where a job may run, as far as it is concerned."""

    demand: Demand
    profiles: tuple[str, ...]  # what serves it, best first
    open: tuple[NodeState, ...]
    closed: tuple[NodeState, ...]
    recut: frozenset[str] = frozenset()  # nodes whose GPUs are cut for what waits
    idle: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # node -> slices

    @classmethod
    def of(cls, state: State, demand: Demand) -> "Ground":
        profiles = state.serving.profiles.get(demand.gres_class, ())
        nodes = [node for _, node in sorted(state.nodes.items())]
        may = Places([offer_node(node) for node in nodes]).of(demand)
        able = [node for nth, node in enumerate(nodes) if nth in may]
        usable = tuple(node for node in able if is_open(node))
        return cls(
            demand=demand,
            profiles=profiles,
            open=usable,
            closed=tuple(node for node in able if not is_open(node)),
            recut=frozenset(node.name for node in able if state.config.follow(node.group) is Follow.QUEUE),
            idle={
                node.name: tuple(
                    s.uuid for s in node.view.slices if s.profile in profiles and s.uuid not in node.view.holder
                )
                for node in usable
            },
        )

    def gpus(self) -> Iterator[tuple[NodeState, Gpu]]:
        """Those that may be cut and given to jobs."""
        for node in self.open:
            for gpu in node.view.gpus:
                if node.group.takes(gpu.index) and not gpu.fault and gpu.mig is MigMode.ENABLED:
                    yield node, gpu

    def ways(self, state: State) -> Iterator[Way]:
        """Every way to one slice more; one for which nobody has to end is free at 0."""
        ends = {job.job_id: job.ends_at or _NEVER for job in state.jobs if job.on_nodes}
        for node, gpu in self.gpus():
            idle = frozenset(self.idle[node.name])
            for bits, slices in _spots(gpu, self.profiles, recut=node.name in self.recut):
                if idle.isdisjoint(slices):
                    holders = [node.view.holder.get(uuid) for uuid in slices]
                    jobs = frozenset(grant.run.job_id for grant in holders if grant is not None)
                    free_at = max((ends.get(job_id, _NEVER) for job_id in jobs), default=0)
                    yield Way(node=node.name, gpu=gpu, bits=bits, jobs=jobs, free_at=free_at)


def _spots(gpu: Gpu, profiles: Sequence[str], *, recut: bool) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Where a slice that serves is or could be: its memory slices, and the slices that are there now."""
    for one in gpu.instances:
        if one.profile in profiles and one.uuid and not one.foreign:
            yield mask(one.start, one.size), (one.uuid,)
    if recut:
        shapes = shapes_of(gpu.profiles)
        for name in profiles:
            if name in shapes:
                for start in shapes[name].starts:
                    bits = mask(start, shapes[name].size)
                    there = [i for i in gpu.instances if mask(i.start, i.size) & bits]
                    if all(i.uuid and not i.foreign for i in there):
                        yield bits, tuple(i.uuid for i in there)


@lru_cache(maxsize=_MEMO)
def shapes_of(profiles: tuple[GpuProfile, ...]) -> Mapping[str, GpuProfile]:
    return {profile.name: profile for profile in profiles}


def placeable(gpu: Gpu, node: NodeState, profiles: tuple[str, ...]) -> int:
    stay = (i for i in gpu.instances if i.foreign or i.uuid in node.view.holder)
    return _most_beside(gpu.profiles, tuple((i.profile, i.start) for i in stay), profiles)


@lru_cache(maxsize=_MEMO)
def _most_beside(profiles: tuple[GpuProfile, ...], stay: tuple[tuple[str, int], ...], names: tuple[str, ...]) -> int:
    shapes = shapes_of(profiles)
    if any(name not in shapes for name, _ in stay):  # somebody's own kind of instance: where it ends is not known
        return 0
    return max((remaining(shapes, stay, name) for name in names if name in shapes), default=0)


def room(state: State, ground: Ground, ways: Iterable[Way]) -> tuple[Blocker, ...]:
    """The jobs that have to end, on as many nodes as the job needs; () when that is not enough, or not needed."""
    by_node: dict[str, list[Way]] = {}
    for way in ways:
        by_node.setdefault(way.node, []).append(way)
    ready = [(0, 0, node.name, ()) for node in ground.open if len(ground.idle[node.name]) >= ground.demand.count]
    made = [gathered for name, here in by_node.items() if (gathered := _gather(name, here, ground))]
    chosen = sorted([*ready, *made], key=lambda one: one[:3])[: ground.demand.nodes]
    if len(chosen) < ground.demand.nodes:
        return ()
    ends = {job.job_id: job.ends_at for job in state.jobs}
    gpus: dict[tuple[int, str], set[int]] = {}
    for way in chain.from_iterable(here for *_, here in chosen):
        for job_id in way.jobs:
            gpus.setdefault((job_id, way.node), set()).add(way.gpu.index)
    blockers = (
        Blocker(job_id=job_id, node=node, gpus=tuple(sorted(indices)), ends_at=ends.get(job_id, 0))
        for (job_id, node), indices in gpus.items()
    )
    return tuple(sorted(blockers, key=lambda one: (one.ends_at or _NEVER, one.job_id, one.node)))


_Gathered = tuple[int, int, str, tuple[Way, ...]]  # free at, jobs, node


def _gather(name: str, ways: list[Way], ground: Ground) -> _Gathered | None:
    """Ways that do not overlap for all that this node lacks, those that are free first before the rest."""
    lacks = ground.demand.count - len(ground.idle[name])
    taken: dict[str, int] = {}
    chosen: list[Way] = []
    for way in sorted(ways, key=lambda one: (one.free_at, len(one.jobs), one.gpu.index, one.bits)):
        if len(chosen) < lacks and not taken.get(way.gpu.uuid, 0) & way.bits:
            taken[way.gpu.uuid] = taken.get(way.gpu.uuid, 0) | way.bits
            chosen.append(way)
    if lacks < 1 or len(chosen) < lacks:
        return None
    jobs = {job_id for way in chosen for job_id in way.jobs}
    return (max(way.free_at for way in chosen), len(jobs), name, tuple(chosen))
