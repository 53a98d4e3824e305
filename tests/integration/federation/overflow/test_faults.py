"""A fault of ours in one of the daemon's loops ends nothing: jobs that run elsewhere go on, and an admin is told."""

from collections.abc import Iterator

import pytest

from federation.overflow.drains import Drains
from federation.overflow.frames import Ended
from federation.overflow.nodes import NodesLoop
from federation.overflow.reconcile import Reconcile
from federation.overflow.unheard import Unheard
from federation.overflow.widening import Widening
from slurm_plugin.lab.people import ensure_people
from tests.integration.federation.daemons import passable
from tests.integration.federation.overflow.gate import Gate, until

LOOKS = (
    *((Widening, "look"), (Reconcile, "look"), (Reconcile, "forget")),
    *((NodesLoop, "look"), (Drains, "look"), (Unheard, "look")),
)


@pytest.fixture
def gate() -> Iterator[Gate]:
    ensure_people()
    with passable() as folder:
        yield Gate(folder)


async def test_all_of_them_fail_and_a_job_runs_to_its_end(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slips(_self: object) -> None:
        raise KeyError("a slip")

    for kind, look in LOOKS:
        monkeypatch.setattr(kind, look, slips)
    async with gate.up():
        loops = gate.overflow.loops
        assert len(loops) == len(LOOKS)
        await until(lambda: all(loop.problem for loop in loops))
        assert {loop.problem for loop in loops} == {"a fault of the daemon's: KeyError: 'a slip'"}
        assert await gate.proxy(b"exit 2\n").run() == Ended(by_signal=False, value=2)
