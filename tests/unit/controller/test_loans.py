"""What is lent to a pending job, and when others have their turn."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.controller import loans
from slurm_plugin.controller.loans import Loans
from slurm_plugin.controller.offers import Offering, assign
from slurm_plugin.controller.wants import Demand, OfferNode
from slurm_plugin.ports import QueuedJob
from tests.unit.controller import pools
from tests.unit.controller.test_offers import SERVING, offered, pieces, place, wish

PASS_S = 0.5
CLAIM_S, PAUSE_S, GATHER_S = loans.CLAIM_S, loans.PAUSE_S, loans.GATHER_S


@dataclass
class Queue:
    """Passes over some nodes and jobs that wait for ever, unless a test starts one."""

    nodes: list[OfferNode]
    jobs: dict[int, Demand]
    now: float = 1000.0
    loans: Loans = field(default_factory=Loans)
    running: dict[int, QueuedJob] = field(default_factory=dict)
    present: dict[str, str] = field(default_factory=dict)
    last: Offering = field(init=False)

    def __post_init__(self) -> None:
        self.one_pass()

    def one_pass(self, after_s: float = PASS_S) -> Offering:
        self.now += after_s
        demands = [self.loans.ranked(job, self.now) for job in self.jobs.values()]
        self.last = assign(self.nodes, demands, self.present, SERVING)
        self.present = dict(self.last.classes)
        waiting = [replace(pools.pending(job, one.gres_class), array_id=job) for job, one in self.jobs.items()]
        self.loans = self.loans.follow(demands, self.last.lent, [*waiting, *self.running.values()], self.now)
        return self.last

    def wait(self, seconds: float) -> Offering:
        for _ in range(round(seconds / PASS_S)):
            self.one_pass()
        return self.one_pass()

    def claims(self) -> set[int]:
        return set(self.last.lent.claims)

    def start(self, job: int, *, element: int = 0) -> None:
        """Slurm starts it, or an element of it."""
        one = self.jobs[job] if element else self.jobs.pop(job)
        run = pools.running(element or job, one.gres_class, started_at=int(self.now))
        self.running[element or job] = replace(run, array_id=job, uid=one.uid)


def job(number: int, gres_class: str, *, uid: int = 1000, priority: int = 1, tasks: int = 1, count: int = 1) -> Demand:
    return replace(wish(number, gres_class, count, priority=priority, tasks=tasks), uid=uid, array_id=number)


def test_job_that_does_not_take_what_it_claims_is_passed_over() -> None:
    queue = Queue([place("n1", "2g.20gb")], {1: job(1, "m20", priority=9), 2: job(2, "m10", uid=1001)})
    assert queue.claims() == {1}
    queue.wait(CLAIM_S - 2 * PASS_S)
    assert queue.claims() == {1}
    queue.wait(2 * PASS_S)
    assert queue.claims() == {2}
    assert offered(queue.last) == {"m10": 1}


def test_what_nobody_else_wants_stays_offered_to_it() -> None:
    queue = Queue([place("n1", "2g.20gb")], {1: job(1, "m20")})
    for _ in range(200):
        queue.one_pass()
        assert offered(queue.last) == {"m20": 1}


def test_it_comes_before_others_again_after_a_pause_that_grows() -> None:
    queue = Queue([place("n1", "2g.20gb")], {1: job(1, "m20", priority=9)})
    others = 100
    turns: list[float] = []
    for _ in range(1200):
        others += 1
        queue.jobs = {1: queue.jobs[1], others: job(others, "m10", uid=others)}  # there is always somebody new
        queue.one_pass()
        if queue.claims() == {1} and (not turns or queue.now - turns[-1] > 2 * CLAIM_S):
            turns.append(queue.now)
    pauses = [late - early for early, late in itertools.pairwise(turns)]
    assert all(length > PAUSE_S for length in pauses)
    assert pauses[1] > 1.5 * pauses[0]


def test_other_jobs_of_the_user_are_passed_over_too_but_find_what_is_left() -> None:
    mine = {n: job(n, "m20", priority=9) for n in range(1, 6)}
    queue = Queue([place("n1", "2g.20gb")], mine | {9: job(9, "m10", uid=1001)})
    queue.wait(CLAIM_S)
    assert queue.claims() == {9}
    queue.start(9)
    queue.one_pass()
    assert queue.claims() == {2}  # not the one that had its turn


def test_user_is_as_before_when_a_job_of_theirs_starts_on_what_was_lent() -> None:
    mine = {1: job(1, "m20", priority=9), 2: job(2, "m20", priority=8), 3: job(3, "m20", priority=8)}
    queue = Queue([place("n1", "2g.20gb")], mine)
    queue.wait(CLAIM_S)
    assert queue.claims() == {2}
    queue.start(2)
    queue.jobs[9] = job(9, "m10", uid=1001)
    queue.wait(PASS_S)
    assert queue.claims() == {3}


def test_array_that_goes_on_starting_keeps_its_place() -> None:
    queue = Queue([place("n1", "2g.20gb")], {1: job(1, "m20", priority=9, tasks=99), 2: job(2, "m10", uid=1001)})
    for element in range(100, 120):
        queue.wait(CLAIM_S - 2)
        queue.start(1, element=element)
        queue.one_pass()
        assert queue.claims() == {1}


def test_epilog_that_keeps_the_node_does_not_count() -> None:
    closed = replace(place("n1", "2g.20gb"), closing=True)
    queue = Queue([closed], {1: job(1, "m20", priority=9), 2: job(2, "m10", uid=1001)})
    queue.wait(10 * CLAIM_S)
    assert queue.claims() == {1}


def test_job_that_asks_for_something_else_is_a_new_one_and_its_user_is_not() -> None:
    queue = Queue([place("n1", "2g.20gb")], {1: job(1, "m20", priority=9), 2: job(2, "m10", uid=1001)})
    queue.wait(CLAIM_S)
    queue.jobs[1] = job(1, "2g.20gb", priority=9)
    queue.wait(PASS_S)
    assert queue.claims() == {2}


@pytest.mark.parametrize("back_s", [60, 3600, 86400])
def test_nobody_was_looking_while_slurm_was_away(back_s: float) -> None:
    queue = Queue([place("n1", "2g.20gb")], {1: job(1, "m20", priority=9), 2: job(2, "m10", uid=1001)})
    queue.one_pass(after_s=3600)
    assert queue.claims() == {1}
    queue.wait(CLAIM_S)
    queue.one_pass(after_s=-back_s)  # the clock is set back: no pause is longer for that
    assert queue.claims() == {1}
    queue.wait(CLAIM_S + 2 * PASS_S)
    assert queue.claims() == {2}


def test_what_is_withheld_for_a_job_is_lent_for_longer_and_while_it_gets_more() -> None:
    def node(idle: int) -> OfferNode:
        busy = tuple(("1g.10gb", "m10") for _ in range(6 - idle))
        return place("n1", *["1g.10gb"] * idle, busy=busy)

    queue = Queue([node(2)], {1: job(1, "m10", priority=9, count=5), 2: job(2, "m10", uid=1001)})
    queue.wait(GATHER_S - 5)
    queue.nodes = [node(3)]
    queue.wait(GATHER_S - 5)
    assert queue.claims() == set()
    assert queue.last.lent.gathering == 1
    queue.wait(10)
    assert queue.claims() == {2}
    assert queue.last.lent.gathering == 0


def test_forgets_jobs_that_are_gone_and_users_in_time() -> None:
    queue = Queue([place("n1", "2g.20gb")], {1: job(1, "m20")})
    queue.wait(CLAIM_S)
    del queue.jobs[1]
    queue.one_pass()
    assert (set(queue.loans.jobs), set(queue.loans.users)) == (set(), {1000})
    queue.one_pass(after_s=loans.FORGET_S + PAUSE_S)
    assert not queue.loans.users


STUCK = st.tuples(
    st.sampled_from(["1g.10gb", "m10", "m20", "m40", "3g.40gb", "q2"]),
    st.integers(1, 4),  # slices
    st.integers(1, 50),  # elements
    st.integers(0, 3),  # user
)


@settings(max_examples=40, deadline=None)
@given(
    stuck=st.lists(STUCK, max_size=40),
    idle=st.lists(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb"]), min_size=1, max_size=5),
    data=st.data(),
)
def test_whatever_waits_that_can_never_start_a_job_that_can_has_its_turn(
    stuck: Sequence[tuple[str, int, int, int]], idle: list[str], data: st.DataObject
) -> None:
    """In a time that grows with the users who have such jobs, however many those are and of whatever priority."""
    wanted = data.draw(st.sampled_from(["m10", idle[0]]))
    jobs = {
        n: job(n, c, uid=2000 + user, priority=9, tasks=tasks, count=count)
        for n, (c, count, tasks, user) in enumerate(stuck, 1)
    }
    queue = Queue([replace(place("n1"), idle=pieces("n1", *idle))], jobs | {999: job(999, wanted, uid=1000)})
    users = len({one.uid for one in jobs.values()})
    for _ in range(round((users + 1) * (CLAIM_S + PASS_S) / PASS_S)):
        if 999 in queue.claims():
            break
        queue.one_pass()
    assert 999 in queue.claims()
