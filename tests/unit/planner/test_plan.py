"""What a plan does in the cases an administrator thinks of."""

from dataclasses import replace

import pytest

from slurm_plugin.planner.greedy import greedy
from slurm_plugin.planner.plan import plan
from slurm_plugin.planner.problem import GpuState, Guarantee, Limits, Line
from slurm_plugin.planner.why import ways
from tests.unit.planner.asking import A30, A100, after, destroyed, gpu, line, problem, served

SEVEN = tuple(("1g.5gb", start) for start in range(7))
SMALL = Guarantee(name="small: 3 idle", gres_class="small", profiles=("1g.5gb",), at_least=3, idle=True)


def test_a_waiting_3g_is_cut_from_idle_1g() -> None:
    found = plan(problem([gpu(fixed=SEVEN[:2], idle=SEVEN[2:])], line("3g.20gb", 1)))
    (step,) = found.steps
    assert step.create == (("3g.20gb", 4),)
    assert step.destroy == (("1g.5gb", 4), ("1g.5gb", 5), ("1g.5gb", 6))
    assert step.why == "1x3g.20gb for waiting 3g.20gb; 3x1g.5gb idle goes"
    assert found.solver == "fast"
    assert not found.unserved


def test_of_several_gpus_the_one_that_loses_least_is_cut() -> None:
    room = gpu(fixed=(("3g.20gb", 0),))
    found = plan(problem([(gpu(idle=SEVEN), 5), (room, 1)], line("3g.20gb", 1)))
    assert [step.state for step in found.steps] == [room]


def test_nothing_changes_without_a_gain() -> None:
    busy = gpu(fixed=SEVEN)
    for asked, why in (
        (problem([gpu(idle=SEVEN)]), "nothing waits and nothing is promised"),
        (problem([gpu(idle=SEVEN)], line("1g.5gb", 7)), "what is idle serves all that waits and all that is promised"),
        (problem([busy], line("3g.20gb", 1)), "no change would serve more than what is idle now"),
    ):
        found = plan(asked)
        assert (found.steps, found.why) == ((), why)


def test_a_class_takes_a_bigger_slice_before_anything_is_cut() -> None:
    found = plan(
        problem([gpu(idle=(("3g.20gb", 0), ("3g.20gb", 4)))], line("20gb", 1, profiles=("2g.10gb", "3g.20gb")))
    )
    assert not found.steps
    assert [(one.profile, one.count) for one in found.served] == [("3g.20gb", 1)]


def test_what_blocks_is_told() -> None:
    half = gpu(fixed=(("1g.5gb", 0), ("1g.5gb", 1), ("1g.5gb", 5)))
    asked = problem([half], line("3g.20gb", 1))
    (left,) = plan(asked).unserved
    assert left.why == "instances in use are in the way on every GPU that could hold it"
    best = ways(asked, left.want)[0]
    assert (best.placed, best.behind) == (("3g.20gb", 4), (("1g.5gb", 5),))


@pytest.mark.parametrize(
    ("state", "limits", "why"),
    [
        (gpu(idle=SEVEN), Limits(changing=0), "at most 0 GPUs change at once"),
        (
            gpu(idle=SEVEN, open=False),
            Limits(),
            "the GPUs that have room for it were re-cut just now (hysteresis_s), or may not be re-cut",
        ),
        (gpu(idle=SEVEN, place="a"), Limits(), "no GPU where it may run has 3g.20gb"),
    ],
)
def test_a_limit_that_says_no_is_named(state: GpuState, limits: Limits, why: str) -> None:
    asked = problem([state], line("3g.20gb", 1, places=frozenset({""})), limits=limits)
    assert [left.why for left in plan(asked).unserved] == [why]


def test_the_higher_tier_has_it() -> None:
    asked = problem([gpu(idle=SEVEN)], line("7g.40gb", 1, tier=1), line("1g.5gb", 7, tier=2))
    found = plan(asked)
    assert served(found) == {"7g.40gb": 1}
    assert [left.why for left in found.unserved] == ["what could serve it serves what comes before it"]
    turned = replace(asked, lines=(line("7g.40gb", 1, tier=2), line("1g.5gb", 1, tier=1)))
    assert served(plan(turned)) == {"1g.5gb": 1}


def test_among_equals_the_older_has_it() -> None:
    asked = problem([gpu(idle=SEVEN)], line("3g.20gb", 2, age_s=60.0), line("4g.20gb", 1, age_s=10.0))
    assert served(plan(asked)) == {"3g.20gb": 2}


def test_a_guarantee_of_idle_slices_is_not_cut_away() -> None:
    asked = problem([gpu(idle=SEVEN)], line("7g.40gb", 1), guarantees=[SMALL])
    found = plan(asked)
    assert not found.steps
    asked = problem([gpu(idle=SEVEN)], line("3g.20gb", 2), guarantees=[SMALL])
    assert served(plan(asked)) == {"3g.20gb": 1, "small: 3 idle": 3}


