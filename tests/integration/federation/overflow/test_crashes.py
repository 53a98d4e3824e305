"""A daemon that dies before or after any transaction of a burst's, or any word to Slurm: the next one ends the same.

A death is a daemon of which only the journal, the backend and Slurm are left; proxies then say again what they said.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest

from federation.model.states import End, Outcome
from federation.model.token import Key
from federation.overflow import arrivals
from federation.overflow.burst import Burst, Claim, Ends, Heard, Phase, Way
from federation.overflow.bursts import newest_bursts
from tests.integration.federation.overflow.stand import ASKED, JOB, Stand, stand

TRANSACTIONS = ("act", "read")
WORDS = ("job", "jobs", "set_limit", "set_end", "requeue", "cancel", "widen", "note")
MOST_STEPS = 200  # of one story
AT_ONCE = 25  # stories, each with a death of its own

_ours: ContextVar[bool] = ContextVar("_ours", default=False)  # what the engine does by itself is not counted


class Death(Exception):
    """Of the daemon; nothing in it may catch this, so it is looked for afterwards, too."""


@dataclass
class Fate:
    """Dies at the n-th step that is counted; each has a before and an after."""

    dies_at: int = -1
    passed: int = 0
    dead: bool = False

    def step(self) -> None:
        if not _ours.get():
            return
        if self.dead or self.passed == self.dies_at:
            self.dead = True
            raise Death
        self.passed += 1

    def mortal(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def called(*args: object, **kwargs: object) -> object:
            self.step()
            found = await call(*args, **kwargs)
            self.step()
            return found

        return called


@contextmanager
def ours() -> Iterator[None]:
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


Part = Callable[[Stand], Awaitable[None]]


async def life(here: Stand, parts: Sequence[Part], fate: Fate) -> int:
    """One daemon's: how many parts of the story it has done."""
    done = 0
    async with here.up():
        for name in TRANSACTIONS:
            setattr(here.runner, name, fate.mortal(getattr(here.runner, name)))
        whole = {name: getattr(here.slurm, name) for name in WORDS}
        for name, call in whole.items():
            setattr(here.slurm, name, fate.mortal(call))
        try:
            for part in parts:
                with ours():
                    await part(here)
                if fate.dead:
                    break
                done += 1
        except Death:
            pass
        for name, call in whole.items():
            setattr(here.slurm, name, call)
    return done


async def dies_at(folder: Path, place: int, parts: Sequence[Part], check: Part) -> bool:
    """The story, with one death; the part in which it came is begun again by the next daemon. Tells whether it came."""
    (folder / str(place)).mkdir()
    here, fate = stand(folder / str(place)), Fate(dies_at=place)
    done = await life(here, parts, fate)
    died = fate.dead
    if died:
        await life(here, parts[done:], Fate())
    async with here.up():
        await check(here)
    return died


async def every_death(folder: Path, parts: Sequence[Part], check: Part) -> int:
    """Tells how many places there were to die at."""
    for first in range(0, MOST_STEPS, AT_ONCE):
        died = await asyncio.gather(*(dies_at(folder, first + nth, parts, check) for nth in range(AT_ONCE)))
        if not all(died):
            assert died == sorted(died, reverse=True)
            return first + sum(died)
    raise AssertionError("the story does not end")


async def bursts(here: Stand) -> list[Burst]:
    return await here.runner.read(lambda store: newest_bursts(store, "", 100))


@pytest.fixture(autouse=True)
def what_slurm_says_is_never_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "JUST_S", 0)


async def attach(here: Stand) -> None:
    await here.attach(here.slurm.records[12])


async def runs(here: Stand) -> None:
    token = (await bursts(here))[0].token
    _ours.set(False)
    await here.running(here.slurm.records[12])
    assert here.ran(token) == 1


async def passes(here: Stand) -> None:
    await here.passes(2)


async def gateway_is_lost(here: Stand) -> None:
    here.slurm.requeued(replace(here.slurm.records[12], restarts=0), at=500)


async def starts_again(here: Stand) -> None:
    assert here.slurm.records[12].partitions == ("cloud",)
    here.slurm.started(12, at=620, node="cloud-aws-2")


async def exits(here: Stand) -> None:
    token = (await bursts(here))[0].token
    _ours.set(False)
    here.backend.end(Key(token, 1), Outcome(end=End.EXITED, exit_code=3))
    await here.over(token)


async def proxy_exits(here: Stand) -> None:
    ending = await here.side.end((await bursts(here))[0].token)
    assert (ending.way, ending.value) == (Way.EXIT, 3)


async def slurm_has_its_end(here: Stand) -> None:
    here.slurm.put(replace(here.slurm.records[12], state="FAILED"))


async def test_a_lost_gateway_and_a_daemon_that_dies_anywhere(tmp_path: Path) -> None:
    async def begins(here: Stand) -> None:
        here.slurm.put(JOB)

    async def once(here: Stand) -> None:
        (burst,) = await bursts(here)
        assert (burst.phase, here.ran(burst.token)) == (Phase.CLOSED, 1)
        assert '"code":"3:0"' in here.slurm.records[12].note

    parts = [begins, attach, runs, passes, gateway_is_lost, passes, starts_again, attach, passes, exits, proxy_exits]
    places = await every_death(tmp_path, [*parts, slurm_has_its_end, passes], once)
    assert places > 40


