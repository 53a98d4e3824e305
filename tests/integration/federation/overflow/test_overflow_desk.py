"""What users are told: `fed overflow`, and `fed explain` of a job of Slurm's."""

from dataclasses import asdict, replace

import pytest

from federation.access.local import Caller
from federation.cli.overflow import explained, overflow_job_view, overflow_lines, overflow_view
from federation.desk.overflow import MOST_LISTED, OverflowAnswers
from federation.errors import Refused, Unavailable
from federation.overflow.facts import Rule
from federation.overflow.loop import Loop
from federation.overflow.waiting import Running
from tests.integration.federation.overflow.queue import Bench
from tests.integration.federation.overflow.test_widening import book


async def nothing(_: float = 0.0) -> None: ...


OTHER = Loop("virtual nodes", nothing, nothing)
ROOT = Caller(pid=1, uid=0, gid=0, user="root", admin=True)
ANN = Caller(pid=1, uid=1000, gid=1000, user="ann", admin=False)


def answers(bench: Bench) -> OverflowAnswers:
    return OverflowAnswers(bench.widening, bench.journal, bench.config, (bench.widening.loop, OTHER))


async def looked(bench: Bench) -> OverflowAnswers:
    await bench.widening.loop.once()
    return answers(bench)


async def filled() -> Bench:
    """Job 1 runs there, 2 is widened, 3 stays, 4 is another user's, 20 is an array that waits."""
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
        ("1", "running"),
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
    running = await desk.job(ANN, "1")
    assert (running.state, running.pool, running.token[-1]) == ("running", "cloud/gpu", "1")
    assert explained(overflow_job_view(asdict(running))).endswith(" runs in cloud/gpu")
    stays = await desk.job(ANN, "3")
    assert explained(stays).endswith(" stays: it has waited 60 s of 600")
    for other in ("4", "20_3", "99"):
        with pytest.raises(Refused, match=f"no job {other} of yours"):
            await desk.job(ANN, other)
    assert (await desk.job(ROOT, "4")).uid == 2000
    with pytest.raises(Refused, match="is no job of Slurm's"):
        await desk.job(ROOT, "20_[0-2")


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
