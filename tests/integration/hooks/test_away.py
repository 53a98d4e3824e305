"""The client while its node's agent is away, slow or dying: a job without slices runs, one with slices does not."""

import contextlib
import os
import socket
import subprocess
import threading
import time

import pytest

from tests.integration.hooks.hook import NOBODY, PATIENCE_S, Hook


def test_an_agent_that_dies_before_it_answers_is_asked_again(hook: Hook) -> None:
    hook.listen(b"", b"out a\n", b"out b\nexit 0\n")
    assert hook.run("vgpu-taskprolog").returncode == 0
    assert hook.asked == ["task\n"] * 3


def test_an_agent_that_is_being_restarted_is_waited_for(hook: Hook) -> None:
    """Started first, so that it finds no socket."""
    argv = [str(hook.folder / "vgpu-prolog")]
    with subprocess.Popen(argv, env={"SLURM_JOB_ID": "1"}, stderr=subprocess.PIPE) as client:
        hook.listen(b"exit 0\n")
        assert client.wait(PATIENCE_S) == 0
    assert hook.asked == ["prolog job=1\n"]


def test_an_epilog_ends_in_time_whatever_the_agent_does(hook: Hook) -> None:
    """Two answers break off late, the third never comes: all of that is one call, of at most 5 s."""
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        with listener, contextlib.ExitStack() as callers:
            for patience_s in (2, 2, PATIENCE_S):
                caller, _ = listener.accept()
                callers.enter_context(caller)
                over.wait(patience_s)
                caller.shutdown(socket.SHUT_RDWR)

    listener = hook.bind(hook.roots)
    agent = threading.Thread(target=serve, args=(listener,))
    agent.start()
    began = time.monotonic()
    done = hook.run("vgpu-epilog", SLURM_JOB_ID="1")
    took_s = time.monotonic() - began
    over.set()
    agent.join()
    assert (done.returncode, done.stderr) == (0, "vgpu: this node's agent gave no whole answer in time\n")
    assert 4 < took_s < 7


def test_an_agent_that_takes_no_calls_keeps_nobody(hook: Hook) -> None:
    """connect() of a unix socket waits while the queue is full."""
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as queue:
        listener.bind(str(hook.roots))
        listener.listen(0)
        for _ in range(2):
            one = queue.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(str(hook.roots))
        began = time.monotonic()
        assert hook.run("vgpu-epilog", SLURM_JOB_ID="1").returncode == 0
        assert time.monotonic() - began < 4


def test_an_epilog_does_not_wait_long_for_an_agent_that_is_away(hook: Hook) -> None:
    done = hook.run("vgpu-epilog", SLURM_JOB_ID="1")
    assert done.returncode == 0
    assert "no answer from this node's agent" in done.stderr


class Slurm:
    """Slurm's three commands in a folder: squeue prints `rows`, all write down how they were called.

    `nodes`: of its second partition.
    """

    def __init__(
        self, hook: Hook, *rows: str, script: str = "", scontrol: str = "", nodes: str = "n9,cloud-a-[1-2]"
    ) -> None:
        folder = hook.folder / "bin"
        folder.mkdir(exist_ok=True)
        self._log = folder / "log"
        self._log.write_text("")
        (folder / "rows").write_text("".join(f"{row}\n" for row in rows))
        scontrol = scontrol or f"echo\necho BOOT_TIME = {1700000000 - 3600}"
        listed = f"PartitionName=gpu\n   AllocNodes=ALL\n   Nodes=n1\n\nPartitionName=two\n   Nodes={nodes}\n"
        (folder / "partitions").write_text(listed)
        scontrol = f'[ "$*" != "--all show partition" ] || exec cat {folder}/partitions\n{scontrol}'
        for command, does in (("squeue", f"{script}\ncat {folder}/rows"), ("scontrol", scontrol), ("scancel", "")):
            path = folder / command
            path.write_text(f'#!/bin/sh\necho {command} "$@" "$SLURM_CONF $LD_PRELOAD" >> {self._log}\n{does}\n')
            path.chmod(0o755)
        with hook.conf.open("a") as conf:
            conf.write(f"slurm_bin {folder}\ngres vgpu\n")

    @property
    def ends(self) -> list[str]:
        asks = ("squeue", "scontrol show config", "scontrol --all show partition")
        return [line.strip() for line in self._log.read_text().splitlines() if not line.startswith(asks)]


