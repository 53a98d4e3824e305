"""What users are told: `fed overflow`, and `fed explain` of a job of Slurm's."""

from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

import pytest

from federation.access.local import Caller
from federation.cli.overflow import explained, overflow_job_view, overflow_lines, overflow_view
from federation.desk.overflow import MOST_LISTED, OverflowAnswers
from federation.errors import Refused, Unavailable
from federation.model.messages import Room
from federation.model.states import End, Origin, Outcome
from federation.overflow import bursts
from federation.overflow.burst import Phase
from federation.overflow.facts import Rule
from federation.overflow.loop import Loop
from federation.overflow.waiting import Running
from federation.overflow.widening import LOOK_S
from tests.integration.federation.overflow.queue import Bench
from tests.integration.federation.overflow.test_widening import book


async def nothing(_: float = 0.0) -> None: ...


OTHER = Loop("virtual nodes", nothing, nothing)
ROOT = Caller(pid=1, uid=0, gid=0, user="root", admin=True)
RAN, NEVER = Outcome(end=End.EXITED, exit_code=0, started_at=5.0, ended_at=6.0), Outcome(end=End.CANCELLED)
ANN = Caller(pid=1, uid=1000, gid=1000, user="ann", admin=False)


def answers(bench: Bench) -> OverflowAnswers:
    return OverflowAnswers(bench.widening, bench.journal, bench.config, (bench.widening.loop, OTHER))


async def looked(bench: Bench) -> OverflowAnswers:
    await bench.widening.loop.once()
    return answers(bench)


async def filled() -> Bench:
    """Job 1 waits there, 2 is widened, 3 stays, 4 is another user's, 20 is an array that waits."""
    bench = Bench(rule=Rule(most_jobs=2, spend_per_day=9.0))
    bench.queue.waits = (bench.job(1),)
    await bench.widening.look()
    book(bench, 1, cost=1.5)
    bench.queue.runs = (Running(job_id=1, root=1),)
    young = int(bench.now.wall) - 60
    bench.queue.waits = (
        bench.job(2),
        bench.job(3, since=young),
        bench.job(4, uid=2000, since=young),
        replace(bench.job(20, tasks=3, since=young), elements="[0-2]"),
    )
    return bench


async def test_the_status_has_each_rule_and_each_job_that_one_may_see() -> None:
    desk = await looked(await filled())
    found = await desk.status(ROOT, dry=False)
    (rule,) = found.rules
    assert (rule.waiting, rule.widened, rule.running, rule.most_jobs) == (6, 1, 1, 2)
    assert (rule.spent, rule.reserved, rule.spend_per_day) == (1.5, 2.0, 9.0)
    assert [(job.job, job.state) for job in found.jobs] == [
        ("1", "waiting"),
        ("2", "widened"),
        ("3", "stays"),
        ("4", "stays"),
        ("20_[0-2]", "stays"),
    ]
    assert [job.job for job in (await desk.status(ANN, dry=False)).jobs] == ["1", "2", "3", "20_[0-2]"]


async def test_it_is_read_back_whole_and_shown() -> None:
    desk = await looked(await filled())
    found = await desk.status(ROOT, dry=False)
    told = asdict(found) | {"later": 1}
    told["jobs"] = [one | {"later": 1} for one in told["jobs"]]
    assert overflow_view(told) == found
    lines = list(overflow_lines(found, stays=False))
    assert lines[0].startswith("cluster hpc, partition cloud: looked at the queue at ")
    assert lines[2].split()[:5] == ["gpu", "6", "1", "1", "2"]
    assert "1.50 and 2.00 reserved  9.00" in lines[2]
    assert [line.split()[:1] for line in lines[5:7]] == [["1"], ["2"]]
    assert lines[-1] == "3 stay (fed overflow --all), such as 3: it has waited 60 s of 600"
    assert any(line.startswith("20_[0-2]") for line in overflow_lines(found, stays=True))


async def test_a_dry_run_says_what_would_be_done() -> None:
    bench = await filled()
    found = await answers(bench).status(ROOT, dry=True)
    assert found.dry
    with pytest.raises(Refused, match="only an admin"):
        await answers(bench).status(ANN, dry=True)
    assert [(job.job, job.state) for job in found.jobs][1] == ("2", "to_widen")
    assert bench.changes.moves() == [("1", "gpu,vgpu-wait,cloud")]  # of the look before
    assert "would do, looked at" in next(iter(overflow_lines(found, stays=True)))


async def test_a_long_list_is_cut_and_says_so() -> None:
    bench = Bench()
    bench.queue.waits = tuple(bench.job(nth, since=int(bench.now.wall)) for nth in range(1, MOST_LISTED + 3))
    found = await (await looked(bench)).status(ROOT, dry=False)
    assert (len(found.jobs), found.more) == (MOST_LISTED, 2)
    assert "and 2 more" in list(overflow_lines(found, stays=True))


async def test_one_job_is_explained_by_any_name_that_slurm_gives_it() -> None:
    desk = await looked(await filled())
    assert (await desk.job(ANN, "3")).why == "it has waited 60 s of 600"
    for name in ("20", "20_1", "20_[0-2]", "20_[1,2%1]"):
        assert (await desk.job(ANN, name)).job == "20_[0-2]"
    there = await desk.job(ANN, "1")
    assert (there.state, there.pool, there.token[-1]) == ("waiting", "cloud/gpu", "1")
    (line,) = explained(overflow_job_view(asdict(there)))
    assert line.endswith(" waits to start in cloud/gpu")
    line, reason = explained(overflow_job_view(asdict(await desk.job(ANN, "3"))))
    assert line.endswith(" stays: it has waited 60 s of 600")
    assert reason == "  cloud/gpu: start in 0 s, 0 s to move, price 2.00"
    for other in ("4", "20_3", "99"):
        with pytest.raises(Refused, match=f"no job {other} of yours"):
            await desk.job(ANN, other)
    assert (await desk.job(ROOT, "4")).uid == 2000
    with pytest.raises(Refused, match="is no job of Slurm's"):
        await desk.job(ROOT, "20_[0-2")


