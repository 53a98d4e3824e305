"""Daemons of both sites are killed (-9) while a Slurm job runs at the other one: it runs once, and no byte is wrong."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.overflow.frames import Ended, Hello
from slurm_plugin.lab.people import ensure_people
from tests.integration.federation.daemons import LOCAL, Pair, pair
from tests.integration.federation.overflow import gate
from tests.integration.federation.overflow.commands import install, running
from tests.integration.federation.overflow.gate import USER, Proxy, uid_of, until

NODE = "cloud-hpc-1"
OVERFLOW = """overflow:
  cluster: lab
  bin_dir: {folder}/bin
  socket: {folder}.gateway
  nodes:
    cloud-hpc: {{count: 1, pool: hpc/batch, gateway: gw1}}
"""


@pytest.fixture
def both() -> Iterator[Pair]:
    ensure_people()
    job = running(42, uid_of(USER), NODE, "cloud")

    def prepare(folder: Path) -> None:
        install(folder / "edge/bin", [job])

    with pair(LOCAL, f"nobody, {USER}: {USER}", OVERFLOW, prepare) as found:
        yield found


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
async def test_a_job_runs_once_and_its_output_is_whole(both: Pair, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each daemon is killed while bytes come."""
    monkeypatch.setattr(gate, "PATIENCE_S", 500.0)
    home = both.home
    os.chown(home, uid_of(USER), uid_of(USER))
    loop = b"while [ ! -e %s/stop ]; do n=$((n + 1)); echo line $n; echo err $n >&2; sleep 0.005; done\n"
    script = b"echo $$ >> %s/runs; n=0\n" + loop + b"echo $n > %s/count; exit 3\n"
    at = bytes(home)
    hello = Hello(job_id=42, node=NODE, folder=at, script=b"#!/bin/sh\n" + script % (at, at, at), joined=True)
    proxy = Proxy(both.edge.folder.with_suffix(".gateway"), hello, USER)
    async with asyncio.TaskGroup() as group:
        running_ = group.create_task(proxy.run())
        for number in range(kills):
            have = len(proxy.output)
            await until(lambda: len(proxy.output) > have + 500)  # noqa: B023 - waited for in the same pass
            site = both.sites[number % 2]
            await asyncio.to_thread(site.end, signal.SIGKILL)
            await asyncio.to_thread(site.start)
        (home / "stop").touch()
        assert await running_ == Ended(by_signal=False, value=3)
    count = int((home / "count").read_text())
    assert proxy.output == b"".join(b"line %d\nerr %d\n" % (n, n) for n in range(1, count + 1))
    assert len((home / "runs").read_text().split()) == 1
