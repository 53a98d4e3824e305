"""The same job on a node here and in a pool elsewhere: what its user sees is the same.

docs/overflow_parity.md lists what is compared here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from federation.lab.sites import NODE
from slurm_plugin.lab import processes
from tests.e2e.federation.bursting import USER, Bursting, bursting

pytestmark = pytest.mark.slurm

ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
LIMIT_S = 120.0
HERE, THERE = "gpu", "cloud"
ODD = "a b'\"$x;%ü"


@dataclass(frozen=True, kw_only=True)
class Case:
    script: str
    options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, Any] = field(default_factory=dict)


CASES = {
    "says_nothing": Case(script=""),
    "stdout_and_stderr_in_one_file_in_order": Case(script="for i in 1 2 3; do echo out $i; echo err $i >&2; done"),
    "two_files": Case(script="echo out; echo err >&2", options=("--error=err",)),
    "no_newline_at_the_end": Case(script="printf 'no newline'"),
    "every_byte": Case(script='i=0; while [ $i -lt 256 ]; do printf "\\\\$(printf %o $i)"; i=$((i + 1)); done'),
    "twenty_megabytes_in_one_line": Case(script="head -c 20000000 /dev/zero | tr '\\0' x"),
    "exit_code": Case(script="exit $SLURM_ARRAY_TASK_ID", options=("--array=0,1,2,42,126,127,128,137,143,255",)),
    "signal_TERM": Case(script="kill -TERM $$"),
    "signal_KILL": Case(script="kill -KILL $$"),
    "signal_SEGV": Case(script="ulimit -c 0; kill -SEGV $$"),
    "signal_USR1": Case(script="kill -USR1 $$"),
    "not_found": Case(script="/no/such/program 2> /dev/null"),
    "arguments": Case(script='for one; do echo "<$one>"; done', args=("a", "", "b c", "d\ne", ODD)),
    "three_megabytes_of_script": Case(script=f": {'x' * 3_000_000}\necho done"),
    "stdin_is_empty": Case(script="wc -c"),
    "stdin_is_a_file": Case(script="cat", options=("--input=job.sh",)),
    "umask": Case(script="umask; touch f; stat -c %a f; rm f"),
    "variables_of_the_submitter": Case(script='echo "<$MODEL_X>"', env={"MODEL_X": ODD}),
    "export_some": Case(
        script='echo "<$MODEL_X><$MODEL_Y>"', options=("--export=ALL,MODEL_Y=2",), env={"MODEL_X": "1"}
    ),
    "export_none": Case(script='echo "<$MODEL_X>"', options=("--export=NONE",), env={"MODEL_X": "1"}),
    "limits": Case(script="ulimit -S -c; ulimit -S -s"),
    "array": Case(
        script="echo $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_MIN $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_COUNT",
        options=("--array=3-9:3%2",),
    ),
    "goes_where_it_was_submitted_from": Case(script='cd "$SLURM_SUBMIT_DIR" && echo here > f && cat f && rm f'),
    "names": Case(script='echo "$SLURM_JOB_NAME"', options=("--job-name", ODD)),
    "shell_of_its_own": Case(script="#!/usr/bin/env python3\nimport sys\nprint('python', len(sys.argv))", args=("x",)),
    "children_that_outlive_it": Case(script="sleep 300 & echo begun"),
    "steps_are_warned": Case(
        script="""#SBATCH --signal=USR1@20
trap 'echo the script heard' USR1
srun sh -c 'trap "echo a step heard; exit 0" USR1; echo up; while :; do sleep 60 & wait; done'
echo $?""",
        options=("--time=1",),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a user sees of an ended job, without what is different of any two jobs."""

    ends: tuple[tuple[str, str], ...]  # state and exit code, of each element in order
    files: dict[str, bytes]


class Submitted:
    def __init__(self, site: Bursting, name: str, partition: str) -> None:
        case = CASES[name]
        self.site = site
        self.folder = site.here.home(USER) / f"{name}-{partition}"
        made = site.here.run(USER, "mkdir", str(self.folder))
        assert made.code == 0, made.err
        script = self.folder / "job.sh"
        text = case.script if case.script.startswith("#!") else f"#!/bin/sh\n{case.script}\n"
        script.write_text(text)
        pattern = "%a.out" if any(one.startswith("--array") for one in case.options) else "out"
        where = (f"--chdir={self.folder}", f"--output={pattern}", f"--partition={partition}")
        ran = site.here.run(USER, "sbatch", "--parsable", *where, *case.options, str(script), *case.args, **case.env)
        assert ran.code == 0, ran.err
        self.job = ran.out.strip()

    def _elements(self) -> dict[str, tuple[str, str]]:
        """State and exit code of each. The names of our own jobs forge nothing."""
        found = {}
        for record in self.site.here.slurm("scontrol", "show", "job", "-o", self.job).splitlines():
            facts = dict(_FACT.findall(record))
            if "JobState" in facts:  # else it goes on with an argument of the job's that has a line break
                found[facts.get("ArrayTaskId", "")] = (facts["JobState"], facts["ExitCode"])
        return found

    def seen(self) -> Seen:
        self.site.here.until(self._is_over, f"job {self.job} ended", LIMIT_S)
        ends = tuple(value for _, value in sorted(self._elements().items()))
        files = {path.name: path.read_bytes() for path in self.folder.iterdir() if path.name != "job.sh"}
        return Seen(ends=ends, files=files)

    def _is_over(self) -> bool:
        return all(state in ENDS for state, _ in self._elements().values())


