"""Jobs are let into the cloud partition and taken back, by what Slurm, the journal and the pools say now."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from federation.errors import Unavailable
from federation.model.job import Job
from federation.model.messages import Room
from federation.model.spec import JobSpec, Lease
from federation.overflow import bursts, widened, widening
from federation.overflow.burst import Burst
from federation.overflow.changes import Applied, Change
from federation.overflow.facts import Rule, Wish
from federation.overflow.rules import AWAY_S
from federation.overflow.waiting import Running
from federation.overflow.widening import REFUSED_S, Look, State, Tally
from federation.policy.choose import Rules
from tests.integration.federation.overflow.queue import NODES, ROOM, Bench
from tests.integration.federation.site import until

WIDE = "gpu,vgpu-wait,cloud"


def states(look: Look) -> dict[int, State]:
    return {one.queued.job.job_id: one.state for one in look.judged}


def why(look: Look, job_id: int) -> str:
    return next(one.refusal or one.decision.why for one in look.judged if one.queued.job.job_id == job_id)


async def test_a_job_is_widened_once_and_stays_so_through_a_restart() -> None:
    bench = Bench()
    bench.queue.waits = (bench.job(1), bench.job(2, since=int(bench.now.wall) - 10))
    look = await bench.widening.look()
    assert states(look) == {1: State.WIDENED, 2: State.STAYS}
    assert bench.changes.moves() == [("1", WIDE)]
    assert bench.changes.words() == [("1", "asked vgpu [fed: may run in cloud/gpu]")]
    assert [one.name for one in bench.changes.told] == ["1", "1"]
    assert "admincomment" in bench.changes.told[0].to[0]  # the word comes first: nothing of the job runs elsewhere yet
    bench.carried_out()
    look = await bench.restarted().look()
    assert states(look) == {1: State.WIDENED, 2: State.STAYS}
    assert bench.changes.told == []
    assert why(look, 1) == "may run in cloud: widened 0 s ago"


async def test_a_dry_look_changes_nothing_and_says_the_same() -> None:
    bench = Bench()
    bench.queue.waits = (bench.job(1),)
    look = await bench.widening.look(dry=True)
    assert states(look) == {1: State.TO_WIDEN}
    assert (bench.changes.told, widened.widened(bench.journal.store)) == ([], {})
    assert why(look, 1) == why(await bench.widening.look(), 1)


async def test_what_runs_there_counts_until_its_price_is_booked_and_then_with_what_it_cost() -> None:
    bench = Bench(rule=Rule(spend_per_day=5.0))
    bench.queue.waits = tuple(bench.job(nth) for nth in (1, 2, 3))
    assert states(await bench.widening.look()) == {1: State.WIDENED, 2: State.WIDENED, 3: State.STAYS}
    bench.carried_out()
    bench.queue.runs = (Running(job_id=1, root=1), Running(job_id=2, root=2))  # started, and no proxy has come yet
    bench.queue.waits = bench.queue.waits[2:]
    look = await bench.restarted().look()
    assert why(look, 3) == "today's money of gpu has 1.00 left, and it costs 2.00"
    book(bench, 1, cost=0.5)
    book(bench, 2, cost=2.0)
    look = await bench.restarted().look()
    assert states(look) == {3: State.WIDENED}
    assert look.facts is not None
    assert look.facts.spent == {"gpu": 2.5}


def book(bench: Bench, job_id: int, *, cost: float, account: str = "", array: tuple[int, int] = (0, -1)) -> None:
    """A job that runs there, as the gateway's desk and the engine write it."""
    token, day = uuid.UUID(int=job_id), int(bench.now.wall // 86_400)
    job = Job(
        token=token,
        user="ann",
        account=account,
        lease=Lease(),
        accepted_at=bench.now.wall,
        due_at=None,
        cost=cost,
        cost_day=day,
    )
    burst = Burst(
        token=token,
        job_id=job_id,
        array_id=array[0],
        task_id=array[1],
        uid=1000,
        user="ann",
        submitted_at=1,
        restarts=0,
        started_at=2,
        node="cloud-gpu-1",
        pool="cloud/gpu",
        limit_s=3600,
    )
    with bench.journal.store.transaction():
        bench.journal.store.add_job(job, JobSpec(user="ann"))
        bursts.save(bench.journal.store, burst)


async def test_the_budget_of_an_account_counts_what_is_widened_of_it() -> None:
    bench = Bench(placing=Rules(budget_per_day={"bio": 5.0}))
    book(bench, 9, cost=2.0, account="bio")
    bench.queue.waits = (bench.job(1, account="bio"), bench.job(2, account="bio"), bench.job(3, account="other"))
    look = await bench.widening.look()
    assert states(look) == {1: State.WIDENED, 2: State.STAYS, 3: State.WIDENED}
    assert why(look, 2) == "today's budget of account bio has 1.00 left, and it costs 2.00"


async def test_the_price_of_yesterday_is_forgotten_and_the_row_is_kept_while_the_job_is_there() -> None:
    bench = Bench(rule=Rule(spend_per_day=2.0))
    bench.queue.waits = (bench.job(1), bench.job(2))
    await bench.widening.look()
    bench.carried_out()
    book(bench, 1, cost=2.0)
    bench.queue.runs, bench.queue.waits = (Running(job_id=1, root=1),), bench.queue.waits[1:]
    assert states(await bench.widening.look()) == {2: State.STAYS}
    bench.later(3 * 86_400)
    bench.link("cloud")
    assert states(await bench.widening.look()) == {2: State.WIDENED}
    assert set(widened.widened(bench.journal.store)) == {1, 2}
    bench.carried_out()
    bench.queue.runs, bench.queue.waits = (), ()
    bench.later(3 * 86_400)
    await bench.widening.look()
    assert widened.widened(bench.journal.store) == {}


async def test_jobs_without_slices_fill_a_pool_and_no_more() -> None:
    """Its site does not know yet of those that have just started there."""
    bench = Bench()
    bench.link("cloud", room=replace(ROOM, free_jobs=4))
    book(bench, 8, cost=2.0)
    bench.queue.runs = (Running(job_id=8, root=8), Running(job_id=9, root=9))
    bench.queue.waits = tuple(bench.job(nth) for nth in range(1, 6))
    assert list(states(await bench.widening.look()).values()).count(State.WIDENED) == 2
    bench.carried_out()
    await bench.widening.look()
    assert bench.changes.moves() == []


async def test_no_more_jobs_without_slices_go_than_fed_yaml_allows_there() -> None:
    bench = Bench(nodes=(replace(NODES, most_jobs=2),))
    bench.queue.runs = (Running(job_id=9, root=9),)
    bench.queue.waits = (bench.job(1), bench.job(2), bench.job(3, slices=True))
    assert states(await bench.widening.look()) == {1: State.WIDENED, 2: State.STAYS, 3: State.WIDENED}


async def test_an_array_goes_in_part_and_the_rest_later() -> None:
    bench = Bench(rule=Rule(most_jobs=3))
    array = replace(bench.job(20, tasks=10), elements="0-9")
    bench.queue.waits = (array,)
    await bench.widening.look()
    assert bench.changes.moves() == [("20_[0-2]", WIDE)]
    split = [
        replace(bench.job(20 + nth, root=20, partitions=("gpu", "vgpu-wait", "cloud")), elements=str(nth))
        for nth in range(3)
    ]
    rest = replace(bench.job(30, root=20, tasks=7), elements="3-9")
    bench.changes.told.clear()
    bench.queue.waits = (*split, rest)
    assert State.TO_WIDEN not in states(await bench.widening.look()).values()
    assert bench.changes.told == []
    bench.queue.waits = (*split[1:], rest)
    await bench.widening.look()
    assert bench.changes.moves() == [("20_[3]", WIDE)]


async def test_what_slurm_refuses_stays_with_its_reason_and_is_not_asked_again_at_once() -> None:
    bench = Bench()
    bench.queue.waits = (bench.job(1, wish=Wish.AUTO), bench.job(2))
    bench.changes.refused = {"1": "fed: jobs of this account can't, says job_submit"}
    look = await bench.widening.look()
    assert states(look) == {1: State.TO_WIDEN, 2: State.WIDENED}
    assert why(look, 1) == "fed: jobs of this account can't, says job_submit"
    assert bench.changes.words()[-1] == (
        "1",
        "asked vgpu [fed: stays: Slurm refused it: fed: jobs of this account can't, says job_submit]",
    )
    bench.carried_out()
    look = await bench.widening.look()
    assert (why(look, 1)[:16], bench.changes.moves()) == ("Slurm refused it", [])
    bench.later(REFUSED_S + 1)
    bench.link("cloud")
    await bench.widening.look()
    assert bench.changes.moves() == [("1", WIDE)]


async def test_a_job_that_started_before_it_could_be_widened_is_no_trouble() -> None:
    bench = Bench()
    bench.queue.waits = (bench.job(1, wish=Wish.AUTO),)
    bench.changes.refused = {"1": "Job is no longer pending execution for job 1"}
    await bench.widening.look()
    assert len(bench.changes.words()) == 1  # the one before
    bench.changes.told.clear()
    await bench.widening.look()
    assert bench.changes.moves() == [("1", WIDE)]  # it waits all the same: tried at once


async def test_local_room_that_comes_first_takes_a_job_back() -> None:
    bench = Bench(rule=Rule(start_later_s=600))
    bench.queue.waits = (bench.job(1, starts_at=bench.now.wall + 700),)
    await bench.widening.look()
    bench.carried_out()
    (wide,) = bench.queue.waits
    bench.queue.waits = (replace(wide, job=replace(wide.job, starts_at=bench.now.wall + 299)),)
    look = await bench.widening.look()
    assert bench.changes.moves() == [("1", "gpu,vgpu-wait")]
    assert states(look) == {1: State.STAYS}
    assert bench.changes.words() == [("1", "asked vgpu [fed: taken back: it is expected to start here first]")]
    bench.carried_out()
    assert bench.changes.told == []
    await bench.widening.look()
    assert bench.changes.moves() == []


async def test_a_job_whose_attempt_elsewhere_is_open_is_left_alone() -> None:
    bench = Bench(rule=Rule(start_later_s=600))
    pinned = bench.job(1, partitions=("cloud",), open=True, starts_at=bench.now.wall)
    bench.queue.waits = (pinned, bench.job(2, open=True))
    look = await bench.widening.look()
    assert bench.changes.told == []
    assert {one.decision.why for one in look.judged} == {"what it last started elsewhere is not over yet"}


async def test_a_cluster_whose_peers_are_all_away_is_told_nothing() -> None:
    """But to take back what was widened, once they are away for long enough: then it is as without bursting."""
    bench = Bench()
    bench.queue.waits = (bench.job(1), bench.job(2))
    await bench.widening.look()
    bench.carried_out()
    bench.queue.waits = (*bench.queue.waits, bench.job(3), bench.job(4, wish=Wish.ALWAYS))
    bench.link("cloud", up=False)
    bench.later(AWAY_S - 1)
    look = await bench.widening.look()
    assert (bench.changes.told, states(look)[1]) == ([], State.WIDENED)
    assert why(look, 3) == "cloud/gpu: no link now"
    bench.later(1)
    await bench.restarted().look()
    assert bench.changes.moves() == [("1", "gpu,vgpu-wait"), ("2", "gpu,vgpu-wait")]
    bench.carried_out()
    for _ in range(3):
        bench.later(3600)
        look = await bench.restarted().look()
        assert set(states(look).values()) == {State.STAYS}
    assert bench.changes.told == []


async def test_a_daemon_that_was_just_started_takes_nothing_back_before_its_peers_could_link() -> None:
    bench = Bench()
    bench.queue.waits = (bench.job(1),)
    await bench.widening.look()
    bench.carried_out()
    again = Bench(queue=bench.queue, changes=bench.changes, journal=bench.journal)
    again.link("cloud", up=False)
    await again.widening.look()
    assert bench.changes.told == []


async def test_a_closed_partition_gets_no_more_jobs() -> None:
    bench = Bench()
    bench.queue.waits = (bench.job(1),)
    bench.queue.doors["cloud"] = "down"
    assert why(await bench.widening.look(), 1) == "cloud/gpu: partition cloud is down"
    del bench.queue.doors["cloud"]
    with pytest.raises(Unavailable, match="no partition cloud"):
        await bench.widening.look()


async def test_a_rule_for_a_partition_that_slurm_lacks_hides_no_others() -> None:
    bench = Bench()
    del bench.queue.doors["gpu"]
    look = await bench.widening.look()
    assert set(bench.queue.chosen) == {"cloud"}
    assert look.problem == "there is a rule for gpu, and Slurm has no such"


async def test_a_job_that_names_a_pool_is_kept_from_the_nodes_of_others() -> None:
    other = replace(NODES, prefix="cloud-b", pool="b/gpu", count=1)
    bench = Bench(nodes=(NODES, other))
    bench.queue.waits = (bench.job(1, wish=Wish.POOL, pin="b"), bench.job(2))
    await bench.widening.look()
    moved = [one for one in bench.changes.told if "partition=" in one.to[0]]
    assert [one.to for one in moved] == [
        (f"partition={WIDE}", "excnodelist=cloud-gpu-[1-2]"),
        (f"partition={WIDE}",),
    ]


async def test_a_full_pool_gets_none_and_keeps_what_it_has() -> None:
    bench = Bench()
    bench.queue.waits = (bench.job(1),)
    await bench.widening.look()
    bench.carried_out()
    bench.queue.waits = (*bench.queue.waits, bench.job(2))
    bench.link("cloud", room=Room(pool="gpu", free_jobs=0, free_cpus=0, batch=True))
    look = await bench.widening.look()
    assert states(look) == {1: State.WIDENED, 2: State.STAYS}
    assert bench.changes.told == []


async def test_without_rules_nobody_is_asked_unless_something_is_to_be_taken_back() -> None:
    bench = Bench()
    bench.queue.waits = (bench.job(1),)
    await bench.widening.look()
    bench.carried_out()
    bench.rules = {}
    await bench.widening.look()
    assert bench.changes.moves() == [("1", "gpu,vgpu-wait")]
    assert bench.changes.words() == [("1", "asked vgpu [fed: taken back: no rule for gpu any more]")]
    fresh = Bench(rules={})
    fresh.queue.doors = {}
    assert (await fresh.widening.look()).judged == ()


@pytest.mark.parametrize("wrong", [Unavailable("slurmctld does not answer"), RuntimeError("a slip of ours")])
async def test_a_look_that_fails_ends_nothing_and_is_told(wrong: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    async def partitions() -> dict[str, str]:
        raise wrong

    monkeypatch.setattr(bench.queue, "partitions", partitions)
    loop = asyncio.create_task(bench.widening.loop.run())

    async def looked() -> bool:
        return bench.widening.last is not None

    await until(looked)
    assert bench.widening.last is not None
    assert str(wrong) in bench.widening.last.problem
    assert not loop.done()
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


async def test_of_a_long_queue_all_is_counted_and_the_oldest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widening, "MOST_KEPT", 2)
    bench = Bench(rule=Rule(most_jobs=3))
    bench.queue.waits = tuple(bench.job(nth) for nth in range(1, 6))
    look = await bench.widening.look()
    assert list(states(look)) == [1, 2]
    assert look.tallies["gpu"] == Tally(waiting=5, widened=3, reserved=6.0)


async def test_elements_that_squeue_puts_together_are_left_alone_while_an_attempt_of_one_is_open() -> None:
    bench = Bench()
    array = replace(bench.job(20, tasks=10), elements="0-9")
    bench.queue.waits = (array,)
    await bench.widening.look()
    bench.carried_out()
    book(bench, 25, cost=2.0, array=(20, 3))
    bench.link("cloud", up=False)
    bench.later(AWAY_S)
    assert why(await bench.widening.look(), 20) == "what it last started elsewhere is not over yet"
    (merged,) = bench.queue.waits
    bench.queue.waits = (replace(merged, elements="0-2,4-9", job=replace(merged.job, tasks=9)),)
    await bench.widening.look()
    assert bench.changes.moves() == [("20_[0-2,4-9]", "gpu,vgpu-wait")]


@pytest.mark.parametrize("applied", [False, True], ids=["not done", "done"])
async def test_a_daemon_that_dies_while_it_tells_slurm_counts_what_slurm_has(
    applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(rule=Rule(most_jobs=2))
    bench.queue.waits = (bench.job(1), bench.job(2))
    told = bench.changes.apply

    async def killed(changes: Sequence[Change]) -> Applied:
        if applied or "admincomment" in changes[0].to[0]:
            await told(changes)
        raise Unavailable("the daemon is gone")

    with monkeypatch.context() as patched:
        patched.setattr(bench.changes, "apply", killed)
        with pytest.raises(Unavailable):
            await bench.widening.look()
    bench.carried_out()
    assert set(widened.widened(bench.journal.store)) == {1, 2}
    bench.queue.waits = (*bench.queue.waits, bench.job(3))
    look = await bench.restarted().look()
    assert states(look) == {1: State.WIDENED, 2: State.WIDENED, 3: State.STAYS}
