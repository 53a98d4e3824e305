"""What `fed sacct` tells of runs elsewhere: each its own numbers, and to nobody another's."""

from dataclasses import replace
from pathlib import Path

import pytest

from federation.access.local import Caller
from federation.cli.sacct import run_lines
from federation.desk.runs import MOST_NAMES, others, runs
from federation.desk.view import RunView
from federation.errors import Refused
from federation.model.states import End, Outcome
from federation.model.token import Key
from tests.integration.federation.overflow.stand import JOB, Stand, stand

ANN = Caller(pid=1, gid=1, uid=1000, user="ann", admin=False)
BOB = Caller(pid=1, gid=1, uid=1001, user="bob", admin=False)
ADMIN = Caller(pid=1, gid=1, uid=0, user="root", admin=True)
ELEMENT = replace(JOB, job_id=21, array_id=20, task_id=3)
USED = Outcome(end=End.EXITED, exit_code=3, node="far-1", cpu_s=1.25, memory_mib=64, slices="MIG-a,MIG-b")


@pytest.fixture
def here(tmp_path: Path) -> Stand:
    return stand(tmp_path)


async def told(here: Stand, caller: Caller, *names: str, everybody: bool = False) -> tuple[RunView, ...]:
    return (await runs(here.runner, caller, names, everybody, 100)).runs


async def test_the_numbers_of_a_run_are_those_of_its_outcome(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        (running,) = await told(here, ANN)
        assert (running.state, running.end, running.started_at, running.node) == ("running", "", 1.0, "")
        here.backend.end(Key(burst.token, 1), USED)
        await here.over(burst.token)
        here.slurm.put(replace(here.slurm.records[12], state="FAILED"))
        await here.passes()
        (run,) = await told(here, ANN, "12")
        assert (run.job, run.token, run.attempt, run.pool) == ("12", str(burst.token), 1, "hpc/batch")
        assert (run.state, run.end, run.exit_code, run.closed) == ("ended", "exited", 3, True)
        assert (run.started_at, run.ended_at, run.began_at, run.submitted_at) == (1.0, 2.0, 110.0, 100.0)
        assert (run.node, run.cpu_s, run.memory_mib, run.slices) == ("far-1", 1.25, 64, "MIG-a,MIG-b")
        assert (run.gateway, run.limit_s) == ("cloud-aws-1", 3600)


async def test_an_array_is_named_whole_or_by_element(here: Stand) -> None:
    async with here.up():
        await here.running()
        await here.running(ELEMENT)
        await here.running(replace(ELEMENT, job_id=20, task_id=4))
        assert [run.job for run in await told(here, ANN, "20")] == ["20_4", "20_3"]
        assert [run.job for run in await told(here, ANN, "20_3")] == ["20_3"]
        assert [run.job for run in await told(here, ANN, "12", "20_3", "12")] == ["20_3", "12"]
        assert len(await told(here, ANN)) == 3
        assert await told(here, ANN, "99") == ()


async def test_nobody_is_told_of_anothers(here: Stand) -> None:
    async with here.up():
        await here.running()
        assert await told(here, BOB) == await told(here, BOB, "12") == ()
        assert await told(here, BOB, everybody=True) == ()
        assert [run.user for run in await told(here, ADMIN, everybody=True)] == ["ann"]
        assert [run.user for run in await told(here, ADMIN, "12")] == ["ann"]
        assert await told(here, ADMIN) == ()
        assert [await others(here.runner, caller) for caller in (ADMIN, ANN, BOB)] == [1, 0, 0]


@pytest.mark.parametrize("name", ["", "x", "12_", "12_x", "0", "12; true", "1" * 20])
async def test_what_is_no_job_is_refused(here: Stand, name: str) -> None:
    async with here.up():
        with pytest.raises(Refused):
            await told(here, ANN, name)


async def test_too_many_are_refused(here: Stand) -> None:
    async with here.up():
        with pytest.raises(Refused):
            await told(here, ANN, *["12"] * (MOST_NAMES + 1))


async def test_a_line_has_what_is_known_and_no_control_character(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        here.backend.end(Key(burst.token, 1), replace(USED, node="far\x1b[31m"))
        await here.over(burst.token)
        await here.side.stop(burst, "requeued")
        head, line = run_lines(await told(here, ANN))
        assert head.split()[:6] == ["JOB", "TOKEN", "USER", "POOL", "NODE", "STATE"]
        assert line.split()[1] == str(burst.token)
        assert "\x1b" not in line
        for word in ("hpc/batch", "exited", "3:0", "1s", "1.25s", "64M", "MIG-a,MIG-b", "requeued"):
            assert word in line.split()
