import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slurm_plugin.lab import processes
from slurm_plugin.lab.processes import MARK, Process

FOLDER = Path("/run/vgpu-lab/never")


@contextmanager
def running(*argv: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child that has begun: its environment is its own by then."""
    with subprocess.Popen(
        argv, env={"PATH": "/usr/bin:/bin"} | env, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        try:
            if "ready" in argv[-1]:
                assert child.stdout is not None
                assert child.stdout.readline() == b"ready\n"
            assert processes.wait_until(lambda: "PATH" in processes.environ_of(child.pid), limit_s=5)
            yield child
        finally:
            child.kill()


def identity(pid: int) -> Process:
    return processes.table()[pid]


def test_what_carries_the_mark_is_of_the_lab_with_its_children_and_nothing_else() -> None:
    script = "sleep 50 & echo ready; wait"
    with (
        running("sh", "-c", script, **{MARK: f"{FOLDER}:slurmd:n1"}) as ours,
        running("sleep", "50", **{MARK: f"{FOLDER}2:slurmd:n1"}) as longer_name,
        running("sleep", "50", SLURM_CONF=f"{FOLDER}/etc/slurm.conf", SLURM_JOB_ID="7") as salloc_shell,
        running("sleep", "50", SLURM_CONF=f"{FOLDER}/etc/n1/slurm.conf", SLURM_TASK_PID="9") as detached_task,
    ):
        found = processes.all_of(FOLDER)
        pids = {process.pid for process in found}
        assert {ours.pid, detached_task.pid} <= pids
        assert not {longer_name.pid, salloc_shell.pid, os.getpid()} & pids
        assert sorted(process.name for process in found) == ["sh", "sleep", "sleep"]
        assert processes.daemons_of(FOLDER) == {"slurmd:n1": identity(ours.pid)}
        processes.kill(found)
        assert processes.all_of(FOLDER) == ()


def test_no_process_lives_to_see_another_of_them_end(tmp_path: Path) -> None:
    """What loses its power tells nobody that its children died, however many there are."""
    children = 100
    script = f"for n in $(seq {children}); do sleep 50 & done; echo ready; wait -n; touch {tmp_path}/told"
    with running("bash", "-c", script, **{MARK: f"{FOLDER}:slurmd:n1"}) as parent:
        found = sorted(processes.all_of(FOLDER), key=lambda process: process.pid == parent.pid)
        assert len(found) == children + 1
        processes.kill(found)
        assert parent.wait(5) == -signal.SIGKILL
    assert not list(tmp_path.iterdir())


def test_the_caller_and_its_ancestors_are_never_found() -> None:
    # A shell inside a job of the lab takes the lab down: python is the caller, sh its ancestor.
    code = f"from pathlib import Path; from slurm_plugin.lab import processes as p; print(p.all_of(Path('{FOLDER}')))"
    env = {"PATH": "/usr/bin:/bin", "SLURM_CONF": f"{FOLDER}/etc/slurm.conf", "SLURM_TASK_PID": "9"}
    done = subprocess.run(
        ["sh", "-c", f'{sys.executable} -c "{code}"; true'], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "()\n"


def test_a_lab_of_the_same_path_in_another_root_is_another_lab(tmp_path: Path) -> None:
    code = f"import os, time; os.chroot('{tmp_path}'); print('ready', flush=True); time.sleep(50)"
    marks = {MARK: f"{FOLDER}:slurmd:n1", "SLURM_CONF": f"{FOLDER}/etc/n1/slurm.conf", "SLURM_TASK_PID": "9"}
    with running(sys.executable, "-c", code, **marks):
        assert processes.all_of(FOLDER) == ()
        assert processes.daemons_of(FOLDER) == {}
        assert processes.jobs_of(FOLDER / "etc/n1/slurm.conf", FOLDER / "spool") == ()


def test_a_pid_that_now_belongs_to_another_process_is_left_alone() -> None:
    with running("sleep", "50") as child:
        stranger = replace(identity(child.pid), started=1)
        processes.end([stranger], grace_s=0.1)
        processes.kill([stranger])
        assert child.poll() is None


def test_end_asks_first_and_then_makes_it() -> None:
    polite = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    deaf = "trap '' TERM; echo ready; while :; do sleep 0.01; done"
    with running("sh", "-c", polite) as one, running("sh", "-c", deaf) as other:
        began = time.monotonic()
        processes.end([identity(one.pid), identity(other.pid)], grace_s=0.3)
        assert 0.3 <= time.monotonic() - began < 5
        assert (one.wait(5), other.wait(5)) == (3, -9)


def test_the_dead_are_not_found() -> None:
    with running("sleep", "50") as child:
        was = identity(child.pid)
        child.kill()
        assert processes.wait_until(lambda: child.pid not in processes.table(), limit_s=5)  # a zombie until waited for
        processes.end([was], grace_s=0.1)
        assert processes.environ_of(1 << 22) == {}


def test_waiting_is_bounded() -> None:
    assert not processes.wait_until(lambda: False, limit_s=0.02, every_s=0.01)
    assert processes.wait_until(lambda: True, limit_s=0)
