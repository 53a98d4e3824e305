"""Two sites for benchmarks, edge that sends and hpc that runs, with certificates of a CA of their own, on loopback."""

import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from federation.cli.main import run

STOP_S = 20.0
_SITE = """version: 1
site: {name}
state_dir: {folder}/state
listen: 127.0.0.1:{port}
tls: {{certificate: {folder}/site.pem, ca: [{folder}/ca.pem], crl: [{folder}/crl.pem]}}
local: {{socket: {folder}/fed.sock, admins: [nobody]}}
audit: {{path: {folder}/audit.log}}
"""
_EDGE = 'peers: {{hpc: {{address: "127.0.0.1:{port}"}}}}\n'
_HPC = """pools: {{batch: {{most_jobs: 1000000, local: {{folder: {folder}/spool, cpus: 8}}}}}}
peers: {{edge: {{pools: [batch], users: {{nobody: nobody}}, most_jobs: 1000000,
         messages: {{per_s: 1000000, burst: 1000000}}}}}}
"""


@dataclass(kw_only=True)
class Site:
    """A process that answers questions while it lives."""

    name: str
    folder: Path
    process: "subprocess.Popen[str] | None" = field(default=None, init=False)

    @property
    def config(self) -> Path:
        return self.folder / "fed.yaml"

    @property
    def ran(self) -> Path:
        return self.folder / "ran"

    def start(self) -> None:
        """Returns when it serves."""
        argv = [sys.executable, "-m", "benchmarks.federation_site", str(self.config), str(self.ran)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
            )
        self.answer()

    def ask(self, do: str, **what: Any) -> Any:
        self.tell(do, **what)
        return self.answer()

    def tell(self, do: str, **what: Any) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **what}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended: {(self.folder / 'log').read_text()[-2000:]}")
        return json.loads(line)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            process.send_signal(number)
            try:
                process.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    edge: Site
    hpc: Site
    folder: Path

    def start(self) -> None:
        for site in (self.hpc, self.edge):
            site.start()
        self.edge.ask("linked", site="hpc")


@contextmanager
def pair(where: str | None = None) -> Iterator[Pair]:
    """Neither is started yet. `where`: the file system that their journals are on."""
    with tempfile.TemporaryDirectory(prefix="fed-bench-", dir=where) as text:
        root = Path(text)
        root.chmod(0o711)
        port = _free_port()
        _quietly(["pki", "init", "bench", "--folder", str(root / "pki")])
        sites = []
        for name, more in (("edge", _EDGE), ("hpc", _HPC)):
            folder = root / name
            _quietly(["pki", "issue", name, "--folder", str(root / "pki"), "--out", str(folder)])
            own = port if name == "hpc" else _free_port()
            (folder / "fed.yaml").write_text(
                (_SITE + more).format(name=name, folder=folder, port=own)
                if name == "hpc"
                else (_SITE.format(name=name, folder=folder, port=own) + more.format(port=port))
            )
            sites.append(Site(name=name, folder=folder))
        made = Pair(edge=sites[0], hpc=sites[1], folder=root)
        try:
            yield made
        finally:
            for site in sites:
                site.end()


def _quietly(words: list[str]) -> None:
    if run(words):
        raise RuntimeError(f"fed {' '.join(words)} failed")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
