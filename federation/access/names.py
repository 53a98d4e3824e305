"""Asking who a user is. The service that knows may hang: it does so on threads of its own, where nobody else waits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_ASKED = 8  # at once, of all who ask

_THREADS = ThreadPoolExecutor(MOST_ASKED, thread_name_prefix="names")


async def asked(call: Callable[[*Ts], T], *args: *Ts) -> T:
    """Raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call, *args)
