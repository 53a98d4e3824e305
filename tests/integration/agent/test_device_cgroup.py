"""The second lock on the kernel's own cgroups. /dev/null, zero, full and urandom stand for capability devices of two
GPUs of the pool, /dev/random for one of a GPU that is not the pool's.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_plugin.agent import device_cgroup, outlived
from slurm_plugin.agent.device_cgroup import DeviceCgroup
from slurm_plugin.agent.peer import StepProcess
from slurm_plugin.model import RunKey
from slurm_plugin.nvml.holders import open_in
from tests.cases import device_program

FOLDER = f"vgpu-test-{os.getpid()}"
DEVICES = {"null": 3, "zero": 5, "full": 7, "urandom": 9, "random": 8}
POOLS = frozenset({3, 5, 6, 7, 9})
RUN = RunKey(job_id=7, started_at=100, uid=1000)
OTHER = RunKey(job_id=8, started_at=100, uid=1000)
WHY_NOT = device_program.why_not()
# A task: it waits for leave to go on, opens each device, says which it could, and waits for its end.
TASK = """
import os, sys
for _ in iter(sys.stdin.readline, ""):
    could = []
    for name in NAMES:
        try:
            os.close(os.open(f"/dev/{name}", os.O_RDONLY))
        except PermissionError:
            continue
        could.append(name)
    print(*could, flush=True)
