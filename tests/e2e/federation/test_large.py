"""Jobs of a Slurm that run at another, where there is much of it: a large output, and many that end at one moment."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from federation.lab.sites import NODE
from slurm_plugin.lab import processes
from tests.e2e.federation.bursting import USER, Bursting, bursting

pytestmark = [pytest.mark.slurm, pytest.mark.once]

BYTES, MOST_BYTES = 200_000_000, 10_000_000_000
MANY, MOST = 60, 1000
NODES = 16  # of 64 CPUs each: room for MOST
MEMORY_MIB = 256  # that a daemon may have had at once
LAUNCH = "BatchStartTimeout=300"  # that a job may take to be launched: it is one of MOST at once
LIMIT_S = 1500.0
LINES = 'yes "$(seq 5000)" | head -c %d'
ENDS = "echo begun; cat %s; echo $SLURM_ARRAY_TASK_ID; exit $((SLURM_ARRAY_TASK_ID %% 3))"
_FACT = re.compile(r" (ArrayTaskId|JobState|ExitCode)=(\S+)")


@pytest.fixture(scope="module")
def site() -> Iterator[Bursting]:
    with bursting() as made:
        yield made


@pytest.mark.parametrize(
    "size", [BYTES, pytest.param(MOST_BYTES, marks=[pytest.mark.soak, pytest.mark.timeout(2 * LIMIT_S)])]
)
def test_a_large_output_is_whole_and_in_no_daemons_memory(site: Bursting, size: int) -> None:
    """On disks it is three times meanwhile: where it is written, on its way, and in the job's file."""
    job = submitted(site, "--output=large.out", script=LINES % size)
    site.wait_state(job, "COMPLETED", limit_s=LIMIT_S)
    out = site.here.home(USER) / "large.out"
    wanted = f"{LINES % size} | cmp - large.out"
    assert out.stat().st_size == size
    assert subprocess.run(["sh", "-c", wanted], cwd=out.parent, check=False).returncode == 0
    out.unlink()
    assert [daemon for daemon in (site.hpc, site.cloud) if most_memory_mib(daemon.process) > MEMORY_MIB] == []


def test_jobs_that_end_at_one_moment_end_as_they_did_there(site: Bursting) -> None:
    end_together(site, MANY)


@pytest.mark.soak
@pytest.mark.timeout(2 * LIMIT_S)
def test_a_thousand_jobs_that_end_at_one_moment_end_as_they_did_there() -> None:
    with bursting(nodes=NODES, lines=(LAUNCH,)) as site:
        end_together(site, MOST)


def end_together(site: Bursting, many: int) -> None:
    home = site.here.home(USER)
    gate = home / f"gate.{many}"
    os.mkfifo(gate)
    gate.chmod(0o644)
    job = submitted(site, f"--array=1-{many}", f"--output={many}.%a", script=ENDS % gate)
    outputs = [home / f"{many}.{nth}" for nth in range(1, many + 1)]
    until(site, lambda: all(one.exists() and one.stat().st_size for one in outputs), f"{many} jobs have begun")
    with gate.open("r+b", buffering=0):  # who waits for a writer has one, and then reads the end
        until(site, lambda: readers(gate) == many, "all of them wait")
    until(site, lambda: not site.here.slurm("squeue", "-h", "-j", job, "-o", "%i"), f"{many} jobs are over")
    wanted = {str(nth): code(nth % 3) for nth in range(1, many + 1)}
    assert ends(site.here.slurm("scontrol", "show", "job", "-o", job)) == wanted
    assert [one.read_text() for one in outputs] == [f"begun\n{nth}\n" for nth in range(1, many + 1)]
    lab = site.here.lab
    until(site, lambda: not processes.jobs_of(lab.node_slurm_conf(NODE), lab.spool(NODE)), "no slurmstepd is left")
    until(site, lambda: not site.there.slurm("squeue", "-h", "-a", "-o", "%i"), "nothing is left there")
    assert site.here.slurm("sinfo", "-h", "-p", "cloud", "-o", "%t").rstrip("*") in ("idle", "mix")


def submitted(site: Bursting, *options: str, script: str) -> str:
    words = ("sbatch", "--parsable", "--partition=cloud", "--mem=1M", *options, f"--wrap={script}")
    ran = site.here.run(USER, *words)
    assert ran.code == 0, ran.err
    return ran.out.strip()


def until(site: Bursting, condition: Callable[[], bool], what: str) -> None:
    site.here.until(condition, what, LIMIT_S)


def ends(records: str) -> dict[str, tuple[str, str]]:
    """State and exit code of each element."""
    found = [dict(_FACT.findall(record)) for record in records.splitlines()]
    return {one["ArrayTaskId"]: (one["JobState"], one["ExitCode"]) for one in found}


def code(number: int) -> tuple[str, str]:
    return "FAILED" if number else "COMPLETED", f"{number}:0"


def readers(gate: Path) -> int:
    """Processes that have it open, but this one."""
    found = 0
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            found += entry.readlink() == gate and entry.parts[2] != str(os.getpid())
        except OSError:  # it has closed it
            continue
    return found


def most_memory_mib(process: "subprocess.Popen[bytes] | None") -> int:
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) >> 10
