"""Every path of a job: whatever it, its hooks or Slurm do on the way, slices are given once and taken back."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from slurm_plugin.controller.prologs import RESTARTED_S
from slurm_plugin.controller.rescue import PATIENCE_S
from slurm_plugin.lab import commands, processes
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import LabSpec
from tests.e2e.live import SEE, Live, name_of_this_run, seen

pytestmark = pytest.mark.slurm

WAIT_S = 3.0  # a prolog's wait for a slice here
BACK_S = 10  # a requeued job's wait here
RECONCILED_S = 40.0  # an agent looks twice a minute for runs that ended without an epilog
AT_ONCE_S = 10.0  # much less than that, and enough for a busy machine
WHOLE_GPU = "7g.80gb"  # no node has one
BIG, BIG_A_NODE = "3g.40gb", 4
URGENT = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=urgent Nodes=n[1-2] State=UP MaxTime=INFINITE PriorityTier=9",
)


@pytest.fixture(scope="module")
def _started() -> Iterator[Live]:
    """A lab of its own, whose prologs and requeued jobs wait less, with a second partition that preempts."""
    ensure_people()
    base = Path(tempfile.mkdtemp(prefix="labs", dir="/run"))
    base.chmod(0o755)
    spec = LabSpec(name=f"{name_of_this_run()}-paths", requeue_delay_s=BACK_S, slurm_lines=URGENT)
    try:
        lab = commands.up(spec, base)
        for node in lab.nodes:
            settings = lab.agent_config(node)
            settings.write_text(f"{settings.read_text()}wait_s: {WAIT_S:g}\n")
            commands.stop(lab.name, f"agent:{node}", base)
            commands.start(lab.name, f"agent:{node}", base)
        text = lab.pool_config.read_text()
        lab.pool_config.write_text(text.replace("partitions: [gpu]", "partitions: [gpu, urgent]"))
        live = Live(lab)
        assert live.vgpu("apply").code == 0
        live.settle()
        yield live
    finally:
        commands.down(spec.name, base)


@contextmanager
def overbooked(live: Live, gres_class: str, count: int, *nodes: str) -> Iterator[None]:
    """More is published than there is, as when slices vanish between scheduling and start."""
    commands.stop(live.lab.name, "controller", live.base)
    try:
        for node in nodes:
            counts = live.published(node)
            counts[gres_class] = counts.get(gres_class, 0) + count
            counts["pad"] -= count
            gres = ",".join(f"vgpu:{name}:{number}" for name, number in counts.items())
            live.slurm("scontrol", "update", f"nodename={node}", f"gres={gres},vgpu_mem:32")
        yield
    finally:
        commands.start(live.lab.name, "controller", live.base)


def wait_granted(live: Live, node: str, *jobs: str, limit_s: float = 20.0) -> None:
    live.until(lambda: live.granted(node) == set(jobs), f"{node} has grants of {jobs}", limit_s)


def in_prolog(live: Live, *jobs: str) -> None:
    def there(job: str) -> bool:
        return live.reason(job) == "Prolog"

    for job in jobs:
        live.until(partial(there, job), f"job {job} is in its prolog")


def restarts(live: Live, job: str) -> str:
    return live.slurm("squeue", "--noheader", "--jobs", job, "-O", "RestartCnt")


def went_back(live: Live, job: str, limit_s: float = 20.0) -> None:
    live.until(lambda: live.state(job) == "PENDING" and restarts(live, job) == "1", f"job {job} went back", limit_s)


def nothing_drained(live: Live) -> None:
    assert not any("drain" in live.node_state(node) for node in live.lab.nodes)


# No slice is left


def test_a_job_that_finds_no_slice_waits_and_goes_back_or_ends_and_never_runs_without(live: Live) -> None:
    asked = (f"--gres=vgpu:{WHOLE_GPU}", "-wn1")
    with overbooked(live, WHOLE_GPU, 4, "n1"), ThreadPoolExecutor(2) as people:
        back = live.submit("alice", *asked)
        ended = live.submit("bob", *asked, "--no-requeue")
        srun = people.submit(live.run, "alice", "srun", *asked, "sh", "-c", SEE)
        salloc = people.submit(live.run, "bob", "salloc", *asked, "srun", "sh", "-c", SEE)
        went_back(live, back)
        live.wait_state(ended, "CANCELLED", "")
        assert srun.result().code != 0
        assert salloc.result().code != 0
        assert f"no {WHOLE_GPU} slice on n1 within {WAIT_S:g} s" in srun.result().err
        outputs = (live.output("alice", back), live.output("bob", ended), srun.result().out, salloc.result().out)
        assert [seen(text) for text in outputs] == [[], [], [], []]
        wait_granted(live, "n1")
    nothing_drained(live)


def test_a_node_without_a_slice_for_a_job_on_two_releases_that_of_the_other(live: Live) -> None:
    live.wait_sees("bob", live.submit("bob", f"--gres=vgpu:{BIG}:{BIG_A_NODE}", "-wn2"))
    (held,) = live.granted("n2")
    with overbooked(live, BIG, 2, "n2"), ThreadPoolExecutor(1) as people:
        back = live.submit("alice", f"--gres=vgpu:{BIG}", "-N2")
        srun = people.submit(live.run, "alice", "srun", f"--gres=vgpu:{BIG}", "-N2", "sh", "-c", SEE)
        live.until(lambda: len(live.granted("n1")) == 2, "the other node has slices for both")
        went_back(live, back)
        assert srun.result().code != 0
        assert seen(srun.result().out) == []
        wait_granted(live, "n1")
        assert live.granted("n2") == {held}
    nothing_drained(live)


# Prologs and epilogs that do not come, or come once too often


def test_a_job_whose_slurmd_was_killed_in_its_prolog_goes_back_or_ends(live: Live) -> None:
    """Its prolog outlives slurmd and even gets a slice, but nobody starts the job any more."""
    commands.stop(live.lab.name, "agent:n1", live.base)
    back = live.submit("alice", "--gres=vgpu:1g.10gb", "-wn1")
    ended = live.submit("bob", "--gres=vgpu:1g.10gb", "-wn1", "--no-requeue")
    in_prolog(live, back, ended)
    started_at = max(live.started_at(job) for job in (back, ended))
    live.until(lambda: int(time.time()) > started_at, "Slurm's clock, which knows only seconds, has moved on")
    commands.kill(live.lab.name, "slurmd:n1", live.base)
    commands.start(live.lab.name, "agent:n1", live.base)
    wait_granted(live, "n1", back, ended)
    assert (live.reason(back), live.reason(ended)) == ("Prolog", "Prolog")
    went_back(live, back, RESTARTED_S + PATIENCE_S + 20)
    live.wait_state(ended, "CANCELLED", "")
    assert f"job {ended} was cancelled: it lost its prolog" in live.vgpu("status").out
    wait_granted(live, "n1")


def test_a_job_that_ends_without_an_epilog_leaves_nothing_bound(live: Live) -> None:
    job = live.submit("alice", "--gres=vgpu:20gb", "-wn1", "--no-requeue")
    live.wait_sees("alice", job)
    commands.stop(live.lab.name, "slurmd:n1", live.base)
    processes.kill(processes.jobs_of(live.lab.node_slurm_conf("n1"), live.lab.spool("n1")))
    live.slurm("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    try:
        live.wait_state(job, "NODE_FAIL", "FAILED", "")
        wait_granted(live, "n1", limit_s=RECONCILED_S)
    finally:
        commands.start(live.lab.name, "slurmd:n1", live.base)
    live.wait_sees("alice", live.submit("alice", "--gres=vgpu:20gb", "-wn1"))


@pytest.mark.parametrize("job_id", ["its own", "4000000"])
def test_an_epilog_that_comes_while_its_job_runs_or_without_one_takes_nothing(live: Live, job_id: str) -> None:
    job = live.submit("alice", "--gres=vgpu:20gb", "-wn1")
    live.wait_sees("alice", job)
    epilog = str(live.lab.hooks("n1") / "vgpu-epilog")
    for _ in range(2):
        ran = live.hook(epilog, job if job_id == "its own" else job_id)
        assert ran.code == 0
        assert live.granted("n1") == {job}


def test_a_prolog_that_comes_twice_gives_once(live: Live) -> None:
    job = live.submit("alice", "--gres=vgpu:20gb", "-wn1")
    live.wait_sees("alice", job)
    before = live.grant("n1", job)
    assert live.hook(str(live.lab.hooks("n1") / "vgpu-prolog"), job).code == 0
    assert live.grant("n1", job) == before


# What Slurm forgets


@pytest.mark.parametrize("ids", ["kept ahead", "used again"])
def test_a_job_that_slurmctld_forgot_has_nothing_and_the_next_has_its_own(live: Live, ids: str) -> None:
    conf = live.lab.etc / "common.conf"
    text = conf.read_text()
    if ids == "used again":  # as where pool.yaml has no controller.job_ids
        conf.write_text(text.replace("Include", "# Include"))
    try:
        forgotten, again = forget_one(live)
    finally:
        conf.write_text(text)
    assert int(again) > int(forgotten) if ids == "kept ahead" else again == forgotten
    live.wait_sees("bob", again)
    assert (live.granted("n1"), live.granted("n2")) == (set(), {again})


def forget_one(live: Live) -> tuple[str, str]:
    """A job of alice's that slurmctld knows no more though it ran, and one of bob's that came after."""
    memory = live.lab.state / "slurmctld"
    commands.stop(live.lab.name, "slurmctld", live.base)
    shutil.copytree(memory, older := memory.with_name("older"))
    commands.start(live.lab.name, "slurmctld", live.base)
    live.until(live.counts_are_right, "counts are right")
    forgotten = live.submit("alice", "--gres=vgpu:20gb", "-wn1")
    live.wait_sees("alice", forgotten)
    live.until(lambda: first_job_id(live) > int(forgotten), "the controller keeps FirstJobId ahead")
    commands.stop(live.lab.name, "slurmctld", live.base)
    shutil.rmtree(memory)
    older.rename(memory)
    commands.start(live.lab.name, "slurmctld", live.base)
    wait_granted(live, "n1", limit_s=RECONCILED_S)
    live.until(live.counts_are_right, "every slice is published")
    # On another node: slurmd 24.11 starts no id that it has just killed.
    return forgotten, live.submit("bob", "--gres=vgpu:20gb", "-wn2")


def first_job_id(live: Live) -> int:
    return int(live.lab.job_ids.read_text().removeprefix("FirstJobId="))


# What people and Slurm do to a job


def test_a_suspended_job_keeps_its_slice(live: Live) -> None:
    job = live.submit("alice", f"--gres=vgpu:{BIG}:{BIG_A_NODE}", "-wn1")
    [(_, had)] = live.wait_sees("alice", job)
    live.slurm("scontrol", "suspend", job)
    live.wait_state(job, "SUSPENDED")
    other = live.submit("bob", f"--gres=vgpu:{BIG}", "-wn1")
    plain = live.submit("bob", "--gres=vgpu:20gb", "-wn1")
    [(_, others)] = live.wait_sees("bob", plain)
    assert not set(had) & set(others)
    assert live.state(other) == "PENDING"
    assert live.granted("n1") == {job, plain}
    live.slurm("scontrol", "resume", job)
    live.wait_state(job, "RUNNING")
    assert live.granted("n1") == {job, plain}


def test_a_requeued_job_gives_its_slice_back_and_gets_one_when_it_starts_again(live: Live) -> None:
    job = live.submit("alice", "--gres=vgpu:20gb", "-wn1", "--open-mode=append")
    live.wait_sees("alice", job)
    live.slurm("scontrol", "requeue", job)
    wait_granted(live, "n1")
    live.wait_sees("alice", job, 2)
    assert live.granted("n1") == {job}


def test_a_job_that_is_preempted_gives_its_slice_to_the_one_that_preempts(live: Live) -> None:
    lower = [live.submit("alice", f"--gres=vgpu:{BIG}:{BIG_A_NODE}", f"-w{node}") for node in live.lab.nodes]
    had = {uuid for job in lower for _, uuids in live.wait_sees("alice", job) for uuid in uuids}
    urgent = live.submit("bob", "-purgent", f"--gres=vgpu:{BIG}:2")
    [(node, uuids)] = live.wait_sees("bob", urgent)
    assert set(uuids) <= had
    preempted = lower[live.lab.nodes.index(node)]
    assert live.state(preempted) == "PENDING"
    assert live.granted(node) == {urgent}
    nothing_drained(live)


def test_a_job_that_shrinks_gives_back_what_it_had_on_the_node_that_it_leaves(live: Live) -> None:
    job = live.submit("alice", "--gres=vgpu:20gb", "-N2")
    live.until(lambda: live.granted("n1") == live.granted("n2") == {job}, "it has a slice on both")
    shrunk = live.run("alice", "scontrol", "update", f"jobid={job}", "numnodes=1")
    assert shrunk.code == 0, shrunk.err
    wait_granted(live, "n2", limit_s=AT_ONCE_S)
    assert live.granted("n1") == {job}
    assert live.state(job) == "RUNNING"
    live.until(live.counts_are_right, "what it left is published")
    live.wait_sees("bob", live.submit("bob", f"--gres=vgpu:20gb:{BIG_A_NODE}", "-wn2"))


def test_a_job_can_be_cancelled_at_every_stage(live: Live) -> None:
    stubborn = "trap '' TERM; " + SEE + "; sleep 1000 & while :; do wait; done"
    with overbooked(live, WHOLE_GPU, 1, "n1"):
        waiting = live.submit("alice", f"--gres=vgpu:{WHOLE_GPU}", "-wn1")
        in_prolog(live, waiting)
        pending = live.submit("alice", f"--gres=vgpu:{WHOLE_GPU}", "-wn1")
        running = live.submit("bob", "--gres=vgpu:2g.20gb", "-wn1", script=stubborn)  # a class that is published
        live.wait_sees("bob", running)
        for job in (waiting, pending, running):
            live.slurm("scancel", job)
        live.wait_state(running, "COMPLETING")
        live.slurm("scancel", running)
        for job in (waiting, pending, running):
            live.wait_state(job, "CANCELLED", "")
        wait_granted(live, "n1")
    live.until(live.counts_are_right, "every slice is published")
    nothing_drained(live)


@pytest.mark.parametrize("requeue", ["--requeue", "--no-requeue"])
def test_a_young_job_on_a_node_that_loses_its_power_goes_back_or_fails_with_the_node(live: Live, requeue: str) -> None:
    job = live.submit("alice", "--gres=vgpu:20gb", "-wn1", requeue)
    live.wait_sees("alice", job)
    commands.reboot(live.lab.name, "n1", live.base)
    live.wait_state(job, *(["PENDING"] if requeue == "--requeue" else ["NODE_FAIL"]))
    wait_granted(live, "n1")
    live.until(live.counts_are_right, "every slice is made again and published")
    live.until(lambda: live.node_state("n1") == "idle", "the node is back")
