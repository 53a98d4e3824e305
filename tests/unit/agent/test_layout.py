from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.agent import layout
from slurm_plugin.agent.layout import Record
from slurm_plugin.model import Gpu, Step
from tests.unit.agent.world import FakeGpus, gpu, instance, uuid

HALF = instance("A", "1g.20gb", 2, ci=-1, uuid="")
SHAPES = [("1g.20gb", 0), ("2g.20gb", 2), ("1g.10gb", 2), ("3g.40gb", 4), ("1g.20gb", 4), ("1g.10gb", 6)]


def record(*had: layout.Shape, wanted: tuple[layout.Shape, ...] | None = None) -> Record:
    return Record(gpu="A", had=frozenset(had), wanted=frozenset(had if wanted is None else wanted))


def test_a_gpu_that_comes_into_the_pool_brings_its_whole_instances() -> None:
    strange = instance("A", "3g.40gb", 4, foreign=True)
    there = gpu("A", instances=(instance("A", "1g.20gb", 0), HALF, strange))
    assert layout.adopted(there) == record(("1g.20gb", 0))


def test_what_the_pool_did_not_make_is_foreign_half_made_or_not() -> None:
    there = gpu("A", instances=(instance("A", "1g.20gb", 0), HALF, instance("A", "3g.40gb", 4)))
    assert [one.foreign for one in layout.marked(there, record(("1g.20gb", 0)), ()).instances] == [False, True, True]
    under_way = record(wanted=(("1g.20gb", 2),))
    assert [one.foreign for one in layout.marked(there, under_way, ()).instances] == [True, False, True]


def test_what_a_run_holds_is_never_foreign() -> None:
    there = gpu("A", ("1g.20gb", 0), ("1g.20gb", 2))
    marked = layout.marked(there, record(), {uuid("A", "1g.20gb", 2)})
    assert [one.foreign for one in marked.instances] == [True, False]


def test_an_intent_keeps_what_is_there_and_forgets_what_somebody_took() -> None:
    before = record(("1g.20gb", 0), ("1g.20gb", 2), ("3g.40gb", 4))
    step = Step(gpu="A", destroy=(("1g.20gb", 0),), create=(("1g.10gb", 0),))
    intent = layout.intent(gpu("A", ("1g.20gb", 0), ("3g.40gb", 4)), before, step)
    assert intent == record(("1g.20gb", 0), ("3g.40gb", 4), wanted=(("1g.10gb", 0), ("3g.40gb", 4)))
    assert intent.is_open


def test_an_outcome_stays_open_while_something_of_ours_is_half_made() -> None:
    under_way = record(wanted=(("1g.20gb", 2),))
    assert layout.outcome(gpu("A", instances=(HALF,)), under_way) == record(("1g.20gb", 2), wanted=())
    assert layout.outcome(gpu("A", ("1g.20gb", 2)), under_way) == record(("1g.20gb", 2))


def test_the_rest_is_what_lacks_and_what_is_too_much() -> None:
    under_way = record(("1g.20gb", 0), ("3g.40gb", 4), wanted=(("1g.20gb", 0), ("1g.20gb", 4), ("1g.20gb", 6)))
    all_of_it = Step(gpu="A", destroy=(("3g.40gb", 4),), create=(("1g.20gb", 4), ("1g.20gb", 6)))
    assert layout.rest(gpu("A", ("1g.20gb", 0), ("3g.40gb", 4)), under_way, ()) == all_of_it
    assert layout.rest(gpu("A", ("1g.20gb", 0), ("1g.20gb", 4)), under_way, ()) == Step(
        gpu="A", create=(("1g.20gb", 6),)
    )
    assert layout.rest(gpu("A"), under_way, ()).create == (("1g.20gb", 0), ("1g.20gb", 4), ("1g.20gb", 6))


def test_a_half_made_one_that_is_wanted_is_made_anew() -> None:
    assert layout.rest(gpu("A", instances=(HALF,)), record(("1g.20gb", 2)), ()) == Step(
        gpu="A", destroy=(("1g.20gb", 2),), create=(("1g.20gb", 2),)
    )


def test_busy_and_foreign_instances_stay_and_what_has_no_room_beside_them_is_left_out() -> None:
    under_way = record(("3g.40gb", 4), wanted=(("1g.20gb", 2), ("1g.20gb", 4)))
    there = gpu("A", instances=(instance("A", "1g.10gb", 2, foreign=True), instance("A", "3g.40gb", 4)))
    assert layout.rest(there, under_way, {uuid("A", "3g.40gb", 4)}) == Step(gpu="A")


def test_a_profile_that_this_gpu_does_not_offer_is_left_out() -> None:
    assert layout.rest(gpu("A"), record(("9g.999gb", 0), ("1g.20gb", 1)), ()) == Step(gpu="A")


def fitting(shapes: list[layout.Shape]) -> tuple[layout.Shape, ...]:
    """As many of these as fit beside each other."""
    empty = gpu("A")
    return layout.rest(empty, record(*shapes), ()).create


@given(
    st.lists(st.sampled_from(SHAPES), unique=True).map(fitting),
    st.lists(st.sampled_from(SHAPES), unique=True).map(fitting),
    st.sets(st.sampled_from(SHAPES)),
    st.sets(st.sampled_from(SHAPES)),
)
def test_from_wherever_a_step_was_cut_short_its_rest_reaches_the_layout(
    had: tuple[layout.Shape, ...],
    wanted: tuple[layout.Shape, ...],
    gone: set[layout.Shape],
    half: set[layout.Shape],
) -> None:
    """Any part of the old layout may be gone, half made or still there."""
    left = [one for one in had if one not in gone]
    there = tuple(instance("A", *one, ci=-1, uuid="") if one in half else instance("A", *one) for one in left)
    gpus = FakeGpus(gpu("A", instances=there))
    under_way = record(*had, wanted=wanted)
    gpus.apply(layout.rest(gpus.now["A"], under_way, ()))
    assert layout.outcome(gpus.now["A"], under_way) == record(*wanted)
    assert layout.rest(gpus.now["A"], under_way, ()) == Step(gpu="A")


def test_a_layout_is_reached_when_all_of_it_is_whole() -> None:
    there: Gpu = gpu("A", ("1g.20gb", 2))
    assert layout.is_reached(there, record(("1g.20gb", 2)))
    assert not layout.is_reached(there, record(("1g.20gb", 2), wanted=()))
    assert not layout.is_reached(replace(there, instances=(HALF,)), record(("1g.20gb", 2)))
    assert not layout.is_reached(there, record(("1g.20gb", 2), ("1g.20gb", 4)))
