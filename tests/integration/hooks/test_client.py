import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[3] / "slurm_plugin/hooks/client"
NOBODY = 65534
NAMES = ("vgpu-prolog", "vgpu-epilog", "vgpu-taskprolog", "vgpu-bind")
LINKS = ("90-vgpu-prolog", "90-vgpu-epilog", "z-vgpu-taskprolog", "90-vgpu", "vgpu-prolog-old", "myvgpu-prolog")
PATIENCE_S = 20


@pytest.fixture(scope="session")
def built() -> Path:
    """The client with every read out of bounds and every undefined operation fatal."""
    subprocess.run(["make", "-s", "-C", str(CLIENT), "all", "asan"], check=True)
    return CLIENT / "build"


class Hook:
    """The client in a folder of its own, and an agent that answers what it is told to."""

    def __init__(self, folder: Path, built: Path) -> None:
        self.folder = folder
        self.socket = folder / "agent.sock"  # users'
        self.roots = folder / "agent.sock.root"
        self.marks = folder / "agent.sock.plain"
        self.asked: list[str] = []
        self.answers: list[bytes] = []
        self.binary = folder / "vgpu-hook"
        shutil.copy(built / "vgpu-hook-asan", self.binary)
        for name in (*NAMES, *LINKS):
            (folder / name).symlink_to(self.binary)
        self.conf = folder / "hook.conf"
        self.conf.write_text(f"# where the agent is\nsocket {self.socket}\n")
        self._agent: threading.Thread | None = None

    def listen(self, *answers: bytes) -> None:
        """Answer one call each, at whichever socket, then go away."""
        listeners = [self.bind(self.socket), self.bind(self.roots)]
        self.socket.chmod(0o666)
        self._agent = threading.Thread(target=self._serve, args=(listeners, answers))
        self._agent.start()

    @staticmethod
    def bind(path: Path) -> socket.socket:
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        return listener

    def _serve(self, listeners: list[socket.socket], answers: tuple[bytes, ...]) -> None:
        with contextlib.ExitStack() as both:
            for listener in listeners:
                both.enter_context(listener)
            for answer in answers:
                caller, _ = select.select(listeners, [], [], PATIENCE_S)[0][0].accept()
                with caller:
                    self.asked.append(caller.recv(4096).decode())
                    caller.sendall(answer)

    def run(self, name: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = (str(self.folder / name), *argv)
        environment = {"ASAN_OPTIONS": "exitcode=99", "PATH": "/usr/bin:/bin", **env}
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def open_to_all(self) -> None:
        for folder in (self.folder, *self.folder.parents[:3]):
            if folder.owner() == "root" and folder != Path("/tmp"):
                folder.chmod(0o755)

    def close(self) -> None:
        if self._agent is not None:
            self._agent.join()


@pytest.fixture
def hook(tmp_path: Path, built: Path) -> Iterator[Hook]:
    hook = Hook(tmp_path, built)
    yield hook
    hook.close()


@pytest.mark.parametrize(
    ("name", "argv", "env", "request_"),
    [
        ("vgpu-prolog", (), {"SLURM_JOB_ID": "12"}, "prolog job=12\n"),
        ("vgpu-epilog", (), {"SLURM_JOB_ID": "12"}, "epilog job=12\n"),
        ("vgpu-epilog", (), {"SLURM_JOB_ID": "12", "SLURM_JOB_START_TIME": "17"}, "epilog job=12 start=17\n"),
        ("vgpu-hook", ("prolog",), {"SLURM_JOB_ID": "12"}, "prolog job=12\n"),
        ("90-vgpu-prolog", (), {"SLURM_JOB_ID": "12"}, "prolog job=12\n"),
        ("90-vgpu-epilog", (), {"SLURM_JOB_ID": "12"}, "epilog job=12\n"),
        ("z-vgpu-taskprolog", (), {"SLURM_LOCALID": "3"}, "task localid=3\n"),
        ("vgpu-prolog", (), {}, "prolog\n"),
        ("vgpu-prolog", (), {"SLURM_JOB_ID": "12 uid=0\nprolog job=13"}, "prolog\n"),
        ("vgpu-prolog", (), {"SLURM_JOB_ID": "99999999999999999999"}, "prolog\n"),
        ("vgpu-prolog", (), {"SLURM_JOB_ID": "-1"}, "prolog\n"),
        ("vgpu-taskprolog", (), {"SLURM_LOCALID": "3"}, "task localid=3\n"),
        ("vgpu-taskprolog", (), {"SLURM_LOCALID": "x" * 5000, "SLURM_JOB_ID": "9"}, "task\n"),
    ],
)
def test_each_name_asks_its_question_with_integers_alone(
    hook: Hook, name: str, argv: tuple[str, ...], env: dict[str, str], request_: str
) -> None:
    hook.listen(b"exit 0\n")
    assert hook.run(name, *argv, **env).returncode == 0
    assert hook.asked == [request_]


@pytest.mark.parametrize(
    ("form", "node", "tasks"),
    [
        ("2", "0", 2),
        ("4(x2),3", "0", 4),
        ("4(x2),3", "1", 4),
        ("4(x2),3", "2", 3),
        ("4(x2),3", "3", None),
        ("1,2,3", "1", 2),
        ("", "0", None),
        ("2", "", None),
        ("(x2)", "0", None),
        ("2(x", "0", None),
        ("2(x0),1", "0", None),
        ("9999999999999999999999", "0", None),
        ("2(x99999999999999999999)", "5", 2),
        ("," * 4000, "0", None),
        ("-2", "0", None),
    ],
)
def test_the_tasks_of_this_node_are_read_from_slurms_short_form(
    hook: Hook, form: str, node: str, tasks: int | None
) -> None:
    hook.listen(b"exit 0\n")
    env = {"SLURM_STEP_TASKS_PER_NODE": form, "SLURM_NODEID": node, "SLURM_LOCALID": "0"}
    assert hook.run("vgpu-taskprolog", **env).returncode == 0
    assert hook.asked == [f"task localid=0 ntasks={tasks}\n" if tasks else "task localid=0\n"]


def test_a_task_prolog_prints_what_it_is_told_and_its_refusal_reaches_the_task(hook: Hook) -> None:
    hook.listen(b"out export CUDA_VISIBLE_DEVICES=MIG-a,MIG-b\nout export X=\nexit 0\n", b"err no slice\nexit 1\n")
    done = hook.run("vgpu-taskprolog")
    assert (done.returncode, done.stdout) == (0, "export CUDA_VISIBLE_DEVICES=MIG-a,MIG-b\nexport X=\n")
    refused = hook.run("vgpu-taskprolog")
    assert (refused.returncode, refused.stdout) == (1, "print vgpu: no slice\n")


@pytest.mark.parametrize("name", ["vgpu-prolog", "vgpu-epilog"])
@pytest.mark.parametrize(
    "answer", [b"err not now\nexit 1\n", b"exit 255\n", b"exit 0", b"", b"\n" * 100, b"exit x\n", b"x" * 20000]
)
def test_a_prolog_or_epilog_never_fails(hook: Hook, name: str, answer: bytes) -> None:
    """It would drain the node."""
    hook.listen(answer, answer, answer)
    assert hook.run(name, SLURM_JOB_ID="1").returncode == 0
    for _ in range(3 - len(hook.asked)):  # let the agent go
        hook.run(name)


@pytest.mark.parametrize(
    "answer", [b"exit 256\n", b"exit -1\n", b"exit \n", b"exit 0x\n", b"x" * 20000, b"out " + b"x" * 17000]
)
def test_a_task_prolog_believes_no_broken_answer(hook: Hook, answer: bytes) -> None:
    hook.listen(answer)
    assert hook.run("vgpu-taskprolog").returncode == 1


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
    """Slurm's three commands in a folder: squeue prints `rows`, all write down how they were called."""

    def __init__(self, hook: Hook, *rows: str, script: str = "") -> None:
        folder = hook.folder / "bin"
        folder.mkdir(exist_ok=True)
        self._log = folder / "log"
        self._log.write_text("")
        (folder / "rows").write_text("".join(f"{row}\n" for row in rows))
        for command, does in (("squeue", f"{script}\ncat {folder}/rows"), ("scontrol", ""), ("scancel", "")):
            path = folder / command
            path.write_text(f'#!/bin/sh\necho {command} "$@" "$SLURM_CONF $LD_PRELOAD" >> {self._log}\n{does}\n')
            path.chmod(0o755)
        with hook.conf.open("a") as conf:
            conf.write(f"slurm_bin {folder}\ngres vgpu\n")

    @property
    def ends(self) -> list[str]:
        return [line.strip() for line in self._log.read_text().splitlines() if not line.startswith("squeue")]


def row(job: int, request: str, *, batch: int = 1, array: str = "N/A", leader: str = "0", of: int = 0) -> str:
    numbers = (job, 1000, 1700000000, batch, 1, of or job, array, leader)
    return "".join(f"{one!s:<12}" for one in numbers) + f"{request:<2048}"


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


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 60", "yes | head -c 200000", "kill -9 $$"])
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


def writable(hook: Hook) -> None:
    hook.conf.chmod(0o664)


def owned(hook: Hook) -> None:
    os.chown(hook.conf, NOBODY, 0)


@pytest.mark.parametrize("spoil", [writable, owned])
def test_a_conf_that_others_can_write_is_not_believed(hook: Hook, spoil: Callable[[Hook], None]) -> None:
    hook.listen(b"exit 0\n")
    spoil(hook)
    refused = hook.run("vgpu-taskprolog")
    assert refused.returncode == 1
    assert "must be a file of root's" in refused.stderr
    assert hook.asked == []
    assert hook.run("vgpu-hook", "--socket", str(hook.socket), "task").returncode == 0


def test_an_agent_that_is_not_roots_is_not_believed(hook: Hook) -> None:
    code = (  # the kernel notes who called listen()
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]);"
        "os.setuid(65534); s.listen(); print(flush=True); s.accept()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(hook.socket)], stdout=subprocess.PIPE) as impostor:
        assert impostor.stdout is not None
        impostor.stdout.readline()
        refused = hook.run("vgpu-taskprolog")
        impostor.kill()
    assert refused.returncode == 1
    assert "not root's agent" in refused.stdout


