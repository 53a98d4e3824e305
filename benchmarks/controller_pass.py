"""Row 4: one pass of the controller over 1,000 nodes of eight H100s: Slurm's text read, everything decided.

8,000 jobs run, one a GPU, and 2,000 wait. Measured in a process of its own, so that its memory is the pass's. The first
pass knows nothing; the next ones find most as it was, which is what a running controller sees.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.pool_files import GPUS, NODES
from benchmarks.row import Row
from slurm_plugin.classes import build
from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.recuts import Recuts
from slurm_plugin.controller.state import NodeState, NodeView, Serving, State
from slurm_plugin.controller.wants import Asked
from slurm_plugin.mig.geometry import Product
from slurm_plugin.mig.products import product_named
from slurm_plugin.model import Gpu, GpuProfile, Grant, Instance, MigMode, RunKey
from slurm_plugin.planning import Follow, Planning
from slurm_plugin.pool import NodeGroup, PoolConfig, Share
from slurm_plugin.ports import QueuedJob, SlurmNode
from slurm_plugin.slurm import queue, records, table
from slurm_plugin.slurm.reading import QueueReading

PENDING = 2_000
PASSES = 5
POLL_S = 2.0  # between them
SECONDS_BOUND = 1.0
FIRST_BOUND = 2.0  # of the one after a start, which knows nothing
MEMORY_BOUND_MIB = 300.0
STARTED_AT = 1_700_000_000
LAYOUT = (("3g.40gb", 0), ("2g.20gb", 4), ("1g.10gb", 6))  # profile, start
BUSY = "3g.40gb"
MARK = "~benchmark"

NODE_LINE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=32 CPUAlloc=8 CPUEfctv=64 CPUTot=64 CPULoad=8.01"
    " AvailableFeatures=(null)"
    " ActiveFeatures=(null) Gres=vgpu:3g.40gb:8,vgpu:m20:8,vgpu:1g.10gb:8,vgpu:pad:976,vgpu_mem:64 GresDrain=N/A"
    " GresUsed=vgpu:3g.40gb:8,vgpu:m20:0,vgpu:1g.10gb:0,vgpu:pad:0,vgpu_mem:32 NodeAddr={name} NodeHostName={name}"
    " Version=22.05.8 OS=Linux 6.1.0-13-amd64 #1 SMP RealMemory=512000 AllocMem=8000 FreeMem=400000 Sockets=2 Boards=1"
    " State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu,vgpu-wait"
    f" BootTime={STARTED_AT} SlurmdStartTime={STARTED_AT} LastBusyTime={STARTED_AT} CfgTRES=cpu=64,mem=500G,billing=64"
    " AllocTRES=cpu=8,mem=8G CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0"
    " ExtSensorsTemp=n/s"
)


def measure() -> Iterator[Row]:
    for follow in Follow:
        argv = [sys.executable, "-m", "benchmarks.controller_pass", follow]
        told = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
        beside: dict[str, float | str] = {name: round(value, 3) for name, value in told.items()}
        name = f"controller pass, {NODES * GPUS} GPUs, follow: {follow}"
        yield Row(name=name, value=told["next_s"], unit="s", bound=SECONDS_BOUND, beside=beside)
        yield Row(name=f"first {name}", value=told["first_s"], unit="s", bound=FIRST_BOUND)
        yield Row(name=f"{name}, memory", value=told["memory_mib"], unit="MiB", bound=MEMORY_BOUND_MIB)


def one_process(follow: Follow) -> dict[str, float]:
    """Pass after pass; what the slowest kind of each took, in seconds, and the peak memory of the whole process."""
    product = product_named("h100-80gb")
    names = [f"n{nth}" for nth in range(1, NODES + 1)]
    node_text = "\n".join(NODE_LINE.format(name=name) for name in names) + "\n"
    queue_text = "".join(queue_rows(names))
    group = NodeGroup(hosts=tuple(names), shares=(Share(layout=dict.fromkeys(dict(LAYOUT), 1)),))
    config = PoolConfig(pool="bench", partitions=("gpu",), groups=(group,), planning=Planning(follow=follow))
    views = {name: _view(nth, product, group) for nth, name in enumerate(names)}
    classes = {one.name: one.profiles for one in build({"h100": product.profiles})}
    serving = Serving.of(classes, "1g.10gb")
    reading = QueueReading(queue.Pool())
    times: list[float] = []
    present: dict[str, str] = {}
    assigned: dict[str, int] = {}
    asked, recuts = Asked(), Recuts()
    for nth in range(PASSES):
        start = time.perf_counter()
        jobs, nodes = _read(reading, queue_text, node_text)
        states = {name: NodeState(name=name, group=group, view=views[name], slurm=nodes[name]) for name in names}
        state = State(config=config, serving=serving, nodes=states, jobs=jobs, present=present, assigned=assigned)
        decision = decide(replace(state, asked=asked, recuts=recuts, now=STARTED_AT + POLL_S * nth))
        times.append(time.perf_counter() - start)
        present = {offer.slice: offer.gres_class for offers in decision.offers.values() for offer in offers}
        assigned, asked, recuts = dict(decision.assigned), decision.asked, decision.recuts
    if len(jobs) != NODES * GPUS + PENDING or len(present) != NODES * GPUS * len(LAYOUT):
        raise RuntimeError("the pass did not see the whole pool")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"first_s": times[0], "next_s": statistics.median(times[1:]), "memory_mib": peak}


def _read(reading: QueueReading, queue_text: str, node_text: str) -> tuple[tuple[QueuedJob, ...], dict[str, SlurmNode]]:
    jobs = reading.jobs(table.lines(queue_text, MARK, queue.QUEUE_PLAIN))
    return jobs, {node.name: node for node in records.parse_nodes(node_text)}


def queue_rows(names: list[str]) -> Iterator[str]:
    """squeue's answer."""
    for nth, name in enumerate(names):
        for gpu in range(GPUS):
            job = str(1 + nth * GPUS + gpu)
            yield _row(job, "RUNNING", "None", name, str(STARTED_AT), f"vgpu:{BUSY}:1,vgpu_mem:4")
    for nth in range(PENDING):
        job = str(1 + NODES * GPUS + nth)
        asked = ("vgpu:m20:1,vgpu_mem:2", "vgpu:q7:1,vgpu_mem:1", "vgpu:m80:1,vgpu_mem:8")[nth % 3]
        yield _row(job, "PENDING", "PartitionDown", "", "N/A", asked)


