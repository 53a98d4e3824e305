"""A real sshd on loopback that serves one user who is not root, and that a test may kill and start again."""

import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from federation.access.acting import account_of
from federation.executors.slurm import SlurmExecutor, SlurmPool
from federation.executors.spool import Spool
from federation.executors.ssh_host import SshHost, SshPlace
from federation.executors.ssh_link import PING_S, Login, SshLink
from tests.contract.federation.executors.rig import NOBODY_NOW, USER, Rig
from tests.e2e.bare_slurm import wait

_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp
{env}
"""


class Sshd:
    """`folder` must be one that users may pass."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder / "sshd"
        self.folder.mkdir()
        self.port = _free_port()
        for name in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)], check=True)
        (self.folder / "authorized_keys").write_bytes((self.folder / "key.pub").read_bytes())
        words = (self.folder / "host_key.pub").read_text().split()[:2]
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {' '.join(words)}\n")
        wanted = " ".join(f"{name}={value}" for name, value in env.items())  # of several lines the first one counts
        config = _CONFIG.format(port=self.port, folder=self.folder, env=f"SetEnv {wanted}" if wanted else "")
        (self.folder / "config").write_text(config)
        self._account = account_of(USER)
        os.chown(self.folder / "host_key", self._account.uid, self._account.gid)
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen(
                ["/usr/sbin/sshd", "-D", "-e", "-f", str(self.folder / "config")],
                user=self._account.uid,
                group=self._account.gid,
                extra_groups=(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait(self._listens, "sshd")

    def kill(self) -> None:
        """With every connection that it serves: they are in its session, but what they started has left it."""
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return
        for pid in _tree(daemon.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        daemon.wait()

    def pause(self, number: signal.Signals) -> None:
        """SIGSTOP: nothing is answered, and nothing is closed. SIGCONT: on."""
        assert self._daemon is not None
        for pid in _tree(self._daemon.pid):
            os.kill(pid, number)

    def login(self) -> Login:
        return Login(host="127.0.0.1", port=self.port, user=USER, known_hosts=self.known_hosts, key=self.folder / "key")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def _tree(root: int) -> list[int]:
    """sshd's own processes, the parents first."""
    parents: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                name, _, rest = (entry / "stat").read_text().partition(" (")[2].rpartition(")")
            except OSError:
                continue
            names[int(entry.name)] = name
            parents.setdefault(int(rest.split()[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += [child for child in parents.get(pid, []) if names[child].startswith("sshd")]
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def behind_ssh(sshd: Sshd, folder: Path, *, ping_s: float = PING_S) -> AsyncIterator[Rig]:
    """A folder of the user's stands for his home there."""
    hosts: list[SshHost] = []

    def make() -> SlurmExecutor:
        hosts.append(host_behind_ssh(sshd, folder, ping_s=ping_s))
        return SlurmExecutor(SlurmPool(name="batch"), hosts[-1])

    try:
        yield Rig(make, Spool(folder / "there" / "spool"))
    finally:
        for host in hosts:
            await host.close()


def host_behind_ssh(sshd: Sshd, folder: Path, *, ping_s: float = PING_S) -> SshHost:
    root = folder / "there"
    root.mkdir(exist_ok=True)
    account = account_of(USER)
    os.chown(root, account.uid, account.gid)
    place = SshPlace(copies=Spool(folder / "copies"), users=frozenset({USER, NOBODY_NOW}), root=str(root / "spool"))
    return SshHost(SshLink(sshd.login(), ping_s=ping_s), place)
