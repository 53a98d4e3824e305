"""A task that loses a cancellation, by whatever it does meanwhile, ends all the same; one that never does is named."""

import asyncio
import logging

import pytest

from federation import tasks
from federation.errors import Unavailable
from federation.tasks import ended, heed


async def closing(began: asyncio.Event) -> None:
    """What it does in the end fails, as when a journal is closed: that is raised in the cancellation's place."""
    try:
        began.set()
        await asyncio.Event().wait()
    finally:
        raise Unavailable("the journal is closed")


async def loop(began: asyncio.Event) -> None:
    while True:
        try:
            await closing(began)
        except Unavailable:
            heed()


async def begun(task: "asyncio.Task[None]", began: asyncio.Event) -> "asyncio.Task[None]":
    async with asyncio.timeout(10):
        await began.wait()
    return task


async def test_a_loop_that_goes_on_after_errors_ends_though_its_cancellation_became_one() -> None:
    began = asyncio.Event()
    task = await begun(asyncio.create_task(loop(began)), began)
    task.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait((task,))
    assert task.done()


async def deaf(began: asyncio.Event, times: int) -> None:
    for _ in range(times):
        try:
            began.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def test_one_that_does_not_hear_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.01)
    began = asyncio.Event()
    task = await begun(asyncio.create_task(deaf(began, times=3)), began)
    async with asyncio.timeout(10):
        await ended(task)
    assert task.done()


async def test_one_that_never_hears_is_left_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "ENDS_S", 0.05)
    began = asyncio.Event()
    task = await begun(asyncio.create_task(deaf(began, times=2), name="deaf one"), began)
    with caplog.at_level(logging.ERROR):
        await ended(task)
    assert not task.done()
    (told,) = caplog.records
    assert (told.getMessage(), vars(told)["task"]) == ("task.left", "deaf one")
    assert [one.rsplit(" ", 1)[1] for one in vars(told)["where"]] == ["deaf", "Event.wait"]
    await ended(task)
    assert task.done()


async def test_who_is_cancelled_while_he_ends_another_waits_for_it_and_is_cancelled() -> None:
    began, closes, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            closes.set()
            while not goes_on.is_set():
                try:
                    await goes_on.wait()
                except asyncio.CancelledError:
                    continue

    task = await begun(asyncio.create_task(slow()), began)
    ending = await begun(asyncio.create_task(ended(task)), closes)
    ending.cancel()
    ending.cancel()
    await asyncio.sleep(0)
    assert not ending.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert task.done()


async def test_what_an_ended_one_raised_is_nobody_s_fault() -> None:
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    began = asyncio.Event()
    task = await begun(asyncio.create_task(closing(began)), began)
    await ended(task)
    del task
    assert heard == []
