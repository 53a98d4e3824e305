import subprocess
import sys

COUNTS = """
import asyncio, threading
from slurm_plugin.children import heard_by_pidfd

async def main():
    child = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
    print(threading.active_count(), end=" ")
    child.stdin.close()
    print(await child.wait())

heard_by_pidfd()
asyncio.run(main())
"""


def test_a_child_of_a_daemon_costs_no_thread() -> None:
    argv = (sys.executable, "-W", "error", "-c", COUNTS)
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "1 0\n"