""".replace("NAMES", repr(tuple(DEVICES)))


class Task:
    """A child of a shell that stands for its slurmstepd."""

    def __init__(self) -> None:
        argv = ["sh", "-c", 'echo $$; "$1" -uc "$2"; :', "sh", sys.executable, f"import os; print(os.getpid())\n{TASK}"]
        self.shell = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.step = StepProcess(job_id=7, step="0", pid=int(self.says()), started=1)
        self.pid = int(self.says())

    def says(self) -> str:
        assert self.shell.stdout is not None
        return self.shell.stdout.readline().strip()

    def opens(self) -> set[str]:
        assert self.shell.stdin is not None
        self.shell.stdin.write("go\n")
        self.shell.stdin.flush()
        return set(self.says().split())

    def end(self) -> None:
        self.shell.communicate()


@pytest.fixture
def task() -> Iterator[Task]:
    task = Task()
    yield task
    task.end()


def cgroups(tmp_path: Path) -> DeviceCgroup:
    (tmp_path / "devices").write_text("Character devices:\n  1 nvidia-caps\n195 nvidia\n")
    made = DeviceCgroup(lambda: POOLS, proc_root=tmp_path, folder=FOLDER)
    made.start()
    return made


@pytest.fixture
def slurms(task: Task) -> Iterator[Path | None]:
    """A job's cgroup as Slurm makes it, with the task's step in it; None on a kernel without."""
    mount = device_cgroup._cgroup2(Path("/proc"))
    if mount is None:
        yield None
        return
    job = mount / f"{FOLDER}-slurmstepd.scope/job_7"
    where = job / "step_0/user"
    where.mkdir(parents=True)
    for pid in (task.step.pid, task.pid):
        (where / "cgroup.procs").write_text(str(pid))
    yield job
    task.end()
    for folder in (where, where.parent, job / "step_extern", job, job.parent):
        if folder.exists():
            folder.rmdir()


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[DeviceCgroup]:
    """On a kernel without cgroup2 or bpf there is no second lock, and it says so: `reach` knows what then holds."""
    lock = cgroups(tmp_path)
    assert lock.why_not == WHY_NOT
    yield lock
    device_cgroup.remove(FOLDER)
    assert not list(homes())


def homes() -> Iterator[Path]:
    mount = device_cgroup._cgroup2(Path("/proc"))
    return mount.glob(f"**/{FOLDER}") if mount else iter(())


def reach(*names: str) -> set[str]:
    return set(DEVICES) if WHY_NOT else {*names, "random"}


def test_a_task_opens_its_jobs_devices_and_no_others(lock: DeviceCgroup, task: Task) -> None:
    assert lock.confine(RUN, [3, 5], task.pid, task.step) is (not WHY_NOT)
    assert task.opens() == reach("null", "zero")


def test_a_task_is_confined_by_its_prolog_which_is_not(lock: DeviceCgroup, task: Task) -> None:
    """The shell stands for the task here, and its child for the prolog."""
    outer = StepProcess(job_id=7, step="0", pid=os.getpid(), started=1)
    lock.confine(RUN, [3], task.pid, outer)
    assert task.opens() == set(DEVICES)
    assert [lock.confines(pid, RUN) for pid in (task.shell.pid, task.pid)] == [not WHY_NOT, False]


def test_a_job_without_slices_opens_none(lock: DeviceCgroup, task: Task) -> None:
    lock.confine(RUN, [], task.pid, task.step)
    assert task.opens() == reach()


def test_devices_of_gpus_that_are_not_the_pools_are_everybodys_that_their_modes_let(
    lock: DeviceCgroup, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_pools", lambda: frozenset({3}))
    lock.confine(RUN, [], task.pid, task.step)
    assert task.opens() == (set(DEVICES) if WHY_NOT else set(DEVICES) - {"null"})


def test_what_is_attached_stays_while_the_driver_has_not_told_which_gpus_there_are(
    lock: DeviceCgroup, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.confine(RUN, [3], task.pid, task.step)
    monkeypatch.setattr(lock, "_pools", lambda: frozenset())
    assert not lock.confine(RUN, [3], task.pid, task.step)
    lock.sweep(frozenset())
    assert task.opens() == reach("null")


def test_two_jobs_of_one_user_open_their_own(lock: DeviceCgroup, task: Task) -> None:
    second = Task()
    lock.confine(RUN, [3], task.pid, task.step)
    lock.confine(OTHER, [5], second.pid, second.step)
    assert (task.opens(), second.opens()) == (reach("null"), reach("zero"))
    second.end()


def test_confining_again_changes_nothing(lock: DeviceCgroup, task: Task) -> None:
    for _ in range(3):
        lock.confine(RUN, [3, 5], task.pid, task.step)
    assert task.opens() == reach("null", "zero")
    for home in homes():
        assert [len(device_cgroup._programs(folder)) for folder in device_cgroup._folders(home)] == [1]


def test_another_agent_finds_what_the_last_one_made(lock: DeviceCgroup, task: Task, tmp_path: Path) -> None:
    lock.confine(RUN, [3], task.pid, task.step)
    anew = cgroups(tmp_path)
    assert (anew.confines(task.pid, RUN), anew.confines(task.pid, OTHER)) == (not WHY_NOT, False)
    anew.confine(RUN, [3], task.pid, task.step)
    assert task.opens() == reach("null")


def test_cgroups_that_go_while_an_agent_looks_do_not_keep_it_from_starting(lock: DeviceCgroup, tmp_path: Path) -> None:
    mount = device_cgroup._cgroup2(Path("/proc"))
    if mount is None:
        return  # there is nothing to look through
    jobs = mount / f"{FOLDER}-jobs"
    comes = "import os, sys\nwhile True:\n os.makedirs(sys.argv[1] + '/a/b')\n os.removedirs(sys.argv[1] + '/a/b')"
    with subprocess.Popen([sys.executable, "-c", comes, str(jobs)]) as slurm:
        try:
            for _ in range(200):
                lock.start()
            assert slurm.poll() is None
        finally:
            slurm.kill()
    for folder in (jobs / "a/b", jobs / "a", jobs):
        if folder.exists():
            folder.rmdir()


def test_what_a_run_left_is_removed_and_what_it_left_alive_opens_nothing(lock: DeviceCgroup, task: Task) -> None:
    lock.confine(RUN, [3, 5], task.pid, task.step)
    lock.sweep(frozenset({RUN}))
    assert task.opens() == reach("null", "zero")
    lock.sweep(frozenset())
    assert task.opens() == reach()
    task.end()
    lock.sweep(frozenset())
    assert not any(device_cgroup._folders(home) for home in homes())


def test_a_process_that_is_not_of_the_step_is_left_where_it_is(lock: DeviceCgroup, task: Task) -> None:
    stranger = StepProcess(job_id=7, step="0", pid=2**22 + 1, started=1)
    assert not lock.confine(RUN, [3], task.pid, stranger)
    assert task.opens() == set(DEVICES)


def test_a_kernel_without_cgroup2_leaves_one_lock_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("24 1 0:5 / /sys/fs/cgroup rw - cgroup cgroup rw\n")
    (tmp_path / "devices").write_text("1 nvidia-caps\n")
    lock = DeviceCgroup(lambda: POOLS, proc_root=tmp_path, proc=tmp_path)
    lock.start()
    assert lock.why_not == "no cgroup2 is mounted"
    assert not lock.confine(RUN, [3], os.getpid(), StepProcess(job_id=7, step="0", pid=1, started=1))
    assert not lock.confines(os.getpid(), RUN)
    lock.sweep(frozenset())


def test_a_driver_without_capability_devices_is_told(tmp_path: Path) -> None:
    lock = DeviceCgroup(lambda: POOLS, proc_root=tmp_path)
    lock.start()
    assert WHY_NOT == "no cgroup2 is mounted" or "names no nvidia-caps" in lock.why_not


def test_a_driver_that_is_loaded_later_is_noticed(tmp_path: Path) -> None:
    lock = DeviceCgroup(lambda: POOLS, proc_root=tmp_path, folder=FOLDER)
    lock.start()
    assert lock.why_not
    (tmp_path / "devices").write_text("1 nvidia-caps\n")
    lock.sweep(frozenset())
    assert lock.why_not == WHY_NOT


def test_where_slurm_has_a_cgroup_of_the_job_that_is_the_one(
    lock: DeviceCgroup, task: Task, slurms: Path | None
) -> None:
    lock.confine(RUN, [3], task.pid, task.step)
    assert task.opens() == reach("null")
    assert not list(homes())
    assert (slurms is not None and len(device_cgroup._programs(slurms)) == 1) is (not WHY_NOT)


# Slurm's own device program, as it is where a GRES has devices: no minor 8, and yes to all else.
SLURMS = (*(0x61, 0x12, 8, 0), *(0x55, 2, 2, 8), *device_program.NONE, *device_program.ALL)


@pytest.mark.parametrize("below", [(), ("step_0/user",)], ids=["on the job", "on the step too"])
def test_it_holds_beside_slurms_own_program_which_goes_on_holding(
    lock: DeviceCgroup, task: Task, slurms: Path | None, tmp_path: Path, below: tuple[str, ...]
) -> None:
    if slurms is None or WHY_NOT:
        return  # this machine has no second lock, as other tests say
    slurms_own = device_program.load(SLURMS)
    levels = [slurms, *(slurms / one for one in below)]
    (slurms / "step_extern").mkdir()
    for level in levels:
        device_program.attach(level, slurms_own)
    assert task.opens() == set(DEVICES) - {"random"}
    for _ in range(2):
        assert lock.confine(RUN, [3], task.pid, task.step)
        assert task.opens() == {"null"}
        for level in levels:  # as its next step does
            device_program.attach(level, slurms_own)
    assert cgroups(tmp_path).confines(task.pid, RUN)
    assert lock.confine(RUN, [3, 5], task.pid, task.step)
    assert task.opens() == {"null", "zero"}
    assert [len(device_cgroup._programs(slurms / one)) for one in ("step_0", "step_extern", ".")] == [1, 1, 0]
    os.close(slurms_own)


def test_slurms_own_cgroup_of_the_job_is_known_by_its_name() -> None:
    path = "system.slice/slurmstepd.scope/job_7/step_batch/user/task_0"
    assert device_cgroup._slurms(path, 7) == "system.slice/slurmstepd.scope/job_7"
    assert device_cgroup._slurms(path, 70) is None
    assert device_cgroup._slurms("system.slice/slurmd.service", 7) is None


# What outlives its run

CHAIN = """
import os, sys, time
print(os.getpid(), flush=True)
sys.stdin.readline()
if not os.fork():
    kept, until = os.open(sys.argv[1], os.O_RDONLY), time.monotonic() + 60
    print("held", flush=True)
    while time.monotonic() < until:
        if os.fork(): os._exit(0)