async def test_a_requeue_by_the_user_and_a_daemon_that_dies_anywhere(tmp_path: Path) -> None:
    async def begins(here: Stand) -> None:
        here.slurm.put(JOB)

    async def is_requeued(here: Stand) -> None:
        here.slurm.put(replace(here.slurm.records[12], state="COMPLETING", restarts=1, submitted_at=500))

    async def proxy_hears(here: Stand) -> None:
        ends = await here.side.heard(12, Heard(signal=15, from_stepd=True, restarts=0))
        assert ends is Ends.REQUEUE

    async def waits(here: Stand) -> None:
        old = (await bursts(here))[0].token
        _ours.set(False)
        await here.over(old)
        here.slurm.requeued(replace(here.slurm.records[12], restarts=0), at=500)

    async def is_as_it_was(here: Stand) -> None:
        job = here.slurm.records[12]
        assert (job.partitions, job.limit_s, "open" in job.note) == (ASKED, JOB.limit_s, False)
        here.slurm.started(12, at=620)

    async def twice(here: Stand) -> None:
        new, old = await bursts(here)
        assert (old.phase, new.phase, new.limit_s) == (Phase.CLOSED, Phase.CLOSED, JOB.limit_s)
        assert [here.ran(token) for token in (old.token, new.token)] == [1, 1]

    again = [is_requeued, proxy_hears, waits, passes, is_as_it_was]
    parts = [begins, attach, runs, passes, *again, attach, runs, exits, proxy_exits, slurm_has_its_end, passes]
    assert await every_death(tmp_path, parts, twice) > 50


async def test_a_job_that_slurm_forgot_and_a_daemon_that_dies_anywhere(tmp_path: Path) -> None:
    async def begins(here: Stand) -> None:
        here.slurm.put(JOB)

    async def is_forgotten(here: Stand) -> None:
        del here.slurm.records[12]

    async def looks(here: Stand) -> None:
        await here.passes(4)

    async def is_stopped(here: Stand) -> None:
        token: UUID = (await bursts(here))[0].token
        _ours.set(False)
        await here.over(token)

    async def nothing_runs(here: Stand) -> None:
        (burst,) = await bursts(here)
        assert (burst.phase, here.ran(burst.token)) == (Phase.CLOSED, 1)
        assert (await here.fed(burst.token)).outcome is not None

    parts = [begins, attach, runs, is_forgotten, looks, is_stopped, passes]
    assert await every_death(tmp_path, parts, nothing_runs) > 15


async def is_lost_there(here: Stand) -> None:
    token = (await bursts(here))[0].token
    _ours.set(False)
    here.backend.end(Key(token, 1), Outcome(end=End.NODE_FAIL))
    await here.over(token)


async def begins_anew(here: Stand) -> None:
    """In the run that there is, or in the one that a requeue brought."""
    if here.slurm.records[12].state == "COMPLETING":
        here.slurm.requeued(here.slurm.records[12], at=500)
    if here.slurm.records[12].waits:
        await here.passes(2)
        here.slurm.started(12, at=620)
    await here.attach(here.slurm.records[12])


async def test_a_node_lost_elsewhere_and_a_daemon_that_dies_anywhere(tmp_path: Path) -> None:
    """Slurm was to requeue the job, and was not asked to: its proxy, which still waits, begins anew."""

    async def begins(here: Stand) -> None:
        here.slurm.put(JOB)

    async def proxy_waits(here: Stand) -> None:
        if (await bursts(here))[0].phase is Phase.OPEN:
            assert (await here.side.end((await bursts(here))[0].token)).way is Way.REQUEUE

    async def twice(here: Stand) -> None:
        new, old = await bursts(here)
        assert (old.phase, new.phase, new.limit_s) == (Phase.CLOSED, Phase.CLOSED, JOB.limit_s)
        assert [here.ran(token) for token in (old.token, new.token)] == [1, 1]

    parts = [begins, attach, runs, passes, is_lost_there, proxy_waits, begins_anew, runs, exits, proxy_exits]
    assert await every_death(tmp_path, [*parts, slurm_has_its_end, passes], twice) > 30


async def test_a_job_that_its_site_refused_and_a_daemon_that_dies_anywhere(tmp_path: Path) -> None:
    """Its proxy was to be told; the next time that it comes, it is."""

    async def begins(here: Stand) -> None:
        here.slurm.put(JOB)

    async def is_refused(here: Stand) -> None:
        what, burst = await here.arrive(here.slurm.records[12])
        assert burst is not None
        assert what in (Claim.NEW, Claim.REATTACH)
        await here.side.stop(burst, "no")

    async def is_over(here: Stand) -> None:
        here.slurm.put(replace(here.slurm.records[12], state="FAILED"))

    async def never_ran(here: Stand) -> None:
        found = await bursts(here)
        assert {(one.phase, here.ran(one.token)) for one in found} == {(Phase.CLOSED, 0)}

    parts = [begins, is_refused, is_refused, passes, is_over, passes]
    assert await every_death(tmp_path, parts, never_ran) > 15
