"""What is noted is told once, reaches the disk, and never keeps the loop."""

import asyncio
import contextlib
import errno
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slurm_plugin.controller import chronicle
from slurm_plugin.controller.chronicle import Chronicle
from slurm_plugin.controller.history_file import HistoryFile
from slurm_plugin.controller.recuts import Event, Recuts
from slurm_plugin.controller.state import Action, Decision, GpuPlan
from slurm_plugin.guarantees import Margin
from slurm_plugin.history import TEXT_MAX, Entry, What
from slurm_plugin.model import Step
from tests.integration.controller.site import until

NOW = 100.0
PLAN = GpuPlan(node="n1", gpu="GPU-a", index=3, action=Action.CHANGE, why="as pool.yaml has it")
STEP = Step(gpu="GPU-a", destroy=(("1g.10gb", 0),), create=(("1g.20gb", 0),))


class Unwilling(HistoryFile):
    """A disk that takes nothing for a while."""

    refusals = 0

    def append(self, entries: Sequence[Entry]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(entries)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.now = NOW
        self.problems: dict[str, str] = {}
        self.file = Unwilling(folder)
        self.chronicle = Chronicle(self.file, lambda: self.now, self.problems)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.chronicle.run())
        await asyncio.sleep(0)  # it has begun: what is noted is written, at the latest when it ends
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def entries(self, *whats: What) -> list[Entry]:
        return [one for one in self.file.read("", 0.0, 1000)[0] if one.what in whats]

    async def written(self, count: int, *whats: What) -> list[Entry]:
        await until(lambda: len(self.entries(*whats)) >= count)
        return self.entries(*whats)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def decision(events: tuple[Event, ...] = (), margins: tuple[Margin, ...] = ()) -> Decision:
    return Decision(
        gres={},
        offers={},
        steps={},
        plan=(PLAN,),
        assigned={},
        problems={},
        recuts=Recuts(events=events),
        margins=margins,
    )


def test_it_begins_with_a_start(scene: Scene) -> None:
    scene.chronicle._write_rest()
    assert scene.file.read("", 0.0, 10) == ([Entry(at=NOW, what="started")], False)


async def test_an_event_is_logged_and_written_with_its_gpu(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    event = Event(
        what="planned", at=NOW, node="n1", gpu="GPU-a", destroy=STEP.destroy, create=STEP.create, why="x" * 2000
    )
    with caplog.at_level(logging.INFO, "slurm_plugin.controller.chronicle"):
        async with scene.running():
            scene.chronicle.see(decision((event,)))
            (entry,) = await scene.written(1, What.PLANNED)
    assert (entry.index, entry.destroyed, entry.created) == (3, ("1g.10gb@0",), ("1g.20gb@0",))
    assert len(entry.why) == TEXT_MAX
    assert [record.message for record in caplog.records] == ["recut.planned"]


@pytest.mark.parametrize(
    ("for_queue", "error", "told"),
    [(False, "", What.CHANGED), (False, "busy", What.FAILED), (True, "busy", What.FAILED), (True, "", None)],
)
async def test_a_step_is_told_when_it_has_ended(scene: Scene, for_queue: bool, error: str, told: What | None) -> None:
    """One for the queue that worked is told by the decision that finds it so."""
    async with scene.running():
        scene.chronicle.sent(7, STEP, PLAN, for_queue=for_queue)
        scene.now += 2.5
        scene.chronicle.ended(8, "of no step that was sent")
        scene.chronicle.ended(7, error)
        scene.chronicle.ended(7, error)
    found = scene.entries(What.CHANGED, What.FAILED)
    assert [(one.what, one.error, one.took_s, one.index) for one in found] == ([(told, error, 2.5, 3)] if told else [])


async def test_a_guarantee_is_told_when_it_lacks_when_it_is_whole_and_at_its_least(scene: Scene) -> None:
    async with scene.running():
        for have in (6, 7, 5, 5, 3, 2, 3, 4, 4, 3, 5):
            scene.chronicle.see(decision(margins=(Margin(guarantee="g", at_least=4, have=have),)))
        scene.chronicle.see(decision())
        scene.chronicle.see(decision(margins=(Margin(guarantee="g", at_least=4, have=5),)))
    told = [(one.have, one.why) for one in scene.entries(What.GUARANTEE)]
    assert told == [
        *((6, "2 to spare"), (5, "1 to spare"), (3, "lacks 1"), (2, "lacks 2"), (4, "0 to spare")),
        *((3, "lacks 1"), (5, "1 to spare")),
    ]


async def test_what_the_disk_refuses_is_told_and_written_once_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chronicle, "RETRY_S", 0.05)
    scene.file.refusals = 2
    async with scene.running():
        scene.chronicle.note(Entry(at=1.0, what=What.PAUSED))
        await until(lambda: "No space left" in scene.problems.get("history", ""))
        scene.chronicle.note(Entry(at=2.0, what=What.RESUMED))
        found = await scene.written(2, What.PAUSED, What.RESUMED)
        await until(lambda: "history" not in scene.problems)
    assert [one.what for one in found] == ["paused", "resumed"]
    assert len(scene.file.read("", 0.0, 10)[0]) == 3


async def test_more_than_there_is_room_for_is_counted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chronicle, "NOTED_MAX", 3)
    for _ in range(5):
        scene.chronicle.note(Entry(at=1.0, what=What.PAUSED))
    assert scene.problems["history"] == "3 entries of the history are lost: it can't be written so fast"
    async with scene.running():
        assert len(await scene.written(2, What.PAUSED)) == 2


async def test_steps_that_are_never_answered_are_forgotten(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chronicle, "SENT_MAX", 2)
    async with scene.running():
        for number in range(3):
            scene.chronicle.sent(number, STEP, PLAN, for_queue=False)
        for number in range(3):
            scene.chronicle.ended(number, "")
    assert len(scene.entries(What.CHANGED)) == 2


async def test_a_slow_disk_does_not_keep_the_loop(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    append = scene.file.append

    def slow(entries: Sequence[Entry]) -> None:
        free.wait(10)
        append(entries)

    monkeypatch.setattr(scene.file, "append", slow)
    async with scene.running():
        scene.chronicle.note(Entry(at=1.0, what=What.PAUSED))
        assert not free.is_set()
        free.set()
        await scene.written(1, What.PAUSED)
