"""A daemon starts with what its fed.yaml needs and with nothing else: its users wait for it."""

import subprocess
import sys
from pathlib import Path
from uuid import UUID

from federation.cli.main import run

CONFIG = """version: 1
site: edge
state_dir: {folder}/state
tls: {{certificate: {folder}/edge/site.pem, ca: [{folder}/edge/ca.pem], crl: [{folder}/edge/crl.pem]}}
local: {{socket: {folder}/sock}}
audit: {{path: {folder}/audit.log}}
"""
START = """
import asyncio, sys
from pathlib import Path
import federation.cli.main
from federation.daemon import Daemon

async def start():
    async with Daemon(Path(sys.argv[1])).running():
        pass

asyncio.run(start())
print(*[name for name in sys.modules if name.startswith("federation.")])
"""
TIDIED = """
import asyncio, sys
from pathlib import Path
from federation.daemon import Daemon

async def start(left):
    async with Daemon(Path(sys.argv[1])).running(), asyncio.timeout(30):
        while left.exists():
            await asyncio.sleep(0.05)

asyncio.run(start(Path(sys.argv[2])))
"""


def site(folder: Path) -> Path:
    assert run(["pki", "init", "lab", "--folder", str(folder / "pki")]) == 0
    assert run(["pki", "issue", "edge", "--folder", str(folder / "pki"), "--out", str(folder / "edge")]) == 0
    path = folder / "fed.yaml"
    path.write_text(CONFIG.format(folder=folder))
    return path


def test_without_an_overflow_none_of_it_is_loaded(tmp_path: Path) -> None:
    path = site(tmp_path)
    done = subprocess.run([sys.executable, "-c", START, path], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "federation.daemon" in loaded
    assert [name for name in loaded if name.startswith("federation.overflow")] == []


def test_chunks_of_an_attempt_that_it_does_not_know_are_dropped(tmp_path: Path) -> None:
    path, left = site(tmp_path), tmp_path / f"state/staging/{UUID(int=7)}.1"
    (tmp_path / "state").mkdir(mode=0o700)
    left.mkdir(parents=True)
    (left / "part").write_bytes(b"cut off")
    subprocess.run([sys.executable, "-c", TIDIED, path, left], check=True)
    assert left.parent.exists()
