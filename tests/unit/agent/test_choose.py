from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.agent.choose import Floor, cut, idle, pick
from slurm_plugin.agent.terms import Offer, Terms, Want, wanted
from slurm_plugin.model import Gpu, GpuProfile, MigMode, Step
from slurm_plugin.ports import GresItem
from tests.unit.agent.world import H100, gpu, instance, terms, uuid

SEVENTHS = tuple(("1g.10gb", at) for at in range(7))
ONE_M20 = Want(gres_class="m20", count=1)


def floor(*gpus: Gpu, offers: dict[str, Offer] | None = None, busy: tuple[str, ...] = ()) -> Floor:
    return Floor(gpus=gpus, terms=terms(*(one.uuid for one in gpus), offers=offers or {}), busy=busy)


def test_a_slice_offered_as_the_class_comes_before_a_smaller_one_that_is_not() -> None:
    here = gpu("A", ("1g.20gb", 0), ("2g.20gb", 2))
    offers = {uuid("A", "2g.20gb", 2): Offer(gres_class="m20"), uuid("A", "1g.20gb", 0): Offer(gres_class="1g.20gb")}
    assert pick(floor(here, offers=offers), ONE_M20) == (uuid("A", "2g.20gb", 2),)


def test_a_slice_nobody_is_offered_comes_before_one_offered_to_another_class() -> None:
    here = gpu("A", ("1g.20gb", 0), ("2g.20gb", 2))
    offers = {uuid("A", "1g.20gb", 0): Offer(gres_class="1g.20gb")}
    assert pick(floor(here, offers=offers), ONE_M20) == (uuid("A", "2g.20gb", 2),)


def test_a_slice_offered_to_another_class_is_better_than_none() -> None:
    here = gpu("A", ("1g.20gb", 0))
    assert pick(floor(here, offers={uuid("A", "1g.20gb", 0): Offer(gres_class="x")}), ONE_M20) == (
        uuid("A", "1g.20gb", 0),
    )


def test_an_offer_that_outlived_its_slice_serves_nothing_by_itself() -> None:
    """The driver gives a new profile the old one's UUID when it lands on the old instance's number."""
    reborn = gpu("A", instances=(instance("A", "1g.10gb", 0, uuid="MIG-same"),))
    assert pick(floor(reborn, offers={"MIG-same": Offer(gres_class="m20")}), ONE_M20) == ()


def test_the_smallest_profile_on_the_fullest_gpu_is_taken() -> None:
    wide, tight = gpu("A", ("2g.20gb", 0)), gpu("B", ("2g.20gb", 0), ("3g.40gb", 4), index=1)
    assert pick(floor(wide, tight), ONE_M20) == (uuid("B", "2g.20gb", 0),)


@pytest.mark.parametrize(
    "unusable",
    [
        gpu("A", instances=(instance("A", "1g.20gb", 0, ci=-1, uuid=""),)),
        gpu("A", instances=(instance("A", "1g.20gb", 0, foreign=True),)),
        gpu("A", ("1g.20gb", 0), fault="Xid 79"),
    ],
    ids=["half made", "foreign", "on a faulty GPU"],
)
def test_what_is_no_slice_of_the_pool_is_never_taken(unusable: Gpu) -> None:
    assert pick(floor(unusable), ONE_M20) == ()


def test_a_gpu_that_is_not_the_pools_is_neither_taken_from_nor_cut() -> None:
    elsewhere = Floor(gpus=(gpu("A", ("1g.20gb", 0)),), terms=terms("B"), busy=())
    assert pick(elsewhere, ONE_M20) == ()
    assert cut(elsewhere, ONE_M20) is None


def test_an_observer_takes_what_is_there_and_cuts_nothing() -> None:
    here = floor(gpu("A", ("1g.20gb", 0)))
    watched = replace(here, terms=replace(here.terms, observe=True))
    assert pick(watched, ONE_M20) == pick(here, ONE_M20) != ()
    assert cut(here, ONE_M20) is not None
    assert cut(watched, ONE_M20) is None


def test_a_class_nobody_told_of_is_a_profiles_own_name() -> None:
    alone = Floor(gpus=(gpu("A", ("2g.20gb", 0)),), terms=Terms(gpus=frozenset("A")), busy=())
    assert pick(alone, Want(gres_class="2g.20gb", count=1)) == (uuid("A", "2g.20gb", 0),)
    assert pick(alone, ONE_M20) == ()


def test_a_cut_takes_the_best_profile_where_it_takes_least_away() -> None:
    assert cut(floor(gpu("A", ("1g.10gb", 0))), ONE_M20) == Step(gpu="A", create=(("1g.20gb", 2),))


def test_a_cut_prefers_the_fullest_gpu_that_has_room() -> None:
    full, some, empty = gpu("A", ("7g.80gb", 0)), gpu("B", ("3g.40gb", 0), index=1), gpu("C", index=2)
    step = cut(floor(full, some, empty), ONE_M20)
    assert step is not None
    assert step.gpu == "B"


def test_a_cut_goes_where_the_driver_has_not_said_no() -> None:
    here = floor(gpu("A"))
    assert cut(here, ONE_M20, {("A", "1g.20gb")}) == Step(gpu="A", create=(("2g.20gb", 4),))
    assert cut(here, ONE_M20, {("A", "1g.20gb"), ("A", "2g.20gb"), ("A", "3g.40gb")}) is None