RANKS = [
    ({"OMPI_COMM_WORLD_LOCAL_RANK": "3", "SLURM_LOCALID": "0"}, "bind localid=3\n"),
    ({"MPI_LOCALRANKID": "2", "SLURM_LOCALID": "0"}, "bind localid=2\n"),
    ({"PMI_LOCAL_RANK": "1"}, "bind localid=1\n"),
    ({"SLURM_LOCALID": "4"}, "bind localid=4\n"),
    ({"OMPI_COMM_WORLD_LOCAL_RANK": "x"}, "bind\n"),
]


@pytest.mark.parametrize(("env", "request_"), RANKS)
def test_a_rank_runs_with_its_slice(hook: Hook, env: dict[str, str], request_: str) -> None:
    hook.listen(b"out MIG-a\nexit 0\n")
    shell = "echo $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES; exit 7"
    done = hook.run("vgpu-bind", "sh", "-c", shell, CUDA_VISIBLE_DEVICES="other", **env)
    assert (done.returncode, done.stdout) == (7, "MIG-a MIG-a\n")
    assert hook.asked == [request_]


def test_a_rank_without_a_slice_does_not_run(hook: Hook) -> None:
    hook.listen(b"err this step has no slice\nexit 1\n")
    done = hook.run("vgpu-bind", "echo", "ran")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "vgpu: this step has no slice\n")


