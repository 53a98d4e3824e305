"""The Slurm adapter on live daemons: the scene of the contract suite, and the calls that change something.

VGPU_RECORD=1 writes what the daemons of this release print into tests/contract/slurm/recorded.
"""

import asyncio
import importlib.util
import os
import re
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.model import RunKey
from slurm_plugin.slurm.commands import SlurmCommands
from slurm_plugin.slurm.process import Runner, Site
from slurm_plugin.slurm.pyslurm_queue import PyslurmQueue
from tests.contract.slurm import scene
from tests.contract.slurm.records import FOLDER, Recorder
from tests.e2e.bare_slurm import BareSlurm, bare_slurm, wait

pytestmark = pytest.mark.slurm

ACCEPT_ALL = {
    "job_submit.lua": (
        "function slurm_job_submit() return slurm.SUCCESS end\nfunction slurm_job_modify() return slurm.SUCCESS end\n"
    ),
    "cli_filter.lua": (
        "function slurm_cli_setup_defaults() return slurm.SUCCESS end\n"
        "function slurm_cli_pre_submit() return slurm.SUCCESS end\n"
        "function slurm_cli_post_submit() return slurm.SUCCESS end\n"
    ),
}
CHANGE_WAIT_S = 15.0
CHANGING = frozenset(
    {"AccrueTime", "EligibleTime", "Reason", "LastSchedEval", "Scheduler", "SchedNodeList", "StartTime", "AdminComment"}
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareSlurm]:
    version = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    # Before 23.11 slurmd neither knows the word nor looks for cgroups here; after, it does not start without it.
    cgroup = {} if version < "23.11" else {"cgroup.conf": "CgroupPlugin=disabled\n"}
    with bare_slurm(ACCEPT_ALL | cgroup) as slurm:
        scene.play(slurm.run, tmp_path_factory.mktemp("scene"))
        asyncio.run(scene.until_ready(adapter(slurm)))
        yield slurm
        slurm.run("scancel", "--user=root")
        wait(lambda: not slurm.run("squeue", "-h", "-a").stdout, "an empty queue")


def adapter(slurm: BareSlurm) -> SlurmCommands:
    return SlurmCommands(Site(conf=slurm.conf))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(CHANGE_WAIT_S):
        while not await condition():  # noqa: ASYNC110 - slurmctld has no event for it
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("check", scene.CHECKS, ids=lambda check: check.__name__)
async def test_scene(site: BareSlurm, check: Callable[[SlurmCommands], Awaitable[None]]) -> None:
    await check(adapter(site))


# Where there is a pyslurm for the Slurm that runs here; the rest of that reader is tested in tests/integration/slurm.
PYSLURM = ("pyslurm",) if importlib.util.find_spec("pyslurm") else ()


