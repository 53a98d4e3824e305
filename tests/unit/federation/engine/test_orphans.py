"""What ended at a target and nobody asks for is kept for a while, and let go then, with a word about it."""

from dataclasses import replace
from uuid import UUID

import pytest

from federation.engine.effects import Effect, Forget, LetGo
from federation.engine.orphans import LOOK_S, MOST_LOOKED_AT, ORPHAN_S, Orphans
from federation.model.states import Origin, Target
from federation.model.token import Key
from federation.ports import Sight
from tests.unit.federation.engine.bench import EXIT, KEY, SPEC, Pair, only


@pytest.fixture
def pair() -> Pair:
    """Of one job, which is over, and whose output nobody has fetched yet."""
    pair = Pair()
    pair.running(replace(SPEC, script=b"x"))
    pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=replace(EXIT, ended_at=pair.hpc.time)))
    return pair


def later(pair: Pair, seconds: float) -> list[Effect]:
    pair.edge.time += seconds
    return pair.carry(pair.hpc, pair.hpc.due(seconds))


def test_what_an_origin_with_a_new_journal_does_not_know_is_let_go_after_two_weeks(pair: Pair) -> None:
    pair.edge.new_journal(UUID(int=99))
    pair.edge.restart()
    assert only(later(pair, ORPHAN_S - 1.0), Forget) == []
    assert pair.hpc.attempt().state is Target.ENDED
    effects = [*later(pair, LOOK_S), *later(pair, LOOK_S)]
    assert only(effects, LetGo) == [LetGo(site="hpc", key=KEY)]
    assert Forget(pool="gpu", key=KEY) in effects
    assert pair.hpc.attempt().state is Target.RELEASED


def test_what_its_origin_knows_is_kept_until_it_is_fetched(pair: Pair) -> None:
    effects = [*later(pair, 10 * ORPHAN_S), *later(pair, LOOK_S), *later(pair, LOOK_S)]
    assert only(effects, LetGo) == []
    assert (pair.hpc.attempt().state, pair.edge.job.state) == (Target.ENDED, Origin.RESULTS_PENDING)


def test_what_was_of_a_peer_that_is_none_any_more_is_let_go_after_two_weeks(pair: Pair) -> None:
    pair.hpc.engine.target.house = replace(pair.hpc.engine.target.house, guests={})
    assert only(pair.hpc.due(ORPHAN_S - 1.0), LetGo) == []
    effects = [*pair.hpc.due(LOOK_S), *pair.hpc.due(LOOK_S)]
    assert only(effects, LetGo) == [LetGo(site="edge", key=KEY)]
    assert pair.hpc.attempt().state is Target.RELEASED
    assert pair.hpc.store.attempt_spec(KEY) is None


def test_all_are_looked_at_a_page_at_a_time(pair: Pair) -> None:
    store, attempt = pair.hpc.store, pair.hpc.attempt()
    for number in range(1, MOST_LOOKED_AT + 2):
        store.save_attempt(replace(attempt, key=Key(UUID(int=number), 1)), was=None, told=False)
    orphans, seen = Orphans(), []
    for _ in range(3):
        pair.hpc.time += ORPHAN_S + 1.0
        seen.append(len(orphans.found(store, pair.hpc.now())))
    assert seen == [MOST_LOOKED_AT, 1, 0]
    assert orphans.found(store, pair.hpc.now()) == []  # not so soon again
