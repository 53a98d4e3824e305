"""A daemon that is told to end ends: whatever a task of its makes of its cancellation, and within a bound."""

import subprocess
import sys
from pathlib import Path

from tests.integration.federation.daemons import PATIENCE_S
from tests.integration.federation.test_daemon_start import site

DEAF = """
import asyncio, os, signal, sys
from pathlib import Path
from federation import daemon, tasks
from slurm_plugin import logs

async def tidied(*_):
    told = 0
    while told < int(sys.argv[2]):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told += 1

daemon.tidied = tidied
daemon.tell_ready = lambda: os.kill(os.getpid(), signal.SIGTERM)
tasks.AGAIN_S, tasks.ENDS_S, tasks.NAMED_S, tasks.EXITS_S = map(float, sys.argv[3:])
logs.to_stderr()
asyncio.run(daemon.run(Path(sys.argv[1])))
"""


def ended(folder: Path, *rest: object) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", DEAF, str(site(folder)), *map(str, rest)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_task_that_loses_its_cancellation_is_told_again(tmp_path: Path) -> None:
    done = ended(tmp_path, 3, 0.1, PATIENCE_S, PATIENCE_S, PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "daemon.stopped" in done.stderr


def test_one_that_never_ends_is_named_and_the_daemon_ends_all_the_same(tmp_path: Path) -> None:
    done = ended(tmp_path, 1 << 30, 0.1, 0.3, 0.5, 3)
    assert done.returncode == 1, done.stderr
    assert "task.left" in done.stderr
    assert "tidied" in done.stderr
