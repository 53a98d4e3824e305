from slurm_plugin.agent.quarantine import FAILURES_MAX, FIRST_RETRY_S, LONGEST_RETRY_S, Quarantine
from slurm_plugin.errors import GpuBusy

BUSY = GpuBusy("in use", hint="held by pid 7 (nv-hostengine)")


def test_a_gpu_that_fails_too_often_in_a_row_is_left_alone_and_says_why() -> None:
    quarantine = Quarantine()
    assert [quarantine.failed("A", BUSY, 0.0) for _ in range(FAILURES_MAX)] == [False] * (FAILURES_MAX - 1) + [True]
    assert quarantine.why("A") == "quarantined: in use (held by pid 7 (nv-hostengine))"
    assert quarantine.why("B") == ""


def test_a_step_that_is_made_forgives_the_failures_before_it() -> None:
    quarantine = Quarantine()
    for _ in range(FAILURES_MAX - 1):
        quarantine.failed("A", BUSY, 0.0)
    quarantine.well("A")
    assert not quarantine.failed("A", BUSY, 0.0)


def test_it_is_tried_again_seldomer_and_seldomer() -> None:
    quarantine = Quarantine()
    now, pauses = 0.0, []
    for _ in range(8):
        quarantine.put("A", BUSY, now)
        pause = next(s for s in range(10_000) if not quarantine.waits("A", now + s))
        pauses.append(pause)
        now += pause
    assert pauses[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert pauses[-1] == LONGEST_RETRY_S
    assert not quarantine.waits("B", now)


def test_a_gpu_on_probation_goes_back_with_its_next_failure() -> None:
    quarantine = Quarantine()
    quarantine.put("A", BUSY, 0.0)
    quarantine.release("A")
    quarantine.release("B")
    assert quarantine.why("A") == ""
    assert quarantine.failed("A", BUSY, 1.0)
    assert not quarantine.failed("B", BUSY, 1.0)
