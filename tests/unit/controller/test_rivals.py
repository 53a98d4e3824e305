"""When a change by somebody else is another controller, and for how long."""

import pytest

from slurm_plugin.controller.rivals import LEAVE_S, SOON_S, TIMES, TOLD_S, Rivals


def contested() -> tuple[Rivals, float]:
    rivals = Rivals()
    for nth in range(TIMES):
        assert (rivals.leave(nth), rivals.problem(nth)) == (frozenset(), "")
        rivals.changed("n1", float(nth))
    return rivals, float(TIMES - 1)


def test_some_changes_soon_after_each_other_are_another_controller_which_is_told_by_node() -> None:
    rivals, now = contested()
    assert rivals.leave(now) == {"n1"}
    assert rivals.problem(now) == "somebody else changes what is published on n1 again and again"


@pytest.mark.parametrize("apart_s", [SOON_S + 1, TOLD_S + 1])
def test_changes_far_apart_are_an_admins(apart_s: float) -> None:
    rivals = Rivals()
    for nth in range(2 * TIMES):
        rivals.changed("n1", nth * apart_s)
    assert not rivals.leave(2 * TIMES * apart_s)


def test_a_node_is_tried_again_after_a_while_and_one_more_change_is_enough_then() -> None:
    rivals, now = contested()
    again = now + LEAVE_S
    assert not rivals.leave(again)
    assert rivals.problem(again), "it is told on: the other one may be the one that waits"
    rivals.changed("n1", again)
    assert rivals.leave(again) == {"n1"}


def test_what_has_not_been_for_long_is_over() -> None:
    rivals, now = contested()
    assert not rivals.problem(now + TOLD_S)
    rivals.changed("n1", now + TOLD_S + 1)
    assert not rivals.leave(now + TOLD_S + 1)