@pytest.mark.parametrize(
    ("phase", "job", "state", "does"),
    [
        (Phase.OPEN, {"state": Origin.ACCEPTED, "why": "full"}, "waiting", "waits to start in cloud/gpu: full"),
        (Phase.OPEN, {"state": Origin.RUNNING, "started_at": 5.0}, "running", "runs in cloud/gpu"),
        (Phase.STOPPING, {"state": Origin.RUNNING, "started_at": 5.0}, "stopping", "is being ended in cloud/gpu"),
        (Phase.STOPPING, {}, "stopping", "is being ended in cloud/gpu"),
        (Phase.OPEN, {"state": Origin.DONE, "outcome": RAN}, "ended", "has ended in cloud/gpu"),
        (Phase.CLOSED, {"state": Origin.DONE, "outcome": RAN}, "over", "ran in cloud/gpu"),
        (Phase.CLOSED, {"state": Origin.DONE, "outcome": NEVER}, "over", "was to run in cloud/gpu"),
    ],
)
async def test_that_it_runs_is_said_only_of_what_has_begun(
    phase: Phase, job: dict[str, Any], state: str, does: str
) -> None:
    bench = await filled()
    store = bench.journal.store
    burst = bursts.by_token(store, UUID(int=1))
    known = store.job(UUID(int=1))
    assert burst is not None
    assert known is not None
    with store.transaction():
        bursts.save(store, replace(burst, phase=phase))
        store.save_job(replace(known, **job), was=known)
    found = await (await looked(bench)).job(ANN, "1")
    assert (found.state, found.why) == (state, does)


async def test_a_job_that_started_after_the_look_is_listed_once() -> None:
    bench = await filled()
    desk = await looked(bench)
    book(bench, 2, cost=2.0)
    listed = (await desk.status(ROOT, dry=False)).jobs
    assert [(job.job, job.state) for job in listed[:3]] == [("1", "waiting"), ("2", "waiting"), ("3", "stays")]


@pytest.mark.parametrize("rules", [{}, {"gpu": Rule()}])
async def test_one_that_asked_for_the_partition_itself_is_told_what_it_waits_for(rules: dict[str, Rule]) -> None:
    bench = Bench(rules=rules)
    bench.queue.waits = (bench.job(1, partitions=("cloud",)), bench.job(2, partitions=("cloud",), held="it is held"))
    desk = await looked(bench)
    found = await desk.job(ANN, "1")
    assert next(explained(found)).endswith(
        "may run elsewhere: it asked for cloud itself: Slurm starts it as soon as there is room for it in cloud/gpu"
    )
    assert [one.reason for one in found.reasons] == ["start in 0 s, 0 s to move, price 2.00"]
    assert (await desk.job(ANN, "2")).why == "it asked for cloud itself, and it is held"
    bench.link("cloud", room=Room(pool="gpu", free_jobs=0, free_cpus=0, batch=True))
    assert (await desk.job(ANN, "1")).reasons == found.reasons  # of the last look, however often somebody asks
    bench.later(LOOK_S)
    found = await (await looked(bench)).job(ANN, "1")
    full = "cloud/gpu: full: it takes no more jobs now"
    assert found.why == f"it asked for cloud itself, and no pool takes it now: {full}"
    assert bench.changes.told == []


async def test_without_rules_a_slurm_that_does_not_answer_is_told() -> None:
    bench = Bench(rules={})
    del bench.queue.doors["cloud"]
    assert "Slurm has no partition cloud" in (await (await looked(bench)).status(ROOT, dry=False)).problem


async def test_before_the_first_look_and_after_one_that_failed_nobody_is_told_a_lie() -> None:
    bench = await filled()
    with pytest.raises(Unavailable, match="not looked at the queue yet"):
        await answers(bench).status(ROOT, dry=False)
    desk = await looked(bench)
    bench.widening.loop.problem = "slurmctld does not answer"
    found = await desk.status(ROOT, dry=False)
    assert "wrong: jobs that wait: slurmctld does not answer" in list(overflow_lines(found, stays=False))
    assert [job.job for job in found.jobs] == ["1"]
    with pytest.raises(Unavailable, match="slurmctld does not answer"):
        await desk.job(ANN, "3")


async def test_what_keeps_any_of_the_loops_from_its_work_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await filled()
    desk = await looked(bench)
    monkeypatch.setattr(OTHER, "problem", "a slip of ours")
    assert (await desk.status(ROOT, dry=False)).problem == "virtual nodes: a slip of ours"
    bench.widening.loop.problem = "a slip of ours"
    assert (await desk.status(ROOT, dry=False)).problem == "jobs that wait, virtual nodes: a slip of ours"
    bench.rules = {"gpu": Rule(), "old": Rule()}
    await bench.widening.loop.once()
    told = (await desk.status(ROOT, dry=False)).problem
    assert told == "virtual nodes: a slip of ours; there is a rule for old, and Slurm has no such"
