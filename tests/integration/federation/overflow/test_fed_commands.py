"""`fed cancel`, `signal`, `requeue` of a job of the Slurm here: what is done is so on both sides, or it is refused."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from federation.access.local import Caller
from federation.desk.answers import Answers, Office
from federation.errors import Refused
from federation.overflow.frames import Ended
from slurm_plugin.lab.people import ensure_people
from tests.integration.federation.daemons import passable
from tests.integration.federation.overflow.gate import USER, Gate, uid_of, until

RUNS = b"trap 'echo heard' USR1\necho begun\nwhile [ ! -e %s/go-on ]; do sleep 0.05; done\nexit 3\n"


@pytest.fixture
def gate() -> Iterator[Gate]:
    ensure_people()
    with passable() as folder:
        yield Gate(folder)


async def asks(gate: Gate, what: str, number: int = 0) -> None:
    """As its user, about the only job."""
    uid, answers = uid_of(USER), Answers(Office(runner=gate.runner, mover=gate.mover, addresses={}))
    caller = Caller(pid=1, uid=uid, gid=uid, user=USER, admin=False)
    await answers.act(caller, str((await gate.key()).token), what, number)


async def test_it_hears_a_signal_and_is_not_begun_anew_in_the_middle_of_its_output(gate: Gate) -> None:
    proxy = gate.proxy(RUNS % bytes(gate.home))
    async with gate.up(), asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await until(lambda: proxy.output == b"begun\n")
        with pytest.raises(Refused, match="it is job 42 of the Slurm here") as refused:
            await asks(gate, "requeue")
        assert refused.value.hint == "scontrol requeue 42"
        await asks(gate, "signal", signal.SIGUSR1)
        await until(lambda: proxy.output == b"begun\nheard\n")
        (gate.home / "go-on").touch()
        assert await running == Ended(by_signal=False, value=3)
    assert [key.attempt for key in gate.jobs.attempts()] == [1]


async def test_a_cancel_is_one_in_slurm_too(gate: Gate) -> None:
    proxy = gate.proxy(RUNS % bytes(gate.home))
    async with gate.up(), asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await until(lambda: proxy.output == b"begun\n")
        await asks(gate, "cancel")
        await until(lambda: ("cancel", "42") in gate.slurm.told)
        await proxy.signal(signal.SIGTERM)  # slurmstepd's
        ended = await running
    assert isinstance(ended, Ended)
    assert ended.by_signal


async def test_one_that_lost_its_gateway_is_cancelled_with_its_next_run(gate: Gate) -> None:
    job = gate.job()
    first = gate.proxy(RUNS % bytes(gate.home), job)
    async with gate.up(), asyncio.TaskGroup() as group:
        lost = group.create_task(first.run())
        await until(lambda: first.output == b"begun\n")
        lost.cancel()
        gate.slurm.requeued(job, at=500)
        await asks(gate, "cancel")
        token = (await gate.key()).token
        await gate.sees(token, lambda known: known.outcome is not None)
        second = gate.again(first, gate.slurm.started(42, at=620, node="cloud-hpc-1"))
        running = group.create_task(second.run())
        await until(lambda: ("cancel", "42") in gate.slurm.told)
        await second.signal(signal.SIGTERM)
        ended = await running
    assert isinstance(ended, Ended)
    assert [key.attempt for key in gate.jobs.attempts()] == [1]
