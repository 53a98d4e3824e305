"""A rank runs with its one slice, or not at all."""

import pytest

from tests.integration.hooks.hook import Hook

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
