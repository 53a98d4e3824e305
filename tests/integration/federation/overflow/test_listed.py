"""What `fed jobs` and `fed show` tell of jobs of the Slurm here, and of whose jobs."""

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from federation.access.local import Caller
from federation.daemon import local_account
from federation.desk.answers import Answers, Office
from federation.desk.view import FedJobView
from federation.model.token import Key
from federation.stage.mover import Mover
from federation.stage.spool import Spool
from tests.integration.federation.overflow.stand import JOB, Stand, stand
from tests.integration.federation.overflow.test_sacct import ADMIN, ANN, USED
from tests.integration.federation.site import SPEC

DAN = Caller(pid=1, gid=1, uid=1002, user="dan", admin=True)
ELEMENT = replace(JOB, job_id=21, array_id=20, task_id=3)


@pytest.fixture
def here(tmp_path: Path) -> Stand:
    return stand(tmp_path)


def answers(here: Stand, folder: Path) -> Answers:
    mover = Mover(Spool(folder / "jobs"), lambda: here.runner, lambda _: None, local_account)
    return Answers(Office(runner=here.runner, mover=mover, addresses={}))


async def test_each_is_listed_with_the_name_that_slurm_has_for_it(here: Stand, tmp_path: Path) -> None:
    async with here.up():
        await here.running()
        await here.running(ELEMENT)
        own = uuid4()
        await here.runner.accept(own, replace(SPEC, user="ann"))
        desk = answers(here, tmp_path)
        listed = (await desk.jobs(ANN, everybody=False, done=False, most=10)).jobs
        assert sorted(job.slurm_job for job in listed) == ["", "12", "20_3"]
        (shown,) = (await desk.views([await desk.find(ANN, str(own))])).jobs
        assert shown.slurm_job == ""


async def test_so_is_what_somebody_waited_for_or_ended(here: Stand, tmp_path: Path) -> None:
    async with here.up():
        burst = await here.running()
        desk = answers(here, tmp_path)
        (told,) = (await desk.act(ANN, str(burst.token), "cancel", 0)).jobs
        assert (told.state, told.slurm_job) == ("stopping", "12")
        (ended,) = [one async for one in desk.wait([await desk.find(ANN, str(burst.token))])]
        assert isinstance(ended, FedJobView)
        assert (ended.end, ended.slurm_job) == ("cancelled", "12")


async def test_an_admin_is_told_how_many_of_others_there_are(here: Stand, tmp_path: Path) -> None:
    async with here.up():
        await here.running()
        burst = await here.running(ELEMENT)
        desk = answers(here, tmp_path)
        assert (await desk.jobs(ADMIN, everybody=False, done=False, most=10)).jobs == ()
        assert [await desk.others(caller, False) for caller in (ADMIN, DAN, ANN)] == [2, 2, 0]
        here.backend.end(Key(burst.token, 1), USED)
        await here.over(burst.token)
        assert [await desk.others(ADMIN, done) for done in (False, True)] == [1, 2]
