import os
import shutil
from pathlib import Path

import pytest

from slurm_plugin.agent.peer import StepProcess, jobs_with_steps, step_of


class Proc:
    """A /proc of a few processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stepd = root / "sbin/slurmstepd-wlm"
        self.stepd.parent.mkdir()
        shutil.copy("/bin/true", self.stepd)
        self.stepd.chmod(0o755)

    def add(self, pid: int, parent: int, title: str, *, uids: str = "0 0 0 0", exe: Path | None = None) -> None:
        folder = self.root / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a) b) c) S {parent} " + "0 " * 17 + f"{pid * 100} 0\n")
        (folder / "cmdline").write_bytes(title.encode() + b"\0\0")
        (folder / "status").write_text(f"Name:\tx\nUid:\t{uids}\n")
        (folder / "exe").symlink_to(exe or self.stepd)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    proc = Proc(tmp_path)
    proc.add(10, 1, "/usr/sbin/slurmd")
    return proc


def test_a_task_is_in_the_step_of_its_slurmstepd_and_not_of_its_own_fork(proc: Proc) -> None:
    proc.add(20, 10, "slurmstepd: [12.0]")
    proc.add(21, 20, "slurmstepd: [12.0]")  # the task before it became the user's program
    proc.add(22, 21, "vgpu-taskprolog", uids="1000 1000 1000 1000", exe=Path("/bin/sh"))
    assert step_of(22, proc.root) == StepProcess(job_id=12, step="0", pid=20, started=2000)


@pytest.mark.parametrize("title", ["slurmstepd: [12.batch]", "slurmstepd: [12.interactive]", "slurmstepd: [12+1.7]"])
def test_every_kind_of_step_is_known_by_its_title(proc: Proc, title: str) -> None:
    proc.add(20, 10, title)
    proc.add(22, 20, "sh", exe=Path("/bin/sh"))
    step = step_of(22, proc.root)
    assert step is not None
    assert (step.job_id, step.step) == (12, title.rpartition(".")[2].rstrip("]"))


@pytest.mark.parametrize(
    ("uids", "mode"),
    [
        ("1000 1000 1000 1000", 0o755),
        ("1000 0 0 0", 0o755),
        ("0 0 1000 0", 0o755),
        ("0 0 0 0", 0o4755),
        ("0 0 0 0", 0o775),
    ],
    ids=["a user's process", "setuid by a user", "half dropped", "a setuid program", "a program others can write"],
)
def test_a_forged_title_is_not_believed(proc: Proc, uids: str, mode: int) -> None:
    proc.stepd.chmod(mode)
    proc.add(20, 10, "slurmstepd: [99.0]", uids=uids)
    proc.add(22, 20, "sh", exe=Path("/bin/sh"))
    assert step_of(22, proc.root) is None


def test_a_title_on_another_program_of_roots_is_not_believed(proc: Proc) -> None:
    proc.add(20, 10, "slurmstepd: [99.0]", exe=Path("/bin/sh"))
    assert step_of(20, proc.root) is None


def test_a_step_whose_effective_user_is_the_jobs_for_a_moment_is_still_known(proc: Proc) -> None:
    proc.add(20, 10, "slurmstepd: [12.0]", uids="0 1000 0 1000")
    assert step_of(20, proc.root) is not None


def test_a_job_has_a_step_while_a_slurmstepd_says_so_and_one_may_not_say_yet(proc: Proc) -> None:
    proc.add(20, 10, "slurmstepd: [12.0]")
    proc.add(21, 10, "slurmstepd: [13.0]", uids="1000 1000 1000 1000")
    proc.add(22, 10, "sh\0slurmstepd: [13.0]", exe=Path("/bin/sh"))
    (proc.root / "23").mkdir()  # it is ending
    proc.add(25, 10, "/usr/sbin/slurmstepd\0infinity")
    proc.add(26, 10, "/usr/sbin/slurmstepd\0ns_infinity\0" + "14")
    proc.add(27, 10, "slurmstepd: [14:namespace]")
    assert jobs_with_steps(proc.root) == {12}
    proc.add(24, 10, "/usr/sbin/slurmstepd")
    assert jobs_with_steps(proc.root) == {12, None}


def test_a_process_that_is_gone_or_in_no_step_is_in_none(proc: Proc) -> None:
    assert step_of(4242, proc.root) is None
    assert step_of(os.getpid()) is None


def test_a_slurm_inside_a_job_of_another_slurm_is_the_inner_ones(proc: Proc) -> None:
    proc.add(20, 10, "slurmstepd: [99.batch]")
    proc.add(30, 20, "slurmstepd: [5.0]")
    proc.add(31, 30, "sh", exe=Path("/bin/sh"))
    step = step_of(31, proc.root)
    assert step is not None
    assert (step.job_id, step.pid) == (5, 30)
