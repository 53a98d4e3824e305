"""The same with two real Slurms: from a job's start on the virtual node to its script's first line in the far Slurm.

Both clusters, both daemons and the far job are on this one machine, which so does all of it: the ratio to native jobs
is that of a machine that does at least twice the work a job.
"""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from benchmarks.federation_pair import full
from benchmarks.row import Row, percentile
from tests.e2e.federation.bursting import USER, Bursting, bursting
from tests.integration.federation.daemons import Site

HERE, THERE = "gpu", "cloud"
STARTS, FULL_STARTS, START_BOUND_MS = 15, 60, 150.0
MANY, FULL_MANY, RATIO_BOUND = 50, 500, 1 / 0.7
PATIENCE_S = 900.0


def measure() -> Iterator[Row]:
    with bursting() as site, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield _starts(site, folder)
        yield _many(site, folder)


def _starts(site: Bursting, folder: Path) -> Row:
    """slurmstepd makes the job's output file just before it starts the job."""
    starts = FULL_STARTS if full() else STARTS
    scripts, files = [], []
    for nth in range(starts):
        out = folder / f"start.{nth}"
        site.wait_state(_submitted(site, folder, THERE, f"--output={out}", "--wrap=date +%s%N"), "COMPLETED")
        files.append(_born(out))
        scripts.append(int(out.read_text()) / 1e9)
    begun, given = _times(site.hpc.log(), "burst.begun"), _times(site.cloud.log(), "slurm.submitted")
    parts = {
        "known_here": _between(files, begun[-starts:]),
        "in_the_far_queue": _between(begun[-starts:], given[-starts:]),
        "started_by_the_far_slurm": _between(given[-starts:], scripts),
    }
    ours = _between(files, given[-starts:])
    beside: dict[str, float | str] = {f"{name}_p50_ms": round(statistics.median(some)) for name, some in parts.items()}
    beside["whole_p50_ms"] = round(statistics.median(_between(files, scripts)))
    return Row(
        name="burst, Slurm's start to the far queue, p95",
        value=percentile(ours, 0.95),
        unit="ms",
        bound=START_BOUND_MS,
        beside=beside,
    )


def _many(site: Bursting, folder: Path) -> Row:
    many = FULL_MANY if full() else MANY
    native_s = _timed(site, folder, HERE, many)
    before = [_used_s(one) for one in (site.hpc, site.cloud)]
    ours_s = _timed(site, folder, THERE, many)
    used = [1000 * (_used_s(one) - had) / many for one, had in zip((site.hpc, site.cloud), before, strict=True)]
    beside: dict[str, float | str] = {
        "jobs": many,
        "native_per_min": round(60 * many / native_s),
        "ours_per_min": round(60 * many / ours_s),
        "gateway_daemon_cpu_ms_a_job": round(used[0], 1),
        "far_daemon_cpu_ms_a_job": round(used[1], 1),
    }
    return Row(
        name="forwarded jobs that do nothing, time / native",
        value=ours_s / native_s,
        unit="ratio",
        bound=RATIO_BOUND,
        beside=beside,
    )


def _used_s(site: Site) -> float:
    """CPU of a daemon and of all commands that it has run."""
    assert site.process is not None
    words = Path(f"/proc/{site.process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


def _timed(site: Bursting, folder: Path, partition: str, many: int) -> float:
    begun = time.perf_counter()
    job = _submitted(site, folder, partition, "--output=/dev/null", f"--array=1-{many}", "--wrap=true")
    live = ("squeue", "--noheader", "--jobs", job, "--states=PENDING,RUNNING,COMPLETING", "-o", "%i")
    site.here.until(lambda: not site.here.slurm(*live).strip(), f"{many} jobs ended", PATIENCE_S)
    return time.perf_counter() - begun


def _submitted(site: Bursting, folder: Path, partition: str, *words: str) -> str:
    ran = site.here.run(USER, "sbatch", "--parsable", f"--partition={partition}", f"--chdir={folder}", *words)
    assert ran.code == 0, ran.err
    return ran.out.strip()


def _born(path: Path) -> float:
    return float(subprocess.run(["stat", "-c", "%.9W", path], capture_output=True, text=True, check=True).stdout)


def _times(log: str, event: str) -> list[float]:
    lines = [line for line in log.splitlines() if f" {event} " in line]
    return [datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() for line in lines]


def _between(before: list[float], after: list[float]) -> list[float]:
    return [1000 * (then - first) for first, then in zip(before, after, strict=True)]
