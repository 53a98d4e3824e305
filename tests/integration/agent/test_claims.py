"""A grant's file that makes no sense gives its slices to nobody."""

import os
from pathlib import Path

import pytest

from slurm_plugin.agent.config import AgentConfig
from slurm_plugin.agent.daemon import Adapters, Agent
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.model import Gpu, Instance
from tests.integration.agent.bench import BIG, FIRST, SECOND, Bench
from tests.unit.agent.world import FakeGpus, FakeSlurm, gpu, nobody
from tests.unit.nvml.hiders import USER


@pytest.fixture
def caps(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of capability devices: plain files that belong to whom they are given."""
    folder = tmp_path / "nvidia-caps"
    folder.mkdir()
    for one in bench.gpus.now["A"].instances:
        for minor in one.caps:
            (folder / f"nvidia-cap{minor}").touch()
    bench.devices._nodes = folder

    def give(_gpu: Gpu, instance: Instance, uid: int) -> bool:
        for node in bench.devices.nodes(instance):
            os.chown(node, uid, 0)
        return True

    monkeypatch.setattr(bench.devices, "give", give)
    return folder


def garble(bench: Bench, job_id: int) -> Path:
    path = bench.folder / f"grants/{job_id}.json"
    path.write_text("{garbage")
    return path


def test_its_job_is_named_to_the_controller(tmp_path: Path) -> None:
    """Who is named is not taken for ended, as one without a grant would be."""
    config = AgentConfig(node="n1", controller="nowhere:1", state_dir=tmp_path)
    agent = Agent(config, Adapters(slurm=FakeSlurm(), gpus=FakeGpus(gpu("A")), dial=nobody))
    agent.runs.claims.garbled.add(7)
    told = agent.inventory(1)
    assert (list(told.garbled), told.wait_s) == ([7], 30)


def silent() -> None:
    raise SlurmUnavailable("no answer")


def owner(bench: Bench, slice_: str) -> int:
    found = bench.book.instance(slice_)
    assert found is not None
    return bench.devices.owner(found[1])


async def test_what_its_job_had_is_withheld_until_slurm_speaks_and_then_its_grant_is_made_anew(
    bench: Bench, caps: Path
) -> None:
    async with bench.running():
        await bench.start(1, uid=USER)
        assert bench.held() == {1: (FIRST,)}
        before = bench.book.grants[1]
    garble(bench, 1)
    bench.slurm.answer = silent
    async with bench.running():
        assert bench.book.haunted == {FIRST: "job 1, whose grant can't be read"}
        assert owner(bench, FIRST) == USER
        assert [line.partition(" can't")[0] for line in bench.runs.alarms()] == [
            f"job 1: its grant {bench.folder}/grants/1.json"
        ]
        bench.slurm.answer = lambda: None
        await bench.start(2, uid=USER + 1)
        assert bench.held() == {2: (SECOND,)}
        await bench.runs.reconcile()
        assert bench.held() == {1: (FIRST,), 2: (SECOND,)}
        assert bench.book.grants[1].run == before.run
        assert (owner(bench, FIRST), bench.book.haunted, bench.runs.alarms()) == (USER, {}, [])
    async with bench.running():
        assert bench.held() == {1: (FIRST,), 2: (SECOND,)}
        await bench.end(1)
        await bench.until(lambda: not bench.book.unseen)
        assert owner(bench, FIRST) == 0
        await bench.start(3)
        assert bench.held()[3] == (FIRST,)


async def test_what_its_job_had_is_taken_back_when_the_job_is_over(bench: Bench, caps: Path) -> None:
    async with bench.running():
        await bench.start(1, uid=USER)
    path = garble(bench, 1)
    del bench.slurm.runs[1]
    async with bench.running():
        await bench.runs.reconcile()
        await bench.until(lambda: not bench.book.unseen)
        assert (owner(bench, FIRST), bench.book.haunted, path.exists()) == (0, {}, False)
        await bench.start(2)
        assert bench.held() == {2: (FIRST,)}


async def test_where_it_is_not_certain_what_its_job_had_all_stays_withheld_until_its_end(
    bench: Bench, caps: Path
) -> None:
    async with bench.running():
        await bench.start(1, uid=USER, count=2)
    garble(bench, 1)
    (bench.folder / "visitors.json").write_text("garbage")
    async with bench.running():
        await bench.runs.reconcile()
        assert bench.book.haunted.keys() == {FIRST, SECOND, BIG}
        assert bench.held() == {}
        del bench.slurm.runs[1]
        await bench.runs.reconcile()
        await bench.until(lambda: not bench.book.unseen)
        assert bench.book.haunted == {}


async def test_a_users_devices_that_no_file_tells_of_are_withheld_while_he_may_have_them(
    bench: Bench, caps: Path
) -> None:
    async with bench.running():
        await bench.start(1, uid=USER)
    (bench.folder / "grants/1.json").unlink()
    (bench.folder / "visitors.json").write_text("garbage")
    async with bench.running():
        await bench.runs.reconcile()
        assert bench.book.haunted == {FIRST: f"a job of uid {USER} that no grant tells of"}
        await bench.start(2, uid=USER + 1)
        assert bench.held() == {2: (SECOND,)}
        del bench.slurm.runs[1]
        await bench.runs.reconcile()
        await bench.until(lambda: not bench.book.unseen)
        assert (owner(bench, FIRST), bench.book.haunted) == (0, {})


async def test_of_roots_job_the_visitors_tell(bench: Bench, caps: Path) -> None:
    async with bench.running():
        await bench.start(1, uid=0)
    garble(bench, 1)
    bench.slurm.answer = silent
    async with bench.running():
        assert bench.book.haunted.keys() == {FIRST}
    (bench.folder / "visitors.json").write_text("garbage")
    async with bench.running():
        assert bench.book.haunted.keys() == {FIRST, SECOND, BIG}


async def test_a_task_of_such_a_job_gets_what_the_job_had(bench: Bench, caps: Path) -> None:
    async with bench.running():
        await bench.start(1, uid=USER)
    garble(bench, 1)
    bench.slurm.answer = silent
    async with bench.running():
        bench.slurm.answer = lambda: None
        assert await bench.runs.late(1)
        assert bench.held() == {1: (FIRST,)}


async def test_a_new_run_of_such_a_job_starts_as_any_other(bench: Bench, caps: Path) -> None:
    async with bench.running():
        await bench.start(1, uid=USER)
    garble(bench, 1)
    bench.slurm.answer = silent
    async with bench.running():
        bench.slurm.answer = lambda: None
        await bench.start(1, uid=USER, started_at=200)
        assert bench.held() == {1: (SECOND,)}
        await bench.runs.reconcile()
        await bench.until(lambda: not bench.book.unseen)
        assert (owner(bench, FIRST), bench.book.haunted, bench.runs.alarms()) == (0, {}, [])
