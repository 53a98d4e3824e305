from typing import Any

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.idle import Idle
from slurm_plugin.agent.threads import Threads
from slurm_plugin.errors import NvmlError
from tests.unit.agent.world import gpu, grant


class Driver:
    """Tells what the test says computes on each slice."""

    def __init__(self) -> None:
        self.pids: dict[str, tuple[int, ...] | NvmlError] = {}

    def processes(self, slice_: str) -> tuple[int, ...]:
        said = self.pids[slice_]
        if isinstance(said, NvmlError):
            raise said
        return said


async def test_a_slice_is_unused_from_the_first_look_that_sees_nobody_until_somebody_is_seen() -> None:
    now, moved, driver, book, threads = [100.0], [0], Driver(), Book(), Threads()
    gpus: Any = driver

    def count() -> None:
        moved[0] += 1

    idle = Idle(book, gpus=gpus, threads=threads, moved=count, clock=lambda: now[0])

    async def look(at: float, said: tuple[int, ...] | NvmlError) -> tuple[dict[str, float], int]:
        now[0], driver.pids["a"] = at, said
        await idle.look()
        return idle.since, moved[0]

    try:
        book.see((gpu("A"),))
        book.grants[7] = grant(7, "a")
        assert await look(100, (812,)) == ({}, 0)
        assert await look(160, NvmlError("no answer")) == ({}, 0)
        assert await look(220, ()) == ({"a": 220.0}, 1)
        assert await look(280, ()) == ({"a": 220.0}, 1)
        assert await look(340, NvmlError("no answer")) == ({"a": 220.0}, 1)
        book.grants[7] = grant(7, "a", started_at=300)
        assert await look(400, ()) == ({"a": 400.0}, 2)
        assert await look(460, (9,)) == ({}, 3)
        del book.grants[7]
        assert await look(520, ()) == ({}, 3)
    finally:
        threads.close()
