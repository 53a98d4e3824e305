"""Whatever happens in whatever order, the invariants hold: a generated life of a small pool."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slurm_plugin.controller.state import Action, Decision, NodeView, Part
from slurm_plugin.planning import Follow
from slurm_plugin.pool import NodeGroup
from slurm_plugin.ports import QueuedJob
from tests.unit.controller import pools
from tests.unit.controller.world import World

CLASSES = ["1g.10gb", "m10", "m20", "q2", "3g.40gb", "m40"]
LAYOUTS = [{}, {"1g.10gb": 7}, {"3g.40gb": 1, "1g.10gb": 4}, {"3g.40gb": 2}, {"2g.20gb": 3}, {"7g.80gb": 1}]


SETTLED = 12  # passes after which nothing is left to do


class Life(RuleBasedStateMachine):
    """Jobs come, start, bind, end; slurmctld restarts; layouts change; passes see views that are older than Slurm."""

    def __init__(self) -> None:
        super().__init__()
        gpus = {
            "n1": [pools.gpu("a", pools.MIXED), pools.gpu("b", pools.SEVEN, index=1)],
            "n2": [pools.gpu("c", (("3g.40gb", 0), ("2g.20gb", 4)))],
        }
        self.world = World(gpus, pools.group("n1", "n2"))
        self.frozen: dict[str, NodeView] | None = None
        self.overtaken: set[str] = set()
        self.last: Decision
        self.queue: tuple[QueuedJob, ...] = ()  # as the last pass read it
        self.followed: NodeGroup
        self.one_pass()

    @rule(c=st.sampled_from(CLASSES), count=st.integers(1, 3), nodes=st.integers(1, 2), priority=st.integers(1, 9))
    def submit(self, c: str, count: int, nodes: int, priority: int) -> None:
        self.world.submit(c, count, nodes, priority)

    @rule()
    def schedule(self) -> None:
        self.world.schedule()

    @precondition(lambda self: self.unbound())
    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        job, node = data.draw(st.sampled_from(self.unbound()))
        assert self.world.bind(job, node), "Slurm started a job that finds no slice"

    @precondition(lambda self: self.bound())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.world.end(data.draw(st.sampled_from(self.bound())))

    @precondition(lambda self: self.ended())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.world.release(*data.draw(st.sampled_from(self.ended())))

    @rule(forgets=st.booleans())
    def restart(self, forgets: bool) -> None:
        for job in list(self.world.completing) if forgets else ():
            self.world.forget(job)
        self.world.restart()

    @rule(layout=st.sampled_from(LAYOUTS))
    def lay_out(self, layout: dict[str, int]) -> None:
        self.world.group = pools.group("n1", "n2", layout=layout)

    @rule(follow=st.sampled_from(Follow))
    def follow(self, follow: Follow) -> None:
        self.world.planning = replace(self.world.planning, follow=follow)

    @rule(node=st.integers(1, 2), pool=st.integers(1, 3))
    def change_at_once(self, node: int, pool: int) -> None:
        self.world.planning = replace(self.world.planning, changing_of_node=node, changing_of_pool=pool)

    @rule()
    def freeze(self) -> None:
        """A pass has begun: what agents tell from now on is for the next one."""
        self.frozen = self.world.views()
        self.overtaken.clear()

    @precondition(lambda self: self.frozen is not None)
    @rule()
    def finish(self) -> None:
        """It reads Slurm as it is now, decides, and carries out. Steps are made by agents, which know better."""
        assert self.frozen is not None
        self.queue = self.world.queue()
        decision = self.world.decide(self.frozen).without(self.overtaken, self.last)
        gone = any(step.destroy for steps in decision.steps.values() for step in steps)
        if not gone or self.frozen == self.world.views():
            self.world.carry_out(decision)
            self.last, self.followed = decision, self.world.group
        self.frozen = None

    @rule()
    def one_pass(self) -> None:
        self.queue = self.world.queue()
        self.last, self.followed = self.world.decide(self.world.views()), self.world.group
        self.world.carry_out(self.last)
        self.frozen = None

    @precondition(lambda self: self.ended() and self.followed is self.world.group)
    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        """An epilog frees slices and waits for the verdict: its node alone is decided, by the queue as it was read."""
        node, job = data.draw(st.sampled_from(self.ended()))
        freed = frozenset(self.world.grants[node, job].slices)
        self.world.release(node, job)
        queue = tuple(replace(one, state="COMPLETING") if one.job_id == job else one for one in self.queue)
        views = {node: self.world.views()[node]}
        decision = self.world.decide(views, queue, Part(freed=freed, waiting=self.last.waiting))
        assert not decision.steps
        self.world.carry_out(decision)
        self.last = self.last.with_part(decision)
        self.overtaken.add(node)

    @rule()
    def settle(self) -> None:
        """When nothing else happens, a few passes bring everything to rest: nothing left to do."""
        for _ in range(SETTLED):
            rooms = self.world.recuts.rooms
            self.one_pass()
            changes = any(plan.action is Action.CHANGE for plan in self.last.plan) or rooms != self.world.recuts.rooms
            if not (changes or self.last.gres or self.last.steps or self.world.recuts.targets):
                break
        decision = self.world.decide(self.world.views())
        assert not decision.gres
        assert not decision.steps

    @invariant()
    def totals_never_change(self) -> None:
        for node in self.world.slurm.values():
            assert sum(i.count for i in node.gres if i.name == "vgpu") == pools.TOTAL
            assert sum(i.count for i in node.gres if i.name == "vgpu_mem") == 32

    @invariant()
    def nothing_is_published_below_its_use(self) -> None:
        for name, node in self.world.slurm.items():
            types = {i.type for i in node.gres if i.name == "vgpu"}
            for used in node.gres_used:
                assert types == {""} or self.world.free(name, used.type) >= 0 or not used.type

    @invariant()
    def no_slice_has_two_jobs(self) -> None:
        held = [uuid for grant in self.world.grants.values() for uuid in grant.slices]
        assert len(held) == len(set(held))

    @invariant()
    def what_may_start_has_slices(self) -> None:
        """published - used <= idle slices offered so - what running jobs will take + what epilogs still hold."""
        world = self.world
        for name in world.slurm:
            for gres_class in CLASSES:
                idle = sum(world.present.get(uuid) == gres_class for uuid in world.idle(name))
                ending = sum(  # offered anew already, or not yet: the node starts nothing until the epilog has ended
                    gres_class in (grant.gres_class, world.present.get(uuid))
                    for (at, job), grant in world.grants.items()
                    for uuid in grant.slices
                    if at == name and job in world.completing
                )
                coming = sum(
                    world.jobs[job].gres[0].count
                    for job, at in self.unbound()
                    if at == name and world.jobs[job].gres[0].type == gres_class
                )
                assert world.free(name, gres_class) <= idle + ending - coming

    def unbound(self) -> list[tuple[int, str]]:
        grants = self.world.grants
        return [(j, node) for j, job in self.world.jobs.items() for node in job.on_nodes if (node, j) not in grants]

    def bound(self) -> list[int]:
        waits = {job for job, _ in self.unbound()}
        return [job for job in self.world.jobs if job not in waits]

    def ended(self) -> list[tuple[str, int]]:
        return [(node, job) for node, job in self.world.grants if job not in self.world.jobs]


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
