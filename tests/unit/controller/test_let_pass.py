"""A job that is stopped by what the pool can't see does not give away, one by one, what is kept for its account."""

from dataclasses import dataclass, field, replace

import pytest

from slurm_plugin.controller.loans import PAUSE_S
from slurm_plugin.planning import Planning
from tests.unit.controller import pools
from tests.unit.controller.pools import gpu
from tests.unit.controller.test_recut import FOLLOW, promise
from tests.unit.controller.world import World

HALVES = (("3g.40gb", 0), ("3g.40gb", 4))
PASS_S = 0.5


@dataclass
class Stuck(World):
    """Slurm passes over some jobs, and prologs take some passes."""

    never: set[int] = field(default_factory=set)
    prologs_take: int = 1  # passes
    begun: dict[int, int] = field(default_factory=dict)  # job -> passes since its start

    def submit_of(self, account: str, *, priority: int, uid: int = 1000, cpus: int = 1) -> int:
        self.submit("3g.40gb", priority=priority)
        job = self.next_job - 1
        self.waiting[job] = replace(self.waiting[job], account=account, uid=uid, cpus=cpus)
        return job

    def schedule(self) -> int:
        """What starts keeps its account."""
        waiting = dict(self.waiting)
        self.waiting = {job: one for job, one in waiting.items() if job not in self.never}
        started = super().schedule()
        for job in waiting.keys() - self.waiting.keys() - self.never:
            self.jobs[job] = replace(self.jobs[job], account=waiting[job].account, started_at=int(self.now))
            self.begun[job] = 0
        self.waiting |= {job: one for job, one in waiting.items() if job in self.never}
        return started

    def one_pass(self) -> None:
        self.now += PASS_S
        decision = self.decide(self.views())
        self.carry_out(decision)
        self.loans = decision.loans
        for job, priority in decision.first.items():
            self.waiting[job] = replace(self.waiting[job], priority=priority)
        self.schedule()
        for job in list(self.begun):
            self.begun[job] += 1
            if self.begun[job] >= self.prologs_take:
                self._bind(job)

    def _bind(self, job: int) -> None:
        del self.begun[job]
        (node,) = self.jobs[job].on_nodes
        assert self.bind(job, node)
        grant = self.grants[node, job]
        self.grants[node, job] = replace(grant, run=replace(grant.run, started_at=self.jobs[job].started_at))

    def runs(self, account: str) -> int:
        return sum(job.account == account for job in self.jobs.values())


def pool(kept: int, *, prologs_take: int = 1, planning: Planning = FOLLOW) -> Stuck:
    """Four halves, of which so many are kept for physics."""
    gpus = {"n1": [gpu(f"g{nth}", HALVES, index=nth) for nth in range(2)]}
    world = Stuck(gpus, pools.group("n1"), planning=planning, prologs_take=prologs_take)
    world.now = 10_000.0
    world.promises = (promise("3g.40gb", kept, account="physics"),)
    return world


def run_for(world: Stuck, seconds: float) -> None:
    for _ in range(round(seconds / PASS_S)):
        world.one_pass()


@pytest.mark.parametrize("prologs_take", [1, 3, 8])
def test_a_job_that_slurm_passes_over_costs_its_account_one_slice_a_turn(prologs_take: int) -> None:
    world = pool(4, prologs_take=prologs_take)
    world.never = {world.submit_of("physics", priority=100)}
    for _ in range(8):
        world.submit_of("bio", priority=1, uid=7)
    run_for(world, PAUSE_S)
    assert world.runs("bio") == 1
    run_for(world, PAUSE_S)
    assert world.runs("bio") == 2


def test_another_job_of_the_same_user_has_what_is_kept_meanwhile() -> None:
    world = pool(4)
    world.never = {world.submit_of("physics", priority=100)}
    for _ in range(8):
        world.submit_of("bio", priority=1, uid=7)
    run_for(world, 5.0)
    assert (world.runs("bio"), world.runs("physics")) == (1, 0)
    world.submit_of("physics", priority=50, cpus=2)
    run_for(world, 2.0)
    assert (world.runs("bio"), world.runs("physics")) == (1, 1)


def test_jobs_that_ask_for_the_same_as_one_that_was_passed_over_wait_with_it() -> None:
    """However many a user submits."""
    world = pool(1)
    world.never = {world.submit_of("physics", priority=100) for _ in range(20)}
    for _ in range(8):
        world.submit_of("bio", priority=1, uid=7)
    run_for(world, 5.0)
    assert world.runs("bio") == 4
    ended = min(world.jobs)
    world.end(ended)
    world.release("n1", ended)
    run_for(world, PAUSE_S / 2)
    assert world.runs("bio") == 3
    assert len(world.recuts.kept) == 1


def test_jobs_that_start_have_all_that_is_kept_for_them() -> None:
    world = pool(4)
    for _ in range(3):
        world.submit_of("bio", priority=100, uid=7)
    for _ in range(4):
        world.submit_of("physics", priority=1)
    run_for(world, 6.0)
    assert (world.runs("bio"), world.runs("physics")) == (0, 4)


def test_slices_that_are_kept_for_two_accounts_and_taken_by_one_of_them_pass_over_nobody() -> None:
    world = pool(2, prologs_take=3)
    world.promises = (*world.promises, promise("3g.40gb", 2, account="art"))
    for nth in range(2):
        world.submit_of("physics", priority=10 + nth)
        world.submit_of("art", priority=10 + nth, uid=8)
    run_for(world, 8.0)
    assert (world.runs("art"), world.runs("physics")) == (2, 2)
    assert not any(loan.strikes for loan in world.loans.jobs.values())