_FACT = re.compile(r" (ArrayTaskId|JobState|ExitCode)=(\S+)")


@pytest.fixture(scope="module")
def site() -> Iterator[Bursting]:
    with bursting(lines=("BatchStartTimeout=1",)) as made:
        yield made


@pytest.fixture(scope="module")
def jobs(site: Bursting) -> dict[str, tuple[Submitted, Submitted]]:
    """Every case, here and there, all at once."""
    return {name: (Submitted(site, name, HERE), Submitted(site, name, THERE)) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_job_is_the_same_here_and_there(jobs: dict[str, tuple[Submitted, Submitted]], name: str) -> None:
    here, there = (one.seen() for one in jobs[name])
    assert there.ends == here.ends
    assert there.files.keys() == here.files.keys()
    assert there.files == here.files


def test_the_steps_of_a_job_are_warned_before_its_limit_and_its_script_is_not(
    jobs: dict[str, tuple[Submitted, Submitted]],
) -> None:
    for one in jobs["steps_are_warned"]:
        assert one.seen() == Seen(ends=(("COMPLETED", "0:0"),), files={"out": b"up\na step heard\n0\n"})


def submit(site: Bursting, script: str, *options: str, partition: str = THERE) -> str:
    where = ("--chdir", str(site.here.home(USER)), f"--partition={partition}")
    return site.here.submit(USER, *where, *options, script=script)


def output(site: Bursting, job: str) -> str:
    return site.here.output(USER, job)


def says(site: Bursting, job: str, text: str) -> None:
    site.here.until(lambda: text in output(site, job), f"job {job} says {text}", LIMIT_S)


def far(site: Bursting) -> list[str]:
    """What runs or waits at the far side's Slurm."""
    return site.there.slurm("squeue", "-h", "-a", "-o", "%i").split()


COUNTS = "i=0; while [ $i -lt %d ]; do echo line $i; i=$((i + 1)); sleep 0.1; done; echo over"


def lines_of(many: int) -> str:
    return "".join(f"line {nth}\n" for nth in range(many)) + "over\n"


def test_a_job_keeps_its_id_and_runs_on_the_virtual_node(site: Bursting) -> None:
    job = submit(site, "echo up; sleep 2")
    site.wait_state(job, "RUNNING")
    assert site.field(job, "NodeList") == NODE
    assert site.field(job, "BatchHost") == NODE
    site.wait_state(job, "COMPLETED")
    assert output(site, job) == "up\n"


def test_files_are_named_and_opened_as_slurm_does(site: Bursting) -> None:
    """Two jobs that write to one file, one after the other; in a folder that is no plain word."""
    folder = site.here.home(USER) / ODD
    assert site.here.run(USER, "mkdir", str(folder)).code == 0
    for partition in (HERE, THERE):
        where = ("--parsable", f"--chdir={folder}", f"--partition={partition}", "--job-name=n", "--array=7")
        mode = ("--open-mode=append", f"--output={partition}-%x-%u-%%-%5a.txt")
        last = ""
        for _ in range(2):
            after = (f"--dependency=afterany:{last}",) if last else ()
            ran = site.here.run(USER, "sbatch", *where, *mode, *after, "--wrap=echo again")
            assert ran.code == 0, ran.err
            last = ran.out.strip()
        site.wait_state(f"{last}_7", "COMPLETED", limit_s=LIMIT_S)
    here, there = (folder / f"{partition}-n-{USER}-%-00007.txt" for partition in (HERE, THERE))
    assert there.read_bytes() == here.read_bytes() == b"again\nagain\n"


def test_sbatch_waits_and_exits_with_the_jobs_code(site: Bursting) -> None:
    assert site.here.run(USER, "sbatch", "--wait", f"--partition={THERE}", "-o", "/dev/null", "--wrap=exit 7").code == 7


def test_an_array_keeps_its_limit(site: Bursting) -> None:
    job = submit(site, "sleep 1", "--array=1-4%2")
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, len(site.here.slurm("squeue", "-h", "-r", "-t", "R", "-j", job, "-o", "%i").split()))
        return site.here.slurm("squeue", "-h", "-j", job, "-o", "%i") == ""

    site.here.until(over, f"array {job} over", LIMIT_S)
    assert most == 2


