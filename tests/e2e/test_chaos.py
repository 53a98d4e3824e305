"""Every daemon is killed again and again under many jobs: each job has its own slices, and nothing is lost or drained.

VGPU_CHAOS_SEED=number runs what an earlier run did: which jobs, and what was killed in which order.
"""

import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_plugin.lab import commands, processes
from slurm_plugin.lab.people import PEOPLE, ensure_people
from slurm_plugin.lab.site import LabSpec
from tests.e2e import chaos
from tests.e2e.live import Live, name_of_this_run
from tests.e2e.watch import Watch, pool_of

pytestmark = pytest.mark.slurm

KEPT = ("MinJobAge=3600",)  # every job is known to the end, unless it was forgotten
STRUCK = {"slurmctld", "slurmd", "controller", "agent", chaos.RECONFIGURE}
DRAINED_S = 60.0  # the controller ends what a Slurm that forgets drains, once it and the node's agent are there again
OVER_STATES = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"})


@pytest.fixture
def arena(request: pytest.FixtureRequest) -> Iterator[Live]:
    """A lab of the test's own, whose requeued jobs wait as long as the test says."""
    ensure_people()
    base = Path(tempfile.mkdtemp(prefix="labs", dir="/run"))
    base.chmod(0o755)
    name = name_of_this_run().replace("e2e", "chaos")
    try:
        yield Live(commands.up(LabSpec(name=name, requeue_delay_s=request.param, slurm_lines=KEPT), base))
    finally:
        commands.down(name, base)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arena", "jobs", "storm_s", "strikes", "end_s"),
    [
        pytest.param(10, 60, 25.0, 15, 150.0, id="60-jobs"),
        pytest.param(120, 300, 150.0, 70, 600.0, id="300-jobs", marks=pytest.mark.soak),
    ],
    indirect=["arena"],
)
def test_jobs_have_their_own_slices_and_end_whatever_is_killed_under_them(
    arena: Live, jobs: int, storm_s: float, strikes: int, end_s: float
) -> None:
    seed = chaos.seed_of_this_run()
    print(f"VGPU_CHAOS_SEED={seed}")
    ground = chaos.Ground(arena)
    crowd, watch = chaos.Crowd(ground), Watch(arena)
    people = [
        partial(crowd.submit_all, user, chaos.orders(user, jobs // len(PEOPLE), rng), rng, storm_s)
        for user in PEOPLE
        for rng in [random.Random(f"{seed} {user}")]
    ]
    began = time.monotonic()
    hits: Counter[str] = Counter()
    with chaos.beside(watch.run, over=[watch.over]):
        with chaos.beside(*people, over=[]):
            rage(arena, strikes, storm_s, random.Random(f"{seed} storm"), hits)
        left = settle(arena, crowd, end_s)
        took_s = time.monotonic() - began
    rows = known(arena)
    summary(crowd, rows, ground, hits, watch, took_s)
    assert not left, left
    wrong: list[str] = []
    looked_at = 0
    for order in crowd.submitted:
        for job in order.jobs:
            if job not in rows:
                continue
            row = rows[job]
            looked_at += bool(order.kind.slices)
            if row.state == "COMPLETED":
                wrong += ground.faults_of(order, job)
            elif order.kind.slices or row.state == "FAILED":  # one without may be lost by Slurm, and is not refused
                wrong += unended(ground, job, row)
    assert not wrong, "\n".join(wrong)
    assert looked_at > jobs // 4, f"slurmctld forgot all but {looked_at} jobs with slices"
    assert hits.keys() == STRUCK
    assert [line for line in ground.told() if line[0] not in ("began", "ended")] == []
    assert watch.drained() == []
    assert watch.longest_s < DRAINED_S
    assert failed_prologs(arena) == []
    assert watch.too_many == []
    assert watch.looks > 0
    nothing_is_left(arena, ground)


def rage(live: Live, strikes: int, within_s: float, rng: random.Random, hits: "Counter[str]") -> None:
    until = time.monotonic() + within_s
    for number, event in enumerate(chaos.storm(live, strikes, rng)):
        pause_s = rng.uniform(0.2, 1.8) * (until - time.monotonic()) / (strikes - number)
        time.sleep(max(0.0, pause_s))
        if processes.wait_until(partial(chaos.strike, live, event), limit_s=15.0):
            hits[event.partition(":")[0]] += 1


class Known(NamedTuple):
    job_id: int
    state: str
    reason: str  # Slurm's, why it waits
    restarts: int
    exit_code: str  # as Slurm has it: status, signal
    waited_s: int  # since it was submitted or put back the last time


def known(live: Live) -> dict[str, Known]:
    """Each job that slurmctld knows, by name; of an array, each element."""
    fields = "Name:|,ArrayTaskID:|,JobID:|,State:|,Reason:|,RestartCnt:|,exit_code:|,PendingTime:|"
    rows = live.slurm("squeue", "-h", "-a", "-r", "--states=all", "-O", fields)
    found: dict[str, Known] = {}
    for row in rows.splitlines():
        name, task, job_id, state, reason, restarts, exit_code, waited, _ = row.split("|")
        job = f"{name}_{task}" if task.isdecimal() else name
        found[job] = Known(int(job_id), state, reason, int(restarts), exit_code, int(waited))
    return found


def settle(live: Live, crowd: chaos.Crowd, limit_s: float) -> str:
    """Wait until every job is over; what is not, else.

    What Slurm has made of a job without slices is no affair of the pool's: what is left of those is cancelled.
    """
    left: list[str] = ["slurmctld does not answer"]

    def over() -> bool:
        plain = {job for order in crowd.submitted if not order.kind.slices for job in order.jobs}
        try:
            rows = known(live)
        except AssertionError:
            return False
        left[:] = [f"{job} {row}" for job, row in rows.items() if row.state not in OVER_STATES and job not in plain]
        return not left

    if not processes.wait_until(over, limit_s=limit_s, every_s=0.5):
        return ", ".join(left)
    for state in ("PENDING", "RUNNING"):
        live.slurm("scancel", f"--state={state}")
    live.until(lambda: all(row.state in OVER_STATES for row in known(live).values()), "the plain ones are gone")
    return ""


def summary(
    crowd: chaos.Crowd,
    rows: dict[str, Known],
    ground: chaos.Ground,
    hits: "Counter[str]",
    watch: Watch,
    took_s: float,
) -> None:
    jobs = [job for order in crowd.submitted for job in order.jobs]
    with_slices = {job for order in crowd.submitted if order.kind.slices for job in order.jobs}
    twice = started_twice(crowd.ground.live)
    requeued = sum(row.restarts for row in rows.values())
    waited_s = max(row.waited_s for row in rows.values())
    print(
        f"jobs={len(jobs)} forgotten={len(set(jobs) - rows.keys())} unanswered={crowd.unanswered} requeued={requeued} "
        f"hits={dict(hits)} looks={watch.looks} drained_by_slurm={watch.twice} "
        f"({watch.longest_s:.0f} s at the most) with_slices={len(with_slices & rows.keys())} "
        f"started_twice={len(twice)} ({sum(row.job_id in twice and job in with_slices for job, row in rows.items())} "
        f"with slices) waited={waited_s}s took={took_s:.0f}s"
    )


def unended(ground: chaos.Ground, job: str, row: Known) -> list[str]:
    """Why a job did not end well: what it told, what its srun said, and every log's lines on it."""
    found = [f"{job}: {row}", *(" ".join(line) for line in ground.told_by(job)), *ground.said_by(job)]
    named = re.compile(rf"\b{row.job_id}\b")
    for log in sorted(ground.live.lab.log.iterdir()):
        lines = log.read_text(errors="replace").splitlines() if log.suffix in (".log", ".out") else []
        found += [f"{log.name}: {line}" for line in lines if named.search(line) and _NOISE not in line]
    return found


_NOISE = "never runnable in partition"  # slurmctld's, at each look at a job that waits


def nothing_is_left(live: Live, ground: chaos.Ground) -> None:
    live.until(lambda: commands.status(live.lab.name, live.base).lacks == "", "the lab is ready")
    live.until(lambda: grants(live) == [], f"no grant is left but {grants(live)}")
    live.until(live.counts_are_right, "every slice is published")
    for node in live.lab.nodes:
        assert processes.jobs_of(live.lab.node_slurm_conf(node), live.lab.spool(node)) == ()
    assert ground.held() == []
    assert ground.untouched()
    live.until(lambda: live.vgpu("doctor").code == 0, "doctor is content")
    assert {live.node_state(node) for node in live.lab.nodes} == {"idle"}


def started_twice(live: Live) -> set[int]:
    """Jobs that slurmctld sent to a node where they ran already: for each, Slurm itself drains the node."""
    logs = (live.lab.folder / "log").glob("slurmd-*.log")
    return {int(job) for log in logs for job in _SECOND_COPY.findall(log.read_text(errors="replace"))}


_SECOND_COPY = re.compile(r"Job (?:Id=)?(\d+)\S* already running, do not launch second copy")


def failed_prologs(live: Live) -> list[str]:
    logs = (live.lab.folder / "log").glob("slurmd-*.log")
    return [line for log in logs for line in log.read_text(errors="replace").splitlines() if "prolog failed" in line]


def grants(live: Live) -> object:
    pool = pool_of(live)
    return "no answer" if pool is None else [grant for node in pool.nodes for grant in node.grants]
