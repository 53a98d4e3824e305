"""Row 1: what our job_submit module adds to a submission, beside no plugin, an empty one, and one that forks.

Four slurmctlds with the same nodes and partitions, state on tmpfs, differ only in their job_submit.lua. Held jobs are
submitted through Slurm's own library in interleaved rounds, so that whatever else the machine does hits all alike.
"""

import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from benchmarks import pool_files
from benchmarks.row import Row
from benchmarks.slurmctld import Controller, controller, munged

ROUNDS = 80  # short ones: what else the machine does then falls on all alike
JOBS_A_ROUND = 12
COLD_JOBS = 2  # the first of a round, which find cold caches
WARM_UP_JOBS = 40
RATIO_BOUND = 1.10
REQUESTS = ("vgpu:1g.10gb:1", "vgpu:m20:1", "vgpu:1")  # each is a request to plain Slurm too
BASE = "none"
OURS = "vgpu"

EMPTY_LUA = """
function slurm_job_submit(job_desc, part_list, uid) return slurm.SUCCESS end
function slurm_job_modify(job_desc, job_rec, part_list, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
FORKING_LUA = EMPTY_LUA.replace("uid) return", 'uid) os.execute("/bin/true") return', 1)

SITE = """GresTypes=vgpu,vgpu_mem
NodeName=n[1-8] NodeAddr=127.0.0.1 Port=[6001-6008] CPUs=64 RealMemory=512000 Gres=vgpu:1000,vgpu_mem:64 State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES State=UP DefMemPerCPU=1000
PartitionName=vgpu-wait Nodes=ALL State=DOWN Hidden=YES PriorityTier=0 DefMemPerCPU=1000
"""


def measure() -> Iterator[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgpu-bench-", dir=tmpfs())))
        folder.chmod(0o755)
        submit = _client(folder)
        socket = stack.enter_context(munged(folder / "munge"))
        sites: dict[str, Controller] = {}
        for name, lua in ((BASE, None), ("empty", EMPTY_LUA), (OURS, None), ("forks", FORKING_LUA)):
            sites[name] = stack.enter_context(_site(folder / name, socket, name, lua))
        timings = _rounds(submit, sites)
        _check_in_effect(sites)
    beside: dict[str, float | str] = {
        f"{name}_p50_us": round(statistics.median(value for some in rounds for value in some) / 1000, 1)
        for name, rounds in timings.items()
    }
    yield Row(
        name="submit p50, ours / no plugin",
        value=_ratio(timings, OURS),
        unit="ratio",
        bound=RATIO_BOUND,
        beside=beside,
    )
    yield Row(name="submit p50, empty Lua / no plugin", value=_ratio(timings, "empty"), unit="ratio")
    yield Row(name="submit p50, Lua that forks / no plugin", value=_ratio(timings, "forks"), unit="ratio")


def _ratio(timings: dict[str, list[list[float]]], name: str) -> float:
    """The median over the rounds of the ratio within a round: what slows the machine for a while slows both."""
    pairs = zip(timings[name], timings[BASE], strict=True)
    return statistics.median(statistics.median(some) / statistics.median(base) for some, base in pairs)


def tmpfs() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _client(folder: Path) -> Path:
    """The C client, built against this Slurm; its headers are installed when missing."""
    if not Path("/usr/include/slurm/slurm.h").exists():
        print(
            "benchmarks: installing libslurm-dev, for the headers of this Slurm",
            flush=True,
            file=__import__("sys").stderr,
        )
        subprocess.run(["apt-get", "install", "-y", "-qq", "libslurm-dev"], check=True, stdout=subprocess.DEVNULL)
    binary = folder / "submit"
    source = Path(__file__).with_name("submit.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", binary, source, "-lslurm"], check=True)
    return binary


def _site(folder: Path, socket: Path, name: str, lua: str | None) -> AbstractContextManager[Controller]:
    folder.mkdir(mode=0o755)
    gres = "\n".join(f"NodeName=n[1-8] Name={kind} Count={count}" for kind, count in (("vgpu", 1000), ("vgpu_mem", 64)))
    (folder / "gres.conf").write_text(gres + "\n")
    if name == OURS:
        pool_files.install_job_submit(folder)
    elif lua is not None:
        (folder / "job_submit.lua").write_text(lua)
    plugin = "" if name == BASE else "JobSubmitPlugins=lua\n"
    return controller(folder, socket, lines=SITE + plugin)


def _rounds(submit: Path, sites: dict[str, Controller]) -> dict[str, list[list[float]]]:
    for site in sites.values():
        site.run("scontrol", "update", "nodename=n[1-8]", "gres=vgpu:1g.10gb:4,vgpu:m20:2,vgpu:pad:994,vgpu_mem:64")
        site.run(str(submit), str(WARM_UP_JOBS), *REQUESTS)
    timings: dict[str, list[list[float]]] = {name: [] for name in sites}
    for number in range(ROUNDS):
        order = list(sites)
        shift = number % len(order)
        for name in order[shift:] + order[:shift]:
            lines = sites[name].run(str(submit), str(JOBS_A_ROUND), *REQUESTS).splitlines()
            timings[name].append([float(line.split()[0]) for line in lines[COLD_JOBS:]])
    return timings


def _check_in_effect(sites: dict[str, Controller]) -> None:
    """Each site really ran what it is named for, or the figures say nothing."""
    for name, site in sites.items():
        config = site.run("scontrol", "show", "config")
        has_lua = any(line.split() == ["JobSubmitPlugins", "=", "lua"] for line in config.splitlines())
        asked = site.run("squeue", "-h", "-o", "%b", "-t", "PD").split()
        rewritten = all("vgpu_mem" in line for line in asked)
        if (
            len(asked) != WARM_UP_JOBS + ROUNDS * JOBS_A_ROUND
            or has_lua == (name == BASE)
            or rewritten != (name == OURS)
        ):
            raise RuntimeError(f"site {name!r} did not run what it should: {config[:200]}")
