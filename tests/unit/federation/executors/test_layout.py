"""What users can write into their jobs' folders is judged, and what they ask for is put there as it is."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.errors import Refused
from federation.executors import layout
from federation.executors.layout import Claim, parse_claim, parse_exit
from federation.model.spec import STDIN, Array, Batch, JobSpec
from federation.model.states import End
from federation.model.token import Key

KEY = Key(UUID(int=7), 3)
SCRIPT = b"#!/bin/sh\n"
BOOT = "b4d5ec36-575f-434f-8b0c-55f5aa7da201"


def test_a_key_is_its_folders_name_and_back() -> None:
    assert layout.key_of(layout.name_of(KEY)) == KEY
    for name in ("", "x.1", f"{KEY.token.hex}", f"{KEY.token.hex}.1.part", f"{KEY.token.hex.upper()}.x"):
        assert layout.key_of(name) is None


def test_a_claim_names_one_process_for_all_time() -> None:
    claim = Claim(pid=17, start=99, boot=BOOT, at=1700000000.0)
    assert parse_claim(f"run.17.99.{BOOT}.1700000000") == claim
    for end in (None, *End):
        assert parse_claim(layout.fence(end)) == Claim(fence=True, end=end)


@given(st.text())
def test_a_claim_of_any_text_is_a_claim(text: str) -> None:
    assert parse_claim(text).fence is (text in {layout.fence(end) for end in (None, *End)})


@pytest.mark.parametrize(
    ("text", "end", "code", "signal", "by_term"),
    [
        ("code 0 1 2 3 4 -\n", End.EXITED, 0, None, False),
        ("code 255 1 2 3 4 -\n", End.EXITED, 255, None, False),
        ("signal 9 1 2 3 4 -\n", End.SIGNALED, None, 9, False),
        ("signal 15 1 2 3 4 term\n", End.SIGNALED, None, 15, True),
        ("code 0 1 2 3 4 timeout\n", End.TIMEOUT, 0, None, False),
        ("unknown 0 1 2 3 4 -\n", End.SIGNALED, None, None, True),
    ],
)
def test_an_exit_record_says_how_it_ended(
    text: str, end: End, code: int | None, signal: int | None, by_term: bool
) -> None:
    ending = parse_exit(text)
    assert ending is not None
    outcome = ending.outcome
    assert (outcome.end, outcome.exit_code, outcome.signal, ending.by_term) == (end, code, signal, by_term)
    assert (outcome.started_at, outcome.ended_at, outcome.stdout_size, outcome.stderr_size) == (1.0, 2.0, 3, 4)


@pytest.mark.parametrize("code", range(256))
def test_each_exit_code_is_itself(code: int) -> None:
    ending = parse_exit(f"code {code} 1 2 3 4 -\n")
    assert ending is not None
    assert (ending.outcome.end, ending.outcome.exit_code, ending.outcome.signal) == (End.EXITED, code, None)


def test_an_exit_record_says_what_was_used() -> None:
    ending = parse_exit("code 0 1 2 3 4 - n1.example 125 104857600 MIG-a,MIG-b\n")
    assert ending is not None
    found = ending.outcome
    assert (found.node, found.cpu_s, found.memory_mib, found.slices) == ("n1.example", 1.25, 100, "MIG-a,MIG-b")
    for text in ("code 0 1 2 3 4 - - - - -\n", "code 0 1 2 3 4 -\n"):
        ending = parse_exit(text)
        assert ending is not None
        found = ending.outcome
        assert (found.node, found.cpu_s, found.memory_mib, found.slices) == ("", None, None, "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "code 0 1 2 3 4 -",
        "code 256 1 2 3 4 -\n",
        "code -1 1 2 3 4 -\n",
        "code 0 1 2 3 -\n",
        "x" * 512,
        "code 0 1 2 3 4 - a;b 1 1 -\n",
    ],
)
def test_what_is_no_record_says_nothing(text: str) -> None:
    assert parse_exit(text) is None


@given(st.lists(st.binary(max_size=20).filter(lambda one: b"\0" not in one), max_size=5))
def test_a_shell_reads_the_arguments_as_they_were(args: list[bytes]) -> None:
    go = layout.files(KEY, JobSpec(user="ann", script=SCRIPT, args=tuple(args)))[layout.GO]
    words = shlex.split(go.rpartition(b"exec setsid env ")[2].decode("latin-1"))
    assert [word.encode("latin-1") for word in words[len(words) - len(args) :]] == args


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (JobSpec(user="a", script=SCRIPT, args=(b"\0",)), "NUL"),
        (JobSpec(user="a", script=SCRIPT, args=(b"x" * (128 << 10),)), "131071 bytes each"),
        (JobSpec(user="a", script=SCRIPT, args=(b"x" * 100_000,) * 11), "1048576 in all"),
        (JobSpec(user="a", script=SCRIPT, env=((b"A=B", b""),)), "no variable's name"),
        (JobSpec(user="a", script=SCRIPT, env=((b"", b""),)), "no variable's name"),
        (JobSpec(user="a", script=SCRIPT + b"x" * layout.MAX_SCRIPT), "are the most"),
    ],
)
def test_what_no_kernel_would_start_is_refused(spec: JobSpec, why: str) -> None:
    with pytest.raises(Refused, match=why):
        layout.check(spec)


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (Batch(warning="USR1@60 --uid=0"), "--signal"),
        (Batch(warning="B:USR1@"), "--signal"),
        (Batch(folder=b"work"), "no absolute path"),
        (Batch(folder=b"/a\0b"), "no absolute path"),
        (Batch(stdin=b"data"), "stdin is no absolute path"),
        (Batch(stdin=b"/a\0b"), "stdin is no absolute path"),
    ],
)
def test_what_no_batch_job_can_have_is_refused(batch: Batch, why: str) -> None:
    with pytest.raises(Refused, match=why):
        layout.check(JobSpec(user="a", script=SCRIPT, batch=batch))


def ran(folder: Path, spec: JobSpec, inputs: Mapping[bytes, bytes] = {}, **environment: str) -> int:
    """What starts a job, without what waits for it. Its exit code."""
    (folder / layout.WORK).mkdir()
    for path, content in inputs.items():
        (folder / layout.WORK / os.fsdecode(path)).write_bytes(content)
    for name, content in layout.files(KEY, spec).items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o700)
    env = {"PATH": os.environ["PATH"]} | environment
    return subprocess.run(["./go"], cwd=folder, env=env, timeout=30, check=False).returncode


def test_streams_that_are_one_file_keep_their_order(tmp_path: Path) -> None:
    script = SCRIPT + b"for n in 1 2 3; do echo out $n; echo err $n >&2; done\n"
    assert not ran(tmp_path, JobSpec(user="a", script=script, batch=Batch(joined=True)))
    assert (tmp_path / "stdout").read_bytes() == b"out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n"
    assert (tmp_path / "stderr").read_bytes() == b""


def test_a_batch_job_has_the_umask_limits_and_facts_that_it_had_in_slurm(tmp_path: Path) -> None:
    script = SCRIPT + b"umask; ulimit -S -n; ulimit -S -c; env | grep ^SLURM | sort\n"
    array = Array(job_id=40, task_id=7, count=3, lowest=1, highest=7, step=3)
    limits = (("NOFILE", 99), ("CORE", 0), ("NPROC", 5), ("NOFILE; id", 1), ("STACK", 1 << 60))
    batch = Batch(job_id=42, array=array, umask=0o027, limits=limits)
    assert not ran(tmp_path, JobSpec(user="a", name=b"a 'b\xff", script=script, batch=batch))
    umask, files, core, *facts = (tmp_path / "stdout").read_bytes().splitlines()
    assert (umask, files, core) == (b"0027", b"99", b"0")
    assert facts == [
        b"SLURM_ARRAY_JOB_ID=40",
        b"SLURM_ARRAY_TASK_COUNT=3",
        b"SLURM_ARRAY_TASK_ID=7",
        b"SLURM_ARRAY_TASK_MAX=7",
        b"SLURM_ARRAY_TASK_MIN=1",
        b"SLURM_ARRAY_TASK_STEP=3",
        b"SLURM_JOBID=42",
        b"SLURM_JOB_ID=42",
        b"SLURM_JOB_NAME=a 'b\xff",
        b"SLURM_SUBMIT_DIR=" + os.fsencode(tmp_path / "work"),
    ]
    assert (tmp_path / "stderr").read_bytes() == b""


def test_a_batch_job_reads_an_input_of_its_own_that_has_no_name_any_more(tmp_path: Path) -> None:
    spec = JobSpec(user="a", script=SCRIPT + b"ls -A; cat; cat\n", batch=Batch(stdin=STDIN))
    assert not ran(tmp_path, spec, inputs={STDIN: b"one\n\xff"})
    assert (tmp_path / "stdout").read_bytes() == b"one\n\xff"


@pytest.mark.parametrize("there", [True, False])
def test_a_batch_job_on_shared_files_reads_the_file_itself(tmp_path: Path, *, there: bool) -> None:
    file = tmp_path / "-a b'\n"
    file.write_bytes(b"one\n") if there else None
    spec = JobSpec(user="a", script=SCRIPT + b"cat\n", batch=Batch(stdin=os.fsencode(file)))
    assert (ran(tmp_path, spec) == 0) is there
    assert (tmp_path / "stdout").read_bytes() == b"one\n" * there
    assert (b"No such file" in (tmp_path / "stderr").read_bytes()) is not there
    assert file.exists() is there


def test_the_id_that_a_far_slurm_gave_a_batch_job_is_the_one_it_knows(tmp_path: Path) -> None:
    spec = JobSpec(user="a", script=SCRIPT + b"echo $SLURM_JOB_ID\n", batch=Batch(job_id=42))
    assert not ran(tmp_path, spec, SLURM_JOB_ID="7")
    assert (tmp_path / "stdout").read_bytes() == b"7\n"


def test_a_job_on_shared_files_runs_where_it_was_submitted(tmp_path: Path) -> None:
    (place := tmp_path / "-a b'\n").mkdir()
    folder = os.fsencode(place)
    spec = JobSpec(user="a", script=SCRIPT + b'pwd; echo "$SLURM_SUBMIT_DIR"\n', batch=Batch(folder=folder))
    (attempt := tmp_path / "attempt").mkdir()
    assert not ran(attempt, spec)
    assert (attempt / "stdout").read_bytes() == folder + b"\n" + folder + b"\n"


@pytest.mark.parametrize("slurms", [{}, {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": "/"}], ids=["local", "slurm"])
def test_a_job_that_goes_where_it_was_submitted_from_stays_in_its_folder(
    tmp_path: Path, slurms: dict[str, str]
) -> None:
    spec = JobSpec(user="a", script=SCRIPT + b'cd "$SLURM_SUBMIT_DIR" && pwd\n', batch=Batch(job_id=42))
    assert not ran(tmp_path, spec, {}, **slurms)
    assert (tmp_path / "stdout").read_bytes() == os.fsencode(tmp_path / "work") + b"\n"


def test_a_job_of_no_slurm_hears_of_no_submit_folder(tmp_path: Path) -> None:
    assert not ran(tmp_path, JobSpec(user="a", script=SCRIPT + b'echo "<${SLURM_SUBMIT_DIR-}>"\n'))
    assert (tmp_path / "stdout").read_bytes() == b"<>\n"