os._exit(0)
"""


@pytest.fixture
def chain(lock: DeviceCgroup, tmp_path: Path) -> Iterator[Path]:
    """The file that a chain of forks has open, which is in RUN's cgroup: each of its processes ends at once."""
    held = tmp_path / "held"
    held.touch()
    argv = ["sh", "-c", 'echo $$; "$@"; :', "sh", sys.executable, "-uc", CHAIN, str(held)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        step = StepProcess(job_id=7, step="0", pid=int(shell.stdout.readline()), started=1)
        lock.confine(RUN, [3], int(shell.stdout.readline()), step)
        shell.stdin.write("go\n")
        shell.stdin.close()
        assert shell.stdout.readline() == "held\n"
        shell.wait()
        yield held
        for folder in [folder for home in homes() for folder in device_cgroup._folders(home)]:
            (folder / "cgroup.kill").write_text("1")
            until(lambda: not outlived.is_populated(folder))  # noqa: B023 - called at once


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_chain_of_forks_holds_still_while_it_is_looked_at(lock: DeviceCgroup, chain: Path) -> None:
    held = lock.hold_still([RUN, OTHER], ())
    assert [(one.run, one.still) for one in held] == ([] if WHY_NOT else [(RUN, True)])
    for _ in held:
        seen = [open_in({0: (chain,)})[0] for _ in range(3)]
        assert len(set(seen)) == 1
        assert len(seen[0]) >= 1
        lock.go_on(held)
        until(lambda: open_in({0: (chain,)}).get(0) not in seen)  # noqa: B023 - called at once


def test_the_next_agent_lets_go_on_what_the_last_one_held(lock: DeviceCgroup, chain: Path, tmp_path: Path) -> None:
    held = lock.hold_still([RUN], ())
    assert len(held) == (0 if WHY_NOT else 1)
    cgroups(tmp_path)
    for one in held:
        assert "frozen 0" in (one.cgroup / "cgroup.events").read_text()


def test_of_a_run_that_left_nothing_nothing_is_held(lock: DeviceCgroup, task: Task) -> None:
    lock.confine(RUN, [3], task.pid, task.step)
    assert lock.hold_still([OTHER], ()) == ()
    task.end()
    assert lock.hold_still([RUN], ()) == ()
    assert lock.present(RUN) == ()


def test_what_does_not_hold_still_is_told(lock: DeviceCgroup, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlived, "_ask_to_hold", lambda _: True)  # and the kernel does nothing
    lock.confine(RUN, [3], task.pid, task.step)
    held = lock.hold_still([RUN], ())
    assert [(one.run, one.still) for one in held] == ([] if WHY_NOT else [(RUN, False)])


def test_in_slurms_own_cgroup_only_a_jobs_tasks_hold_still_and_only_if_it_has_no_run(
    lock: DeviceCgroup, task: Task, slurms: Path | None
) -> None:
    lock.confine(RUN, [3], task.pid, task.step)
    assert lock.hold_still([RUN], {RUN.job_id}) == ()
    held = lock.hold_still([RUN], ())
    expected = [] if slurms is None or WHY_NOT else [(slurms / "step_0/user", True)]
    assert [(one.cgroup, one.still) for one in held] == expected
    lock.go_on(held)
    assert task.opens() == reach("null")
