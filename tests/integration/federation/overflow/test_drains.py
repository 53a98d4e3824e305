"""A virtual node that Slurm has drained after a kill serves again; one that somebody drained stays so."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from federation.config_overflow import OverflowConfig, VirtualNodes
from federation.overflow.drains import OFTEN_S, PATIENCE_S, SELDOM_S, TIMES, Drains
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.ports import SlurmNode
from slurm_plugin.slurm.process import Site
from tests.integration.federation.overflow.stand import JOB, Clock, FakeSlurm

AT = 1_700_000_000  # of a drain
TWICE, PROLOG = f"Duplicate jobid [root@{AT}]", f"Prolog error [root@{AT}]"
NODE = SlurmNode(
    name="cloud-1",
    state="IDLE+DRAIN",
    reason=TWICE,
    gres=(),
    gres_used=(),
    cpus=1,
    cpus_used=0,
    memory_mib=1,
    partitions=("cloud",),
    slurmd_started_at=0,
)
REFUSED = replace(JOB, state="PENDING", nodes=(), started_at=0, reason="launch failed requeued held")
CONFIG = OverflowConfig(
    cluster="hpc",
    slurm=Site(),
    socket=Path("/nowhere"),
    partition="cloud",
    wait_partition="vgpu-wait",
    longest_wait_s=86_400,
    nodes={
        "cloud": VirtualNodes(
            prefix="cloud",
            count=1,
            pool="hpc/batch",
            gateway="gw",
            cpus=1,
            memory_mib=1,
            most_jobs=1,
            shared_files=False,
        )
    },
    rules={},
    pool_yaml=None,
)


class Nodes:
    def __init__(self, node: SlurmNode = NODE) -> None:
        self.node = node
        self.away = False

    async def nodes(self, names: Sequence[str] = ()) -> tuple[SlurmNode, ...]:
        assert names == ("cloud-1",)
        if self.away:
            raise SlurmUnavailable("slurmctld does not answer")
        return (self.node,)

    async def resume(self, node: str) -> None:
        assert node == self.node.name
        self.node = replace(self.node, state="IDLE", reason="")


class Scene:
    def __init__(self, node: SlurmNode = NODE) -> None:
        self.nodes, self.slurm, self.clock = Nodes(node), FakeSlurm(), Clock()
        self.drains = Drains(self.nodes, self.slurm, lambda: CONFIG, self.clock)

    async def looks(self, *after_s: float) -> None:
        for seconds in after_s:
            self.clock.ahead_s += seconds
            await self.drains.loop.once()

    @property
    def released(self) -> list[str]:
        return [told[1] for told in self.slurm.told if told[0] == "release"]


@pytest.mark.parametrize("node", [NODE, replace(NODE, reason=PROLOG, slurmd_started_at=AT - 20)])
async def test_it_is_resumed_after_a_moment_and_what_it_refused_is_released(node: SlurmNode) -> None:
    scene = Scene(node)
    scene.slurm.put(REFUSED)
    await scene.looks(0)
    assert scene.nodes.node == node
    await scene.looks(PATIENCE_S)
    assert scene.nodes.node.state == "IDLE"
    await scene.looks(1)
    assert scene.released == ["12"]


@pytest.mark.parametrize("reason", ["bad fan", "Duplicate jobid, see ticket 7 [ann@1]", PROLOG, ""])
async def test_a_drain_of_somebodys_stays(reason: str) -> None:
    scene = Scene(replace(NODE, reason=reason))
    scene.slurm.put(REFUSED)
    await scene.looks(0, PATIENCE_S, 60)
    assert (scene.nodes.node.state, scene.released) == ("IDLE+DRAIN", [])


async def test_only_what_was_refused_is_released_and_not_for_ever() -> None:
    scene = Scene()
    held = scene.slurm.put(replace(REFUSED, job_id=13, reason="JobHeldUser"))
    await scene.looks(0, PATIENCE_S)
    for _ in range(TIMES + 2):
        scene.slurm.put(REFUSED)
        await scene.looks(1)
        scene.slurm.put(replace(REFUSED, reason="Resources"))
        await scene.looks(1)
    assert scene.released == ["12"] * TIMES
    assert scene.slurm.records[13] == held


async def test_a_refused_job_is_found_where_nobody_remembers_the_drain() -> None:
    """The daemon was killed since, or slurmctld, which saves its nodes and its jobs apart."""
    scene = Scene(replace(NODE, state="IDLE", reason=""))
    scene.slurm.put(REFUSED)
    await scene.looks(0)
    assert scene.released == ["12"]
    scene.slurm.put(replace(REFUSED, job_id=13))
    await scene.looks(OFTEN_S, 1)
    assert scene.released == ["12", "13"]


async def test_who_waits_for_the_partition_is_not_read_at_each_look() -> None:
    scene = Scene(replace(NODE, state="IDLE", reason=""))
    await scene.looks(0)
    scene.slurm.put(REFUSED)
    await scene.looks(SELDOM_S - 2, 1)
    assert scene.released == []
    await scene.looks(1)
    assert scene.released == ["12"]


async def test_a_slurm_that_is_away_is_asked_again() -> None:
    scene = Scene()
    scene.slurm.put(REFUSED)
    scene.nodes.away = True
    await scene.looks(0, PATIENCE_S)
    scene.nodes.away = False
    await scene.looks(0, PATIENCE_S)
    scene.slurm.away = True
    await scene.looks(1)
    scene.slurm.away = False
    await scene.looks(1)
    assert scene.released == ["12"]
