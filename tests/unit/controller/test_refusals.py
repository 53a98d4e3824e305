"""What Slurm refuses is told, and tried again less and less often, until it is taken or not wanted any more."""

from slurm_plugin.controller.refusals import FIRST_PAUSE_S, LONGEST_PAUSE_S, NAMED, TOLD_S, Refusals


def test_a_node_rests_longer_after_each_refusal_and_others_do_not() -> None:
    refusals, now, waited = Refusals(), 0.0, []
    for _ in range(12):
        refusals.refused(["n1"], "Access/permission denied", now)
        began = now
        while refusals.rests("n1", now):
            now += FIRST_PAUSE_S
        waited.append(now - began)
    assert waited[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert max(waited) == LONGEST_PAUSE_S
    assert not refusals.rests("n2", 0.0)


def test_it_is_told_until_it_is_taken() -> None:
    refusals = Refusals()
    assert refusals.problem(0.0) == ""
    refusals.refused(["n2", "n1"], "Access/permission denied", 0.0)
    assert refusals.problem(0.0) == "Slurm refuses what is to be published on n1, n2: Access/permission denied"
    refusals.taken(["n1"])
    assert refusals.problem(0.0) == "Slurm refuses what is to be published on n2: Access/permission denied"
    refusals.refused([f"m{nth}" for nth in range(NAMED)], "no", 0.1)
    assert refusals.problem(0.1).endswith(" and 1 more: no")


def test_what_is_not_tried_again_is_not_wanted_any_more() -> None:
    refusals = Refusals()
    refusals.refused(["n1"], "no", 0.0)
    assert refusals.problem(FIRST_PAUSE_S + TOLD_S)
    assert refusals.problem(FIRST_PAUSE_S + TOLD_S + 1) == ""
    refusals.refused(["n1"], "no", 100.0)
    assert not refusals.rests("n1", 100.0 + FIRST_PAUSE_S)
