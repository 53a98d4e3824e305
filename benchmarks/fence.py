"""How long an epilog waits for its verdict: 1,000 nodes, 8,000 running jobs, 2,000 waiting ones, and passes meanwhile.

Jobs end one after the other, each in an epilog that asks. The counts are written to a real slurmctld that has these
nodes, through its own commands. It has no slurmd, so that its nodes and the queue are told to be what they would be.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.controller_pass import BUSY, MARK, STARTED_AT, gpu_of, queue_rows
from benchmarks.pool_files import GPUS, NODES
from benchmarks.row import Row, percentile
from benchmarks.slurmctld import controller, munged
from slurm_plugin.controller.daemon import SWITCH_S
from slurm_plugin.controller.engine import Engine
from slurm_plugin.controller.fences import Fence
from slurm_plugin.mig.products import product_named
from slurm_plugin.model import Grant, RunKey
from slurm_plugin.pool import ControllerPlace, NodeGroup, PoolConfig
from slurm_plugin.ports import QueuedJob, SlurmNode
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from slurm_plugin.slurm import queue, table
from slurm_plugin.slurm.commands import SlurmCommands
from slurm_plugin.slurm.process import Site
from slurm_plugin.slurm.reading import QueueReading
from slurm_plugin.wire import gpu_to_wire, grant_to_wire

FENCES = 100
PAUSE_S = 0.05  # between two ends of jobs
READY_S = 60.0
VERDICT_S = 5.0
BOUND_MS = 50.0

SITE = f"""GresTypes=vgpu,vgpu_mem
SlurmdTimeout=0
NodeName=DEFAULT CPUs=64 RealMemory=512000 Gres=vgpu:1000,vgpu_mem:64 State=UNKNOWN
NodeName=n[1-{NODES}] NodeAddr=127.0.0.1 Port=[10001-{10000 + NODES}]
PartitionName=gpu Nodes=ALL Default=YES State=UP DefMemPerCPU=1000
PartitionName=vgpu-wait Nodes=ALL State=DOWN Hidden=YES PriorityTier=0 DefMemPerCPU=1000
"""


def measure() -> Iterator[Row]:
    tmpfs = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-", dir=tmpfs if tmpfs.is_dir() else None) as text:
        folder = Path(text)
        folder.chmod(0o755)
        with munged(folder / "munge") as socket, controller(folder / "site", socket, lines=SITE) as site:
            sys.setswitchinterval(SWITCH_S)
            took_ms, passes_s = asyncio.run(_fences(Site(conf=site.conf), folder))
    yield Row(
        name=f"verdict of a fence, {NODES} nodes, p50",
        value=percentile(took_ms, 0.5),
        unit="ms",
        bound=BOUND_MS,
        beside={
            "p95_ms": round(percentile(took_ms, 0.95), 1),
            "worst_ms": round(max(took_ms), 1),
            "pass_meanwhile_s": round(passes_s, 2),
        },
    )


class Played(SlurmCommands):
    """A real Slurm's counts, on nodes that are up and beside jobs that run."""

    rows = ""
    reading = QueueReading(queue.Pool())

    async def nodes(self, names: Sequence[str] = ()) -> tuple[SlurmNode, ...]:
        return tuple(replace(node, state="IDLE") for node in await super().nodes(names))

    async def vgpu_jobs(self, partitions: Sequence[str] = ()) -> tuple[QueuedJob, ...]:
        await super().vgpu_jobs(partitions)
        return await asyncio.to_thread(self._played)

    def _played(self) -> tuple[QueuedJob, ...]:
        return self.reading.jobs(table.lines(self.rows, MARK, queue.QUEUE_PLAIN))


async def _fences(site: Site, folder: Path) -> tuple[list[float], float]:
    names = [f"n{nth}" for nth in range(1, NODES + 1)]
    place = ControllerPlace(state_dir=folder / "state", catalogue=folder / "catalogue")
    config = PoolConfig(pool="bench", partitions=("gpu",), groups=(NodeGroup(hosts=tuple(names)),), controller=place)
    slurm = Played(site)
    slurm.rows = "".join(queue_rows(names))
    engine = Engine(config, slurm, reload=lambda: config)
    inventories = {name: _inventory(nth, name) for nth, name in enumerate(names)}
    for name, inventory in inventories.items():
        member = engine.desk.roster[name]
        member.take(inventory)
        member.outbox = asyncio.Queue()
    running = asyncio.create_task(engine.run())
    async with asyncio.timeout(READY_S):
        while engine.passes < 2 or not engine.desk.books.nodes[names[0]].gres[0].type:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    first = engine.passes
    began = time.monotonic()
    took = [await _fence(engine, names[7 * nth % NODES], inventories) for nth in range(FENCES)]
    passes_s = (time.monotonic() - began) / max(1, engine.passes - first)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return took, passes_s


async def _fence(engine: Engine, name: str, inventories: dict[str, pb.Inventory]) -> float:
    """One job's end as its agent tells of it; how long until the verdict, in ms."""
    await asyncio.sleep(PAUSE_S)
    member, inventory = engine.desk.roster[name], inventories[name]
    grant = inventory.grants.pop()
    assert member.outbox is not None
    while not member.outbox.empty():
        member.outbox.get_nowait()
    began = time.perf_counter()
    member.take(inventory)
    engine.desk.look_at([name])
    engine._fences.ask(Fence(member=member, job_id=grant.job_id, slices=tuple(grant.slices)))
    async with asyncio.timeout(VERDICT_S):
        while (await member.outbox.get() or pb.ToAgent()).verdict.job_id != grant.job_id:
            pass
    return 1000 * (time.perf_counter() - began)


def _inventory(nth: int, name: str) -> pb.Inventory:
    gpus = [gpu_of(nth, index, product_named("h100-80gb")) for index in range(GPUS)]
    grants = [
        Grant(
            run=RunKey(job_id=1 + nth * GPUS + index, started_at=STARTED_AT, uid=1000),
            gres_class=BUSY,
            count=1,
            slices=(gpu.instances[0].uuid,),
        )
        for index, gpu in enumerate(gpus)
    ]
    return pb.Inventory(node=name, gpus=map(gpu_to_wire, gpus), grants=map(grant_to_wire, grants))