def row(
    job: int,
    request: str,
    *,
    batch: int = 1,
    requeue: int = 1,
    array: str = "N/A",
    leader: str = "0",
    of: int = 0,
    state: str = "RUNNING",
    comment: str = "",
    submitted: int = 1699990000,
) -> str:
    numbers = (job, 1000, submitted, 1700000000, batch, requeue, of or job, array, leader, state)
    return "".join(f"{one!s:<12}" for one in numbers) + f"{request:<2048}{comment:<4096}"


@pytest.mark.parametrize("request_", ["N/A", "", "gres:gpu:a100:2", "gres:vgpu_mem:2", "gres:xvgpu:1,gpu:vgpu:1"])
def test_a_job_without_slices_runs_while_the_agent_is_away(hook: Hook, request_: str) -> None:
    slurm = Slurm(hook, row(11, "gres:vgpu:m20:1"), row(12, request_))
    assert hook.run("vgpu-prolog", SLURM_JOB_ID="12").returncode == 0
    assert slurm.ends == []
    assert (hook.marks / "12").read_text() == "1700000000 1000\n"
    assert (hook.marks.stat().st_mode & 0o777, (hook.marks / "12").stat().st_mode & 0o777) == (0o711, 0o600)
    hook.open_to_all()
    task = [str(hook.folder / "vgpu-taskprolog")]
    users = subprocess.run(task, user=NOBODY, env={"SLURM_JOB_ID": "12"}, capture_output=True, check=False)
    assert (users.returncode, users.stdout, users.stderr) == (0, b"", b"")
    assert hook.run("vgpu-epilog", SLURM_JOB_ID="12").returncode == 0
    assert not (hook.marks / "12").exists()


@pytest.mark.parametrize(
    ("found", "end"),
    [
        (row(12, "gres:vgpu:m20:1,vgpu_mem:2"), "scontrol requeue 12"),
        (row(12, "gres/vgpu=1"), "scontrol requeue 12"),
        (row(12, "gpu:1,vgpu:m20:1", batch=0), "scancel --quiet 12"),
        (row(12, "vgpu:1", array="3", of=10), "scontrol requeue 10_3"),
        (row(12, "vgpu:1", leader="9"), "scontrol requeue 9"),
        (row(12, "gpu:1," * 400), "scontrol requeue 12"),
    ],
)
def test_a_job_with_slices_never_runs_while_the_agent_is_away(hook: Hook, found: str, end: str) -> None:
    slurm = Slurm(hook, row(10, "N/A"), found)
    hook.marks.mkdir(0o711)
    (hook.marks / "12").write_text("1 1000\n")  # an older run of the same id had no slices
    done = hook.run("vgpu-prolog", SLURM_JOB_ID="12", SLURM_CONF="/etc/s.conf", LD_PRELOAD="")
    assert done.returncode == 0
    assert slurm.ends == [f"{end} /etc/s.conf"]
    assert not (hook.marks / "12").exists()


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 60", "yes | head -c 5000000", "kill -9 $$"])
def test_a_slurm_that_says_nothing_is_no_word_that_a_job_has_no_slices(hook: Hook, script: str) -> None:
    slurm = Slurm(hook, row(12, "N/A"), script=script)
    began = time.monotonic()
    done = hook.run("vgpu-prolog", SLURM_JOB_ID="12")
    assert time.monotonic() - began < 10
    assert (done.returncode, slurm.ends) == (0, [])
    assert "neither agent nor Slurm" in done.stderr
    assert not hook.marks.exists()


def test_a_mark_that_is_not_roots_lets_no_task_pass(hook: Hook) -> None:
    hook.marks.mkdir()
    (hook.marks / "12").touch()
    os.chown(hook.marks / "12", NOBODY, 0)
    done = hook.run("vgpu-taskprolog", SLURM_JOB_ID="12")
    assert done.returncode == 1
    assert "no answer from this node's agent" in done.stdout


OPEN = 'site=1 fed:{"open":1,"attempt":2}'


