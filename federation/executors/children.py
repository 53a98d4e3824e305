"""Child processes that outlive us.

asyncio's own are killed when their event loop is over, so these are plain children, whose ends the kernel tells by
descriptors.
"""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence

from federation.access.acting import Account


def start(argv: Sequence[str], env: Mapping[str, str], account: Account) -> "subprocess.Popen[bytes]":
    """In a session of its own, as that user. Blocks. Raises OSError, or SubprocessError: it did not come to `argv`."""
    other = account.uid != os.geteuid()
    return subprocess.Popen(
        argv,
        env=env,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        user=account.uid if other else None,
        group=account.gid if other else None,
        extra_groups=account.groups if other else None,
    )


async def ended(child: "subprocess.Popen[bytes]") -> None:
    """When it has ended, and is reaped. Cancelled: it is left alone."""
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(child.pid)
    over = asyncio.Event()
    loop.add_reader(handle, over.set)
    try:
        await over.wait()
        child.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
        if child.returncode is None:
            child.returncode = 0  # or Python would complain about a child that nobody waits for
