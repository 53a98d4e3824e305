"""The pool's note in an AdminComment, and how a job is named without splitting its array."""

import pytest

from slurm_plugin.model import RunKey
from slurm_plugin.slurm import notes

WAITS = RunKey(job_id=7, started_at=0, uid=1000)
RUNS = RunKey(job_id=7, started_at=500, uid=1000)
ROW = {
    **{"JobID": "7", "UserID": "1000", "StartTime": "N/A", "State": "PENDING", "ArrayJobID": "7", "ArrayTaskID": "N/A"},
    **{"HetJobID": "N/A", "HetJobOffset": "N/A", "admin_comment": "asked vgpu"},
}


def row(**fields: str) -> list[str]:
    return [(ROW | fields)[name] for name in notes.FIELDS]


def test_a_note_takes_the_place_of_the_one_before_and_of_nothing_else() -> None:
    first = notes.noted("asked vgpu:20gb", "waits: a")
    assert first == "asked vgpu:20gb [vgpu: waits: a]"
    assert notes.noted(f"{first} and site=1", "got b") == "asked vgpu:20gb and site=1 [vgpu: got b]"
    assert notes.noted(f"{first} and site=1", "") == "asked vgpu:20gb and site=1"
    assert notes.noted("", "waits: a") == "[vgpu: waits: a]"
    assert notes.noted("", "") == ""


def test_words_of_others_stay_as_they_are() -> None:
    words = "a=[1, 2]\nline two; vgpu: own [other: x]"
    assert notes.noted(words, "waits: a") == f"{words} [vgpu: waits: a]"
    assert notes.noted(notes.noted(words, "waits: a"), "") == words


def test_a_note_is_one_short_line_without_brackets() -> None:
    said = notes.noted("", f"on n[1-3]\n{'x' * 999}")
    assert said.startswith("[vgpu: on n(1-3) x")
    assert len(said) == notes.NOTE_MAX + len("[vgpu: ]")
    assert notes.noted(said, "") == ""


def test_jobs_with_a_note_are_found() -> None:
    rows = [("1", "asked vgpu"), ("2", "asked vgpu [vgpu: waits: a]"), ("3", ""), ("N/A", "[vgpu: x]")]
    assert notes.notes(rows) == {2: "waits: a"}


@pytest.mark.parametrize(
    ("run", "fields", "name"),
    [
        (WAITS, {}, "7"),
        (WAITS, {"ArrayTaskID": "1-20%3"}, "7_[1-20]"),
        (WAITS, {"ArrayTaskID": "1,3-4,9"}, "7_[1,3-4,9]"),
        (WAITS, {"ArrayTaskID": "5-9:2%2"}, "7_[5,7,9]"),
        (WAITS, {"ArrayTaskID": "1,5-9:4,20-21"}, "7_[1,5,9,20,21]"),
        (WAITS, {"ArrayTaskID": "4"}, "7_[4]"),
        (WAITS, {"HetJobID": "6", "HetJobOffset": "1"}, "6+1"),
        (RUNS, {"State": "RUNNING", "StartTime": "500", "ArrayJobID": "5", "ArrayTaskID": "3"}, "5_[3]"),
    ],
    ids=str,
)
def test_one_record_is_named_whole(run: RunKey, fields: dict[str, str], name: str) -> None:
    assert notes.place([row(JobID="1"), row(**fields)], run) == (name, "asked vgpu")


@pytest.mark.parametrize(
    ("run", "fields"),
    [
        (WAITS, {"State": "RUNNING", "StartTime": "500"}),
        (RUNS, {}),
        (RUNS, {"State": "RUNNING", "StartTime": "501"}),
        (RUNS, {"State": "COMPLETING", "StartTime": "500"}),
        (WAITS, {"UserID": "1001"}),
        (WAITS, {"ArrayTaskID": "1,3-4,7..."}),  # cut: naming those alone would split the array
        (WAITS, {"ArrayTaskID": "0-1000000:2"}),
        (WAITS, {"ArrayTaskID": "1,2,x"}),
    ],
    ids=str,
)
def test_another_run_and_an_array_that_can_not_be_told_are_left_alone(run: RunKey, fields: dict[str, str]) -> None:
    assert notes.place([row(**fields)], run) is None
