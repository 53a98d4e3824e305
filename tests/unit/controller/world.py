"""A pool as a model: Slurm's counts, agents' grants, and jobs that are somewhere on their way. No clock, no I/O."""

from dataclasses import dataclass, field, replace
from typing import Any

from slurm_plugin.choice import Slice
from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.loans import Loans
from slurm_plugin.controller.recuts import Recuts
from slurm_plugin.controller.state import Decision, NodeState, NodeView, Part, State
from slurm_plugin.guarantees import Promise
from slurm_plugin.mig.serving import best_first
from slurm_plugin.model import Gpu, Grant, Instance, Step
from slurm_plugin.planning import Planning
from slurm_plugin.pool import NodeGroup
from slurm_plugin.ports import GresItem, QueuedJob, SlurmNode
from tests.unit.controller import pools

NOW = 110.0  # jobs start at 100: always young
SMALLEST_FIRST = [profile.name for profile in best_first(pools.profiles())]
BASE = (GresItem(name="vgpu", count=pools.TOTAL), GresItem(name="vgpu_mem", count=32))


@dataclass
class World:
    gpus: dict[str, list[Gpu]]  # by node
    group: NodeGroup
    slurm: dict[str, SlurmNode] = field(default_factory=dict)
    waiting: dict[int, QueuedJob] = field(default_factory=dict)
    jobs: dict[int, QueuedJob] = field(default_factory=dict)  # Slurm has them running
    completing: dict[int, QueuedJob] = field(default_factory=dict)
    grants: dict[tuple[str, int], Grant] = field(default_factory=dict)
    untyped: set[int] = field(default_factory=set)
    present: dict[str, str] = field(default_factory=dict)
    assigned: dict[str, int] = field(default_factory=dict)
    planning: Planning = field(default_factory=lambda: Planning(batch_window_s=0.0, hysteresis_s=0.0))
    promises: tuple[Promise, ...] = ()
    recuts: Recuts = field(default_factory=Recuts)
    loans: Loans = field(default_factory=Loans)  # for ever as they are
    now: float = NOW
    more: dict[str, Any] = field(default_factory=dict)  # of the state
    next_job: int = 1
    made: int = 0

    def __post_init__(self) -> None:
        self.slurm = {name: pools.slurm_node(name) for name in self.gpus}

    # -- what happens in a cluster

    def submit(self, gres_class: str, count: int = 1, nodes: int = 1, priority: int = 1) -> None:
        job = pools.pending(self.next_job, gres_class, count, priority=priority, nodes=nodes)
        self.waiting[self.next_job] = job
        self.next_job += 1

    def schedule(self) -> int:
        """Slurm starts what it can, by priority. Returns how many it started."""
        started = 0
        for job in sorted(self.waiting.values(), key=lambda j: (-j.priority, j.job_id)):
            gres_class, count = job.gres[0].type, job.gres[0].count
            closed = {at for at, holder in self.grants if holder in self.completing}  # an epilog runs there
            fit = [name for name in self.slurm if name not in closed and self.free(name, gres_class) >= count]
            if len(fit) >= job.nodes:
                del self.waiting[job.job_id]
                self.jobs[job.job_id] = pools.running(job.job_id, gres_class, count, on=fit[: job.nodes])
                self.recount()
                started += 1
        return started

    def bind(self, job_id: int, node: str) -> bool:
        """The prolog of a job on one node takes slices offered as its class. False when there are too few."""
        job = self.jobs[job_id]
        gres_class, count = job.gres[0].type, job.gres[0].count
        found = [uuid for uuid in self.idle(node) if self.present.get(uuid) == gres_class][:count]
        if len(found) < count:
            return False
        self.grants[node, job_id] = pools.grant(job_id, gres_class, *found)
        return True

    def end(self, job_id: int) -> None:
        """Its use is gone from Slurm; its slices are busy until each node's epilog has run."""
        self.completing[job_id] = replace(self.jobs.pop(job_id), state="COMPLETING")
        self.recount()

    def release(self, node: str, job_id: int) -> None:
        del self.grants[node, job_id]
        if all(job != job_id for _, job in self.grants):
            self.completing.pop(job_id, None)

    def forget(self, job_id: int) -> None:
        """slurmctld was killed and knows nothing of a job that ended; its grants are there until the agent looks."""
        self.completing.pop(job_id, None)

    def restart(self) -> None:
        self.untyped |= self.jobs.keys()
        self.slurm = {name: replace(node, gres=BASE) for name, node in self.slurm.items()}
        self.recount()

    # -- what the controller does

    def views(self) -> dict[str, NodeView]:
        return {name: self._view(name) for name in self.gpus}

    def queue(self) -> tuple[QueuedJob, ...]:
        return (*self.waiting.values(), *self.jobs.values(), *self.completing.values())

    def decide(
        self, views: dict[str, NodeView], queue: tuple[QueuedJob, ...] | None = None, part: Part | None = None
    ) -> Decision:
        nodes = {
            name: NodeState(name=name, group=self.group, view=view, slurm=self.slurm[name])
            for name, view in views.items()
        }
        return decide(
            State(
                config=replace(pools.config(*self.gpus), planning=self.planning),
                serving=pools.serving(),
                nodes=nodes,
                jobs=self.queue() if queue is None else queue,
                present=self.present,
                assigned=self.assigned,
                now=self.now,
                part=part,
                recuts=self.recuts,
                loans=self.loans,
                promises=self.promises,
                **self.more,
            )
        )

    def carry_out(self, decision: Decision) -> None:
        self.assigned = dict(decision.assigned)
        self.recuts = decision.recuts
        fresh = {o.slice: o.gres_class for offers in decision.offers.values() for o in offers}
        self.present = fresh if len(decision.offers) == len(self.gpus) else {**self.present, **fresh}
        for name, gres in decision.gres.items():
            self.slurm[name] = replace(self.slurm[name], gres=gres)
        for name, steps in decision.steps.items():
            for step in steps:
                self._make(name, step)

    # -- what is true

    def free(self, node: str, gres_class: str) -> int:
        return self._count(self.slurm[node].gres, gres_class) - self._count(self.slurm[node].gres_used, gres_class)

    def used(self, node: str, gres_class: str) -> int:
        return self._count(self.slurm[node].gres_used, gres_class)

    def idle(self, node: str) -> list[str]:
        view = self._view(node)
        return [piece.uuid for piece in sorted(view.slices, key=self._order) if piece.uuid not in view.holder]

    @staticmethod
    def _order(piece: Slice) -> tuple[int, tuple[float, ...]]:
        """An agent takes the smallest first."""
        return (SMALLEST_FIRST.index(piece.profile), piece.order)

    def recount(self) -> None:
        for name, node in self.slurm.items():
            used: dict[str, int] = {}
            for job in self.jobs.values():
                if name in job.on_nodes:
                    gres_class = "" if job.job_id in self.untyped else job.gres[0].type
                    used[gres_class] = used.get(gres_class, 0) + job.gres[0].count
            self.slurm[name] = replace(node, gres_used=tuple(pools.vgpu(c, n) for c, n in used.items()))

    def _view(self, node: str) -> NodeView:
        grants = tuple(grant for (at, _), grant in self.grants.items() if at == node)
        return NodeView.of(tuple(self.gpus[node]), grants, self.group)

    @staticmethod
    def _count(items: tuple[GresItem, ...], gres_class: str) -> int:
        return sum(item.count for item in items if item.name == "vgpu" and item.type == gres_class)

    def _make(self, node: str, step: Step) -> None:
        (at,) = [nth for nth, gpu in enumerate(self.gpus[node]) if gpu.uuid == step.gpu]
        gpu, busy = self.gpus[node][at], self._view(node).holder
        gone = [i for i in gpu.instances if (i.profile, i.start) in step.destroy]
        assert len(gone) == len(step.destroy)
        assert not any(i.uuid in busy for i in gone), "a busy slice would have been destroyed"
        sizes = {p.name: p.size for p in gpu.profiles}
        made = []
        for profile, start in step.create:
            self.made += 1
            size, uuid = sizes[profile], f"MIG-{self.made}"
            made.append(Instance(profile=profile, start=start, size=size, gi=self.made, ci=0, uuid=uuid))
        instances = (*(i for i in gpu.instances if i not in gone), *made)
        taken = [slot for i in instances for slot in range(i.start, i.start + i.size)]
        assert len(taken) == len(set(taken)), "two instances in one place"
        self.gpus[node][at] = replace(gpu, instances=instances)
