"""`fed --help` starts light, and an exit code means one thing."""

import subprocess
import sys
from dataclasses import replace

import pytest

from federation.cli.jobs import code_of
from federation.cli.main import run
from federation.desk.view import FedJobView

HEAVY = {"grpc", "google", "pydantic", "pydantic_core", "yaml", "cryptography", "paramiko", "sqlite3", "asyncio"}
JOB = FedJobView(
    job="",
    array="",
    task=None,
    state="done",
    name="",
    user="",
    account="",
    site="",
    pool="",
    attempt=1,
    why="",
    accepted_at=0.0,
    started_at=None,
    ended_at=None,
    end="exited",
    exit_code=None,
    signal=None,
    cost=0.0,
    stdout_size=0,
    stderr_size=0,
    reasons=(),
    transfer=None,
    slurm_job="",
)


@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"], ["jobs", "--socket", "/nowhere"]])
def test_nothing_heavy_is_loaded(words: list[str]) -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from federation.cli.main import run\n"
        f"run({words!r})\n"
        "print('\\n' + ' '.join(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}
    of_typer = {"pydantic", "pydantic_core"} if len(words) > 1 else set()  # it reads a command's words with it
    assert sorted(HEAVY & loaded - of_typer) == []


@pytest.mark.parametrize("code", range(256))
def test_a_job_s_own_code_is_the_code(code: int) -> None:
    assert code_of(replace(JOB, exit_code=code)) == code


def test_every_other_end_is_told_apart_from_success() -> None:
    assert code_of(replace(JOB, end="signaled", signal=9)) == 137
    assert code_of(replace(JOB, end="timeout", exit_code=0)) == 124
    for end in ("cancelled", "lost", "refused", "lease", "node_fail", "out_of_memory", "preempted", "made-up"):
        assert code_of(replace(JOB, end=end, exit_code=0)) == 1


def test_a_wrong_number_is_told_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["submit", "--cpus", "x", "--wrap", "true"]) == 2
    assert "--cpus" in (told := capsys.readouterr().err)
    assert told.splitlines()[0].endswith("must be a whole number")