def test_a_guarantee_that_is_not_kept_is_a_reason_to_cut() -> None:
    found = plan(problem([gpu(idle=(("7g.40gb", 0),))], guarantees=[SMALL]))
    assert [step.why for step in found.steps] == ["3x1g.5gb for the guarantee 'small: 3 idle'; 1x7g.40gb idle goes"]
    assert served(found) == {"small: 3 idle": 3}


def test_what_a_plan_made_for_two_guarantees_is_not_cut_again_for_the_first() -> None:
    """The first can use what the second needs. Once there is enough for both it does not hold it all."""
    state = gpu(fixed=(("2g.10gb", 2), ("1g.5gb", 5), ("1g.5gb", 6)), idle=(("1g.10gb", 0), ("1g.5gb+me", 4)))
    first = Guarantee(name="1", gres_class="5gb", profiles=("1g.5gb", "1g.10gb"), at_least=14, idle=True)
    second = Guarantee(name="2", gres_class="10gb", profiles=("1g.10gb",), at_least=12, held=2)
    asked = problem([(state, 6)], guarantees=[first, second])
    found = plan(asked)
    assert [(step.destroy, step.create) for step in found.steps] == [((("1g.5gb+me", 4),), (("1g.5gb", 4),))]
    assert served(found) == {"1": 6, "2": 6}
    again = plan(replace(asked, states=after(found, asked)))
    assert (again.steps, served(again)) == ((), {"1": 6, "2": 6})


def test_an_account_waits_in_front_as_far_as_its_guarantee_goes() -> None:
    physics = Guarantee(
        name="physics", gres_class="3g.20gb", profiles=("3g.20gb",), at_least=2, held=1, account="physics"
    )
    asked = problem(
        [gpu(idle=(("3g.20gb", 0), ("3g.20gb", 4)))],
        line("3g.20gb", 2, account="chemistry", tier=0),
        line("3g.20gb", 2, account="physics", tier=9),
        guarantees=[physics],
    )
    found = plan(asked)
    who = {(one.want.line.account, one.want.promise is None): one.count for one in found.served if one.want.line}
    assert who == {("physics", False): 1, ("chemistry", True): 1}


def test_new_room_that_nobody_wants_takes_the_default_and_no_more() -> None:
    mix = (("2g.10gb", 2), ("3g.20gb", 1))
    (step,) = plan(problem([gpu(idle=(("7g.40gb", 0),), default=mix)], line("3g.20gb", 1))).steps
    assert sorted(name for name, _ in step.create) == ["2g.10gb", "2g.10gb", "3g.20gb"]
    (step,) = plan(problem([gpu(idle=(("7g.40gb", 0),))], line("3g.20gb", 1))).steps
    assert [name for name, _ in step.create] == ["3g.20gb"]


def test_gpus_go_back_to_their_default_only_when_allowed_and_idle() -> None:
    mix = (("3g.20gb", 2),)
    states = [(gpu(idle=SEVEN, default=mix), 2), (gpu(fixed=SEVEN[:1], idle=SEVEN[1:], default=mix), 1)]
    assert not plan(problem(states)).steps
    asked = problem(states, line("1g.5gb", 9), limits=Limits(restore=True))
    assert [(step.gpus, step.state) for step in plan(asked).steps] == []  # all but four of them serve
    asked = problem(states, line("1g.5gb", 6), limits=Limits(restore=True))
    assert [(step.gpus, step.create) for step in plan(asked).steps] == [(2, (("3g.20gb", 0), ("3g.20gb", 4)))]
    asked = replace(asked, limits=Limits(restore=True, changing=1))
    assert [step.gpus for step in plan(asked).steps] == [1]


def test_models_and_places_are_told_apart() -> None:
    asked = problem(
        [gpu(idle=(("7g.40gb", 0),), place="p"), gpu(model="a30", idle=(("4g.24gb", 0),), place="q")],
        Line(name="small", profiles=("1g.5gb", "1g.6gb"), count=3, places=frozenset({"q"})),
        models={"a100": A100, "a30": A30},
    )
    found = plan(asked)
    assert {(one.place, one.model, one.profile): one.count for one in found.served} == {("q", "a30", "1g.6gb"): 3}


def test_blocked_memory_slices_are_kept_clear() -> None:
    found = plan(problem([gpu(blocked=0b1111)], line("3g.20gb", 2)))
    assert [step.create for step in found.steps] == [(("3g.20gb", 4),)]


def test_at_most_so_many_gpus_change() -> None:
    asked = problem([(gpu(idle=SEVEN), 10)], line("3g.20gb", 9), limits=Limits(changing=3))
    found = plan(asked)
    assert sum(step.gpus for step in found.steps) == 3
    assert served(found) == {"3g.20gb": 6}


def test_a_solver_without_an_answer_leaves_a_plan_that_says_so() -> None:
    asked = problem([(gpu(idle=SEVEN), 10)], line("3g.20gb", 9), line("4g.20gb", 3))
    found = plan(asked, lambda *_: None)
    assert found.solver == "heuristic"
    assert found.why.endswith("by a rule of thumb, no plan was found in time")
    assert served(found) == {"3g.20gb": 9, "4g.20gb": 3}
    assert after(found, asked)


