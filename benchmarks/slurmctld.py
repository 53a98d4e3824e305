"""A slurmctld and munged of our own in a private folder, with nodes that need not exist, for timing submissions."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_S = 20.0  # longest wait for a daemon
POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "SLURM_CONF": str(self.conf), "LC_ALL": "C"}

    def run(self, *argv: str) -> str:
        """One Slurm command against this controller. Raises CalledProcessError."""
        done = subprocess.run(argv, env=self.environment(), check=True, capture_output=True, text=True, timeout=30)
        return done.stdout


@contextmanager
def munged(folder: Path) -> Iterator[Path]:
    """A munged with a key of its own; its socket."""
    folder.mkdir(mode=0o755)
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    where = {"key-file": key, "socket": folder / "socket", "pid-file": folder / "pid", "seed-file": folder / "seed"}
    argv = ["munged", "--foreground", *(f"--{option}={path}" for option, path in where.items())]
    with _daemon([*argv, f"--log-file={folder / 'log'}"], dict(os.environ)) as process:
        _wait_for(lambda: (folder / "socket").exists(), process, "munged")
        yield folder / "socket"


@contextmanager
def controller(folder: Path, munge_socket: Path, *, lines: str) -> Iterator[Controller]:
    """A slurmctld that answers, with `lines` added to its slurm.conf. Files beside slurm.conf may be there already."""
    folder.mkdir(mode=0o755, exist_ok=True)
    (folder / "state").mkdir()
    conf = f"""ClusterName=bench
SlurmctldHost={socket.gethostname().split(".")[0]}(127.0.0.1)
SlurmctldPort={_free_port()}
SlurmdPort={_free_port()}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge_socket}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MaxJobCount=200000
ReturnToService=2
MailProg=/bin/true
MpiDefault=none
CommunicationParameters=NoCtldInAddrAny
{lines}
"""
    (folder / "slurm.conf").write_text(conf)
    here = Controller(folder=folder)
    with _daemon([shutil.which("slurmctld") or "/usr/sbin/slurmctld", "-D", "-i"], here.environment()) as process:
        _wait_for(lambda: _answers(here), process, f"slurmctld (see {folder}/slurmctld.log)")
        yield here


def _answers(here: Controller) -> bool:
    ping = subprocess.run(["scontrol", "ping"], env=here.environment(), capture_output=True, text=True, check=False)
    return "is UP" in ping.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _daemon(argv: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(READY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    deadline = time.monotonic() + READY_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not start")
        time.sleep(POLL_S)
