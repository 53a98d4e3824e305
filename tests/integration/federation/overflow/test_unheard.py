"""Jobs that Slurm believes to run, and of which nobody has heard, are started again; no others."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from federation.model.states import End, Outcome
from federation.model.token import Key
from federation.overflow.burst import Burst, Phase
from federation.overflow.notes import is_open, token_in
from federation.overflow.reconcile import SAVED_S, Place
from federation.overflow.unheard import UNHEARD_S, Unheard
from tests.integration.federation.overflow.stand import JOB, Stand, stand


@pytest.fixture
def here(tmp_path: Path) -> Stand:
    return stand(tmp_path)


def unheard_at(here: Stand) -> Unheard:
    place = Place(partition="cloud", serves=lambda node: node.startswith("cloud-"), attended=lambda _: here.attended)
    return Unheard(here.runner, here.slurm, place, here.clock)


async def told_after(here: Stand, unheard: Unheard) -> list[str]:
    await unheard.look()
    here.clock.ahead_s += UNHEARD_S
    await unheard.look()
    return [told[0] for told in here.slurm.told if told[0] == "requeue"]


@pytest.mark.parametrize("requeue", [True, False])
async def test_one_that_never_came_is_started_again_once(here: Stand, requeue: bool) -> None:
    async with here.up():
        here.slurm.put(replace(JOB, requeue=requeue))
        here.attended = False
        unheard = unheard_at(here)
        await unheard.look()
        assert not here.slurm.told
        assert await told_after(here, unheard) == ["requeue"]
        here.slurm.requeued(here.slurm.records[12], 900)
        here.slurm.started(12, 901)
        await unheard.look()
        assert sum(told[0] == "requeue" for told in here.slurm.told) == 1


async def test_one_that_runs_elsewhere_or_here_or_whose_proxy_is_there_is_left_alone(here: Stand) -> None:
    async with here.up():
        unheard = unheard_at(here)
        await here.running()
        here.attended = False
        here.slurm.put(replace(JOB, job_id=13, nodes=("n1",)))
        assert await told_after(here, unheard) == []
        here.attended = True
        here.slurm.put(replace(JOB, job_id=14))
        assert await told_after(here, unheard) == []


async def test_one_whose_end_is_on_record_here_does_not_run_again(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        await here.side.stop(burst, "cancelled")
        await here.over(burst.token)
        here.slurm.put(replace(JOB, state="CANCELLED"))
        await here.passes()
        here.slurm.put(JOB)
        here.attended = False
        assert await told_after(here, unheard_at(here)) == []


async def ended(here: Stand) -> Burst:
    """One whose end Slurm has on record, with its last note still on it."""
    burst = await here.running()
    await here.passes()
    here.backend.end(Key(burst.token, 1), Outcome(end=End.EXITED, exit_code=0))
    await here.over(burst.token)
    await here.side.end(burst.token)
    here.slurm.put(replace(here.slurm.records[12], state="COMPLETED"))
    await here.passes()
    here.clock.ahead_s += 2 * SAVED_S
    await here.passes()
    assert (await here.burst(burst.token)).phase is Phase.CLOSED
    assert is_open(here.slurm.records[12].note)
    return burst


async def test_one_that_was_requeued_after_its_end_may_start_on_any_node(here: Stand) -> None:
    async with here.up():
        burst = await ended(here)
        unheard = unheard_at(here)
        await unheard.look()
        assert is_open(here.slurm.records[12].note)  # it is over, and can't be changed
        here.slurm.requeued(replace(here.slurm.records[12], limit_s=60), 900)
        await unheard.look()
        assert here.slurm.records[12].limit_s == JOB.limit_s
        note = here.slurm.records[12].note
        assert (is_open(note), token_in(note)) == (False, burst.token)
        told = len(here.slurm.told)
        await unheard.look()
        assert len(here.slurm.told) == told


async def test_a_note_of_what_is_open_or_of_another_journal_stays(here: Stand) -> None:
    async with here.up():
        burst = await ended(here)
        foreign = here.slurm.records[12].note.replace(str(burst.token), str(UUID(int=9)))
        waits = here.slurm.requeued(replace(here.slurm.records[12], note=foreign), 900)
        await unheard_at(here).look()
        assert here.slurm.records[12].note == foreign
        here.slurm.put(replace(waits, note=""))
        again = await here.attach(here.slurm.started(12, 901))
        await here.passes()
        here.slurm.requeued(here.slurm.records[12], 950)
        await unheard_at(here).look()
        assert (is_open(here.slurm.records[12].note), again.token == burst.token) == (True, False)
