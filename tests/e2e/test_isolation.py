"""Who can open whose slice: another user, another job of the same user, and somebody who stayed."""

import os
import pwd
import re
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_plugin.lab import commands, processes, simgpu
from slurm_plugin.lab.nvml.tree import CAPABILITY_MAJOR
from slurm_plugin.nvml.caps import CapMinors
from slurm_plugin.slurm.chain import AGENT_CAPABILITIES, CONTROLLER_CAPABILITIES
from tests.cases import device_program
from tests.e2e.live import SEE, Live

pytestmark = pytest.mark.slurm

NODE = "n1"
ROOTS = (0, 0o400)
CAPABILITY_BITS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "MKNOD": 27}


def caps_folder(live: Live) -> Path:
    return live.lab.node_folder(NODE) / "dev/nvidia-caps"


def caps(live: Live, uuid: str) -> list[Path]:
    """The two capability devices of a slice of NODE."""
    one = simgpu.snapshot(live.lab.sim_state(NODE)).slices()[uuid]
    minors = CapMinors(live.lab.node_folder(NODE) / "proc").of(one.gpu, one.gi, one.compute[0].id)
    return [caps_folder(live) / f"nvidia-cap{minor}" for minor in minors]


def owner(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_uid, stat.S_IMODE(facts.st_mode)


def uid(user: str) -> int:
    return pwd.getpwnam(user).pw_uid


def start(live: Live, user: str, script: str = f"{SEE}; exec sleep 1000") -> tuple[str, str]:
    """A job on NODE, and its slice."""
    job = live.submit(user, "--gres=vgpu:2g.20gb", f"-w{NODE}", script=script)
    [(_, (slice_,))] = live.wait_sees(user, job)
    return job, slice_


def can_open(live: Live, user: str, paths: list[Path]) -> list[bool]:
    return [live.run(user, "cat", str(path)).code == 0 for path in paths]


def isolation(live: Live, job: str) -> str:
    said = live.vgpu("show", "job", job)
    assert said.code == 0, said.err
    match = re.search(r"isolation (\S+)", said.out)
    assert match is not None, said.out
    return match[1]


# The first lock: file modes, against other users


def test_another_user_can_not_open_a_slice_whatever_the_drivers_tools_do_to_modes(live: Live) -> None:
    job, slice_ = start(live, "alice")
    devices = caps(live, slice_)
    simgpu.modprobe(live.lab.sim_state(NODE))  # setuid root: anybody may run it
    assert [owner(path) for path in devices] == [(uid("alice"), 0o400)] * 2
    assert can_open(live, "alice", devices) == [True, True]
    assert can_open(live, "bob", devices) == [False, False]
    devices[0].chmod(0o444)  # hers to do, and until her job ends
    live.slurm("scancel", job)
    live.until(lambda: [owner(path) for path in devices] == [ROOTS] * 2, "the devices are root's again")
    simgpu.modprobe(live.lab.sim_state(NODE))
    assert [owner(path) for path in devices] == [ROOTS] * 2
    assert can_open(live, "alice", devices) == [False, False]


def test_a_slice_that_nobody_has_is_nobodys_to_open(live: Live) -> None:
    simgpu.modprobe(live.lab.sim_state(NODE))
    for slice_ in simgpu.snapshot(live.lab.sim_state(NODE)).slices():
        assert [owner(path) for path in caps(live, slice_)] == [ROOTS] * 2


# The second lock: the device program, against the same user's other jobs


@pytest.fixture
def real_devices(live: Live) -> Iterator[None]:
    """Capability devices as character devices: they can be told apart by the kernel, but no driver answers."""

    def replace(make: Callable[[Path, int], None]) -> None:
        for path in sorted(caps_folder(live).glob("nvidia-cap*")):
            facts, fresh = path.stat(), path.with_name("fresh")
            make(fresh, int(path.name.removeprefix("nvidia-cap")))
            os.chown(fresh, facts.st_uid, facts.st_gid)
            fresh.chmod(stat.S_IMODE(facts.st_mode))
            fresh.replace(path)

    replace(lambda path, minor: os.mknod(path, stat.S_IFCHR, os.makedev(CAPABILITY_MAJOR, minor)))
    yield
    live.settle()
    replace(lambda path, _: path.touch())


NO_DRIVER = "No such device or address"  # the kernel would have let it open
MODES = "Permission denied"
PROGRAM = "Operation not permitted"


def try_all(live: Live, user: str, job: str, paths: list[Path]) -> list[str]:
    """What becomes of opening these devices from within a job, one answer each."""
    tries = "; ".join(f"cat {path}" for path in paths)
    ran = live.run(user, "srun", f"--jobid={job}", "--overlap", "-n1", "--gres=none", "sh", "-c", tries, LC_ALL="C")
    answers = re.findall(r"^cat: \S+: (.*)$", ran.err, re.MULTILINE)
    assert len(answers) == len(paths), ran
    return answers


KERNEL_CAN = not device_program.why_not()


def test_a_second_job_of_the_same_user_can_not_open_the_slice_of_the_first(live: Live, real_devices: None) -> None:
    first, mine = start(live, "alice")
    second, other = start(live, "alice")
    locked = PROGRAM if KERNEL_CAN else NO_DRIVER
    level = "mig+modes+cgroup" if KERNEL_CAN else "mig+modes"
    for _ in range(2):
        assert try_all(live, "alice", first, caps(live, mine)) == [NO_DRIVER] * 2
        assert try_all(live, "alice", first, caps(live, other)) == [locked] * 2
        assert try_all(live, "alice", second, caps(live, mine)) == [locked] * 2
        assert [isolation(live, job) for job in (first, second)] == [level] * 2
        commands.kill(live.lab.name, f"agent:{NODE}", live.base)
        live.until(lambda: commands.status(live.lab.name, live.base).lacks == "", "the agent is back")
        live.until(lambda: live.vgpu("show", "job", first).code == 0, "the agent has said what it has")


def test_a_job_without_a_slice_can_not_open_that_of_another_job_of_its_user(live: Live, real_devices: None) -> None:
    _, slice_ = start(live, "alice")
    without = live.submit("alice", f"-w{NODE}")
    live.wait_sees("alice", without)
    locked = PROGRAM if KERNEL_CAN else NO_DRIVER
    assert try_all(live, "alice", without, caps(live, slice_)) == [locked] * 2


def test_both_locks_are_on_another_users_job(live: Live, real_devices: None) -> None:
    _, slice_ = start(live, "alice")
    job, _ = start(live, "bob")
    devices = caps(live, slice_)
    assert try_all(live, "bob", job, devices) == [MODES] * 2
    for path in devices:
        path.chmod(0o444)
    assert try_all(live, "bob", job, devices) == [PROGRAM if KERNEL_CAN else NO_DRIVER] * 2


def test_a_device_node_that_is_not_there_is_made(live: Live, real_devices: None) -> None:
    """Those of instances made through NVML alone exist only once the driver's tools were asked for them."""
    idle = [*simgpu.snapshot(live.lab.sim_state(NODE)).slices()]
    for path in (path for slice_ in idle for path in caps(live, slice_)):
        path.unlink()
    job, slice_ = start(live, "alice")
    assert [owner(path) for path in caps(live, slice_)] == [(uid("alice"), 0o400)] * 2
    assert try_all(live, "alice", job, caps(live, slice_)) == [NO_DRIVER] * 2
    for path in (path for slice_ in idle for path in caps(live, slice_)):
        path.touch(mode=0o400)


# Who stayed


def test_a_slice_that_a_process_of_its_last_job_still_has_open_is_held_back_until_it_goes(live: Live) -> None:
    mine = f'$(find {caps_folder(live)} -user alice -name "nvidia-cap*" | head -1)'
    orphan = f"(setsid sh -c 'echo $$ > orphan; exec 3< {mine}; exec sleep 1000' > /dev/null 2>&1 &)"
    script = f"{SEE}; {orphan}; until [ -s orphan ]; do :; done; exec sleep 1000"
    job, slice_ = start(live, "alice", script)
    pid_file = live.home("alice") / "orphan"
    live.until(lambda: pid_file.exists() and pid_file.read_text().strip() != "", "the orphan has the device open")
    pid = int(pid_file.read_text())
    try:
        live.until(lambda: open_files(pid) & set(caps(live, slice_)) != set(), "the orphan has the device open")
        live.slurm("scancel", job)
        live.until(lambda: f"2g.20gb held by pid {pid} (sleep, alice)" in live.vgpu("status").out, "it is told")
        others = [start(live, "bob")[1] for _ in range(3)]
        assert slice_ not in others
    finally:
        os.kill(pid, signal.SIGKILL)
    live.until(lambda: " held " not in live.vgpu("status").out.replace("h held", ""), "it is idle again")
    assert start(live, "bob")[1] == slice_


CHAIN = """
import glob, os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
kept = [os.open(one, os.O_RDONLY) for one in glob.glob("CAPS/nvidia-cap*") if os.stat(one).st_uid == os.getuid()]
until = time.monotonic() + 300
if os.fork() == 0:
    os.setsid()
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
"""


def test_a_chain_of_forks_that_outlives_its_job_does_not_hide_the_slice_it_has_open(live: Live) -> None:
    (live.home("bob") / "chain.py").write_text(CHAIN.replace("CAPS", str(caps_folder(live))))
    script = f"{'python3 chain.py; ' if KERNEL_CAN else ''}{SEE}; exec sleep 1000"  # else it is found by chance
    job, slice_ = start(live, "bob", script)
    named = re.compile(rf"processes of job {job} \(bob\) that outlive it, in (/\S+/{job}-\d+-\d+)")
    live.slurm("scancel", job)
    cgroups: set[str] = set()

    def is_named() -> bool:
        now = named.findall(live.vgpu("doctor").out)
        cgroups.update(now)
        return bool(now)

    try:
        for _ in range(2 if KERNEL_CAN else 0):
            live.until(is_named, "its job is named")
            assert slice_ not in start(live, "alice")[1:]
            commands.kill(live.lab.name, f"agent:{NODE}", live.base)
            live.until(lambda: commands.status(live.lab.name, live.base).lacks == "", "the agent is back")
    finally:
        for cgroup in cgroups:
            (Path(cgroup) / "cgroup.kill").write_text("1")
    live.until(lambda: not re.search(r"held by", live.vgpu("status").out), "it is idle again")
    assert start(live, "alice")[1] == slice_


def open_files(pid: int) -> set[Path]:
    return {link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir()}


# The daemons themselves


def test_the_daemons_run_with_the_capabilities_of_their_units_and_no_others(live: Live) -> None:
    running = processes.daemons_of(live.lab.folder)
    for daemon, names in ((f"agent:{NODE}", AGENT_CAPABILITIES), ("controller", CONTROLLER_CAPABILITIES)):
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{running[daemon].pid}/status").read_text().splitlines()
        )
        wanted = sum(1 << CAPABILITY_BITS[name.removeprefix("CAP_")] for name in names)
        assert {int(status[kind], 16) for kind in ("CapPrm", "CapEff", "CapBnd")} == {wanted}
        assert status["NoNewPrivs"] == "1"