def test_an_answer_of_a_solver_cut_short_is_taken_only_when_it_is_the_best() -> None:
    asked = problem([(gpu(idle=SEVEN), 10)], line("3g.20gb", 9), line("4g.20gb", 3))
    poor = plan(asked, lambda market, _: replace(greedy(market), served={}, solver="best found", gap=1.0))
    assert served(poor) == {"3g.20gb": 9, "4g.20gb": 3}
    assert destroyed(poor) == destroyed(plan(asked, lambda *_: None))


def test_no_time_at_all_still_gives_a_plan() -> None:
    asked = problem([(gpu(idle=SEVEN), 10)], line("3g.20gb", 9), line("4g.20gb", 3), limits=Limits(time_s=0.0))
    found = plan(asked)
    assert found.solver in ("heuristic", "best found", "exact")
    assert served(found) == {"3g.20gb": 9, "4g.20gb": 3}


def test_a_job_that_may_run_in_fewer_places_does_not_use_up_a_promise() -> None:
    promise = Guarantee(name="p", gres_class="3g.20gb", profiles=("3g.20gb",), at_least=2, account="a")
    east, west = gpu(place="east", fixed=SEVEN), gpu(place="west", idle=(("3g.20gb", 0), ("3g.20gb", 4)))
    waiting = line("3g.20gb", 2, account="a", places=frozenset({"east"}))
    assert served(plan(problem([east, west], waiting, guarantees=[promise]))) == {"p": 2}
    anywhere = line("3g.20gb", 2, account="a")
    assert served(plan(problem([east, west], anywhere, guarantees=[promise]))) == {"3g.20gb": 2}


def test_a_bundle_that_can_not_be_had_whole_has_nothing_cut_for_it() -> None:
    half = gpu(fixed=SEVEN[:1], idle=SEVEN[1:])
    asked = problem([half], line("3g.20gb", 2, bundle="7"), line("1g.5gb", 6))
    found = plan(asked)
    assert not found.steps
    assert served(found) == {"1g.5gb": 6}
    (left,) = found.unserved
    assert (left.count, left.why) == (2, "its slices can't be had all together now, and some of them start nothing")
    apart = replace(asked, lines=tuple(replace(one, bundle="") for one in asked.lines))
    assert served(plan(apart))["3g.20gb"] == 1


def test_a_bundle_is_cut_on_gpus_that_are_free_in_part() -> None:
    half = gpu(fixed=SEVEN[:1], idle=SEVEN[1:])
    found = plan(problem([(half, 2)], line("3g.20gb", 2, bundle="7")))
    assert [(step.gpus, step.create) for step in found.steps] == [(2, (("3g.20gb", 4),))]
    assert not found.unserved


def test_of_two_bundles_that_want_the_same_the_first_has_it() -> None:
    first, second = line("3g.20gb", 2, bundle="1", tier=1), line("4g.20gb", 1, bundle="2", tier=2)
    found = plan(problem([gpu(idle=SEVEN)], second, first))
    assert served(found) == {"3g.20gb": 2}
    assert [left.want.line for left in found.unserved] == [second]


def test_a_bundle_in_two_places_is_had_in_both_or_in_none() -> None:
    here, there = (line("7g.40gb", 1, bundle="1", places=frozenset({at})) for at in ("east", "west"))
    east = gpu(idle=SEVEN, place="east")
    assert not plan(problem([east, gpu(fixed=SEVEN[:1], place="west")], here, there)).steps
    assert len(plan(problem([east, gpu(idle=SEVEN, place="west")], here, there)).steps) == 2


@pytest.mark.parametrize("bundles", [2, 9])
def test_bundles_that_can_not_be_had_keep_nothing_from_the_rest(bundles: int) -> None:
    hopeless = [line("7g.40gb", 2, bundle=str(nth), tier=nth) for nth in range(bundles)]
    found = plan(problem([gpu(idle=SEVEN)], *hopeless, line("3g.20gb", 2, tier=99)))
    assert served(found) == {"3g.20gb": 2}
    assert len(found.unserved) == bundles


def test_a_large_pool_serves_the_last_of_the_first_tier_too() -> None:
    """What is held of the first goal lets the solver halve a slice between two profiles; no half of one serves."""
    open_ = gpu((("2g.10gb", 2), ("1g.5gb", 5)), (("1g.5gb", 4),))
    closed = gpu(idle=(("1g.10gb", 0),), open=False)
    ten = line("10gb", 4, profiles=("1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb"))
    later = line("5gb", 24, profiles=("1g.5gb", "1g.10gb", "2g.10gb"), tier=1)
    found = plan(problem([(open_, 67), (closed, 3)], ten, later, line("7g.40gb", 39)))
    assert [left.want.line.name for left in found.unserved if left.want.line] == ["7g.40gb"]
