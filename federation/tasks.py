"""How a task is ended, in one way for the whole house.

A cancellation is told once and can be lost on its way: what is cleaned up after it may raise something else, and who
goes on after errors takes it for one. So who ends a task says so again until it has ended, and who goes on after an
error heeds what may be behind it.
"""

import asyncio
import faulthandler
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

log = logging.getLogger(__name__)

AGAIN_S = 5.0  # until a task that has not ended is told so again
ENDS_S = 20.0  # until it is left where it is, and named in the log
NAMED_S = 30.0  # until a process that is to end names what is left in it
EXITS_S = 60.0  # until it ends all the same; systemd waits for 90
MOST_FRAMES = 50  # of where it is


def heed() -> None:
    """Of an error that is to be gone on after. Raises CancelledError where somebody has cancelled the present task."""
    if (task := asyncio.current_task()) is None or task.cancelling():
        raise asyncio.CancelledError


async def ended(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel these, and wait for their end, whatever it is. Who is cancelled meanwhile waits for it all the same.

    Bound: ENDS_S.
    """
    loop = asyncio.get_running_loop()
    until, cut = loop.time() + ENDS_S, None
    while (left := [one for one in tasks if not one.done()]) and loop.time() < until:
        for task in left:
            task.cancel()
        try:
            await asyncio.wait(left, timeout=min(AGAIN_S, ENDS_S))
        except asyncio.CancelledError as error:
            cut = error
    _name(left)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # or asyncio logs that nobody asked for it
    if cut is not None:
        raise cut


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """All of these until each is over, or one fails: it is raised, and the others are ended.

    A TaskGroup tells those in it once that they are to end, however often it is told.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await ended(*tasks)


def end_process() -> None:
    """Called by a daemon whose end has begun: whatever its tasks and threads do, it is over after EXITS_S.

    Crash: as if it was killed then, and its exit code is 1.
    """
    asyncio.get_running_loop().call_later(NAMED_S, lambda: _name(asyncio.all_tasks()))
    faulthandler.dump_traceback_later(EXITS_S, exit=True)


def _name(left: Iterable["asyncio.Task[Any]"]) -> None:
    for task in left:
        log.error("task.left", extra={"task": task.get_name(), "where": where(task)})


def where(task: "asyncio.Task[Any]") -> list[str]:
    """What it waits for, innermost last."""
    found: list[str] = []
    at: Any = task.get_coro()
    while at is not None and len(found) < MOST_FRAMES:
        frame, at = next((_read(at, *names) for names in _KINDS if hasattr(at, names[0])), (None, None))
        if frame is not None:
            found.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
    return found


_KINDS = (("cr_frame", "cr_await"), ("ag_frame", "ag_await"), ("gi_frame", "gi_yieldfrom"))


def _read(one: object, frame: str, awaited: str) -> tuple[Any, Any]:
    return getattr(one, frame), getattr(one, awaited)
