"""Real daemons on loopback, each a process of its own, with certificates that `fed pki` made."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from federation.cli.main import run

PATIENCE_S = 60.0
LOCAL = "{{local: {{folder: {spool}, cpus: 8}}}}"
GUEST = "nobody"  # a user that every host has; his uid is large
FED = (sys.executable, "-c", "from federation.cli.main import main; main()")

EDGE = """version: 1
site: edge
state_dir: {folder}/state
tls: {{certificate: {folder}/site.pem, ca: [{folder}/ca.pem], crl: [{folder}/crl.pem]}}
local: {{socket: {folder}.sock}}
audit: {{path: {folder}/audit.log}}
peers:
  hpc: {{address: "127.0.0.1:{port}"}}
"""
HPC = """version: 1
site: hpc
state_dir: {folder}/state
listen: 127.0.0.1:{port}
tls: {{certificate: {folder}/site.pem, ca: [{folder}/ca.pem], crl: [{folder}/crl.pem]}}
local: {{socket: {folder}.sock}}
audit: {{path: {folder}/audit.log}}
pools:
  batch: {pool}
peers:
  edge:
    pools: [batch]
    users: {{root: {guest}}}
"""


@dataclass
class Site:
    name: str
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def config(self) -> Path:
        return self.folder / "fed.yaml"

    @property
    def socket(self) -> Path:
        return self.folder.with_suffix(".sock")

    def start(self) -> None:
        """Returns when its socket answers."""
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen([*FED, "daemon", "--config", str(self.config)], stdout=log, stderr=log)
        log.close()
        until = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < until, self.log()
            time.sleep(0.05)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def fed(self, *words: str, cwd: Path | None = None, wants: int | None = 0) -> "subprocess.CompletedProcess[bytes]":
        environment = os.environ | {"FED_SOCKET": str(self.socket), "FED_CONFIG": str(self.config)}
        done = subprocess.run(
            [*FED, *words],
            cwd=cwd or self.folder,
            env=environment,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert wants is None or done.returncode == wants, (words, done, self.log())
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    def begun(self, *words: str) -> "subprocess.Popen[bytes]":
        environment = os.environ | {"FED_SOCKET": str(self.socket)}
        return subprocess.Popen([*FED, *words], env=environment, stderr=subprocess.PIPE)

    def submit(self, *words: str, cwd: Path | None = None) -> str:
        return self.fed("submit", *words, cwd=cwd).stdout.decode().strip()


@dataclass
class Pair:
    """Edge sends to hpc, and has no pool of its own."""

    edge: Site
    hpc: Site
    home: Path  # where jobs are submitted
    sites: Sequence[Site] = field(init=False)

    def __post_init__(self) -> None:
        self.sites = (self.edge, self.hpc)


@contextlib.contextmanager
def passable() -> Iterator[Path]:
    """A folder that other users may pass. Not pytest's own: another session of it closes those."""
    with tempfile.TemporaryDirectory(prefix="fed-") as name:
        Path(name).chmod(0o711)
        try:
            yield Path(name)
        finally:
            _end_jobs(name)


def _end_jobs(folder: str) -> None:
    """A job outlives its daemon, and must not outlive its test: all of one work below its folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink().is_relative_to(folder):
                os.kill(int(entry.name), signal.SIGKILL)


@contextlib.contextmanager
def pair(
    pool: str = LOCAL, guest: str = GUEST, edge: str = "", prepare: Callable[[Path], None] = lambda _: None
) -> Iterator[Pair]:
    """Both are up, and hpc has this pool, whose jobs run as `guest`. At the end neither has logged a fault of ours.

    `edge`: more of its file. `prepare` is called with the folder of all before they start.
    """
    with passable() as root, socket.socket() as probe:
        (root / "spool").mkdir(mode=0o711)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        assert run(["pki", "init", "lab", "--folder", str(root / "pki")]) == 0
        for name, text in (("edge", EDGE), ("hpc", HPC)):
            folder = root / name
            assert run(["pki", "issue", name, "--folder", str(root / "pki"), "--out", str(folder)]) == 0
            backend = pool.format(spool=root / "spool")
            text += edge if name == "edge" else ""
            (folder / "fed.yaml").write_text(text.format(folder=folder, port=port, pool=backend, guest=guest))
        (root / "home").mkdir()
        found = Pair(edge=Site("edge", root / "edge"), hpc=Site("hpc", root / "hpc"), home=root / "home")
        prepare(root)
        try:
            for site in found.sites:
                site.start()
            yield found
        finally:
            for site in found.sites:
                if site.process is not None:
                    site.end()
        for site in found.sites:
            assert "Traceback" not in site.log(), site.log()