@pytest.mark.parametrize("answer", [b"exit 0\n", b"out \nexit 0\n", b"out " + b"x" * 300 + b"\nexit 0\n"])
def test_a_rank_whose_slice_is_not_told_does_not_run(hook: Hook, answer: bytes) -> None:
    hook.listen(answer)
    done = hook.run("vgpu-bind", "echo", "ran")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "vgpu: this node's agent named no slice\n")


def test_a_slice_of_an_answer_that_broke_off_is_forgotten(hook: Hook) -> None:
    hook.listen(b"out MIG-a\n", b"exit 0\n")
    assert hook.run("vgpu-bind", "echo", "ran").returncode == 1


def test_a_command_that_is_not_there_is_told(hook: Hook) -> None:
    hook.listen(b"out MIG-a\nexit 0\n")
    assert hook.run("vgpu-bind", "no-such-command").returncode == 127


@pytest.mark.parametrize(
    "argv", [("reboot",), ("prolog", "extra"), ("bind",), ("--socket",), ("--socket", "x" * 300, "task")]
)
def test_wrong_arguments_get_the_usage(hook: Hook, argv: tuple[str, ...]) -> None:
    done = hook.run("vgpu-hook", *argv)
    assert done.returncode == 2
    assert "usage: vgpu-hook" in done.stderr


@pytest.mark.parametrize("name", ["vgpu-hook", "90-vgpu", "vgpu-prolog-old", "myvgpu-prolog"])
def test_a_link_whose_name_tells_no_verb_drains_no_node(hook: Hook, name: str) -> None:
    """slurmd calls without arguments, as root; a task, which is a user's, is stopped."""
    done = hook.run(name, SLURM_JOB_ID="1")
    assert done.returncode == 0
    assert done.stderr.startswith(f"vgpu: '{name}' with these arguments tells nothing to do")
    hook.open_to_all()
    users = subprocess.run([str(hook.folder / name)], user=NOBODY, capture_output=True, check=False)
    assert users.returncode == 2


def test_the_client_needs_no_library_that_a_user_could_put_in_its_place(built: Path) -> None:
    image = (built / "vgpu-hook").read_bytes()
    assert image[:4] == b"\x7fELF"
    assert b"/lib64/ld-linux" not in image
    assert b"/lib/ld-linux" not in image
