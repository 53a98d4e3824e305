from dataclasses import replace

import pytest

from slurm_plugin.agent.book import MAX_WITHOUT, Book
from slurm_plugin.agent.terms import Want
from slurm_plugin.model import Grant, RunKey, Step
from tests.unit.agent.world import gpu, grant, instance, terms, uuid

FIRST, SECOND = uuid("A", "1g.20gb", 0), uuid("A", "1g.20gb", 2)
ONE = Want(gres_class="m20", count=1)


@pytest.fixture
def book() -> Book:
    book = Book()
    book.see((gpu("A", ("1g.20gb", 0), ("1g.20gb", 2)),))
    book.terms = terms("A")
    return book


def test_a_granted_slice_is_nobody_elses_until_it_is_dropped(book: Book) -> None:
    book.add(grant(1, FIRST))
    assert book.pick(2, Want(gres_class="m20", count=2)) == (SECOND,)
    book.drop(book.grants[1])
    assert len(book.pick(2, Want(gres_class="m20", count=2))) == 2


@pytest.mark.parametrize(
    "wrong",
    [grant(2, FIRST), grant(1, SECOND), grant(3, SECOND, SECOND)],
    ids=["somebody's slice", "second grant of a job", "slice twice"],
)
def test_what_would_share_a_slice_is_refused_and_changes_nothing(book: Book, wrong: Grant) -> None:
    book.add(grant(1, FIRST))
    with pytest.raises(ValueError, match=r"has a grant|somebody's|twice"):
        book.add(wrong)
    assert book.grants == {1: grant(1, FIRST)}


def test_a_promised_slice_is_kept_for_its_run_alone(book: Book) -> None:
    book.promise(1, (FIRST,))
    assert book.pick(2, ONE) == (SECOND,)
    assert book.pick(1, ONE) == (FIRST,)
    with pytest.raises(ValueError, match="somebody's"):
        book.add(grant(2, FIRST))
    book.add(grant(1, FIRST))
    book.drop(book.grants[1])
    assert book.pick(2, ONE) == (FIRST,)


def test_a_step_never_touches_a_slice_somebody_has(book: Book) -> None:
    book.add(grant(1, FIRST))
    assert "in use" in book.refusal(Step(gpu="A", destroy=(("1g.20gb", 0),)))
    with pytest.raises(ValueError, match="in use"):
        book.begin(Step(gpu="A", destroy=(("1g.20gb", 0),)))
    assert book.refusal(Step(gpu="A", destroy=(("1g.20gb", 2),))) == ""


def test_what_a_step_destroys_is_not_given_out_while_it_does(book: Book) -> None:
    step = Step(gpu="A", destroy=(("1g.20gb", 0),))
    book.begin(step)
    assert book.pick(1, Want(gres_class="m20", count=2)) == (SECOND,)
    assert "another step" in book.refusal(Step(gpu="A", create=(("1g.20gb", 4),)))
    assert book.cut(1, ONE, set()) is None
    book.end(step)
    assert book.pick(1, ONE) == (FIRST,)


def test_a_step_is_refused_when_its_target_is_not_there_or_not_ours(book: Book) -> None:
    book.see((gpu("A", instances=(instance("A", "1g.20gb", 0, foreign=True),)),))
    assert "not the pool's" in book.refusal(Step(gpu="A", destroy=(("1g.20gb", 0),)))
    assert "no 3g.40gb at 4" in book.refusal(Step(gpu="A", destroy=(("3g.40gb", 4),)))
    assert "no GPU Z" in book.refusal(Step(gpu="Z"))


def test_runs_without_slices_are_remembered_up_to_a_bound(book: Book) -> None:
    for job_id in range(MAX_WITHOUT + 5):
        book.note_without(RunKey(job_id=job_id, started_at=1, uid=0))
    assert len(book.without) == MAX_WITHOUT
    assert 4 not in book.without
    assert 5 in book.without


def test_a_vanished_slice_is_left_out_but_stays_granted(book: Book) -> None:
    held = grant(1, FIRST, SECOND)
    book.add(held)
    book.see((gpu("A", ("1g.20gb", 2)),))
    assert [one.uuid for _, one in book.slices(held)] == [SECOND]
    assert FIRST in book.busy()


def test_the_pools_gpus_are_told_from_others_of_the_node(book: Book) -> None:
    other = replace(gpu("B"), minor=7)
    assert book.pools() == {gpu("A").minor}
    book.see((replace(gpu("A"), minor=5), other))
    assert book.pools() == {5}
    book.see(())
    assert book.pools() == frozenset()
