"""Work in a thread that has a file in hand. It can't be called off, so who is cancelled meanwhile waits for its end.

Else a file would be closed under it, and what it writes next would go to the next file of that number; or it would
meet whoever does the same again.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def _nothing(_: object) -> None:
    """What comes of most work holds nothing."""


async def in_thread(
    call: Callable[[*Ts], T],
    *args: *Ts,
    unwanted: Callable[[T], None] = _nothing,
    hurry: Callable[[], None] = lambda: None,
    threads: ThreadPoolExecutor | None = None,
) -> T:
    """When who asked for it is cancelled, `hurry` is called at once, such as to end a loop, and `unwanted` with what
    came of it, such as to close a file. `threads`: of the file system that is used; None: the event loop's own, for
    what is in state_dir.
    """
    work = asyncio.get_running_loop().run_in_executor(threads, call, *args)
    cut: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError as error:
            cut = error
            hurry()
    if cut is None:
        return work.result()
    if not work.cancelled() and work.exception() is None:
        unwanted(work.result())
    raise cut