@pytest.mark.parametrize(
    "here",
    [
        floor(gpu("A", fault="lost")),
        floor(gpu("A", mig=MigMode.PENDING)),
        replace(floor(gpu("A")), cutting=("A",)),
        floor(gpu("A", ("7g.80gb", 0))),
    ],
    ids=["faulty", "not in MIG mode", "being changed", "full"],
)
def test_nothing_is_cut_where_nothing_can_be(here: Floor) -> None:
    assert cut(here, ONE_M20) is None


shapes = st.lists(st.tuples(st.sampled_from(H100), st.integers(0, 6)), max_size=8)


@given(shapes, st.sampled_from(["m20", "m40", "1g.10gb", "3g.40gb"]))
def test_a_cut_never_overlaps_what_is_there(wished: list[tuple[GpuProfile, int]], gres_class: str) -> None:
    taken: set[int] = set()
    there = []
    for profile, at in wished:
        start = profile.starts[at % len(profile.starts)]
        room = set(range(start, start + profile.size))
        if not room & taken:
            taken |= room
            there.append((profile.name, start))
    step = cut(floor(gpu("A", *there)), Want(gres_class=gres_class, count=1))
    fits = [
        (profile.name, start)
        for profile in H100
        if profile.name in terms().profiles(gres_class)
        for start in profile.starts
        if not taken & set(range(start, start + profile.size))
    ]
    assert (step is None) == (not fits)
    if step is not None:
        assert step.create[0] in fits
        assert not step.destroy


def test_the_request_is_the_jobs_own_class_and_never_padding() -> None:
    everything = [GresItem(name="vgpu", type="pad", count=990), GresItem(name="gpu", count=2)]
    assert wanted(everything) is None
    assert wanted([*everything, GresItem(name="vgpu", type="m20", count=2)]) == Want(gres_class="m20", count=2)
    assert wanted([GresItem(name="vgpu", type="m20", count=0)]) is None


def test_idle_leaves_out_what_is_busy_and_what_is_being_destroyed() -> None:
    here = gpu("A", ("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2))
    now = replace(floor(here, busy=(uuid("A", "1g.10gb", 0),)), closing=(("A", "1g.10gb", 1),))
    assert [one.uuid for one in idle(now)] == [uuid("A", "1g.10gb", 2)]


def test_a_job_goes_where_neighbours_that_run_block_the_most_already() -> None:
    """Four small jobs on two GPUs leave one of them whole."""
    here = (gpu("A", *SEVENTHS), gpu("B", *SEVENTHS, index=1))
    held = [uuid("B", "1g.10gb", 5)]
    for _ in range(3):
        now = replace(floor(*here, busy=tuple(held)), held=held)
        held += pick(now, Want(gres_class="1g.10gb", count=1))
    assert held[1:] == [uuid("B", "1g.10gb", at) for at in (4, 6, 0)]


def test_what_is_not_the_pools_blocks_too() -> None:
    foreign = instance("A", "1g.10gb", 6, foreign=True)
    ours = [instance("A", "1g.10gb", at) for at in range(6)]
    here = gpu("A", instances=(*ours, foreign))
    assert pick(floor(here), Want(gres_class="1g.10gb", count=1))[0] in {uuid("A", "1g.10gb", at) for at in (4, 5)}


HOUR = 3600
TWO = (gpu("A", *SEVENTHS), gpu("B", *SEVENTHS, index=1))
LONG, SHORT = (uuid("A", "1g.10gb", 6), uuid("B", "1g.10gb", 6))


def lasting(hours: int, *, profile: str = "1g.10gb") -> Want:
    return Want(gres_class=profile, count=1, begins_at=1_000_000, ends_at=1_000_000 + hours * HOUR)


def beside(*gpus: Gpu, ends: dict[str, int]) -> Floor:
    return replace(floor(*gpus, busy=(LONG, SHORT)), held=(LONG, SHORT), ends=ends)


ENDS = {LONG: 1_000_000 + 9 * HOUR, SHORT: 1_000_000 + HOUR}


@pytest.mark.parametrize(("hours", "where"), [(8, "A"), (1, "B")])
def test_slices_that_end_together_sit_together(hours: int, where: str) -> None:
    (chosen,) = pick(beside(*TWO, ends=ENDS), lasting(hours))
    assert chosen.startswith(f"MIG-{where}")
    (chosen,) = pick(beside(*reversed(TWO), ends={LONG: ENDS[SHORT], SHORT: ENDS[LONG]}), lasting(hours))
    assert not chosen.startswith(f"MIG-{where}")


@pytest.mark.parametrize("hours", [1, 8])
def test_where_no_end_of_a_neighbour_is_known_a_job_goes_where_it_went(hours: int) -> None:
    neutral = pick(beside(*TWO, ends=ENDS), Want(gres_class="1g.10gb", count=1))
    assert pick(beside(*TWO, ends={}), lasting(hours)) == neutral


@pytest.mark.parametrize(("hours", "where"), [(8, "A"), (1, "B")])
def test_a_slice_is_cut_beside_who_ends_no_sooner(hours: int, where: str) -> None:
    """For a short job both cost the same, and the fuller GPU has it."""
    roomy, full = gpu("A", ("1g.10gb", 6)), gpu("B", ("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 6), index=1)
    ends = ENDS | {uuid("B", "1g.10gb", at): ENDS[SHORT] for at in (0, 1)}
    now = replace(beside(roomy, full, ends=ends), held=(LONG, SHORT, *ends), busy=tuple(ends))
    step = cut(now, lasting(hours, profile="1g.20gb"))
    assert step is not None
    assert step.gpu == where
