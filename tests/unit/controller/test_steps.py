"""Which GPUs are left alone, and for how long."""

from slurm_plugin.controller.steps import FIRST_PAUSE_S, LONGEST_PAUSE_S, STEP_S, Steps


def test_gpu_is_held_while_its_step_is_under_way_and_no_longer() -> None:
    steps = Steps()
    number = steps.started("n1", "GPU-a", 100.0)
    assert steps.held(100.0) == {"GPU-a"}
    assert steps.held(100.0 + STEP_S + 1) == frozenset()  # an answer that never comes does not hold it for ever
    steps.ended(number, "", 101.0)
    assert steps.held(101.0) == frozenset()


def test_failure_is_told_and_waited_out_longer_each_time() -> None:
    steps = Steps()
    now, pauses = 100.0, []
    for _ in range(8):
        steps.ended(steps.started("n1", "GPU-a", now), "busy", now)
        pause = next(s for s in range(1, 100) if not steps.held(now + s))
        pauses.append(pause)
        now += pause
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S
    assert list(steps.problems("n1")) == ["GPU GPU-a: change failed: busy"]
    assert list(steps.problems("n2")) == []
    steps.ended(steps.started("n1", "GPU-a", now), "", now)
    assert list(steps.problems("n1")) == []


def test_answer_of_another_step_and_of_a_gone_agent_mean_nothing() -> None:
    steps = Steps()
    number = steps.started("n1", "GPU-a", 100.0)
    steps.ended(number + 1, "", 100.0)
    assert steps.held(100.0) == {"GPU-a"}
    steps.forget("n1")
    assert steps.held(100.0) == frozenset()
    steps.ended(number, "late", 100.0)
    assert list(steps.problems("n1")) == []


def test_an_apply_ends_the_wait_after_a_failure_and_not_that_for_an_answer() -> None:
    steps = Steps()
    steps.ended(steps.started("n1", "GPU-a", 100.0), "busy", 100.0)
    steps.started("n1", "GPU-b", 100.0)
    assert steps.held(101.0) == {"GPU-a", "GPU-b"}
    steps.let_go(101.0)
    assert steps.held(101.0) == {"GPU-b"}


def test_what_failed_is_told_until_the_gpu_is_as_it_is_wanted_whoever_made_it_so() -> None:
    steps = Steps()
    steps.ended(steps.started("n1", "GPU-a", 100.0), "busy", 100.0)
    steps.settled(["GPU-a", "GPU-b"], 100.0 + FIRST_PAUSE_S / 2)  # it is being left alone
    assert list(steps.problems("n1")) == ["GPU GPU-a: change failed: busy"]
    steps.settled(["GPU-b"], 110.0)
    assert list(steps.problems("n1")) == ["GPU GPU-a: change failed: busy"]
    steps.settled(["GPU-a"], 110.0)
    assert list(steps.problems("n1")) == []
    steps.ended(steps.started("n1", "GPU-a", 110.0), "busy", 110.0)
    assert steps.held(110.0 + FIRST_PAUSE_S + 1) == {"GPU-a"}  # it waits as after a second failure
