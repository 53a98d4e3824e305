"""An sshd of our own on loopback, to measure beside: a new connection for each command, as a loop in a shell makes."""

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.federation_pair import free_port

READY_S = 10.0
_CONFIG = """ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
Subsystem sftp internal-sftp
{more}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    folder: Path
    port: int
    pid: int = 0

    def used_s(self) -> float:
        """CPU seconds, of the connections that have ended, at both ends."""
        ours = resource.getrusage(resource.RUSAGE_CHILDREN)
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        theirs = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        return ours.ru_utime + ours.ru_stime + theirs

    def run(self, command: str) -> float:
        """Its seconds, with those of the connection. Raises CalledProcessError."""
        return self._timed(["ssh", *self._options(), "-p", str(self.port), "127.0.0.1", command])

    def copy(self, source: Path, target: Path) -> float:
        """Of a file on that host to here, with scp."""
        return self._timed(["scp", "-q", *self._options(), "-P", str(self.port), f"127.0.0.1:{source}", str(target)])

    def _options(self) -> list[str]:
        settings = ("StrictHostKeyChecking=no", f"UserKnownHostsFile={os.devnull}", "LogLevel=ERROR", "BatchMode=yes")
        return ["-F", "none", "-i", str(self.folder / "key"), *(f"-o{one}" for one in settings)]

    def _timed(self, argv: list[str]) -> float:
        start = time.perf_counter()
        subprocess.run(argv, check=True, capture_output=True, cwd="/")
        return time.perf_counter() - start


@contextmanager
def sshd(folder: Path, more: str = "") -> Iterator[Host]:
    """`more`: lines of its configuration."""
    folder.mkdir()
    host = Host(folder=folder, port=free_port())
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "config").write_text(_CONFIG.format(port=host.port, folder=folder, more=more))
    Path("/run/sshd").mkdir(exist_ok=True)
    argv = [shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "config")]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        _until_ready(host)
        yield replace(host, pid=process.pid)
    finally:
        process.terminate()
        process.wait()


def _until_ready(host: Host) -> None:
    until = time.monotonic() + READY_S
    while True:
        try:
            host.run("true")
        except subprocess.CalledProcessError as error:
            if time.monotonic() > until:
                raise RuntimeError(f"sshd: {error.stderr.decode()}") from None
            time.sleep(0.1)
        else:
            return
