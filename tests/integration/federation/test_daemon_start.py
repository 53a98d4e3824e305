"""A daemon starts with what its fed.yaml needs and with nothing else: its users wait for it."""

import subprocess
import sys
from pathlib import Path

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


def test_without_an_overflow_none_of_it_is_loaded(tmp_path: Path) -> None:
    assert run(["pki", "init", "lab", "--folder", str(tmp_path / "pki")]) == 0
    assert run(["pki", "issue", "edge", "--folder", str(tmp_path / "pki"), "--out", str(tmp_path / "edge")]) == 0
    path = tmp_path / "fed.yaml"
    path.write_text(CONFIG.format(folder=tmp_path))
    done = subprocess.run([sys.executable, "-c", START, path], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "federation.daemon" in loaded
    assert [name for name in loaded if name.startswith("federation.overflow")] == []