@pytest.mark.parametrize("check", scene.QUEUE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("reader", ["squeue", *PYSLURM])
async def test_every_reader_of_the_queue_says_the_same(
    site: BareSlurm, check: Callable[[SlurmCommands], Awaitable[None]], reader: str
) -> None:
    where = Site(conf=site.conf)
    slurm = SlurmCommands(where, pyslurm=PyslurmQueue(where, "vgpu") if reader == "pyslurm" else None)
    try:
        await check(slurm)
        for partitions in ((), ("gpu",), ("plain",)):
            told = [{job.job_id: job for job in await one.vgpu_jobs(partitions)} for one in (slurm, adapter(site))]
            ours, squeues = ({key: replace(job, reason="") for key, job in jobs.items()} for jobs in told)
            assert ours == squeues  # slurmctld changes the reason between two readings
        assert slurm.reads_with == reader
    finally:
        await slurm.close()


async def test_recording(site: BareSlurm) -> None:
    recorder = Recorder(Runner(Site(conf=site.conf)))
    for check in scene.CHECKS:
        await check(SlurmCommands(runner=recorder))
    assert len(recorder.answers) >= len(scene.CHECKS) - 2
    if os.environ.get("VGPU_RECORD"):
        version = site.run("scontrol", "--version").stdout.split()[1]
        recorder.save(FOLDER / f"{version}.txt")


async def test_set_gres_takes_effect_at_once_on_all_named_nodes(site: BareSlurm) -> None:
    slurm = adapter(site)
    changed = scene.PUBLISHED.replace("m20:2,vgpu:pad:994", "m20:3,vgpu:pad:993")
    await slurm.set_gres(["n1", "n2"], changed)
    assert [sum(i.count for i in node.gres if i.type == "m20") for node in await slurm.nodes()] == [3, 3]
    await slurm.set_gres(["n1", "n2"], scene.PUBLISHED)
    with pytest.raises(SlurmError):
        await slurm.set_gres(["n1", "n9"], changed)


async def test_only_jobs_of_the_named_partitions_are_read(site: BareSlurm) -> None:
    slurm = adapter(site)
    script = site.folder / "held.sh"
    script.write_text("#!/bin/sh\n")
    for partition in ("plain", "gpu,vgpu-wait"):
        site.run("sbatch", "-H", "-p", partition, "--gres=vgpu:m20:1", "-o", "/dev/null", str(script))
    everybody = {job.job_id: set(job.partitions) for job in await slurm.vgpu_jobs()}
    ours = {job.job_id for job in await slurm.vgpu_jobs(("gpu", "vgpu-wait"))}
    assert ours == {job for job, partitions in everybody.items() if "gpu" in partitions}
    assert {job.job_id for job in await slurm.vgpu_jobs(("plain",))} == everybody.keys() - ours
    assert everybody.keys() - ours
    assert await slurm.vgpu_jobs(("no-such",)) == ()


async def test_the_next_jobs_id_is_told(site: BareSlurm) -> None:
    ids = await adapter(site).job_ids()
    script = site.folder / "next.sh"
    script.write_text("#!/bin/sh\n")
    job = site.run("sbatch", "--parsable", "-H", "-p", "plain", "-o", "/dev/null", str(script)).stdout.strip()
    assert (str(ids.following), ids.most) == (job, 67_043_328)


async def test_cancel_and_requeue_hit_one_element_of_an_array_only(site: BareSlurm) -> None:
    """The element that starts last has the array's own id: `scancel ID` would take its siblings too."""
    slurm = adapter(site)
    script = site.folder / "last.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    options = ("-p", "plain", "-w", "n1", "-a", "0-1", "-o", "/dev/null", "--no-requeue")
    array = int(site.run("sbatch", "--parsable", *options, str(script)).stdout)

    async def runs() -> dict[int, str]:
        listed = site.run("squeue", "-h", "-r", "-j", str(array), "-O", "JobID:20,State:20").stdout.splitlines()
        return {int(line.split()[0]): line.split()[1] for line in listed}

    async def key_of(job_id: int) -> RunKey:
        run = await slurm.run_of(job_id)
        assert run is not None
        return run.key

    await until(lambda: _equals(runs, {"RUNNING"}, 2))
    first = await key_of(array)
    sibling = await key_of(next(job for job in await runs() if job != array))
    for other in (replace(first, started_at=first.started_at - 1), replace(first, uid=1), replace(first, job_id=99)):
        await slurm.requeue(other, lift=True)
        await slurm.cancel(other, "a run that is over is left alone, and so is who has its id")
    assert set((await runs()).values()) == {"RUNNING"}
    with pytest.raises(SlurmError):
        await slurm.requeue(first)
    await slurm.requeue(first, lift=True)
    await until(lambda: _equals(runs, {"RUNNING", "PENDING"}, 2))
    pending = await key_of(array)
    assert pending.started_at == 0
    await slurm.cancel(first, "that run is over")
    await slurm.cancel(pending, "the test is over")
    await until(lambda: _equals(runs, {"RUNNING"}, 1))
    assert list(await runs()) == [sibling.job_id]
    await slurm.cancel(sibling, "the test is over")
    await until(lambda: _equals(runs, set(), 0))


async def _equals(runs: Callable[[], Awaitable[dict[int, str]]], states: set[str], count: int) -> bool:
    found = await runs()
    return len(found) == count and set(found.values()) <= states and bool(states) == bool(found)


async def test_a_note_changes_nothing_else_and_leaves_an_array_whole(site: BareSlurm) -> None:
    """All of it that waits is named, so that it stays one record; other words in the comment stay."""
    slurm = adapter(site)
    script = site.folder / "noted.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    for more in ((), ("-a", "1-60:3,70-75,90,99%2")):
        asked = ("-p", "gpu,vgpu-wait", "--gres=vgpu:2g.20gb:1", "--comment=own", "-o", "/dev/null", *more)
        job_id = int(site.run("sbatch", "--parsable", *asked, str(script)).stdout)
        words = f"jobid={job_id}" if not more else f"jobid={job_id}_[{','.join(map(str, range(1, 61, 3)))},70-75,90,99]"
        site.run("scontrol", "update", words, "admincomment=site words")
        before = _fields(site, job_id)
        run = await slurm.run_of(job_id)
        assert run is not None
        await slurm.note(run.key, "waits: n1 GPU 0")
        await slurm.note(run.key, "waits: n1 GPU 1")
        comment = "site words [vgpu: waits: n1 GPU 1]"
        assert site.run("squeue", "-h", "-a", "-j", str(job_id), "-O", "admin_comment:60").stdout.strip() == comment
        shown = site.run("scontrol", "-o", "show", "job", str(job_id)).stdout
        assert f"AdminComment={comment} " in shown
        assert _fields(site, job_id) == before
        told = await slurm.notes(("gpu",))
        assert (told.by_job[job_id], told.private) == ("waits: n1 GPU 1", False)
        await slurm.note(replace(run.key, uid=1), "another's")
        await slurm.note(run.key, "")
        assert job_id not in (await slurm.notes(("gpu",))).by_job
        assert "AdminComment=site words " in site.run("scontrol", "-o", "show", "job", str(job_id)).stdout
        await slurm.cancel(run.key, "the test is over")


def _fields(site: BareSlurm, job_id: int) -> dict[str, str]:
    """What Slurm says of a job that is one record, without what its scheduler writes there all the time."""
    shown = site.run("scontrol", "-o", "show", "job", str(job_id)).stdout.strip()
    assert "\n" not in shown, shown
    found = dict(re.findall(r"(\S+?)=(.*?)(?= \S+=|$)", shown))
    return {name: text for name, text in found.items() if name not in CHANGING}


async def test_refusals_and_silence_are_told_apart(site: BareSlurm, tmp_path: Path) -> None:
    slurm = adapter(site)
    with pytest.raises(SlurmError) as refused:
        await slurm.set_gres(["n9"], scene.PUBLISHED)
    assert not isinstance(refused.value, SlurmUnavailable)
    nowhere = tmp_path / "slurm.conf"
    text = site.conf.read_text().splitlines()
    nowhere.write_text(
        "\n".join(["SlurmctldPort=9", "MessageTimeout=2", *(line for line in text if "SlurmctldPort" not in line)])
    )
    with pytest.raises(SlurmUnavailable):
        await SlurmCommands(Site(conf=nowhere)).nodes()
