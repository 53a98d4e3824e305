"""What overflow says to Slurm, word for word, and what it makes of answers that are none."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from federation.errors import Refused, Unavailable
from federation.overflow import changes, slurm_site
from federation.overflow.slurm_site import FIELDS, OwnSlurm
from slurm_plugin.errors import SlurmError, SlurmUnavailable
from tests.unit.federation.overflow.test_burst import BURST, JOB

ROW = ("12", "10", "2", "1000", "RUNNING", "None", "gpu,cloud", "cloud-aws-[1-2]", "1", "100", "110", "1-02:03:00")
REST = ("1", "1", 'asked vgpu:20gb fed:{"open":1}')
MARK = re.compile(r"~[A-Za-z]{8}")


NOTED = replace(BURST, job_id=12, array_id=10, task_id=2, submitted_at=100)


class Told:
    """Answers in the order they are given; a row is printed as squeue would, and what is an error is raised."""

    def __init__(self, *answers: object) -> None:
        self.asked: list[list[str]] = []
        self._answers = list(answers)

    async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
        self.asked.append(list(argv))
        answer = self._answers.pop(0) if self._answers else ""
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return answer
        (mark,) = set(MARK.findall(argv[-1]))
        assert isinstance(answer, list)
        return "".join("".join(f"{cell}   {mark}" for cell in row) + "\n" for row in answer)


async def test_a_row_is_a_job() -> None:
    job = await OwnSlurm(runner=Told([(*ROW, *REST)])).job(12)
    assert job is not None
    assert (job.name, job.job_id, job.array_id, job.task_id, job.uid) == ("10_2", 12, 10, 2, 1000)
    assert (job.partitions, job.nodes) == (("gpu", "cloud"), ("cloud-aws-1", "cloud-aws-2"))
    assert (job.restarts, job.submitted_at, job.started_at, job.limit_s) == (1, 100, 110, 93_780)
    assert job.note == '{"open":1}'


LIMITS = {
    "UNLIMITED": 0,
    "NOT_SET": 0,
    "INVALID": 0,
    "1:00": 60,
    "10:00:00": 36_000,
    "365-00:00:00": 0,
    "364-00:00:00": 31_449_600,
}


@pytest.mark.parametrize("text", LIMITS)
async def test_a_limit_is_seconds(text: str) -> None:
    job = await OwnSlurm(runner=Told([(*ROW[:-1], text, *REST)])).job(12)
    assert job is not None
    assert job.limit_s == LIMITS[text]


async def test_no_text_of_a_users_is_asked_for_but_behind_a_mark_that_nobody_knows() -> None:
    told = Told([])
    slurm = OwnSlurm(runner=told)
    for _ in range(2):
        assert await slurm.jobs((5, 3, 5)) == {}
    first, second = told.asked
    assert first[:4] == ["squeue", "--noheader", "--all", "--local"]
    assert first[4:6] == ["--states=all", "--jobs=3,5"]
    assert re.sub(MARK, "", first[-1]) == ",".join(f"{field}:0" for field in FIELDS)
    assert first[-1] != second[-1]


async def test_many_ids_go_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_site, "IDS_A_CALL", 2)
    told = Told()
    await OwnSlurm(runner=told).jobs(range(1, 6))
    assert [argv[5] for argv in told.asked] == ["--jobs=1,2", "--jobs=3,4", "--jobs=5"]
    assert await OwnSlurm(runner=Told()).jobs(()) == {}


SAYS = {
    "a word where a number belongs": [(*ROW[:8], "many", *ROW[9:], *REST)],
    "a host list that is none": [(*ROW[:7], "n[1-", *ROW[8:], *REST)],
    "a limit that is none": [(*ROW[:-1], "soon", *REST)],
    "half a row": [ROW],
    "an error": SlurmError("squeue: error: something odd"),
    "no answer": SlurmUnavailable("slurmctld does not answer"),
}


@pytest.mark.parametrize("answer", SAYS.values(), ids=SAYS)
async def test_what_can_t_be_read_says_nothing_of_any_job(answer: object) -> None:
    with pytest.raises(Unavailable):
        await OwnSlurm(runner=Told(answer)).jobs((12,))


async def test_only_an_id_that_slurm_does_not_know_is_no_job() -> None:
    unknown = SlurmError("squeue: slurm_load_jobs error: Invalid job id specified")
    assert await OwnSlurm(runner=Told(unknown)).job(12) is None


async def test_one_odd_id_among_several_says_nothing_of_the_others() -> None:
    with pytest.raises(Unavailable):
        await OwnSlurm(runner=Told(SlurmError("squeue: error: Invalid job id: 0"))).jobs((0, 12))


async def test_what_is_said_to_slurm() -> None:
    told = Told()
    slurm = OwnSlurm(runner=told)
    await slurm.set_limit("10_2", 3601)
    await slurm.set_end("10_2", 1_700_000_000)
    await slurm.requeue(replace(JOB, array_id=10, task_id=2))
    await slurm.requeue(replace(JOB, requeue=False))
    await slurm.cancel("10_2")
    await slurm.release("10_2")
    assert await slurm.widen(["10_2", "14"], ("cloud",)) == ()
    assert await slurm.widen(["15"], ("gpu", "vgpu-wait", "cloud")) == ()
    assert told.asked == [
        ["scontrol", "update", "jobid=10_2", "timelimit=61"],
        ["scontrol", "update", "jobid=10_2", "endtime=uts1700000000"],
        ["scontrol", "requeue", "10_2"],
        ["scontrol", "update", "jobid=12", "requeue=1"],
        ["scontrol", "requeue", "12"],
        ["scancel", "--quiet", "10_2"],
        ["scontrol", "release", "10_2"],
        ["scontrol", "update", "jobid=10_2,14", "partition=cloud"],
        ["scontrol", "update", "jobid=15", "partition=gpu,vgpu-wait,cloud"],
    ]


def said(kind: type[SlurmError], line: str) -> SlurmError:
    error = kind(line)
    error.said = line
    return error


async def test_of_many_jobs_each_that_slurm_refuses_is_named() -> None:
    told = Told(said(SlurmError, "Job is no longer pending execution for job 2"))
    assert await OwnSlurm(runner=told).widen(["1", "2", "3"], ("cloud",)) == ("2",)
    assert [argv[2] for argv in told.asked] == ["jobid=1,2,3"]


async def test_no_answer_is_no_refusal() -> None:
    away = SlurmUnavailable("slurmctld does not answer")
    with pytest.raises(Unavailable):
        await OwnSlurm(runner=Told(away)).widen(["1", "2"], ("cloud",))
    with pytest.raises(Unavailable):
        await OwnSlurm(runner=Told(away)).set_limit("1", 60)
    with pytest.raises(Refused):
        await OwnSlurm(runner=Told(SlurmError("Job has already finished"))).set_limit("1", 60)


async def test_a_job_that_slurmctld_is_busy_with_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "TRIES", 3)
    busy = said(SlurmUnavailable, "Resource temporarily unavailable for job 12")
    told = Told(busy, busy, "")
    await OwnSlurm(runner=told).set_limit("12", 60)
    assert len(told.asked) == 3
    told = Told(*[busy] * 20)
    with pytest.raises(Unavailable):
        await OwnSlurm(runner=told).set_limit("12", 60)
    assert len(told.asked) == 3


async def test_a_note_is_written_beside_other_words_and_only_when_it_changes() -> None:
    own, same, none = (
        (*ROW, "1", "1", "an admin's own"),
        (*ROW, "1", "1", 'x fed:{"a":1}'),
        (*ROW, "1", "1", "(null)"),
    )
    told = Told([own], "", [same], [none], "", [none])
    slurm = OwnSlurm(runner=told)
    for text in ('{"open":1}', '{"a":1}', '{"b":1}', ""):
        await slurm.note(NOTED, text)
    assert [argv for argv in told.asked if argv[0] == "scontrol"] == [
        ["scontrol", "update", "jobid=10_2", 'admincomment=an admin\'s own fed:{"open":1}'],
        ["scontrol", "update", "jobid=10_2", 'admincomment=fed:{"b":1}'],
    ]


NOT_NOTED = {
    "another's, with its id": [(*ROW[:3], "1001", *ROW[4:], *REST)],
    "submitted since": [(*ROW[:9], "900", *ROW[10:], *REST)],
    "over": [(*ROW[:4], "FAILED", *ROW[5:], *REST)],
    "being ended": [(*ROW[:4], "COMPLETING", *ROW[5:], *REST)],
    "not known": [],
}


@pytest.mark.parametrize("rows", NOT_NOTED.values(), ids=NOT_NOTED)
async def test_a_note_is_written_on_no_other_job_and_on_none_that_can_t_be_changed(rows: list[object]) -> None:
    told = Told(rows)
    await OwnSlurm(runner=told).note(NOTED, '{"open":1,"job":"1"}')
    assert [argv[0] for argv in told.asked] == ["squeue"]


LINES = {
    "sbatch --signal=B:USR1@60 job.sh": "B:USR1@60",
    "sbatch -n1 --signal USR2 job.sh": "USR2",
    "sbatch --signal=RB:10@300 --signal=TERM@30 x": "TERM@30",
    "sbatch --signal=$(x) job.sh": "",
    "sbatch job.sh": "",
}


@pytest.mark.parametrize("line", LINES)
async def test_what_a_command_line_asked_for(line: str) -> None:
    assert await OwnSlurm(runner=Told(line + "\n")).signal_request(12) == LINES[line]
    assert await OwnSlurm(runner=Told(SlurmError("accounting storage is disabled"))).signal_request(12) == ""
