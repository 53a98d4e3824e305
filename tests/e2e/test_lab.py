"""The whole pool on a real Slurm: every kind of job gets its own slices, through changes of layout and restarts."""

import shutil
import socket
import sys
import time

import pytest

from slurm_plugin.lab import commands, processes
from slurm_plugin.lab.daemons import daemons_of
from tests.e2e.live import SEE, Live, seen

pytestmark = pytest.mark.slurm

RIGHT_AGAIN_S = 10.0  # the pool's promise after a restart of Slurm


# Everybody sees exactly his slices


@pytest.mark.parametrize(
    ("asked", "profiles"),
    [
        ("vgpu", ["1g.10gb"]),
        ("vgpu:2", ["1g.10gb"] * 2),
        ("vgpu:2g.20gb", ["2g.20gb"]),
        ("vgpu:2g.20gb:2", ["2g.20gb"] * 2),
        ("vgpu:20gb", ["2g.20gb"]),
        ("vgpu:15GB:1", ["2g.20gb"]),
        ("vgpu:1/2", ["3g.40gb"]),
        ("vgpu:40gb:2", ["3g.40gb"] * 2),
    ],
)
def test_every_form_of_the_grammar_gets_its_slices(live: Live, asked: str, profiles: list[str]) -> None:
    job = live.submit("alice", f"--gres={asked}")
    [(node, uuids)] = live.wait_sees("alice", job)
    assert live.profiles(uuids) == profiles
    assert sum(live.used(node).values()) == len(profiles)


def test_two_peoples_jobs_of_every_kind_share_no_slice(live: Live) -> None:
    held: list[str] = []
    for user, options, count in (
        ("alice", ["--gres=vgpu:20gb"], 1),
        ("bob", ["--gres=vgpu:1g.10gb:2"], 1),
        ("alice", ["--gres=vgpu:1/2"], 1),
        ("bob", ["--gres=vgpu:2g.20gb", "-N2"], 1),
    ):
        job = live.submit(user, *options)
        held += [uuid for _, uuids in live.wait_sees(user, job, count) for uuid in uuids]
    array = live.submit("alice", "--gres=vgpu:10gb", "--array=1-4")
    for task in range(1, 5):
        [(_, uuids)] = live.wait_sees("alice", f"{array}_{task}")
        held += uuids
    assert len(held) == len(set(held)) == 9
    assert set(held) <= live.slices().keys()


def test_srun_and_salloc_get_slices_too(live: Live) -> None:
    ran = live.run("alice", "srun", "--gres=vgpu:20gb", "sh", "-c", SEE)
    [(_, uuids)] = seen(ran.out)
    assert live.profiles(uuids) == ["2g.20gb"]
    bind = shutil.which("vgpu-bind", path=commands.environment(live.lab.name, live.base)["PATH"])
    ran = live.run("alice", "srun", "-w", "n2", "--gres=vgpu:20gb", str(bind), "sh", "-c", SEE)
    [(node, uuids)] = seen(ran.out)
    assert (node, live.profiles(uuids)) == ("n2", ["2g.20gb"])
    ran = live.run("bob", "salloc", "--gres=vgpu:1g.10gb:2", "srun", "-n1", "sh", "-c", SEE)
    assert ran.code == 0, ran.err
    [(_, uuids)] = seen(ran.out)
    assert live.profiles(uuids) == ["1g.10gb"] * 2


def test_two_nodes_with_two_tasks_each_are_one_slice_a_task(live: Live) -> None:
    options = ["-N2", "--ntasks-per-node=2", "--gres=vgpu:1g.10gb:2"]
    job = live.submit("alice", *options, script=f"srun sh -c '{SEE}'; exec sleep 1000")
    lines = live.wait_sees("alice", job, 4)
    assert sorted(node for node, _ in lines) == ["n1", "n1", "n2", "n2"]
    assert all(len(uuids) == 1 for _, uuids in lines)
    assert len({uuids for _, uuids in lines}) == 4


def test_steps_that_run_at_once_see_different_slices_and_one_without_gres_sees_none(live: Live) -> None:
    step = "srun --exact -n1 --gres=vgpu:1g.10gb:1"
    script = f"{step} sh -c '{SEE}; sleep 3' & {step} sh -c '{SEE}; sleep 3' & wait; srun -n1 --gres=none sh -c '{SEE}'"
    job = live.submit("alice", "-n2", "--gres=vgpu:1g.10gb:2", script=script)
    first, second, none = live.wait_sees("alice", job, 3)
    assert len(first[1]) == len(second[1]) == 1
    assert first[1] != second[1]
    assert none[1] in ((), ("nothing",))


def test_a_job_without_vgpu_sees_no_slice(live: Live) -> None:
    job = live.submit("alice")
    [(_, uuids)] = live.wait_sees("alice", job)
    assert uuids in ((), ("nothing",))


def test_a_wrong_request_is_refused_with_the_nearest_that_works(live: Live) -> None:
    ran = live.run("bob", "sbatch", "--gres=vgpu:2g.10gb", "--wrap=true")
    assert ran.code != 0
    assert "vgpu: no slice class '2g.10gb' in this pool; did you mean 2g.20gb?" in ran.err


# What nobody has idle


