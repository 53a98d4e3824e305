"""This host's own processes as a pool: what has no room is not taken, and what died without a word is gone."""

import asyncio
import gc
import os
import signal
from pathlib import Path
from uuid import uuid4

import pytest

from federation.access.acting import account_of
from federation.errors import NoRoom, Refused, Unavailable
from federation.executors import layout
from federation.executors.local import LocalExecutor, LocalPool
from federation.executors.spool import Spool
from federation.model.spec import JobSpec
from federation.model.token import Key
from federation.ports import Sight
from slurm_plugin.lab.people import ensure_people
from tests.contract.federation.executors.rig import USER, Rig

WAITS = b"#!/bin/sh\necho up > up\nuntil [ -e go-on ]; do sleep 0.05; done\n"


@pytest.fixture
def rig(folder: Path) -> Rig:
    ensure_people()
    spool = Spool(folder / "spool")
    return Rig(lambda: LocalExecutor(LocalPool(name="edge", spool=spool, cpus=2, memory_mib=512, longest_s=60)), spool)


async def go_on(rig: Rig, key: Key) -> None:
    (await rig.wrote(key, "up")).with_name("go-on").touch()
    await rig.until(key, Sight.EXITED)


async def test_what_has_no_room_is_not_there_and_a_restart_counts_what_runs(rig: Rig) -> None:
    first = await rig.submit(WAITS, cpus=2)
    second = Key(uuid4(), 1)
    with pytest.raises(NoRoom, match="no room for 1 CPUs"):
        await rig.submit(WAITS, second)
    await rig.until(first, Sight.RUNNING)
    rig.restart()
    room = await rig.executor.room()
    assert room.free_cpus == 0
    assert 1 <= room.starts_in_s <= 61  # by its time limit, which the pool sets
    with pytest.raises(NoRoom):
        await rig.submit(WAITS, second)
    assert (await rig.executor.look([second]))[second].sight is Sight.ABSENT
    await go_on(rig, first)
    room = await rig.executor.room()
    assert (room.free_cpus, room.free_jobs, room.starts_in_s) == (2, 2, 0.0)
    await rig.submit(WAITS, second)
    await go_on(rig, second)


async def test_what_the_pool_can_never_run_is_refused(rig: Rig) -> None:
    for more, why in (
        ({"gres": "vgpu:20gb"}, "has no vgpu"),
        ({"cpus": 3}, "has 2 CPUs"),
        ({"memory_mib": 513}, "may have 512 MiB"),
        ({"time_limit_s": 61}, "longest time limit"),
    ):
        with pytest.raises(Refused, match=why):
            await rig.submit(WAITS, **more)


async def test_a_job_whose_every_process_was_killed_is_gone_and_not_before(rig: Rig) -> None:
    key = await rig.submit(WAITS)
    await rig.wrote(key, "up")
    folder = rig.spool.folder(key)
    wrapper = layout.parse_claim(os.readlink(folder / layout.CLAIM)).pid  # noqa: PTH115
    os.kill(wrapper, signal.SIGKILL)
    await rig.until(key, Sight.RUNNING)  # nobody will record its end, and it runs
    os.killpg(wrapper, signal.SIGKILL)
    os.killpg(int((folder / layout.SESSION).read_text()), signal.SIGKILL)
    seen = await rig.until(key, Sight.GONE)
    assert seen.started_at is not None


async def test_what_a_user_claims_about_his_processes_harms_nobody(rig: Rig) -> None:
    """He may write any number as his session: only his own processes are touched."""
    other = await rig.submit(WAITS)
    await rig.wrote(other, "up")
    key = await rig.submit(b"#!/bin/sh\necho 1 > ../session\n" + WAITS.partition(b"\n")[2])
    await rig.wrote(key, "up")
    await rig.executor.signal(key, signal.SIGCONT)
    await rig.executor.stop(key)  # his own are found by their mark
    assert (await rig.ended(key)).signal == signal.SIGTERM
    await go_on(rig, other)  # and of those, none of another job's


async def test_a_number_from_before_a_boot_means_nobody_now(rig: Rig) -> None:
    other, key = await rig.submit(WAITS), Key(uuid4(), 1)
    await rig.wrote(other, "up")
    session = (rig.spool.folder(other) / layout.SESSION).read_bytes()
    rig.spool.lay(key, account_of(USER), {layout.SESSION: session})
    (rig.spool.folder(key) / layout.CLAIM).symlink_to(f"run.1.2.{'0' * 36}.1")
    assert (await rig.executor.look([key]))[key].sight is Sight.GONE
    await rig.executor.signal(key, signal.SIGKILL)
    assert (await rig.executor.look([other]))[other].sight is Sight.RUNNING
    await go_on(rig, other)


async def test_a_job_outlives_the_end_of_its_daemons_event_loop(rig: Rig) -> None:
    key = await asyncio.to_thread(asyncio.run, rig.submit(WAITS + b"exit 3\n"))
    gc.collect()  # what the loop had of its children
    rig.restart()
    await rig.until(key, Sight.RUNNING)
    (await rig.wrote(key, "up")).with_name("go-on").touch()
    assert (await rig.ended(key)).exit_code == 3


async def test_a_start_and_an_end_are_told_at_once_to_who_waits(folder: Path) -> None:
    ensure_people()
    told: asyncio.Queue[tuple[str, Key]] = asyncio.Queue()
    pool = LocalPool(name="edge", spool=Spool(folder / "spool"), changed=lambda name, key: told.put_nowait((name, key)))
    executor, key = LocalExecutor(pool), Key(uuid4(), 1)
    await executor.submit(key, JobSpec(user=USER, script=WAITS), USER)
    async with asyncio.timeout(20):
        assert await told.get() == ("edge", key)
        assert (await executor.look([key]))[key].sight is Sight.RUNNING
        rig = Rig(lambda: executor, pool.spool)
        (await rig.wrote(key, "up")).with_name("go-on").touch()
        assert await told.get() == ("edge", key)
    assert (await executor.look([key]))[key].sight is Sight.EXITED
    assert told.empty()


async def test_a_shared_spool_that_is_not_mounted_says_nothing_of_any_job(folder: Path) -> None:
    spool, key = Spool(folder / "not-mounted", shared=True), Key(uuid4(), 1)
    for call in (spool.record, spool.fence):
        with pytest.raises(Unavailable, match="is not there"):
            call(key)
    assert not (folder / "not-mounted").exists()
