"""A pool with no room is no pool that fails: who waits for it, and when they are tried again."""

from dataclasses import replace
from uuid import UUID

from federation.engine.attempts import MOST_RETRY_S, ROOM_POLL_S, room_poll_s
from federation.engine.effects import Effect, HandOver
from federation.engine.records import WOKEN
from federation.model.messages import Cancel
from federation.model.states import Target
from federation.model.token import Key
from federation.ports import Sight
from tests.unit.federation.engine.bench import EXIT, KEY, Site, only
from tests.unit.federation.engine.test_target import SUBMIT, hpc, running

__all__ = ["hpc"]


def waiting(hpc: Site, count: int) -> list[Key]:
    """Attempts that found no room beside one that runs."""
    running(hpc)
    keys = [Key(UUID(int=10 + number), 1) for number in range(count)]
    for key in keys:
        hpc.hears("edge", replace(SUBMIT, key=key))
    hpc.due()
    for key in keys:
        hpc.backend("no_room", key, "no CPUs")
    assert only(hpc.due(), HandOver) == []
    return keys


def handed(effects: list[Effect]) -> list[Key]:
    return [one.key for one in only(effects, HandOver)]


def test_a_pool_that_is_full_is_asked_again_no_later_however_often_it_says_so(hpc: Site) -> None:
    (key,) = waiting(hpc, 1)
    for _ in range(12):
        assert handed(hpc.due(ROOM_POLL_S)) == [key]
        hpc.backend("no_room", key, "no CPUs")
    assert (hpc.attempt(key).state, hpc.attempt(key).why) == (Target.READY, "no CPUs")


def test_many_that_wait_for_room_do_not_ask_more_often(hpc: Site) -> None:
    assert room_poll_s(1) == ROOM_POLL_S
    assert room_poll_s(100) == 50.0
    assert room_poll_s(10**6) == MOST_RETRY_S


def test_the_end_of_an_attempt_is_room_for_those_that_wait(hpc: Site) -> None:
    hpc.engine.target.house = replace(hpc.engine.target.house, pools={"gpu": 9})
    first, *others = keys = waiting(hpc, WOKEN + 1)
    hpc.sees(Sight.EXITED, outcome=EXIT)
    assert handed(hpc.due()) == keys[:WOKEN]
    hpc.backend("handed_over", first, "78")
    assert handed(hpc.due()) == others[-1:]  # there was room: there may be more
    for key in others:
        hpc.backend("no_room", key, "no CPUs")
    assert handed(hpc.due()) == []
    hpc.sees(Sight.EXITED, first, outcome=EXIT)
    assert handed(hpc.due()) == others


def test_no_room_keeps_what_is_known_of_tries_before(hpc: Site) -> None:
    hpc.hears("edge", SUBMIT)
    hpc.due()
    hpc.backend("not_handed_over", KEY, "no answer")
    assert handed(hpc.due(1.0)) == [KEY]
    hpc.backend("no_room", KEY, "no CPUs")
    assert (hpc.attempt().tries, (hpc.attempt().due_at or 0.0) - hpc.time) == (1, ROOM_POLL_S)


def test_who_waited_longest_since_it_was_tried_is_tried_first(hpc: Site) -> None:
    hpc.engine.target.house = replace(hpc.engine.target.house, pools={"gpu": 9})
    keys = waiting(hpc, 2 * WOKEN)
    hpc.time += 1.0
    hpc.sees(Sight.EXITED, outcome=EXIT)
    for key in handed(hpc.due()):
        hpc.backend("no_room", key, "no CPUs")
    hpc.hears("edge", Cancel(key=keys[0], pool="gpu"))
    hpc.backend("fenced", keys[0], True)
    assert handed(hpc.due()) == keys[WOKEN:]
