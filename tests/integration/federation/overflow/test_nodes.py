"""The loop over virtual nodes, with two sites in service and a Slurm that the test plays."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import pytest

from federation.errors import Unavailable
from federation.model.messages import Room, Rooms
from federation.model.states import Origin
from federation.model.token import RANDOM_BYTES, mint
from federation.overflow import nodes
from federation.overflow.burst import Burst
from federation.overflow.bursts import save
from federation.overflow.nodes import CALM_S, NodesLoop, far_of, gres_of
from federation.overflow.pacing import SHARE
from federation.ports import Now
from federation.runner import Runner
from federation.store.store import Store
from slurm_plugin.errors import SlurmError
from slurm_plugin.pool import GresNames
from slurm_plugin.ports import JobRun, QueuedJob, SlurmNode
from slurm_plugin.slurm.gres import parse_gres
from tests.integration.federation.site import SPEC, Net, linked, until
from tests.unit.federation.overflow.test_told import CONFIG, node, virtual

TAKES_S = 0.05
OURS = replace(CONFIG, nodes={"a": virtual("a", 1, "hpc/batch")})


@dataclass
class Slurm:
    """One node, and its partition as slurm.conf has it."""

    known: SlurmNode = field(default_factory=lambda: node("a-1"))
    fields: dict[str, str] = field(default_factory=lambda: {"State": "DOWN", "Nodes": "a-1"})
    away: bool = False
    asked: int = 0
    told: asyncio.Event = field(default_factory=asyncio.Event)

    async def nodes(self, names: Sequence[str] = ()) -> tuple[SlurmNode, ...]:
        self.asked += 1
        if self.away:
            raise SlurmError("scontrol: Unable to contact slurm controller")
        return (self.known,)

    async def runs_on(self, node: str) -> tuple[JobRun, ...]:
        return ()

    async def vgpu_jobs(self, partitions: Sequence[str] = ()) -> tuple[QueuedJob, ...]:
        return ()

    async def partitions(self) -> dict[str, dict[str, str]]:
        return {"cloud": self.fields}

    async def set_gres(self, nodes: Sequence[str], gres: str) -> None:
        self.known = replace(self.known, gres=parse_gres(gres))

    async def set_comment(self, nodes: Sequence[str], comment: str) -> None:
        self.known = replace(self.known, comment=comment)

    async def set_partition(self, name: str, **fields: str) -> None:
        self.fields = {**self.fields, **fields}
        self.told.set()


@dataclass
class Slow(Slurm):
    """It has a queue so long that it takes a while to tell."""

    began: list[float] = field(default_factory=list)
    often: asyncio.Event = field(default_factory=asyncio.Event)

    async def vgpu_jobs(self, partitions: Sequence[str] = ()) -> tuple[QueuedJob, ...]:
        self.began.append(time.monotonic())
        if len(self.began) > 1:
            self.often.set()
        await asyncio.sleep(TAKES_S)
        return ()


def now() -> Now:
    return Now(wall=time.time(), mono=time.monotonic())


async def test_a_partition_is_open_while_its_pool_is_heard_and_the_daemon_runs(tmp_path: Path) -> None:
    net, slurm = Net(tmp_path), Slurm()
    edge, hpc = net.site("edge", "hpc"), net.site("hpc", "edge")
    async with edge.up() as runner, hpc.up():
        passed = 0.0
        clock = lambda: replace(now(), mono=now().mono + passed)  # noqa: E731
        loop = NodesLoop(lambda: OURS, runner, slurm, clock)
        await loop.look()
        assert slurm.fields["State"] == "DOWN"
        assert slurm.known.comment == "fed: hpc/batch: its site does not tell of it"
        await linked(edge, hpc)
        await net.running("hpc").tell_rooms()

        async def heard() -> bool:
            return bool(runner.engine.sites["hpc"].rooms)

        await until(heard)
        await loop.look()
        assert slurm.fields == {"State": "UP", "Nodes": "a-1"}
        assert slurm.known.comment == ""
        await runner.drain()
        await loop.look()
        assert slurm.fields["State"] == "DOWN"
        await runner.drain(on=False)
        await loop.look()
        assert slurm.fields["State"] == "DOWN", "it has just been closed"
        passed = CALM_S
        slurm.told.clear()
        task = asyncio.create_task(loop.run())
        await asyncio.wait_for(slurm.told.wait(), 20)
        assert slurm.fields["State"] == "UP"
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert slurm.fields["State"] == "DOWN"


async def opens(runner: Runner, looks: Sequence[SlurmNode | None], slurm: Slurm) -> list[str]:
    """What the partition is after each look, at which Slurm says this of the node; None: it does not answer."""
    site = runner.engine.sites["hpc"]
    site.linked, site.heard = True, time.monotonic()
    runner.engine.sites.offered("hpc", Rooms(pools=(Room(pool="batch", free_jobs=5, free_cpus=5),)), now())
    loop, found = NodesLoop(lambda: OURS, runner, slurm, now), []
    for known in looks:
        slurm.away = known is None
        slurm.known = replace(known or slurm.known, comment=slurm.known.comment)
        await loop.loop.once()
        found.append(slurm.fields["State"])
    return found


async def test_a_partition_does_not_open_with_a_node_that_has_only_just_registered(tmp_path: Path) -> None:
    there, unknown = node("a-1"), node("a-1", state="UNKNOWN")
    net = Net(tmp_path)
    net.site("hpc", "edge")  # never up: the test says what it says
    async with net.site("edge", "hpc").up() as runner:
        looks = [unknown, there, there, unknown, there]
        assert await opens(runner, looks, Slurm()) == ["DOWN", "DOWN", "UP", "DOWN", "DOWN"]
        assert await opens(runner, [there, None, there, there], Slurm()) == ["DOWN", "DOWN", "DOWN", "UP"]


async def test_a_slurm_that_does_not_answer_is_asked_again_and_ends_nothing(tmp_path: Path) -> None:
    net, slurm = Net(tmp_path), Slurm(away=True)
    async with net.site("edge").up() as runner:
        loop = NodesLoop(lambda: OURS, runner, slurm, now)
        await loop.loop.once()
        assert "Unable to contact" in loop.loop.problem
        slurm.away = False
        await loop.loop.once()
        assert (loop.loop.problem, slurm.asked) == ("", 2)


async def test_a_journal_that_can_not_be_read_now_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(_read: object) -> None:
        raise Unavailable("the journal does not answer")

    net, slurm = Net(tmp_path), Slurm()
    async with net.site("edge").up() as runner:
        loop = NodesLoop(lambda: OURS, runner, slurm, now)
        with monkeypatch.context() as patch:
            patch.setattr(runner, "read", away)
            await loop.loop.once()
            assert (loop.loop.problem, slurm.asked) == ("the journal does not answer", 0)
        await loop.loop.once()
        assert (loop.loop.problem, slurm.asked) == ("", 1)


async def test_a_long_queue_is_looked_at_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LOOK_S", 0.0)
    net, slurm = Net(tmp_path), Slow()
    async with net.site("edge").up() as runner:
        loop = asyncio.create_task(NodesLoop(lambda: OURS, runner, slurm, now).run())
        await asyncio.wait_for(slurm.often.wait(), 20)
        loop.cancel()
        with suppress(asyncio.CancelledError):
            await loop
    assert slurm.began[1] - slurm.began[0] >= TAKES_S * (1 + SHARE)


async def test_a_partition_that_slurm_does_not_have_is_told(tmp_path: Path) -> None:
    net, slurm = Net(tmp_path), Slurm()
    async with net.site("edge").up() as runner:
        loop = NodesLoop(lambda: replace(OURS, partition="clouds"), runner, slurm, now)
        with pytest.raises(SlurmError, match="Slurm has no partition clouds"):
            await loop.look()


def test_slices_are_called_as_pool_yaml_says_and_the_total_is_a_virtual_nodes_own(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    known = replace(OURS, pool_yaml=path)
    assert gres_of(OURS) == gres_of(known) == GresNames(total=100_000)
    path.write_text("version: 1\npool: p\npartitions: [gpu]\ngres: {name: slice}\nnodes: [{hosts: n1}]\n")
    assert gres_of(known) == GresNames(name="slice", total=100_000)


async def test_how_far_a_jobs_far_side_is_is_read_from_the_journal(tmp_path: Path) -> None:
    net = Net(tmp_path)
    async with net.site("edge").up() as runner:
        states = (None, Origin.QUEUED, Origin.SENDING, Origin.RUNNING, Origin.DONE)
        tokens = [mint(nth, bytes(RANDOM_BYTES)) for nth in range(len(states))]

        def write(store: Store) -> None:
            for nth, (token, state) in enumerate(zip(tokens, states, strict=True)):
                save(store, burst(token, nth))
                if state is not None:
                    job = runner.engine.origin.accept(store, token, SPEC, now())
                    began = 5.0 if state is Origin.RUNNING else None
                    store.save_job(replace(job, state=state, started_at=began, due_at=None), was=job)

        await runner.read(write)
        far = await runner.read(lambda store: far_of(store, runner, now()))
        assert far.open == dict.fromkeys(range(len(states)), "hpc/batch")
        assert (far.sent, far.begun) == (frozenset({2, 3, 4}), frozenset({3, 4}))


def burst(token: UUID, job_id: int) -> Burst:
    return Burst(
        token=token,
        job_id=job_id,
        uid=1000,
        user="ann",
        submitted_at=1,
        restarts=0,
        started_at=2,
        node="a-1",
        pool="hpc/batch",
        limit_s=0,
    )