def test_dependencies_of_every_kind(site: Bursting) -> None:
    good, bad = submit(site, "sleep 1"), submit(site, "exit 3")
    runs = [
        submit(site, "true", f"--dependency={kind}")
        for kind in (f"afterok:{good}", f"afternotok:{bad}", f"afterany:{good}:{bad}", f"after:{good}")
    ]
    runs += [submit(site, "true", f"--dependency=afterok:{runs[0]}", partition=HERE)]
    first = submit(site, "exit $((SLURM_ARRAY_TASK_ID - 1))", "--array=1-2")
    corr = submit(site, "true", f"--dependency=aftercorr:{first}", "--array=1-2", "--kill-on-invalid-dep=yes")
    never = submit(site, "true", f"--dependency=afterok:{bad}", "--kill-on-invalid-dep=yes")
    one, other = (submit(site, "sleep 1", "--job-name=single", "--dependency=singleton") for _ in range(2))
    for job in (*runs, one, other):
        site.wait_state(job, "COMPLETED", limit_s=LIMIT_S)
    site.wait_state(never, "CANCELLED")
    site.here.until(
        lambda: (
            sorted(_STATE.findall(site.here.slurm("scontrol", "show", "job", "-o", corr))) == ["CANCELLED", "COMPLETED"]
        ),
        "one of two elements ran",
        LIMIT_S,
    )


_STATE = re.compile(r" JobState=(\w+)")


def test_a_cancelled_job_is_cancelled_and_nothing_of_it_runs_on(site: Bursting) -> None:
    running = submit(site, "echo up; sleep 600")
    says(site, running, "up")
    array = submit(site, "echo up $SLURM_ARRAY_TASK_ID; sleep 600", "--array=1-2")
    says(site, f"{array}_2", "up 2")
    held = submit(site, "echo never", "--hold")
    for job in (running, f"{array}_2", held):
        site.here.run(USER, "scancel", job)
    site.wait_state(running, "CANCELLED")
    site.wait_state(held, "CANCELLED")
    site.here.until(lambda: len(far(site)) == 1, "one job at the far side", LIMIT_S)
    site.here.run(USER, "scancel", array)
    site.here.until(lambda: not far(site), "nothing runs on", LIMIT_S)


def test_a_signal_reaches_the_script(site: Bursting) -> None:
    job = submit(site, "trap 'echo got' USR1; echo up; while :; do sleep 0.1; done")
    says(site, job, "up")
    site.here.run(USER, "scancel", "--batch", "--signal=USR1", job)
    says(site, job, "got")
    assert site.here.state(job) == "RUNNING"
    site.here.run(USER, "scancel", job)


def test_a_suspended_job_stops_and_goes_on(site: Bursting) -> None:
    job = submit(site, COUNTS % 40)
    says(site, job, "line 3")
    site.here.slurm("scontrol", "suspend", job)
    sizes: list[int] = []

    def rests() -> bool:
        sizes.append(len(output(site, job)))
        return sizes[-20:].count(sizes[-1]) == 20

    site.here.until(rests, f"job {job} rests", LIMIT_S)
    assert "over" not in output(site, job)
    site.here.slurm("scontrol", "resume", job)
    site.wait_state(job, "COMPLETED")
    assert output(site, job) == lines_of(40)


def test_a_requeued_job_runs_anew_once_the_old_attempt_is_over(site: Bursting) -> None:
    job = submit(site, "echo begun $SLURM_RESTART_COUNT; sleep 600", "--open-mode=append")
    says(site, job, "begun")
    site.here.run(USER, "scontrol", "requeue", job)
    site.here.until(lambda: output(site, job).count("begun") == 2, "a second run", LIMIT_S)
    assert len(far(site)) == 1
    assert site.field(job, "Restarts") == "1"
    site.here.run(USER, "scancel", job)
    site.here.until(lambda: not far(site), "nothing runs on", LIMIT_S)


def test_a_lost_slurmstepd_costs_no_second_run_and_no_output(site: Bursting) -> None:
    """A job that has just begun is not missed by Slurm when its node registers, so this one is killed late."""
    job = submit(site, COUNTS % 180)
    site.here.until(lambda: "line 130" in output(site, job), f"job {job} is old enough", LIMIT_S)
    lab = site.here.lab
    processes.kill(processes.jobs_of(lab.node_slurm_conf(NODE), lab.spool(NODE)))
    site.kill(f"slurmd:{NODE}")
    site.wait_state(job, "COMPLETED", limit_s=LIMIT_S)
    assert site.field(job, "Restarts") == "1"
    assert output(site, job) == lines_of(180)


def test_a_link_that_is_down_costs_nothing(site: Bursting) -> None:
    job = submit(site, COUNTS % 50)
    says(site, job, "line 3")
    site.line.cut()
    site.there.until(lambda: not far(site), "it ends there", LIMIT_S)
    assert site.here.state(job) == "RUNNING"
    site.line.restore()
    site.wait_state(job, "COMPLETED", limit_s=LIMIT_S)
    assert output(site, job) == lines_of(50)
