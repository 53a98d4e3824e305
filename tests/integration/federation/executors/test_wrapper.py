"""The wrapper alone, on hosts that lack what it would like to have, and in the hands of whoever kills it."""

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from federation.executors import layout, processes
from federation.executors.layout import Ending
from federation.model.spec import JobSpec
from federation.model.states import End
from federation.model.token import Key

Tools = Callable[..., str]
KEY = Key(UUID(int=9), 1)
TOOLS = [
    "cat",
    "cut",
    "date",
    "env",
    "getent",
    "id",
    "kill",
    "ln",
    "mv",
    "readlink",
    "rm",
    "setsid",
    "sh",
    "sleep",
    "sync",
    "tr",
    "true",
    "wc",
]


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    (tmp_path / "attempt" / layout.WORK).mkdir(parents=True)
    return tmp_path / "attempt"


@pytest.fixture(name="small")
def _small(tmp_path: Path) -> Iterator[Path]:
    """An attempt's folder on a disk that is soon full."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=64", "tmpfs", tmp_path], check=True)
    try:
        (tmp_path / layout.WORK).mkdir()
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def lay(attempt: Path, script: str) -> None:
    for name, content in layout.files(KEY, JobSpec(user="root", script=f"#!/bin/sh\n{script}\n".encode())).items():
        (attempt / name).write_bytes(content)
        (attempt / name).chmod(0o700)


def start(attempt: Path, path: str = "/usr/bin:/bin", limit_s: int = 0, **env: str) -> "subprocess.Popen[bytes]":
    argv = layout.argv(str(attempt), limit_s)
    return subprocess.Popen(argv, env={"PATH": path, **env}, start_new_session=True, stdin=subprocess.DEVNULL)


def ended(attempt: Path) -> Ending:
    found = layout.parse_exit((attempt / layout.EXIT).read_text())
    assert found is not None
    return found


def wait_for(path: Path) -> None:
    until(lambda: path.exists() and path.stat().st_size > 0)


def waiter_of(attempt: Path) -> int:
    """The parent of what leads the job."""
    leader = int((attempt / layout.SESSION).read_text())
    return int(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[1])


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """A folder with what the wrapper needs, and these."""

    def made(*more: str) -> str:
        folder = tmp_path / "tools"
        folder.mkdir()
        for name in (*TOOLS, *more):
            found = shutil.which(name)
            assert found is not None
            (folder / name).symlink_to(found)
        return str(folder)

    return made


@pytest.fixture(params=["no awk", "an awk that tells no signals", "an env without --default-signal"])
def poor_path(request: pytest.FixtureRequest, tools: Tools) -> str:
    """A folder with what the wrapper needs, less one thing; perl is there."""
    kept = ("awk",) if request.param == "an env without --default-signal" else ()
    folder = Path(tools("perl", *kept))
    if request.param == "an awk that tells no signals":
        (folder / "awk").write_text("#!/bin/sh\necho 0\n")
        (folder / "awk").chmod(0o755)
    if request.param == "an env without --default-signal":
        (folder / "env").unlink()
        (folder / "env").write_text('#!/bin/sh\ncase $1 in --*) exit 125 ;; esac\nexec /usr/bin/env "$@"\n')
        (folder / "env").chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("script", "code", "number"), [("exit 137", 137, None), ("kill -9 $$", None, 9), ("exit 0", 0, None)]
)
def test_a_host_that_lacks_a_tool_still_tells_codes_from_signals(
    attempt: Path, poor_path: str, script: str, code: int | None, number: int | None
) -> None:
    lay(attempt, script)
    assert start(attempt, poor_path).wait(30) == (code if code is not None else 128 + (number or 0))
    outcome = ended(attempt).outcome
    assert (outcome.exit_code, outcome.signal) == (code, number)


@pytest.mark.soak
@pytest.mark.parametrize("waits", ["awk", "perl"])
def test_each_of_all_exit_codes_is_told_as_it_is(tmp_path: Path, tools: Tools, waits: str) -> None:
    path = tools("perl") if waits == "perl" else "/usr/bin:/bin"
    for code in range(256):
        attempt = tmp_path / str(code)
        (attempt / layout.WORK).mkdir(parents=True)
        lay(attempt, f"exit {code}")
        assert start(attempt, path).wait(30) == code
        outcome = ended(attempt).outcome
        assert (outcome.exit_code, outcome.signal) == (code, None)


def test_who_loses_the_claim_runs_nothing(attempt: Path) -> None:
    lay(attempt, "echo ran >> ran")
    racers = [start(attempt) for _ in range(8)]
    for racer in racers:
        racer.wait(30)
    assert (attempt / layout.WORK / "ran").read_text() == "ran\n"
    assert (attempt / layout.EXIT).exists()


@pytest.mark.parametrize("fetched", [False, True])
def test_who_comes_when_all_was_fetched_leaves_nothing_behind(attempt: Path, fetched: bool) -> None:
    """Slurm makes a job's output file before anything of it runs, for one that it starts a second time too."""
    lay(attempt, "true")
    assert start(attempt).wait(30) == 0
    wrapper = (attempt / layout.WRAPPER).rename(attempt.parent / "wrapper")
    if fetched:
        (attempt / layout.GO).unlink()
    (attempt / "backend").touch()
    assert subprocess.run(["/bin/sh", str(wrapper), str(attempt), "0"], capture_output=True).returncode == 0
    assert (attempt / "backend").exists() is not fetched


