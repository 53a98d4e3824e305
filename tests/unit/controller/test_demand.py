"""Which pending jobs want what of the pool, in what order, and what of it is known from the pass before."""

from dataclasses import replace

from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.demand import asked, demands
from slurm_plugin.controller.state import Part, State
from slurm_plugin.planning import Order, Planning
from slurm_plugin.ports import QueuedJob
from tests.unit.controller import pools
from tests.unit.controller.pools import pending, running


def state(*jobs: QueuedJob, order: Order = Order.PRIORITY) -> State:
    config = replace(pools.config("n1"), planning=Planning(order=order))
    return State(config=config, serving=pools.serving(), nodes={}, jobs=jobs)


def test_only_eligible_pending_jobs_of_a_known_class_want_something() -> None:
    held = replace(pending(2, "1g.10gb"), eligible=False)
    assert [one.job_id for one in demands(state(pending(1, "m20"), held, running(3, "m20"), pending(4, "9g.1gb")))] == [
        1
    ]


def test_a_demand_says_whose_it_is_how_old_and_how_long() -> None:
    job = replace(
        pending(7, "m20", 2, tasks=3, nodes=2),
        account="physics",
        qos="high",
        submitted_at=50,
        limit_s=600,
        array_id=5,
        array_limit=3,
    )
    (one,) = demands(state(job))
    assert (one.account, one.qos, one.submitted_at, one.limit_s, one.array_limit) == ("physics", "high", 50, 600, 3)
    assert (one.gres_class, one.count, one.nodes, one.tasks, one.array_id) == ("m20", 2, 2, 3, 5)
    assert one.partitions == ("gpu",)


def test_jobs_claim_by_priority_or_by_age_as_the_pool_says() -> None:
    young = replace(pending(1, "m20", priority=9), submitted_at=200)
    old = replace(pending(2, "m20", priority=1), submitted_at=100)

    def order(by: Order) -> list[int]:
        return [one.job_id for one in sorted(demands(state(young, old, order=by)), key=lambda demand: demand.rank)]

    assert order(Order.PRIORITY) == [1, 2]
    assert order(Order.FIRST_COME) == [2, 1]


def test_a_job_that_is_read_as_before_is_not_thought_over_again() -> None:
    same, other = pending(1, "m20"), pending(2, "m20")
    before, known = asked(state(same, other))
    after, _ = asked(replace(state(same, replace(other, priority=5)), asked=known))
    assert after[0] is before[0]
    assert after[1].priority == 5
    moved = replace(state(same), config=replace(pools.config("n1"), partitions=("other",)), asked=known)
    assert demands(moved)[0].partitions == ()


def test_whoever_asks_beside_the_passes_makes_them_forget_nothing() -> None:
    """Such as a plan for another pool.yaml, or a fence, which looks at a part of the queue."""
    jobs = (pending(1, "m20"), pending(2, "m20"))
    first = decide(state(*jobs))
    before = [demand for _, some in first.asked.by_job.values() for demand in some]
    decide(replace(state(jobs[0], order=Order.FIRST_COME), asked=first.asked))
    part = replace(state(jobs[0]), part=Part(freed=frozenset(), waiting=frozenset({1})), asked=first.asked)
    assert demands(part)[0] is before[0]
    after = demands(replace(state(*jobs), asked=first.asked))
    assert [one is two for one, two in zip(after, before, strict=True)] == [True, True]
