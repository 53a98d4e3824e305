"""PURE: which daemons make up a lab, in the order they start."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_plugin.lab.processes import MARK
from slurm_plugin.lab.site import Lab
from slurm_plugin.slurm.chain import AGENT_CAPABILITIES, CONTROLLER_CAPABILITIES

_MODULE_FOLDER = Path(__file__).parent
_SOURCES = _MODULE_FOLDER.parent.parent
NVML_FOLDER = _MODULE_FOLDER / "nvml" / "build"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """One process that stays in the foreground.

    `door` is what shows that it serves: a unix socket or a TCP port on loopback. As the lab comes up, the daemons after
    one that is `awaited` start when it does.
    `log` is the log file it writes by itself, if it does; its stdout and stderr go to <log folder>/<file name>.out.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    door: Path | int
    awaited: bool = False
    log: Path | None = None
    user: str = "root"

    @property
    def file_name(self) -> str:
        return self.name.replace(":", "-")


def daemons_of(lab: Lab, python: str) -> tuple[Daemon, ...]:
    """All of them. `python` runs the pool's own daemons."""
    daemons = [_munged(lab)]
    if lab.spec.accounting:
        daemons += [_mariadbd(lab), _slurmdbd(lab)]
    daemons.append(_slurmctld(lab))
    if lab.spec.pool:
        daemons += [_agent(lab, node, python) for node in lab.nodes]
        daemons.append(_controller(lab, python))
    daemons += [_slurmd(lab, node) for node in lab.served]
    return tuple(daemons)


def environment(lab: Lab, daemon: Daemon, python: str) -> dict[str, str]:
    """The whole environment of a daemon: nothing of the caller's gets in.

    SLURM_CONF comes last: slurmstepd writes its title over its arguments and the variables before that one, so a
    shorter environment would cut the title, and an earlier SLURM_CONF could not be read back from /proc.
    """
    base = {
        MARK: f"{lab.folder}:{daemon.name}",
        "PATH": f"{Path(python).parent}:{_PATH}",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(_SOURCES),  # the daemons run from the same files as the lab
    }
    return base | {"SLURM_CONF": str(lab.slurm_conf)} | dict(daemon.env)


def _munged(lab: Lab) -> Daemon:
    run, log = lab.run, lab.log / "munged.log"
    files = {
        "key-file": lab.munge_key,
        "pid-file": run / "munged.pid",
        "log-file": log,
        "seed-file": run / "munged.seed",
    }
    argv = ["munged", "--foreground", "--num-threads=10", f"--socket={lab.munge_socket}"]
    argv += [f"--{option}={path}" for option, path in files.items()]
    return Daemon(name="munged", argv=tuple(argv), door=lab.munge_socket, awaited=True, log=log)


def _mariadbd(lab: Lab) -> Daemon:
    # Sizes: a lab holds few jobs; the defaults reserve far more memory than it can use.
    argv = (
        "mariadbd",
        "--no-defaults",
        "--user=mysql",
        f"--datadir={lab.database}",
        f"--socket={lab.database_socket}",
        f"--pid-file={lab.database / 'db.pid'}",
        "--skip-networking",
        "--innodb-buffer-pool-size=64M",
        "--innodb-lock-wait-timeout=900",
        "--max-allowed-packet=16M",
    )
    return Daemon(name="mariadbd", argv=argv, door=lab.database_socket, awaited=True)


def _slurmdbd(lab: Lab) -> Daemon:
    return Daemon(
        name="slurmdbd",
        argv=("slurmdbd", "-D"),
        env={"MYSQL_UNIX_PORT": str(lab.database_socket)},
        door=lab.ports.slurmdbd,
        awaited=True,
        log=lab.log / "slurmdbd.log",
    )


def _slurmctld(lab: Lab) -> Daemon:
    log = lab.log / "slurmctld.log"
    return Daemon(name="slurmctld", argv=("slurmctld", "-D"), door=lab.ports.slurmctld, awaited=True, log=log)


# A gateway's slurmd must not run a login shell as a user. On a host of its own its unit hides the program.
_WITHOUT_SU = ("unshare", "--mount", "--", "sh", "-c", 'mount --bind /dev/null "$(command -v su)" && exec "$@"', "sh")


def _slurmd(lab: Lab, node: str) -> Daemon:
    alone = _WITHOUT_SU if node in lab.spec.clouds else ()
    return Daemon(
        name=f"slurmd:{node}",
        argv=(*alone, "slurmd", "-D", "-N", node),
        env={"SLURM_CONF": str(lab.node_slurm_conf(node))},
        door=lab.ports.slurmd[lab.served.index(node)],
        log=lab.log / f"slurmd-{node}.log",
    )


def _agent(lab: Lab, node: str, python: str) -> Daemon:
    return Daemon(
        name=f"agent:{node}",
        argv=_with(AGENT_CAPABILITIES, python, "-m", "slurm_plugin.agent", "--config", str(lab.agent_config(node))),
        env=simulated_gpus(lab, node),
        door=lab.agent_socket(node),
    )


def _controller(lab: Lab, python: str) -> Daemon:
    return Daemon(
        name="controller",
        argv=_with(CONTROLLER_CAPABILITIES, python, "-m", "slurm_plugin.controller", "--config", str(lab.pool_config)),
        door=lab.ports.controller,
    )


def _with(capabilities: Iterable[str], *argv: str) -> tuple[str, ...]:
    """argv run as root with these capabilities and no others for ever, as the units on a real node have it."""
    bounds = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in capabilities)])
    return ("setpriv", f"--bounding-set={bounds}", "--inh-caps=-all", "--no-new-privs", "--", *argv)


def simulated_gpus(lab: Lab, node: str) -> dict[str, str]:
    """What makes an NVML client see this node's simulated GPUs."""
    return {"LD_LIBRARY_PATH": str(NVML_FOLDER), "VGPU_SIM_STATE": str(lab.sim_state(node))}
