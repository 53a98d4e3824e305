"""What the client asks, whom it believes, and what becomes of an answer."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.hooks.hook import NOBODY, Hook


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


def test_a_task_that_an_agent_with_too_many_calls_turns_away_calls_again(hook: Hook) -> None:
    """A node may start more tasks of a user at once than his calls are taken."""
    hook.listen(*[b"again\n"] * 5, b"out export X=1\nexit 0\n")
    done = hook.run("vgpu-taskprolog")
    assert (done.returncode, done.stdout) == (0, "export X=1\n")
    assert len(hook.asked) == 6


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
