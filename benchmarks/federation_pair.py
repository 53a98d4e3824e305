"""Two sites for benchmarks, edge that sends and hpc that runs, with certificates of a CA of their own, on loopback."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from federation.cli.main import run

DISK = "/var/tmp"  # journals and logs lie on a disk, as on a site
STOP_S = 20.0
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
_COMMON = """version: 1
site: {name}
state_dir: {folder}/state
tls: {{certificate: {folder}/site.pem, ca: [{folder}/ca.pem], crl: [{folder}/crl.pem]}}
local: {{socket: {folder}/fed.sock, admins: [nobody]}}
audit: {{path: {folder}/audit.log}}
"""
_EDGE = 'peers: {{hpc: {{address: "127.0.0.1:{port}"}}}}\n'
_HPC = """listen: 127.0.0.1:{port}
pools: {{batch: {{most_jobs: 1000000, local: {{folder: {folder}/spool, cpus: 8}}}}}}
peers: {{edge: {{pools: [batch], users: {{nobody: nobody}}, most_jobs: 1000000,
         messages: {{per_s: 1000000, burst: 1000000}}}}}}
"""


@dataclass(kw_only=True)
class Answering:
    """A process that answers questions: JSON lines both ways."""

    argv: Sequence[str]
    log: Path
    process: "subprocess.Popen[str] | None" = field(default=None, init=False)

    def start(self) -> None:
        """Returns when it serves."""
        pipe, env = subprocess.PIPE, {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
        env["PYTHONPYCACHEPREFIX"] = str(self.log.parent.parent / "bytecode")  # it is there where it is installed
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv, stdin=pipe, stdout=pipe, stderr=log, text=True, bufsize=1, env=env
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
            raise RuntimeError(f"{self.argv} ended: {self.log.read_text()[-2000:]}")
        return json.loads(line)

    def used_s(self) -> float:
        """CPU seconds, of all its threads."""
        return float(self.ask("used")["cpu_s"])

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            process.send_signal(number)
            try:
                process.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@dataclass(kw_only=True)
class Site(Answering):
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "fed.yaml"

    @property
    def ran(self) -> Path:
        """One line a job that was started: its key, and when."""
        return self.folder / "ran"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """`port`: hpc's."""

    edge: Site
    hpc: Site
    folder: Path
    port: int

    def start(self) -> None:
        self.hpc.start()
        self.edge.start()
        self.edge.ask("linked", site="hpc")


@contextmanager
def pair(where: str = DISK) -> Iterator[Pair]:
    """Neither is started yet. `where`: the file system that their journals are on."""
    with tempfile.TemporaryDirectory(prefix="fed-bench-", dir=where) as text:
        root = Path(text)
        root.chmod(0o711)
        port = free_port()
        _fed("pki", "init", "bench", "--folder", str(root / "pki"))
        made = Pair(edge=_site(root, "edge", _EDGE, port), hpc=_site(root, "hpc", _HPC, port), folder=root, port=port)
        try:
            yield made
        finally:
            made.edge.end()
            made.hpc.end()


def issue(root: Path, name: str) -> Path:
    """A site's certificates: their folder."""
    _fed("pki", "issue", name, "--folder", str(root / "pki"), "--out", str(root / name))
    return root / name


def _site(root: Path, name: str, more: str, port: int) -> Site:
    folder = issue(root, name)
    (folder / "fed.yaml").write_text((_COMMON + more).format(name=name, folder=folder, port=port))
    starts = "import gc; gc.disable(); from benchmarks.federation_site import run; run()"
    argv = [sys.executable, "-c", starts, str(folder / "fed.yaml"), str(folder / "ran")]
    return Site(argv=argv, log=folder / "log", folder=folder)


@contextmanager
def bare(made: Pair) -> Iterator[tuple[Answering, Answering]]:
    """A server and a client of gRPC with mutual TLS and nothing else, both up."""
    port, ends = free_port(), []
    for role, site in (("serve", made.hpc), ("call", made.edge)):
        argv = [sys.executable, "-m", "benchmarks.federation_bare", role, str(site.folder), str(port)]
        ends.append(Answering(argv=argv, log=site.folder / f"{role}.log"))
    server, client = ends
    try:
        server.start()
        client.start()
        yield server, client
    finally:
        client.end()
        server.end()


def _fed(*words: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        if run(list(words)):
            raise RuntimeError(f"fed {' '.join(words)} failed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def full() -> bool:
    """Whether the sizes of the scoreboard are wanted, and not those that fit beside all other benchmarks."""
    return bool(os.environ.get("BENCH_FULL"))
