"""The smallest real Slurm, for tests of what slurmctld loads: munge, slurmctld, two nodes, in a folder of its own."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

NODES = ("n1", "n2")
NOBODY = 65534
_START_S = 45.0
_STOP_S = 5.0
_POLL_S = 0.02
_CGROUPS_CAN_BE_DISABLED = (23, 11)  # and slurmd wants them otherwise

# config_overrides: the nodes have more processors than this machine.
_SLURM_CONF = """\
ClusterName=bare
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
SlurmctldPort={ctld}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
MaxNodeCount=8
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SchedulerParameters=sched_interval=1,bf_interval=1,default_queue_depth=100
GresTypes=vgpu,vgpu_mem
JobSubmitPlugins=lua
CliFilterPlugins={cli_filter}
NodeName=DEFAULT CPUs=16 RealMemory=16000 Gres=vgpu:1000,vgpu_mem:16
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={d0}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={d1}
PartitionName=gpu Nodes=n1,n2 Default=YES State=UP MaxTime=INFINITE
PartitionName=plain Nodes=n1,n2 State=UP MaxTime=INFINITE
PartitionName=short Nodes=n1,n2 State=UP MaxTime=60 MaxNodes=1
PartitionName=vgpu-wait Nodes=n1,n2 State=DOWN Hidden=YES PriorityTier=0 MaxTime=INFINITE
"""
_GRES_CONF = "NodeName=n[1-2] Name=vgpu Count=1000\nNodeName=n[1-2] Name=vgpu_mem Count=16\n"


class BareSlurm:
    """Started by `bare_slurm()`. Every command gets this cluster's SLURM_CONF and no Slurm variable of the caller's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.catalogue = folder / "catalogue"  # where the scripts of the test look for it
        self.daemons: list[subprocess.Popen[bytes]] = []

    def env(self, more: Mapping[str, str] | None = None, *, cli_filter: bool = False) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SALLOC"))}
        conf = self.folder / "login" / "slurm.conf" if cli_filter else self.conf
        return {**kept, "SLURM_CONF": str(conf), **(more or {})}

    def run(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        user: int | None = None,
        cli_filter: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """One command of Slurm's, at most 20 s. `cli_filter` runs it as on a login node that has our filter."""
        return subprocess.run(
            argv,
            env=self.env(env, cli_filter=cli_filter),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=20,
            user=user,
            cwd="/",
            check=False,
        )

    def version(self) -> tuple[int, int]:
        """(22, 5) for `slurm-wlm 22.05.8`."""
        major, minor = self.run("slurmctld", "-V").stdout.split()[1].split(".")[:2]
        return int(major), int(minor)

    def job(self, job_id: str) -> dict[str, str]:
        """A job as `scontrol show job` has it. For jobs of the test's own only: user text could forge a field."""
        shown = self.run("scontrol", "show", "job", "-d", "-o", job_id).stdout.split()
        return dict(field.partition("=")[::2] for field in shown)

    def jobs(self) -> list[str]:
        return self.run("squeue", "-h", "-a", "-o", "%A").stdout.split()

    def cancel_all(self, *options: str) -> None:
        """By id: from 26.05 on scancel knows no user of the name nobody."""
        jobs = self.jobs()
        if jobs:
            self.run("scancel", *options, *jobs)

    def log(self) -> str:
        return (self.folder / "slurmctld.log").read_text(errors="replace")

    def start(self, *argv: str) -> None:
        out = (self.folder / f"daemon-{len(self.daemons)}.out").open("wb")
        self.daemons.append(
            subprocess.Popen(argv, env=self.env(), stdout=out, stderr=out, cwd="/", start_new_session=True)
        )
        out.close()

    def stop(self) -> None:
        """Cancel all jobs, end the daemons newest first, and then whatever slurmstepd is left of this folder."""
        with contextlib.suppress(subprocess.SubprocessError, OSError, AssertionError):
            self.cancel_all("--full", "--signal=KILL")
            self.cancel_all()
            wait(lambda: not self.jobs(), "an empty queue", within_s=_STOP_S)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(_STOP_S)
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()
        for pid in _stepds(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait(condition: Callable[[], bool], what: str, *, within_s: float = _START_S) -> None:
    """Poll until `condition` holds. Raises AssertionError naming what did not come."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {within_s:g} s"
        time.sleep(_POLL_S)


@contextlib.contextmanager
def bare_slurm(scripts: Mapping[str, str], more: Callable[[Path], str] = lambda _: "") -> Iterator[BareSlurm]:
    """A running cluster whose configuration folder holds `scripts` (file name -> text) beside slurm.conf.

    `more` is called with the folder and gives further lines for slurm.conf.
    """
    folder = Path(tempfile.mkdtemp(prefix="bare-slurm-"))
    folder.chmod(0o755)
    cluster = BareSlurm(folder)
    try:
        _write_configuration(cluster, scripts, more(folder))
        cluster.start("munged", "-F", "--force", *_munge_options(folder))
        wait((folder / "munge.sock").exists, "munge's socket")
        cluster.start("slurmctld", "-D", "-f", str(cluster.conf))
        for node in NODES:
            cluster.start("slurmd", "-D", "-N", node, "-f", str(cluster.conf))
        wait(
            lambda: cluster.run("sinfo", "-h", "-p", "gpu", "-t", "idle", "-o", "%D").stdout.strip() == "2",
            "two idle nodes",
        )
        yield cluster
    except BaseException:
        for log in sorted((*folder.glob("*.log"), *folder.glob("*.out"))):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
        raise
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _write_configuration(cluster: BareSlurm, scripts: Mapping[str, str], more: str) -> None:
    folder = cluster.folder
    for name in ("state", "login", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    ctld, *slurmd = free_ports(1 + len(NODES))
    values = {
        "host": socket.gethostname().split(".")[0],
        "folder": folder,
        "ctld": ctld,
        "d0": slurmd[0],
        "d1": slurmd[1],
    }
    for where, cli_filter in ((folder, "none"), (folder / "login", "lua")):
        (where / "slurm.conf").write_text(_SLURM_CONF.format(cli_filter=f"cli_filter/{cli_filter}", **values) + more)
        (where / "gres.conf").write_text(_GRES_CONF)
        if cluster.version() >= _CGROUPS_CAN_BE_DISABLED:
            (where / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        for name, text in scripts.items():
            (where / name).write_text(text)


def _munge_options(folder: Path) -> Sequence[str]:
    files = {
        "socket": "munge.sock",
        "key-file": "munge.key",
        "pid-file": "munge.pid",
        "log-file": "munge.log",
        "seed-file": "munge.seed",
    }
    return [f"--{option}={folder / name}" for option, name in files.items()]


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, from below those that the kernel gives to outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        port = 20_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            found.append(port)
    return found


def _stepds(folder: Path) -> list[int]:
    """Pids of slurmstepd processes whose environment names this folder's slurm.conf."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = str(folder).encode() in (process / "environ").read_bytes()
            if ours and (process / "comm").read_text().strip().startswith("slurmstepd"):
                found.append(int(process.name))
    return found