@pytest.mark.parametrize("comment", [OPEN, "two\nlines " + OPEN, "x" * 4096])
@pytest.mark.parametrize("program", ["vgpu-prolog", "vgpu-guard"])
def test_a_job_that_may_run_at_another_site_never_runs_here(hook: Hook, program: str, comment: str) -> None:
    slurm = Slurm(hook, row(11, "N/A"), row(12, "N/A", array="3", of=10, comment=comment), row(13, "N/A"))
    assert hook.run(program, SLURM_JOB_ID="12").returncode == 0
    assert slurm.ends == ["scontrol requeue 10_3"]
    assert not (hook.marks / "12").exists()


@pytest.mark.parametrize("program", ["vgpu-prolog", "vgpu-guard"])
def test_a_job_that_may_run_at_another_site_goes_back_whatever_its_user_said(hook: Hook, program: str) -> None:
    """--no-requeue is about its script, which does not run again."""
    slurm = Slurm(hook, row(12, "N/A", requeue=0, array="3", of=10, comment=OPEN))
    assert hook.run(program, SLURM_JOB_ID="12").returncode == 0
    assert slurm.ends == ["scontrol update jobid=10_3 requeue=1", "scontrol requeue 10_3"]


def test_a_job_that_runs_nowhere_else_passes_a_node_without_an_agent(hook: Hook) -> None:
    closed = 'asked vgpu fed:{"open":0,"attempt":1}'
    slurm = Slurm(hook, row(11, "N/A", comment=OPEN), row(12, "vgpu:1", comment=closed), row(13, "N/A", comment=OPEN))
    assert hook.run("90-vgpu-guard", SLURM_JOB_ID="12").returncode == 0
    assert slurm.ends == []


def test_an_element_is_found_among_many_of_its_array(hook: Hook) -> None:
    """The last one has the array's own number, so that squeue names all."""
    others = [row(20 + nth, "N/A", array=str(nth), of=12) for nth in range(300)]
    slurm = Slurm(hook, *others, row(12, "N/A", array="300", of=12, comment=OPEN))
    assert hook.run("vgpu-guard", SLURM_JOB_ID="12").returncode == 0
    assert slurm.ends == ["scontrol requeue 12_300"]


def test_nothing_starts_on_a_node_without_an_agent_before_slurm_has_spoken(hook: Hook) -> None:
    """The third answer is the first one."""
    late = (
        f'n=$(cat {hook.folder}/n 2>/dev/null || echo 0); echo $((n + 1)) > {hook.folder}/n; [ "$n" -ge 2 ] || exit 1'
    )
    slurm = Slurm(hook, row(12, "N/A", comment=OPEN), script=late)
    assert hook.run("vgpu-guard", SLURM_JOB_ID="12").returncode == 0
    assert slurm.ends == ["scontrol requeue 12"]


def test_a_job_is_sent_back_until_slurm_takes_it(hook: Hook) -> None:
    again = f"[ -e {hook.folder}/n ] || {{ touch {hook.folder}/n; exit 1; }}"
    slurm = Slurm(hook, row(12, "N/A"), scontrol=again)
    assert hook.run("vgpu-hook", "away", SLURM_JOB_ID="12").returncode == 0
    assert slurm.ends == ["scontrol requeue 12"] * 2


@pytest.mark.parametrize("rows", [(), (row(12, "N/A", state="COMPLETING"),), (row(11, "N/A"),)], ids=str)
def test_a_job_that_is_over_is_waited_for_by_nobody(hook: Hook, rows: tuple[str, ...]) -> None:
    slurm = Slurm(hook, *rows)
    assert hook.run("vgpu-hook", "away", SLURM_JOB_ID="12").returncode == 0
    assert slurm.ends == []


def test_a_job_that_nobody_speaks_of_yet_is_not_unknown(hook: Hook) -> None:
    """Such as to a backup controller in standby; the third answer is the primary's."""
    said = "echo slurm_load_jobs error: Slurm backup controller in standby mode >&2; exit 1"
    late = f"echo >> {hook.folder}/n; [ $(wc -l < {hook.folder}/n) -gt 2 ] || {{ {said}; }}"
    slurm = Slurm(hook, row(12, "N/A", comment=OPEN), script=late)
    assert hook.run("vgpu-guard", SLURM_JOB_ID="12").returncode == 0
    assert slurm.ends == ["scontrol requeue 12"]


