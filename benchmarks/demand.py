"""What 100,000 pending jobs cost a pass: half of them plain ones, half of them elements of arrays, in a real slurmctld.

Each pass reads the queue with Slurm's own command and decides about a small pool, in a process of its own, so that its
memory is the pass's; the command's is added. The first pass knows nothing; between the others 100 jobs change.
"""

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.controller_pass import gpu_of
from benchmarks.row import Row
from benchmarks.slurmctld import Controller, controller, munged
from benchmarks.submit import tmpfs
from slurm_plugin.classes import build
from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.state import Decision, NodeState, NodeView, Serving, State
from slurm_plugin.mig.products import product_named
from slurm_plugin.planning import Follow, Planning
from slurm_plugin.pool import NodeGroup, PoolConfig
from slurm_plugin.ports import QueuedJob, SlurmNode
from slurm_plugin.slurm import queue, table
from slurm_plugin.slurm.commands import SlurmCommands
from slurm_plugin.slurm.process import Site

PLAIN = 50_000
IN_ARRAYS = 50_000
ARRAY = 2_000  # elements of one
CHANGED = 100
PASSES = 6
SECONDS_BOUND = 1.0
FIRST_BOUND = 5.0  # of the one after a start, which knows nothing
MEMORY_BOUND_MIB = 300.0
REQUESTS = ("vgpu:1g.10gb:1,vgpu_mem:1", "vgpu:m20:1,vgpu_mem:2", "vgpu:q2:2,vgpu_mem:8")
PUBLISHED = "vgpu:1g.10gb:4,vgpu:m20:2,vgpu:q2:2,vgpu:pad:992,vgpu_mem:64"
HOSTS = tuple(f"n{nth}" for nth in range(1, 9))

SITE = f"""GresTypes=vgpu,vgpu_mem
MaxArraySize={ARRAY + 1}
SchedulerParameters=defer,bf_interval=600,sched_interval=600
NodeName=n[1-8] NodeAddr=127.0.0.1 Port=[6001-6008] CPUs=64 RealMemory=512000 Gres=vgpu:1000,vgpu_mem:64 State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES State=UP DefMemPerCPU=1000
PartitionName=vgpu-wait Nodes=ALL State=DOWN Hidden=YES PriorityTier=0 DefMemPerCPU=1000
"""


