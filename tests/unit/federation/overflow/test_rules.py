"""Which jobs may go, which are taken back, and why the others stay."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.overflow.facts import Decision, Facts, Offer, Opt, Rule, Verdict, Waiting, Widened, Wish
from federation.overflow.rules import AWAY_S, decide

NOW = 100_000.0
POOL = "cloud/gpu"


def waiting(job_id: int = 1, **what: Any) -> Waiting:
    known: dict[str, Any] = {
        "job_id": job_id,
        "root": job_id,
        "uid": 1000,
        "priority": 10,
        "partitions": ("gpu", "vgpu-wait"),
        "since": int(NOW) - 700,
    }
    return Waiting(**known | what)


def facts(jobs: Sequence[Waiting], rule: Rule | None = None, **what: Any) -> Facts:
    known: dict[str, Any] = {
        "now": NOW,
        "cloud": "cloud",
        "rules": {"gpu": rule or Rule()},
        "offers": {job.job_id: (Offer(pool=POOL, money=2.0),) for job in jobs},
    }
    return Facts(**known | what)


def one(job: Waiting, rule: Rule | None = None, **what: Any) -> Decision:
    (found,) = decide([job], facts([job], rule, **what))
    return found


def widened(job: Waiting, price: float = 2.0) -> Widened:
    return Widened(
        root=job.root,
        submitted_at=job.since,
        uid=job.uid,
        rule="gpu",
        partitions=("gpu", "vgpu-wait"),
        price=price,
        account=job.account,
        at=NOW - 5,
    )


def test_a_job_that_waited_long_enough_goes_behind_its_own_partitions() -> None:
    found = one(waiting())
    assert (found.verdict, found.partitions, found.tasks) == (Verdict.WIDEN, ("gpu", "vgpu-wait", "cloud"), 1)
    assert (found.rule, found.price) == ("gpu", 2.0)
    assert found.why == "may run in cloud/gpu for 2.00: it has waited 700 s"


@pytest.mark.parametrize(
    ("job", "rule", "why"),
    [
        ({"partitions": ("fat",)}, Rule(), "no rule for fat"),
        ({"partitions": ("gpu", "cloud")}, Rule(), "it asked for cloud itself"),
        ({"wish": Wish.NEVER}, Rule(), "it was submitted with --burst=never"),
        ({}, Rule(opt=Opt.IN), "it was submitted without --burst"),
        ({"obstacle": "it is interactive"}, Rule(), "it is interactive"),
        ({"held": "Slurm: Dependency"}, Rule(), "Slurm: Dependency"),
        ({}, Rule(after_s=701), "it has waited 700 s of 701"),
        ({"since": int(NOW) + 50}, Rule(after_s=1), "it has waited 0 s of 1"),
        ({"starts_at": NOW + 59}, Rule(start_later_s=60), "it is expected to start here in 59 s"),
        ({}, Rule(least_waiting=2), "1 jobs wait in gpu, and the least is 2"),
        ({}, Rule(least_priority=11), "its priority is 10, and the least is 11"),
        ({}, Rule(qos=frozenset({"high"})), "QOS (none) is not one of the rule's"),
        ({"account": "bio"}, Rule(accounts=frozenset({"phys"})), "account bio is not one of the rule's"),
        ({"input_bytes": 3 << 20}, Rule(most_input_bytes=2 << 20), "its input is 3 MiB, and the most is 2"),
        ({}, Rule(most_jobs=0), "as many of gpu as most_jobs says"),
        ({}, Rule(spend_per_day=1.0), "today's money of gpu has 1.00 left, and it costs 2.00"),
    ],
)
def test_why_a_job_stays(job: dict[str, Any], rule: Rule, why: str) -> None:
    found = one(waiting(**job), rule)
    assert (found.verdict, found.partitions) == (Verdict.LEAVE, ())
    assert found.why.startswith(why)


def test_the_budget_of_its_account_and_what_pools_say_keep_a_job_too() -> None:
    job = waiting(account="bio")
    assert one(job, left={"bio": 1.5}).why == "today's budget of account bio has 1.50 left, and it costs 2.00"
    assert one(job, left={"phys": 1.5}).verdict is Verdict.WIDEN
    no = one(job, offers={1: (Offer(pool=POOL, no="no link now"), Offer(pool="b/c", no="full"))})
    assert no.why == "cloud/gpu: no link now; b/c: full"
    assert one(job, offers={}).why.startswith("no pool is one that it may go to")


def test_no_more_jobs_without_slices_are_widened_than_a_pool_takes() -> None:
    """The nodes offer slices only: of anything else Slurm would start there whatever is in the partition."""
    jobs = [
        waiting(1, partitions=("gpu", "cloud")),
        waiting(2),
        waiting(3, tasks=5),
        waiting(4),
        waiting(5, slices=True),
    ]
    found = decide(jobs, facts(jobs, widened={1: widened(jobs[0])}, room={POOL: 4}))
    assert [(one.verdict, one.tasks) for one in found] == [
        (Verdict.LEAVE, 0),
        (Verdict.WIDEN, 1),
        (Verdict.WIDEN, 2),
        (Verdict.LEAVE, 0),
        (Verdict.WIDEN, 1),
    ]
    assert found[3].why == "as many jobs as cloud/gpu takes now are widened"


def test_the_fullest_of_its_pools_keeps_a_job_without_slices_since_slurm_chooses() -> None:
    offers = {1: (Offer(pool="a/b"), Offer(pool="c/d"), Offer(pool="e/f", no="full"))}
    assert one(waiting(), offers=offers, room={"a/b": 3, "c/d": 0, "e/f": 0}).why.startswith("as many jobs as c/d")
    assert one(waiting(), offers=offers, room={"a/b": 3, "c/d": 1, "e/f": 0}).verdict is Verdict.WIDEN


def test_a_clock_that_is_ahead_keeps_no_job() -> None:
    assert one(waiting(since=int(NOW) + 5), Rule(after_s=0)).why.endswith("it has waited 0 s")


def test_always_goes_at_once_and_keeps_to_the_caps() -> None:
    job = waiting(since=int(NOW), starts_at=NOW + 1, wish=Wish.ALWAYS)
    slow = Rule(after_s=600, start_later_s=3600, least_waiting=9, opt=Opt.IN)
    assert one(job, slow).verdict is Verdict.WIDEN
    assert one(job, replace(slow, most_jobs=0)).verdict is Verdict.LEAVE
    assert one(replace(job, held="Slurm: JobHeldUser"), slow).verdict is Verdict.LEAVE


def test_what_is_dearest_among_the_pools_counts_since_slurm_chooses() -> None:
    offers = {1: (Offer(pool="a/b", money=1.0), Offer(pool="c/d", money=3.0), Offer(pool="e/f", no="full", money=9.0))}
    found = one(waiting(), offers=offers)
    assert (found.price, found.why[:38]) == (3.0, "may run in a/b or c/d for 3.00: it has")


def test_an_array_goes_in_part_when_the_caps_leave_no_more() -> None:
    job = waiting(tasks=10)
    assert one(job).tasks == 10
    assert one(job, Rule(most_jobs=4), running={"gpu": 1}).tasks == 3
    found = one(job, Rule(spend_per_day=9.0), spent={"gpu": 2.5})
    assert found.tasks == 3
    assert "3 of 10 elements: today's money of gpu has 6.50 left, and it costs 2.00" in found.why


def test_the_oldest_go_first_and_those_that_were_widened_count() -> None:
    old, new = waiting(9, since=int(NOW) - 900), waiting(2)
    before = waiting(5, partitions=("gpu", "vgpu-wait", "cloud"), tasks=2)
    found = decide([new, before, old], facts([new, before, old], Rule(most_jobs=3), widened={5: widened(before)}))
    assert [(each.job.job_id, each.verdict) for each in found] == [
        (9, Verdict.WIDEN),
        (2, Verdict.LEAVE),
        (5, Verdict.LEAVE),
    ]
    assert found[2].why == "may run in cloud: widened 5 s ago"


@pytest.mark.parametrize(
    ("job", "what", "why"),
    [
        ({"starts_at": NOW + 29}, {}, "taken back: it is expected to start here in 29 s"),
        ({}, {"rules": {}}, "taken back: no rule for gpu any more"),
        ({}, {"rules": {"gpu": Rule(qos=frozenset({"x"}))}}, "taken back: QOS (none) is not one of the rule's"),
        (
            {},
            {"offers": {1: (Offer(pool=POOL, no="no link now", away_s=AWAY_S),)}},
            "taken back: no word of cloud/gpu for 60 s",
        ),
    ],
)
def test_a_job_is_taken_back(job: dict[str, Any], what: dict[str, Any], why: str) -> None:
    wide = waiting(partitions=("gpu", "vgpu-wait", "cloud"), **job)
    found = one(wide, Rule(start_later_s=60), **{"widened": {1: widened(wide)}} | what)
    assert (found.verdict, found.partitions, found.why) == (Verdict.RECALL, ("gpu", "vgpu-wait"), why)


@pytest.mark.parametrize(
    ("job", "rule", "what"),
    [
        ({"starts_at": NOW + 31}, Rule(start_later_s=60), {}),
        ({"starts_at": NOW + 1}, Rule(start_later_s=60, recall=False), {}),
        ({"starts_at": NOW + 1, "wish": Wish.ALWAYS}, Rule(start_later_s=60), {}),
        ({"starts_at": NOW + 1}, Rule(), {}),
        ({}, Rule(), {"offers": {1: (Offer(pool=POOL, no="full"),)}}),
        ({}, Rule(), {"offers": {1: (Offer(pool=POOL, no="no link now", away_s=AWAY_S - 1),)}}),
        (
            {},
            Rule(),
            {"offers": {1: (Offer(pool=POOL, no="no link now", away_s=900), Offer(pool="a/b", no="full"))}},
        ),
        ({}, Rule(most_jobs=0, spend_per_day=0.0), {}),
    ],
)
def test_a_job_is_not_taken_back_for_less(job: dict[str, Any], rule: Rule, what: dict[str, Any]) -> None:
    wide = waiting(partitions=("gpu", "vgpu-wait", "cloud"), **job)
    assert one(wide, rule, **{"widened": {1: widened(wide)}} | what).verdict is Verdict.LEAVE


def test_another_users_job_with_the_same_id_was_not_widened_here() -> None:
    wide = waiting(partitions=("gpu", "cloud"))
    found = one(wide, widened={1: replace(widened(wide), uid=2)}, rules={})
    assert (found.verdict, found.why[:12]) == (Verdict.LEAVE, "it asked for")


RULES = st.builds(
    Rule,
    opt=st.sampled_from(Opt),
    after_s=st.integers(0, 1000),
    start_later_s=st.sampled_from((0, 60, 600)),
    least_waiting=st.integers(0, 4),
    most_jobs=st.integers(0, 8),
    spend_per_day=st.none() | st.floats(0, 20),
    recall=st.booleans(),
)
PARTITIONS = st.sampled_from((("gpu",), ("gpu", "cloud"), ("fat", "gpu", "vgpu-wait"), ("fat",)))


@st.composite
def queues(draw: st.DrawFn) -> tuple[list[Waiting], Facts]:
    ids = draw(st.lists(st.integers(1, 99), max_size=8, unique=True))
    jobs = [
        waiting(
            job_id,
            tasks=draw(st.integers(1, 5)),
            account=draw(st.sampled_from(("", "bio"))),
            partitions=draw(PARTITIONS),
            since=int(NOW) - draw(st.integers(0, 1200)),
            starts_at=draw(st.none() | st.floats(NOW - 100, NOW + 900)),
            wish=draw(st.sampled_from((Wish.NONE, Wish.AUTO, Wish.ALWAYS, Wish.NEVER))),
            held=draw(st.sampled_from(("", "", "Slurm: Dependency"))),
        )
        for job_id in ids
    ]
    prices = st.floats(0, 5, allow_subnormal=False)
    offer = st.builds(Offer, pool=st.just(POOL), money=prices, no=st.sampled_from(("", "", "full")))
    away = st.builds(Offer, pool=st.just(POOL), no=st.just("no link now"), away_s=st.floats(0, 200))
    known = facts(
        jobs,
        draw(RULES),
        offers={job.job_id: (draw(offer | away),) for job in jobs},
        widened={job.root: widened(job, draw(prices)) for job in jobs if draw(st.booleans())},
        running={"gpu": draw(st.integers(0, 4))},
        spent={"gpu": draw(st.floats(0, 10))},
        left=draw(st.sampled_from(({}, {"bio": 4.0}))),
    )
    return jobs, known


def carried_out(found: Sequence[Decision], known: Facts) -> tuple[list[Waiting], Facts]:
    """The queue and the records after it."""
    jobs, rows = [], dict(known.widened)
    for each in found:
        job = each.job
        if each.verdict is Verdict.LEAVE:
            jobs.append(job)
            continue
        part = each.tasks if each.verdict is Verdict.WIDEN else job.tasks
        jobs.append(replace(job, partitions=each.partitions, tasks=part))
        if each.verdict is Verdict.WIDEN:
            rows[job.root] = replace(widened(job, each.price), rule=each.rule)
            if part < job.tasks:
                jobs.append(replace(job, job_id=job.job_id + 1000, tasks=job.tasks - part))
    offers = {job.job_id: known.offers[job.job_id % 1000] for job in jobs}
    return jobs, replace(known, widened=rows, offers=offers)


def taken(jobs: Sequence[Waiting], known: Facts) -> tuple[int, float, float]:
    """Elements widened here, their price, and of account bio."""
    ours = [
        (job, known.widened[job.root].price) for job in jobs if "cloud" in job.partitions and job.root in known.widened
    ]
    return (
        sum(job.tasks for job, _ in ours),
        sum(job.tasks * price for job, price in ours),
        sum(job.tasks * price for job, price in ours if job.account == "bio"),
    )


@given(queues())
def test_no_cap_is_passed_by_what_is_widened(queue: tuple[list[Waiting], Facts]) -> None:
    jobs, known = queue
    found = decide(jobs, known)
    new = [each for each in found if each.verdict is Verdict.WIDEN]
    if not new:
        return
    rule = known.rules["gpu"]
    count, money, bio = taken(jobs, known)
    assert count + sum(each.tasks for each in new) + known.running["gpu"] <= rule.most_jobs
    price = sum(each.tasks * each.price for each in new)
    if rule.spend_per_day is not None and price:
        assert known.spent["gpu"] + money + price <= rule.spend_per_day + 1e-9
    of_bio = sum(each.tasks * each.price for each in new if each.job.account == "bio")
    if "bio" in known.left and of_bio:
        assert bio + of_bio <= known.left["bio"] + 1e-9
    assert all(each.tasks >= 1 for each in new)


@pytest.mark.parametrize("money", [-4.0, 0.0, 4.0])
def test_a_price_that_is_next_to_nothing_is_one(money: float) -> None:
    offers = {1: (Offer(pool=POOL, money=1e-309),)}
    found = one(waiting(), Rule(spend_per_day=money), offers=offers)
    assert (found.verdict is Verdict.WIDEN) is (money > 0)


@given(queues(), st.randoms(use_true_random=False))
def test_each_job_gets_one_answer_and_the_order_they_come_in_is_nothing(
    queue: tuple[list[Waiting], Facts], random: Random
) -> None:
    jobs, known = queue
    found = decide(jobs, known)
    assert [(each.job.since, each.job.job_id) for each in found] == sorted((job.since, job.job_id) for job in jobs)
    assert all(each.why for each in found)
    mixed = list(jobs)
    random.shuffle(mixed)
    assert decide(mixed, known) == found


@given(queues())
def test_once_it_is_carried_out_nothing_more_changes(queue: tuple[list[Waiting], Facts]) -> None:
    jobs, known = carried_out(decide(*queue), queue[1])
    again = decide(jobs, known)
    changed = [each for each in again if each.verdict is not Verdict.LEAVE]
    # What was taken back has left room, which others may use the next time; nothing goes back and forth.
    taken_back = {each.job.job_id for each in decide(*queue) if each.verdict is Verdict.RECALL}
    assert not taken_back & {each.job.job_id for each in changed}
    if not taken_back:
        assert not changed


@given(queues(), st.integers(1, 5000))
def test_who_waits_longer_or_has_more_room_goes_no_less(queue: tuple[list[Waiting], Facts], more: int) -> None:
    jobs, known = queue
    rule = replace(known.rules["gpu"], most_jobs=10_000, spend_per_day=None)
    known = replace(known, rules={"gpu": rule}, left={})

    def going(facts: Facts, jobs: Sequence[Waiting]) -> set[int]:
        return {each.job.job_id for each in decide(jobs, facts) if each.verdict is Verdict.WIDEN}

    before = going(known, jobs)
    assert before <= going(known, [replace(job, since=job.since - more) for job in jobs])
    assert before <= going(replace(known, rules={"gpu": replace(rule, after_s=0)}), jobs)
    fewer = replace(known, rules={"gpu": replace(rule, most_jobs=more % 9)})
    assert going(fewer, jobs) <= before


@given(queues())
def test_without_anybody_to_go_to_the_queue_becomes_what_it_was_without_bursting(
    queue: tuple[list[Waiting], Facts],
) -> None:
    jobs, known = queue
    gone = {job.job_id: (Offer(pool=POOL, no="no link now", away_s=AWAY_S),) for job in jobs}
    known = replace(known, offers=gone)
    found = decide(jobs, known)
    assert not [each for each in found if each.verdict is Verdict.WIDEN]
    after, known = carried_out(found, known)
    asked_for_it = {job.job_id for job in jobs if "cloud" in job.partitions and job.root not in known.widened}
    assert {job.job_id for job in after if "cloud" in job.partitions} == asked_for_it
    assert not [each for each in decide(after, known) if each.verdict is not Verdict.LEAVE]