def test_what_can_t_be_claimed_for_want_of_room_is_claimed_later(small: Path) -> None:
    lay(small, "echo ran >> ran; exit 3")
    for number in itertools.count():
        try:
            (small / f"filler{number}").touch()
        except OSError:
            break
    wrapper = start(small)
    until(lambda: bool(list(asleep(wrapper.pid))))
    assert not (small / layout.CLAIM).is_symlink()
    for filler in small.glob("filler*"):
        filler.unlink()
    assert wrapper.wait(30) == 3
    assert (small / layout.WORK / "ran").read_text() == "ran\n"


def asleep(pid: int) -> Iterator[int]:
    """Sleeps that this process has begun."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            sleeps = (process / "comm").read_text() == "sleep\n"
            if sleeps and int((process / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(process.name)


def test_a_forgotten_folder_runs_nothing(attempt: Path) -> None:
    lay(attempt, "echo ran >> ran")
    wrapper = attempt.parent / "wrapper"
    (attempt / layout.WRAPPER).rename(wrapper)
    shutil.rmtree(attempt)
    assert subprocess.run(["/bin/sh", str(wrapper), str(attempt), "0"], capture_output=True).returncode == 0
    assert not attempt.exists()


def test_a_job_whose_waiter_was_killed_goes_on_and_ends_with_a_record(attempt: Path) -> None:
    lay(attempt, "until [ -e go-on ]; do sleep 0.05; done; echo whole")
    wrapper = start(attempt)
    wait_for(attempt / layout.SESSION)
    os.kill(waiter_of(attempt), signal.SIGKILL)
    (attempt / layout.WORK / "go-on").touch()
    wrapper.wait(30)
    assert (attempt / layout.STDOUT).read_text() == "whole\n"
    assert ended(attempt).by_term
    assert ended(attempt).outcome.exit_code is None


def test_what_is_sent_to_every_process_reaches_the_job_and_its_code_is_kept(attempt: Path) -> None:
    lay(attempt, "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    wrapper = start(attempt)
    wait_for(attempt / layout.STDOUT)
    session = int((attempt / layout.SESSION).read_text())
    os.killpg(wrapper.pid, signal.SIGTERM)
    os.killpg(session, signal.SIGTERM)
    assert wrapper.wait(30) == 5
    assert (ended(attempt).outcome.exit_code, ended(attempt).by_term) == (5, True)


def test_what_the_job_left_behind_is_ended_with_it(attempt: Path) -> None:
    lay(attempt, "sleep 1000 & echo $! > child; sleep 1000 > /dev/null & exit 4")
    assert start(attempt).wait(30) == 4
    child = int((attempt / layout.WORK / "child").read_text())
    until(lambda: not processes.is_running(child))


def test_a_limit_asks_first_and_leaves_no_guard_behind(attempt: Path) -> None:
    lay(attempt, "trap 'echo asked; exit 6' TERM; while :; do sleep 0.05; done")
    began = time.monotonic()
    wrapper = start(attempt, limit_s=1)
    assert wrapper.wait(30) == 6
    assert time.monotonic() - began < 15
    outcome = ended(attempt).outcome
    assert (outcome.end, outcome.exit_code) == (End.TIMEOUT, 6)
    assert (attempt / layout.STDOUT).read_text() == "asked\n"
    until(lambda: not list(processes.members(os.geteuid(), wrapper.pid, "nobody's")))


def test_a_cancel_that_reaches_the_guard_of_the_limit_first_is_no_timeout(attempt: Path) -> None:
    """Slurm's goes to all processes, one after the other."""
    limit_s = 700_000 + os.getpid()
    lay(attempt, "until [ -e go-on ]; do sleep 0.05; done")
    wrapper = start(attempt, limit_s=limit_s)
    until(lambda: bool(guards(limit_s)))
    for pid in guards(limit_s):
        os.kill(pid, signal.SIGTERM)
    until(lambda: not guards(limit_s))
    (attempt / layout.WORK / "go-on").touch()
    assert wrapper.wait(30) == 0
    assert ended(attempt).outcome.end is End.EXITED