def measure() -> Iterator[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgpu-bench-", dir=tmpfs())))
        folder.chmod(0o755)
        socket = stack.enter_context(munged(folder / "munge"))
        site = folder / "site"
        site.mkdir(mode=0o755)
        kinds = (("vgpu", 1000), ("vgpu_mem", 64))
        (site / "gres.conf").write_text("".join(f"NodeName=n[1-8] Name={kind} Count={n}\n" for kind, n in kinds))
        slurm = stack.enter_context(controller(site, socket, lines=SITE))
        fill(slurm)
        command_mib = _memory_of_command(slurm)
        argv = [sys.executable, "-m", "benchmarks.demand", str(slurm.conf)]
        told = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    beside: dict[str, float | str] = {name: round(value, 3) for name, value in told.items()}
    name = f"pass, {PLAIN + IN_ARRAYS} jobs pending"
    yield Row(name=name, value=told["next_s"], unit="s", bound=SECONDS_BOUND, beside=beside)
    yield Row(name=f"first {name}", value=told["first_s"], unit="s", bound=FIRST_BOUND)
    memory = told["memory_mib"] + command_mib
    beside = {"command_mib": round(command_mib, 1)}
    yield Row(name=f"{name}, memory", value=memory, unit="MiB", bound=MEMORY_BOUND_MIB, beside=beside)


def fill(slurm: Controller) -> None:
    """Plain jobs are made of arrays: an element that is changed becomes a job with a record of its own."""
    slurm.run(
        "scontrol", "update", "nodename=n[1-8]", "gres=vgpu:1g.10gb:4,vgpu:m20:2,vgpu:q2:2,vgpu:pad:992,vgpu_mem:64"
    )
    script = slurm.folder / "job.sh"
    script.write_text("#!/bin/sh\n:\n")
    for nth in range((PLAIN + IN_ARRAYS) // ARRAY):
        asked = f"--gres={REQUESTS[nth % len(REQUESTS)]}"
        options = ("--parsable", f"--array=0-{ARRAY - 1}", "--partition=gpu,vgpu-wait", "--time=60", "-o", "/dev/null")
        array = slurm.run("sbatch", *options, asked, str(script)).strip()
        if nth < PLAIN // ARRAY:
            slurm.run("scontrol", "update", f"jobid={array}_[0-{ARRAY - 2}]", "nice=1")


def _memory_of_command(slurm: Controller) -> float:
    """What reading the queue takes at the most, outside of the process that asks."""
    form = table.squeue_letters(tuple(queue.QUEUE_FIELDS.values()), "~benchmark", queue.QUEUE_PLAIN)
    argv = ("squeue", "--noheader", "--all", "-o", form)
    process = subprocess.Popen(argv, env=slurm.environment(), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError("squeue failed")
    return usage.ru_maxrss / 1024


async def passes(conf: Path) -> dict[str, float]:
    """What the passes took, in seconds, the CPU time of one with its command, and the peak memory of this process."""
    slurm = SlurmCommands(Site(conf=conf))
    pool = _Pool()
    read, whole, cpu = [], [], []
    for nth in range(PASSES):
        if nth:
            await _change(conf)
        start, cpu_start = time.perf_counter(), _cpu_s()
        jobs = await slurm.vgpu_jobs(("gpu", "vgpu-wait"))
        read.append(time.perf_counter() - start)
        pool.decide(jobs)
        whole.append(time.perf_counter() - start)
        cpu.append(_cpu_s() - cpu_start)
        if len(jobs) != PLAIN + IN_ARRAYS // ARRAY or sum(job.tasks for job in jobs) != PLAIN + IN_ARRAYS:
            raise RuntimeError(f"{len(jobs)} records were read")
    return {
        "first_s": whole[0],
        "next_s": statistics.median(whole[1:]),
        "read_s": statistics.median(read[1:]),
        "cpu_s": statistics.median(cpu[1:]),
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


async def _change(conf: Path) -> None:
    argv = ("scontrol", "update", f"jobid=1_[0-{CHANGED - 1}]", f"nice={time.monotonic_ns() % 1000}")
    process = await asyncio.create_subprocess_exec(*argv, env=Site(conf=conf).environment())
    if await process.wait():
        raise RuntimeError("scontrol could not change jobs")


class _Pool:
    """Eight nodes of eight idle H100s, which the queue is decided for."""

    def __init__(self) -> None:
        product = product_named("h100-80gb")
        group = NodeGroup(hosts=HOSTS)
        classes = {one.name: one.profiles for one in build({"h100": product.profiles})}
        planning = Planning(follow=Follow.QUEUE)
        self._config = PoolConfig(pool="bench", partitions=("gpu",), groups=(group,), planning=planning)
        self._serving = Serving.of(classes, "1g.10gb")
        self._nodes = {
            host: NodeState(
                name=host,
                group=group,
                view=NodeView.of(tuple(gpu_of(nth, index, product) for index in range(8)), (), group),
                slurm=_slurm_node(host),
            )
            for nth, host in enumerate(HOSTS)
        }
        self._last: Decision | None = None

    def decide(self, jobs: tuple[QueuedJob, ...]) -> None:
        state = State(
            config=self._config,
            serving=self._serving,
            nodes=self._nodes,
            jobs=jobs,
            now=time.time(),
        )
        if (last := self._last) is not None:
            state = replace(state, loans=last.loans, asked=last.asked, recuts=last.recuts)
        self._last = decide(state)


def _slurm_node(name: str) -> SlurmNode:
    return SlurmNode(
        name=name,
        state="IDLE",
        reason="",
        gres=(),
        gres_used=(),
        cpus=64,
        cpus_used=0,
        memory_mib=512_000,
        partitions=("gpu", "vgpu-wait"),
        slurmd_started_at=1,
    )


if __name__ == "__main__":
    json.dump(asyncio.run(passes(Path(sys.argv[1]))), sys.stdout)
