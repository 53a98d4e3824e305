"""A short word on the job itself: everything else in its AdminComment stays."""

from hypothesis import given
from hypothesis import strategies as st

from federation.overflow.notes import mark_in, note_in, noted
from federation.overflow.words import word_in, worded
from slurm_plugin.slurm import notes


def test_it_takes_the_place_of_the_one_before_and_of_nothing_else() -> None:
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
                comment = notes.noted(comment, f"p {text}")
    assert word_in(comment) == notes.plain(f"w {text}")
    assert notes.note_in(comment) == notes.plain(f"p {text}")
    assert (note_in(comment), mark_in(comment)) == ('{"open":1}', "always")
    assert comment.startswith("site's own fed:burst=always")