def test_a_job_that_slurm_does_not_know_is_waited_for_by_nobody(hook: Hook) -> None:
    slurm = Slurm(hook, script="echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    assert hook.run("vgpu-guard", SLURM_JOB_ID="12").returncode == 0
    assert slurm.ends == []


JUST_NOW = f"echo; echo 'BOOT_TIME = {1700000000 - 1}'"


@pytest.mark.parametrize(
    ("program", "boot"),
    [("vgpu-prolog", JUST_NOW), ("vgpu-guard", "exit 1")],
)
@pytest.mark.parametrize(
    "nodes", ["cloud-1", "n9,cloud-a-[1-2]", "x" * 5_000_000], ids=["one", "some", "more than is read"]
)
def test_what_a_slurmctld_forgot_that_has_just_come_back_is_waited_for(
    hook: Hook, program: str, boot: str, nodes: str
) -> None:
    """It has lost the note with the start; the daemon that has the job open writes it anew."""
    knows = f"echo >> {hook.folder}/n; [ $(wc -l < {hook.folder}/n) -lt 2 ] || exec cat {hook.folder}/later"
    slurm = Slurm(hook, row(12, "N/A"), script=knows, scontrol=f'case "$1" in show) {boot};; esac', nodes=nodes)
    (hook.folder / "later").write_text(row(12, "N/A", comment=OPEN) + "\n")
    assert hook.run(program, SLURM_JOB_ID="12").returncode == 0
    assert slurm.ends == ["scontrol requeue 12"]
    assert not (hook.marks / "12").exists()


@pytest.mark.parametrize(("submitted_s", "boot_s"), [(-60, 2), (-1, -1)], ids=["known since", "new"])
def test_what_slurmctld_can_not_have_forgotten_is_not_waited_for(hook: Hook, submitted_s: int, boot_s: int) -> None:
    rows = row(12, "N/A", submitted=1700000000 + submitted_s)
    slurm = Slurm(hook, rows, scontrol=f"echo; echo BOOT_TIME = {1700000000 + boot_s}")
    began = time.monotonic()
    assert hook.run("vgpu-guard", SLURM_JOB_ID="12").returncode == 0
    assert time.monotonic() - began < 1
    assert slurm.ends == []


@pytest.mark.parametrize("program", ["vgpu-prolog", "vgpu-guard"])
@pytest.mark.parametrize(
    ("nodes", "batch"), [("n[2-3],xcloud-1", 1), ("cloud-1", 0)], ids=["no virtual nodes", "no batch job"]
)
def test_a_job_that_can_not_have_run_elsewhere_does_not_wait(hook: Hook, program: str, nodes: str, batch: int) -> None:
    slurm = Slurm(hook, row(12, "N/A", batch=batch), scontrol=JUST_NOW, nodes=nodes)
    began = time.monotonic()
    assert hook.run(program, SLURM_JOB_ID="12").returncode == 0
    assert time.monotonic() - began < 2
    assert slurm.ends == []


def test_a_host_that_no_agent_was_ever_set_up_on_runs_its_jobs_at_once(hook: Hook) -> None:
    """Slurm runs the same prolog, task prolog and epilog on the nodes that are none of the pool's."""
    hook.conf.unlink()  # the test's client looks for no other one, and for no agent of this host's
    for name in ("vgpu-prolog", "vgpu-taskprolog", "vgpu-epilog"):
        began = time.monotonic()
        done = hook.run(name, SLURM_JOB_ID="7")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert time.monotonic() - began < 0.9  # it waits 1 s and more for an agent
    assert hook.run("vgpu-bind", "true").returncode == 1


def test_where_an_agent_was_set_up_and_is_away_a_job_of_unknown_wishes_starts_no_task(hook: Hook) -> None:
    hook.conf.write_text(f"socket {hook.folder}/nowhere/agent.sock\n")
    assert hook.run("vgpu-taskprolog", SLURM_JOB_ID="7").returncode == 1
