"""How a daemon hears that a child process of its has ended."""

import asyncio
import sys


def heard_by_pidfd() -> None:
    """As Python 3.12 does by itself. 3.11 starts a thread for each child, which costs a prolog half a millisecond."""
    if sys.version_info < (3, 12):
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