def _row(job: str, state: str, reason: str, node: str, start: str, gres: str) -> str:
    values = {
        "JobID": job,
        "ArrayJobID": job,
        "ArrayTaskID": "N/A",
        "UserID": "1000",
        "PriorityLong": "4294901760",
        "State": state,
        "Reason": reason,
        "NumNodes": "1",
        "NumCPUs": "1",
        "Partition": "gpu,vgpu-wait",
        "ReqNodes": "",
        "ExcNodes": "",
        "Feature": "(null)",
        "Reservation": "(null)",
        "NodeList": node,
        "StartTime": start,
        "Account": "physics",
        "QOS": "normal",
        "SubmitTime": str(STARTED_AT),
        "TimeLimit": "1-00:00:00",
        "tres-per-node": gres,
    }
    cells = [values[field] for field in queue.QUEUE_FIELDS]
    return table.CELL.join([*cells[: queue.QUEUE_PLAIN], f"{MARK},".join(cells[queue.QUEUE_PLAIN :])]) + f"{MARK}.\n"


def _view(nth: int, product: Product, group: NodeGroup) -> NodeView:
    gpus = tuple(gpu_of(nth, index, product) for index in range(GPUS))
    grants = tuple(
        Grant(
            run=RunKey(job_id=1 + nth * GPUS + index, started_at=STARTED_AT, uid=1000),
            gres_class=BUSY,
            count=1,
            slices=(gpu.instances[0].uuid,),
        )
        for index, gpu in enumerate(gpus)
    )
    return NodeView.of(gpus, grants, group)


def gpu_of(node: int, index: int, product: Product) -> Gpu:
    return Gpu(
        uuid=f"GPU-{node}-{index}",
        index=index,
        minor=index,
        name="NVIDIA H100 80GB HBM3",
        mig=MigMode.ENABLED,
        memory_mib=81_559,
        profiles=_profiles(product),
        instances=tuple(
            Instance(
                profile=name,
                start=start,
                size=product.profiles[name].size,
                gi=nth + 1,
                ci=0,
                uuid=f"MIG-{node}-{index}-{nth}",
            )
            for nth, (name, start) in enumerate(LAYOUT)
        ),
    )


def _profiles(product: Product) -> tuple[GpuProfile, ...]:
    return tuple(
        GpuProfile(
            name=profile.name,
            gi_profile_id=nth,
            compute_slices=profile.compute_slices,
            memory_mib=profile.memory_mib,
            starts=tuple(profile.starts),
            size=profile.size,
        )
        for nth, profile in enumerate(product.profiles.values())
    )


if __name__ == "__main__":
    json.dump(one_process(Follow(sys.argv[1])), sys.stdout)
