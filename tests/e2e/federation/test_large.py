"""Jobs of a Slurm that run at another, where there is much of it: a large output, and many that end at one moment."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from federation.lab.sites import NODE
from slurm_plugin.lab import processes
from tests.e2e.federation.bursting import USER, Bursting, bursting
from tests.e2e.live import Live

pytestmark = [pytest.mark.slurm, pytest.mark.once]

BYTES, MOST_BYTES = 200_000_000, 10_000_000_000
MANY, MOST = 60, 1000
NODES = 16  # of 64 CPUs each: room for MOST
MEMORY_MIB = 256  # that a daemon may have had at once
PORTION = 100  # that start at once
PATIENT = "SlurmdTimeout=300"  # as Slurm has it by itself: a machine of few cores is busy for a minute when MOST end
LIMIT_S = 1500.0
LINES = 'yes "$(seq 5000)" | head -c %d'
ENDS = "echo begun; cat %s; echo $SLURM_ARRAY_TASK_ID; exit $((SLURM_ARRAY_TASK_ID %% 3))"
LOST = 0.005  # of them, where two cores have MOST to end: nobody knows how, which is told, with exit code 1
_LOST = re.compile(r' ArrayTaskId=(\d+) .* ExitCode=1:0 .*"how":"lost"')
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
    with bursting(nodes=NODES, lines=(PATIENT,), lines_there=(PATIENT,)) as site:
        end_together(site, MOST)


def end_together(site: Bursting, many: int) -> None:
    home = site.here.home(USER)
    gate = home / f"gate.{many}"
    os.mkfifo(gate)
    gate.chmod(0o644)
    jobs = list[str]()
    outputs = [home / f"{many}.{nth}" for nth in range(1, many + 1)]
    for first in range(1, many + 1, PORTION):  # Slurm gives up a launch that takes 10 s, and starts it anew
        elements = f"--array={first}-{min(many, first + PORTION - 1)}"
        jobs.append(submitted(site, elements, f"--output={many}.%a", script=ENDS % gate))
        until(site, partial(all_say, outputs[: first + PORTION - 1]), "they have begun")
    with gate.open("r+b", buffering=0):  # who waits for a writer has one, and then reads the end
        until(site, lambda: readers(gate) == many, "all of them wait")
    until(site, lambda: nothing(site.here, "-j", ",".join(jobs)), f"{many} jobs are over")
    records = "".join(site.here.slurm("scontrol", "show", "job", "-o", job) + "\n" for job in jobs)
    wanted = {str(nth): ("FAILED" if nth % 3 else "COMPLETED", f"{nth % 3}:0") for nth in range(1, many + 1)}
    wrong = {name for name, end in ends(records).items() if wanted.pop(name) != end}
    lost = wrong & set(_LOST.findall(records))
    assert (wrong - lost, wanted) == (set(), {}), told_of(wrong, records, site.hpc.log())
    assert len(lost) <= many * LOST, told_of(lost, records, site.hpc.log())
    for nth, output in enumerate(outputs, 1):
        assert output.read_text() == f"begun\n{nth}\n" or str(nth) in lost
    lab = site.here.lab
    until(site, lambda: not processes.jobs_of(lab.node_slurm_conf(NODE), lab.spool(NODE)), "no slurmstepd is left")
    until(site, lambda: nothing(site.there, "-a"), "nothing is left there")
    assert site.here.slurm("sinfo", "-h", "-p", "cloud", "-o", "%t").rstrip("*") in ("idle", "mix")


def told_of(elements: set[str], records: str, log: str) -> str:
    lines = [*records.splitlines(), *log.splitlines()]
    return "\n".join(line for line in lines if any(f"_{name}'" in line or f"Id={name} " in line for name in elements))


def all_say(outputs: list[Path]) -> bool:
    return all(one.exists() and one.stat().st_size for one in outputs)


def nothing(live: Live, *words: str) -> bool:
    """Has Slurm no such job any more? One that is too busy to answer has not said so."""
    try:
        return not live.slurm("squeue", "-h", *words, "-o", "%i")
    except (AssertionError, subprocess.TimeoutExpired):
        return False


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
