"""One of every kind of job that waits, and what is to be told of each.

`play` makes the scene on a Slurm whose nodes n1 and n2 are full and whose virtual node is cloud-gpu-1; with what must
be the last one, a job asked for by hand, the queue is whole.
"""

from collections.abc import Callable
from subprocess import CompletedProcess

from federation.overflow.facts import Wish
from federation.overflow.queued import Names, Queued
from federation.overflow.waiting import Queue
from tests.e2e.bare_slurm import NOBODY

NAMES = Names(cloud="cloud", wait_partition="vgpu-wait", virtual=frozenset({"cloud-gpu-1"}))
FORGED = "x\n99  99 N/A 0 None gpu 1 1700000000 1700000000"
COMMENT = "asked vgpu:20gb fed:burst=auto"
JOB = ("sbatch", "--parsable", "-p", "gpu", "-o", "/dev/null", "-c16")
WRAP = ("--wrap", "sleep 10000")
ROOM = "more room would not start it: "

# In the order of their ids: what is asked for, why it can run here only, and why room would not start it.
KINDS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("-t", "90", "--gres=vgpu:2", "--comment", FORGED, "-J", FORGED), "", ""),
    (("-a", "0-9:3%2", "-t", "UNLIMITED"), "", ""),
    (("--begin=now+1hour",), "", f"{ROOM}BeginTime"),
    (("-d", "afterok:{first}"), "", f"{ROOM}Dependency"),
    (("-H",), "", f"{ROOM}JobHeldUser"),
    (("-N2",), "it asks for 2 nodes", ""),
    (("-c1", "-n16"), "it asks for 16 tasks", ""),
    (("-w", "n1"), "it names its nodes", ""),
    (("-x", "n1"), "it excludes nodes", ""),
    (("-x", "cloud-gpu-1"), "", ""),
    (("-C", "fast"), "it asks for features", ""),
    (("-L", "lic:1"), "it asks for licences", ""),
    (("--reservation=rest",), "it is for a reservation", ""),
    (("--exclusive",), "it asks for whole nodes", ""),
    (("--container=/images/x",), "it runs in a container", ""),
    ((":", "-c16"), "it is a part of a heterogeneous job", ""),
)
BY_HAND = "it is interactive: only batch jobs go"
RECORDS = len(KINDS) + 3  # the second part of the heterogeneous one, root's, and the one asked for by hand

Run = Callable[..., "CompletedProcess[str]"]


def play(run: Run) -> None:
    run("scontrol", "update", "nodename=n1", "availablefeatures=fast", "activefeatures=fast")
    rest = "reservationname=rest starttime=now duration=60 users=nobody nodes=n2 flags=ignore_jobs"
    run("scontrol", "create", "reservation", *rest.split())
    first = ""
    for options, _, _ in KINDS:
        done = run(*JOB, *(word.format(first=first) for word in options), *WRAP, user=NOBODY)
        assert done.returncode == 0, (options, done.stderr)
        first = first or done.stdout.strip()
    assert run(*JOB, *WRAP).returncode == 0
    run("scontrol", "update", f"jobid={first}", f"admincomment={COMMENT}")


async def _read(queue: Queue) -> list[Queued]:
    found = await queue.waiting({"gpu", "cloud"}, NAMES)
    assert len(found) == RECORDS
    return sorted(found, key=lambda one: one.job.job_id)


async def each_tells_what_keeps_it_here(queue: Queue) -> None:
    found = await _read(queue)
    kinds = [(obstacle, held) for _, obstacle, held in KINDS]
    wanted = [*kinds, kinds[-1], ("it is root's", ""), (BY_HAND, "")]
    for one, (obstacle, held) in zip(found, wanted, strict=True):
        assert one.job.obstacle.startswith(obstacle)
        assert bool(one.job.obstacle) == bool(obstacle)
        if not obstacle:
            assert one.job.held == held
    assert found[9].kept_from == ("cloud-gpu-1",)


async def a_plain_job_is_what_it_is_whatever_its_name_says(queue: Queue) -> None:
    plain = (await _read(queue))[0]
    job = plain.job
    assert (job.root, job.tasks, job.uid, job.partitions) == (job.job_id, 1, NOBODY, ("gpu",))
    assert (job.wish, job.pin, job.open) == (Wish.AUTO, "", False)
    assert job.since >= plain.submitted_at > 1_700_000_000
    assert (plain.wanted.gres, plain.wanted.cpus, plain.wanted.limit_s) == ("vgpu:2", 16, 5400)
    assert plain.comment == COMMENT


async def an_array_is_one_record_that_can_be_named_in_part(queue: Queue) -> None:
    array = (await _read(queue))[1]
    root = array.job.root
    assert (array.job.tasks, array.wanted.limit_s) == (4, 0)
    assert [array.name(tasks) for tasks in (4, 2, 1)] == [f"{root}_[0,3,6,9]", f"{root}_[0,3]", f"{root}_[0]"]


async def what_runs_and_which_doors_are_open_is_told(queue: Queue) -> None:
    assert len(await queue.running("gpu")) == 2
    assert await queue.running("cloud") == ()
    doors = await queue.partitions()
    assert doors.items() >= {"gpu": "up", "plain": "up", "vgpu-wait": "down", "cloud": "up"}.items()


CHECKS = (
    each_tells_what_keeps_it_here,
    a_plain_job_is_what_it_is_whatever_its_name_says,
    an_array_is_one_record_that_can_be_named_in_part,
    what_runs_and_which_doors_are_open_is_told,
)
