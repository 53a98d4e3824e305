"""What is written on a job: one flat note beside other people's words, and the mark that job_submit left."""

import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.model.job import Job
from federation.model.spec import Lease
from federation.model.states import End, Origin, Outcome
from federation.overflow.burst import Phase
from federation.overflow.notes import mark_in, moving, note, note_in, noted, word_in, worded
from slurm_plugin.slurm.notes import note_in as pool_note_in
from slurm_plugin.slurm.notes import noted as pool_noted
from slurm_plugin.slurm.notes import plain
from tests.unit.federation.overflow.test_burst import BURST

NOTE = '{"open":1,"pool":"aws/gpu"}'
WORDS = ("", "asked vgpu:20gb", "asked vgpu:20gb fed:burst=always", "an admin's {words} [here]")
FED = Job(token=BURST.token, user="ann", lease=Lease(), accepted_at=0.0, due_at=None)


@pytest.mark.parametrize("words", WORDS)
def test_the_note_lives_beside_the_pools_own_and_other_words(words: str) -> None:
    mine = noted(words, NOTE)
    both = pool_noted(mine, "waits: for a slice")
    assert note_in(both) == NOTE
    assert pool_note_in(both) == "waits: for a slice"
    later = noted(both, '{"pool":"aws/gpu"}')
    assert (note_in(later), pool_note_in(later)) == ('{"pool":"aws/gpu"}', "waits: for a slice")
    assert noted(later, "") == pool_noted(words, "waits: for a slice")
    assert pool_noted(noted(later, ""), "") == words


def test_the_same_note_again_changes_nothing() -> None:
    assert noted(noted("words", NOTE), NOTE) == noted("words", NOTE) == f"words fed:{NOTE}"
    assert note_in("words") == ""


MARKS = {
    "fed:burst=always": "always",
    "asked vgpu fed:burst=never fed:{}": "never",
    "fed:burst=pool:aws-2.x+y_z": "pool:aws-2.x+y_z",
    "fed:burst=auto": "auto",
    "asked vgpu": "",
    "xfed:burst=always": "",
    "fed:burst=alwaysx": "",
    "fed:burst=pool:a b": "pool:a",
    f"fed:burst=pool:{'a' * 65}": "",
}


@pytest.mark.parametrize("comment", MARKS)
def test_the_mark_is_a_word_of_its_own(comment: str) -> None:
    assert mark_in(comment) == MARKS[comment]


def test_a_word_takes_the_place_of_the_one_before_and_of_nothing_else() -> None:
    comment = 'asked vgpu:20gb fed:burst=auto [vgpu: waits: busy] fed:{"pool":"a/b"}'
    once = worded(comment, "may run in a/b")
    assert once == f"{comment} [fed: may run in a/b]"
    assert worded(once, "taken back: x]y") == f"{comment} [fed: taken back: x)y]"
    assert word_in(once) == "may run in a/b"
    assert word_in(comment) == ""


@given(st.permutations(["word", "note", "pool"]), st.text("ab:[]{}\n", max_size=12))
def test_three_writers_leave_each_other_alone(order: list[str], text: str) -> None:
    comment = "site's own fed:burst=always"
    for who in order:
        match who:
            case "word":
                comment = worded(comment, f"w {text}")
            case "note":
                comment = noted(comment, '{"open":1}')
            case _:
                comment = pool_noted(comment, f"p {text}")
    assert word_in(comment) == plain(f"w {text}")
    assert pool_note_in(comment) == plain(f"p {text}")
    assert (note_in(comment), mark_in(comment)) == ('{"open":1}', "always")
    assert comment.startswith("site's own fed:burst=always")


def test_it_is_open_until_the_burst_is_closed() -> None:
    for phase in Phase:
        for job in (None, FED):
            facts = json.loads(note(replace(BURST, phase=phase), job))
            assert facts.get("open") == (None if phase is Phase.CLOSED else 1)
            assert (facts["pool"], facts["job"]) == ("aws/gpu", str(UUID(int=7)))


def test_the_guard_finds_the_open_one_by_its_first_words() -> None:
    assert noted("words", note(BURST, FED)).partition(" fed:")[2].startswith('{"open":1,')


def test_numbers_of_the_run_there_are_on_it() -> None:
    running = replace(FED, state=Origin.RUNNING, attempt=2, started_at=1000.6, cost=0.123456)
    facts = json.loads(note(BURST, running))
    assert (facts["attempt"], facts["state"], facts["start"], facts["cost"]) == (2, "running", 1000, 0.1235)
    outcome = Outcome(end=End.EXITED, exit_code=3, started_at=1001.0, ended_at=1060.9)
    facts = json.loads(note(BURST, replace(running, state=Origin.DONE, outcome=outcome)))
    assert (facts["state"], facts["how"], facts["code"]) == ("ended", "exited", "3:0")
    assert (facts["start"], facts["end"]) == (1001, 1060)


@pytest.mark.parametrize(
    ("moved", "total", "stopped", "told"),
    [
        (0, 1 << 30, False, "inputs 0%"),
        ((1 << 30) - 1, 1 << 30, False, "inputs 90%"),
        (1 << 30, 1 << 30, False, ""),
        (2 << 30, 1 << 30, False, ""),  # the last chunk counts as a whole one
        (1, 100, False, ""),
        (5, 0, False, ""),
        (5, 0, True, "inputs, stopped"),
    ],
)
def test_how_far_its_files_are_is_on_it_where_they_are_many(moved: int, total: int, stopped: bool, told: str) -> None:
    assert moving("inputs", moved, total, stopped=stopped) == told
    facts = json.loads(note(BURST, FED, moving("inputs", moved, total, stopped=stopped)))
    assert facts.get("files", "") == told


def test_what_another_site_says_of_it_can_t_break_out_of_the_note() -> None:
    outcome = Outcome(end=End.EXITED, exit_code=0, node='n1"} fed:{', slices="MIG-a}", cpu_s=1.5, memory_mib=7)
    text = note(BURST, replace(FED, state=Origin.DONE, outcome=outcome))
    facts = json.loads(text)
    assert ("node" in facts, "slices" in facts, facts["cpu_s"], facts["mem_mib"]) == (False, False, 1.5, 7)
    assert note_in(noted("words", text)) == text
    named = json.loads(note(BURST, replace(FED, outcome=replace(outcome, node="n1.x", slices="MIG-a,MIG-b"))))
    assert (named["node"], named["slices"]) == ("n1.x", "MIG-a,MIG-b")


def test_every_state_is_told_in_one_word() -> None:
    words = {json.loads(note(BURST, replace(FED, state=state)))["state"] for state in Origin}
    assert words == {"waiting", "running", "stopping", "ended"}