def guards(limit_s: int) -> list[int]:
    """Who sleeps so long."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cmdline").read_bytes() == b"sleep\0%d\0" % limit_s:
                found.append(int(process.name))
    return found


def test_a_claim_is_known_by_more_than_a_number(attempt: Path) -> None:
    lay(attempt, "until [ -e go-on ]; do sleep 0.05; done")
    wrapper = start(attempt)
    wait_for(attempt / layout.SESSION)
    claim = layout.parse_claim(os.readlink(attempt / layout.CLAIM))  # noqa: PTH115
    assert claim.pid == wrapper.pid
    assert processes.alive(claim.pid, claim.start, claim.boot)
    assert not processes.alive(claim.pid, claim.start + 1, claim.boot)  # the number, used again
    assert not processes.alive(claim.pid, claim.start, "0" * 36)  # after a boot
    (attempt / layout.WORK / "go-on").touch()
    wrapper.wait(30)
    assert not processes.alive(claim.pid, claim.start, claim.boot)


def test_no_signal_goes_to_a_process_of_another_user(attempt: Path) -> None:
    lay(attempt, "until [ -e go-on ]; do sleep 0.05; done")
    wrapper = start(attempt)
    wait_for(attempt / layout.SESSION)
    assert not processes.send(wrapper.pid, os.geteuid() + 1, signal.SIGKILL)
    assert processes.send(wrapper.pid, os.geteuid(), 0)
    (attempt / layout.WORK / "go-on").touch()
    assert wrapper.wait(30) == 0


BUSY = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done"


def test_what_it_used_is_on_record(attempt: Path) -> None:
    lay(attempt, f"sh -c '{BUSY}'")
    assert start(attempt, CUDA_VISIBLE_DEVICES="MIG-1f,MIG-2e").wait(20) == 0
    outcome = ended(attempt).outcome
    assert (outcome.node, outcome.slices, outcome.memory_mib) == (os.uname().nodename, "MIG-1f,MIG-2e", None)
    assert outcome.cpu_s is not None
    assert 0.05 < outcome.cpu_s < 20


@pytest.mark.parametrize("slices", ["", "NoDevFiles", "a b", "$(touch wrong)", "MIG-" + "x" * 400, "a\nb"])
def test_a_variable_that_is_no_list_of_slices_spoils_no_record(attempt: Path, slices: str) -> None:
    lay(attempt, "exit 3")
    assert start(attempt, CUDA_VISIBLE_DEVICES=slices, SLURM_JOB_ID="*").wait(20) == 3
    assert (ended(attempt).outcome.exit_code, ended(attempt).outcome.slices) == (3, "")


@pytest.mark.parametrize("waits", ["awk", "perl", "sh"])
def test_a_code_is_kept_though_the_disk_was_full_when_the_job_ended(
    small: Path, tmp_path_factory: pytest.TempPathFactory, waits: str
) -> None:
    tools = tmp_path_factory.mktemp("tools")
    for name in (*TOOLS, "head", *({waits} - {"sh"})):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    lay(small, "head -c 100000 /dev/zero > filler; until [ -e go-on ]; do sleep 0.05; done; exit 7")
    wrapper = start(small, str(tools))
    until(lambda: shutil.disk_usage(small).free == 0)
    waiter = waiter_of(small)
    (small / layout.WORK / "go-on").touch()
    until(lambda: not processes.is_running(waiter))
    (small / layout.WORK / "filler").unlink()
    assert wrapper.wait(30) == 7
    assert ended(small).outcome.exit_code == 7