def test_a_request_that_nothing_serves_waits_and_starts_when_the_layout_changes_under_running_jobs(live: Live) -> None:
    running = live.submit("alice", "--gres=vgpu:2g.20gb", "-w", "n1")
    [(_, kept)] = live.wait_sees("alice", running)
    before = live.slices()
    waiting = [live.submit("bob", "--gres=vgpu:4g.40gb", "-w", "n2")]
    live.until(lambda: live.reason(waiting[0]) == "PartitionDown", "the job waits for its partition")
    assert live.slurm("squeue", "-h", "-j", waiting[0], "-o", "%Q") != "0"  # not held
    ran = live.apply(live.policy(("{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}", "{4g.40gb: 1, 3g.40gb: 1}")))
    assert ran.code == 0, ran.err
    [(node, uuids)] = live.wait_sees("bob", waiting[0])
    assert (node, live.profiles(uuids)) == ("n2", ["4g.40gb"])
    assert live.state(running) == "RUNNING"
    assert live.slices()[kept[0]] == before[kept[0]]


def test_a_big_request_of_higher_priority_starts_within_one_job_of_a_stream_of_small_ones(live: Live) -> None:
    # Only 3g slices are left: half are held, the others go to a stream of small jobs that end one after another.
    for node in live.lab.nodes:
        live.submit("alice", f"-w{node}", "--gres=vgpu:3g.40gb:2")
    narrow = live.policy(("{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}", "{3g.40gb: 1}"))
    assert live.apply(narrow).code == 0
    staggered = f"{SEE}; sleep $((4 + SLURM_ARRAY_TASK_ID % 4))"
    stream = live.submit("alice", "--gres=vgpu:10gb", "--array=1-400", script=staggered)
    live.until(lambda: len(running(live, stream)) == 4, "the stream has every slice that is left")
    ahead = running(live, stream)
    big = live.submit("bob", "--gres=vgpu:3g.40gb")
    live.slurm("scontrol", "update", f"jobid={big}", "priority=4294967290")
    live.until(lambda: live.state(big) == "RUNNING", "the big one runs", limit_s=7 + 2)  # the longest, and a moment
    [(_, uuids)] = live.wait_sees("bob", big)
    assert live.profiles(uuids) == ["3g.40gb"]
    live.until(lambda: bool(set(running(live, stream)) - set(ahead)), "the stream goes on")
    later = set(running(live, stream)) - set(ahead)
    assert all(live.started_at(task) >= live.started_at(big) for task in later), "it took the first slice freed"


def running(live: Live, job: str) -> list[str]:
    return live.slurm("squeue", "--noheader", "--states=RUNNING", "--jobs", job, "--format=%i").splitlines()


# Restarts under running jobs


def listens(live: Live, daemon: str) -> bool:
    door = next(one.door for one in daemons_of(live.lab, sys.executable) if one.name == daemon)
    kind, place = (socket.AF_INET, ("127.0.0.1", door)) if isinstance(door, int) else (socket.AF_UNIX, str(door))
    with socket.socket(kind) as link:
        return link.connect_ex(place) == 0


@pytest.mark.parametrize("event", ["slurmd", "slurmctld", "reconfigure", "agent", "controller"])
def test_a_restart_under_running_jobs_drains_nothing_and_the_counts_are_right_again(live: Live, event: str) -> None:
    job = live.submit("alice", "--gres=vgpu:20gb", "-w", "n1")
    [(_, held)] = live.wait_sees("alice", job)
    daemon = f"{event}:n1" if event in ("slurmd", "agent") else event
    if event != "reconfigure":
        commands.stop(live.lab.name, daemon, live.base)
    since = time.monotonic()
    if event == "reconfigure":
        live.slurm("scontrol", "reconfigure")
    else:
        commands.start(live.lab.name, daemon, live.base)
        assert listens(live, daemon)
    left_s = since + RIGHT_AGAIN_S - time.monotonic()  # from before it serves: no second of it is given away
    live.until(
        lambda: live.counts_are_right() and commands.status(live.lab.name, live.base).lacks == "",
        "the lab serves, and counts are right",
        left_s,
    )
    assert {live.node_state(node) for node in live.lab.nodes} == {"mixed", "idle"}
    following = live.submit("bob", "--gres=vgpu:20gb", "-w", "n1")
    [(_, uuids)] = live.wait_sees("bob", following)
    assert live.state(job) == "RUNNING"
    assert not set(uuids) & set(held)


def test_a_node_that_loses_its_power_comes_back_with_its_slices(live: Live) -> None:
    job = live.submit("alice", "--gres=vgpu:20gb", "-w", "n1", "--no-requeue")
    live.wait_sees("alice", job)
    commands.reboot(live.lab.name, "n1", live.base)
    live.wait_state(job, "NODE_FAIL", "FAILED", "CANCELLED")
    live.until(live.counts_are_right, "every slice is made again and published")
    live.until(lambda: live.node_state("n1") == "idle", "the node is back")
    again = live.submit("alice", "--gres=vgpu:20gb", "-w", "n1")
    live.wait_sees("alice", again)


def test_what_is_killed_comes_back_and_serves(live: Live) -> None:
    for daemon in ("agent:n1", "controller", "slurmd:n2"):
        commands.kill(live.lab.name, daemon, live.base)
    job = live.submit("alice", "--gres=vgpu:1g.10gb", "-N2")
    live.wait_sees("alice", job)
    assert processes.wait_until(lambda: commands.status(live.lab.name, live.base).lacks == "", limit_s=RIGHT_AGAIN_S)
