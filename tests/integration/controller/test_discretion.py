"""Where Slurm keeps jobs private, so does the controller: it tells a user of nobody else's."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.controller import discretion
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.history import Entry, What
from slurm_plugin.link.server import Caller
from slurm_plugin.ports import Notes
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from tests.integration.controller.site import ROOT, DictSlurm, until
from tests.integration.controller.test_notices import Clock, busy
from tests.integration.link.munged import munged
from tests.unit.controller import pools

OWNER, OTHER = (Caller(uid=uid, peer="") for uid in (1000, 1001))

CUT = """version: 1
pool: hpc
partitions: [gpu]
nodes: [{hosts: n1, layout: {1g.10gb: 7}}]
"""


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


def jobs(told: pb.PoolStatus) -> tuple[list[int], list[int], int]:
    grants = [grant.job_id for node in told.nodes for grant in node.inventory.grants]
    return grants, [job.job_id for job in told.pending], told.others


async def test_a_user_hears_of_his_own_jobs_and_root_of_all(socket: Path, tmp_path: Path) -> None:
    """Job 3 runs and job 7 waits, both of one user."""
    private = DictSlurm({name: pools.slurm_node(name) for name in ("n1", "n2")}, noted=Notes(by_job={}, private=True))
    async with busy(socket, tmp_path, Clock(), slurm=private) as site:
        status = site.engine.status
        assert jobs(await status(OTHER)) == ([0], [], 1)
        assert jobs(await status(OWNER)) == jobs(await status(ROOT)) == ([3], [7], 0)


async def test_what_stands_in_the_way_of_a_users_job_or_plan_is_nobodys(socket: Path, tmp_path: Path) -> None:
    private = DictSlurm({name: pools.slurm_node(name) for name in ("n1", "n2")}, noted=Notes(by_job={}, private=True))
    async with busy(socket, tmp_path, Clock(), slurm=private) as site:
        engine = site.engine
        private.jobs[8] = replace(pools.pending(8, "7g.80gb"), uid=OTHER.uid)
        await until(lambda: engine.desk.decision and 8 in engine.desk.decision.waiting)
        for caller, job_id in ((ROOT, 3), (OTHER, 0)):
            assert [job.job_id for job in (await engine.explain(caller, 8, None)).blockers] == [job_id]
            (plan,) = (await engine.plan(caller, CUT)).gpus
            assert plan.why.endswith(f"({'job 3' if job_id else 'other jobs'})")
        engine._chronicle.note(Entry(at=1.0, what=What.RELEASED, why="job 3: it was held"))
        await until(lambda: "it was held" in (tmp_path / "state/history.jsonl").read_text())
        for caller, said in ((ROOT, "job 3: it was held"), (OTHER, "other jobs: it was held")):
            told = await engine.history(caller, "", 0.0, 0)
            assert [entry.why for entry in told.entries if entry.what == What.RELEASED] == [said]


async def test_what_slurm_does_not_say_is_taken_for_private_until_it_does(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with busy(socket, tmp_path, clock) as site:
        site.slurm.fault = SlurmUnavailable("no answer")
        assert jobs(await site.engine.status(OTHER)) == ([0], [], 1)
        site.slurm.fault = None
        assert jobs(await site.engine.status(OTHER)) == ([0], [], 1)
        clock.now += discretion.REREAD_S
        assert jobs(await site.engine.status(OTHER)) == ([3], [7], 0)
