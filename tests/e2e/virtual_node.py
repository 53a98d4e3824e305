"""A virtual node beside the two of `bare_slurm`, with the plugins as they are installed; the daemon is the test."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.bare_slurm import NOBODY, BareSlurm, bare_slurm, free_ports, wait
from tests.integration.spank.daemon import SPANK, Daemon

NODE = "cloud-1"
LUA = "function slurm_job_submit() return slurm.SUCCESS end\nfunction slurm_job_modify() return slurm.SUCCESS end\n"
_CONF = """\
TaskProlog={folder}/taskprolog
TaskEpilog={folder}/taskepilog
Prolog={folder}/prolog
PrologFlags=Contain
KillWait=3
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=512 RealMemory=160000
PartitionName=cloud Nodes={node} State=UP MaxTime=INFINITE
"""
# Both say that they ran, and as whom; the prolog keeps what the plugin told it.
_TASK_PROLOG = '#!/bin/sh\necho "$SLURMD_NODENAME $SLURM_JOB_ID" >> {folder}/users/taskprologs\n'
_TASK_EPILOG = "#!/bin/sh\nenv > {folder}/users/epilog-$SLURM_JOB_ID\n"
_PROLOG = """\
#!/bin/sh
[ "$SLURMD_NODENAME" != {node} ] || cp {folder}/marks/$SLURM_JOB_ID {folder}/told-$SLURM_JOB_ID
exit 0
"""
_GRES = "".join(f"NodeName={NODE} Name={name} Count={count}\n" for name, count in (("vgpu", 1000), ("vgpu_mem", 16)))
_SU = '#!/bin/sh\necho "$@" >> {folder}/su-ran\n'  # in the place of the real one, for a slurmd that can still run it


class VirtualNode:
    """`slurm`: the cluster. `users`: a folder that its user can write in."""

    def __init__(self, slurm: BareSlurm, conf_server: str = "") -> None:
        """`conf_server`: slurmd has its files from there, and the login node's plugstack.conf with them."""
        self.slurm = slurm
        self.conf_server = conf_server
        self.users = slurm.folder / "users"
        self.etc = slurm.folder / "gateway"
        self.marks = slurm.folder / "marks"
        self.socket = slurm.folder / "gateway.sock"
        self.plugin = slurm.folder / "lib/vgpu_gateway.so"
        self.daemon = Daemon(self.socket)
        self.socket.chmod(0o666)
        self.slurmd: subprocess.Popen[bytes] | None = None

    @property
    def line(self) -> str:
        lib = self.plugin.parent
        where = f"nodes=cloud- proxy={lib}/vgpu-proxy socket={self.socket} marks={self.marks}"
        return f"required {self.plugin} {where}\n"

    def set_up(self) -> None:
        """All but a running slurmd."""
        folder = self.slurm.folder
        self.etc.mkdir()
        for file in ("slurm.conf", "cgroup.conf"):
            if (folder / file).exists():
                shutil.copy(folder / file, self.etc)
        (self.etc / "gres.conf").write_text(_GRES)
        options = f"optional {self.plugin.parent}/vgpu_burst.so\n"
        if self.conf_server:
            for where, line in ((self.etc, self.line), (folder, options)):
                (where / "plugstack.conf.d").mkdir()
                (where / "plugstack.conf.d/vgpu.conf").write_text(line)
        else:
            (self.etc / "plugstack.conf").write_text(self.line)
            (folder / "plugstack.conf").write_text(options)
        (folder / f"spool-{NODE}").mkdir()
        (folder / "lib").mkdir()
        for built in ("vgpu_gateway.so", "vgpu_burst.so", "vgpu-proxy"):
            shutil.copy(SPANK / "build" / built, folder / "lib")
        self.users.mkdir()
        os.chown(self.users, NOBODY, NOBODY)
        scripts = {"taskprolog": _TASK_PROLOG, "taskepilog": _TASK_EPILOG, "prolog": _PROLOG, "su": _SU}
        for name, text in scripts.items():
            (folder / name).write_text(text.format(folder=folder, node=NODE))
            (folder / name).chmod(0o755)

    def start(self, *, su: str = "/dev/null") -> "subprocess.Popen[bytes]":
        """slurmd, in a mount namespace in which `su` is something else, and this host's own files are the gateway's."""
        mount = 'mount --bind "$0" "$(command -v su)" && exec "$@"'
        slurmd = ["slurmd", "-D", "-N", NODE]
        if self.conf_server:
            own = "plugstack.conf.d"
            bind = f"mount --bind {self.etc / own} {self.slurm.folder / own}"
            munge = f"mkdir /run/munge && ln -s {self.slurm.folder}/munge.sock /run/munge/munge.socket.2"
            mount = f"mount -t tmpfs none /run && {munge} && {bind} && {mount}"
            slurmd = ["env", "-u", "SLURM_CONF", *slurmd, "--conf-server", self.conf_server]
        else:
            slurmd += ["-f", str(self.etc / "slurm.conf")]
        self.slurm.start("unshare", "--mount", "sh", "-c", mount, su, *slurmd)
        self.slurmd = self.slurm.daemons[-1]
        return self.slurmd

    def serve(self, *, su: str = "/dev/null") -> None:
        """Start slurmd and wait until it is there: what slurmctld says may still be about the one before."""
        log = self.slurm.folder / f"slurmd-{NODE}.log"
        size = log.stat().st_size if log.exists() else 0
        self.start(su=su)
        wait(lambda: log.exists() and b"slurmd started on" in log.read_bytes()[size:], f"the slurmd of {NODE}")
        wait(lambda: self.state() in ("idle", "mixed", "allocated"), f"a node {NODE}")

    def stop(self) -> None:
        assert self.slurmd is not None
        self.slurmd.terminate()
        self.slurmd.wait(20)

    def state(self) -> str:
        return self.slurm.run("sinfo", "-h", "-n", NODE, "-o", "%T").stdout.strip()

    def submit(self, script: str, *options: str, partition: str = "cloud", **env: str) -> str:
        """As a user, whose script's last act is to prove that it ran."""
        text = f"#!/bin/sh\n{script}\ntouch {self.users}/ran-$SLURM_JOB_ID\n"
        where = (f"--output={self.users}/%j.out", f"--partition={partition}", "--chdir=/tmp")
        ran = self.slurm.run("sbatch", "--parsable", *where, *options, stdin=text, user=NOBODY, env=env)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def output(self, job: str) -> str:
        return (self.users / f"{job}.out").read_text()

    def wait_job(self, job: str, *states: str) -> dict[str, str]:
        wait(lambda: self.slurm.job(job).get("JobState") in states, f"job {job} {' or '.join(states)}")
        return self.slurm.job(job)

    def ran(self) -> set[str]:
        """What of users' jobs has run anywhere: scripts, and the task prologs before them on our node."""
        prologs = self.users / "taskprologs"
        told = prologs.read_text().splitlines() if prologs.exists() else []
        return {path.name for path in self.users.glob("ran-*")} | {line for line in told if line.startswith(NODE)}


@contextmanager
def virtual_node(*, configless: bool = False) -> Iterator[VirtualNode]:
    """Running and idle."""
    port = free_ports(1)[0]
    host = os.uname().nodename.split(".")[0]
    scripts = {"job_submit.lua": LUA + "return slurm.SUCCESS\n"}
    if configless:
        scripts["gres.conf"] = _GRES + _GRES.replace(NODE, "n[1-2]")

    def conf(folder: Path) -> str:
        more = ""
        if configless:
            (folder / "plugstack.conf").write_text(f"include {folder}/plugstack.conf.d/*.conf\n")
            more = "SlurmctldParameters=enable_configless\n"
        return _CONF.format(folder=folder, node=NODE, host=host, port=port) + more

    with bare_slurm(scripts, conf) as slurm:
        text = slurm.conf.read_text()
        ctld = next(line.partition("=")[2] for line in text.splitlines() if line.startswith("SlurmctldPort="))
        node = VirtualNode(slurm, f"127.0.0.1:{ctld}" if configless else "")
        try:
            node.set_up()
            node.serve()
            yield node
        finally:
            node.daemon.close()
