"""What `vgpu lab ...` does: every function is one subcommand, returns data and prints nothing.

All raise LabError. `base` is the folder that holds labs; a lab lies in <base>/<name>.
"""

import os
import pwd
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_plugin.agent import device_cgroup
from slurm_plugin.errors import LabError
from slurm_plugin.lab import control, launch, processes, simgpu
from slurm_plugin.lab.build import build
from slurm_plugin.lab.command import run_command
from slurm_plugin.lab.daemons import daemons_of, simulated_gpus
from slurm_plugin.lab.keeper import KeeperStatus
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.pool_files import cgroup_of
from slurm_plugin.lab.site import FILE_NAME, Lab, LabSpec, check_name, from_text

DEFAULT_BASE = Path("/run/vgpu-lab")
CANCEL_LIMIT_S = 2.0  # how long `down` lets jobs end by themselves
SUPERVISOR_GRACE_S = 30.0
SWEEPS = 5  # a process may start another while we look


def _quiet(_text: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatus:
    name: str
    folder: Path
    supervisor: int  # pid; 0 when it is gone
    lacks: str  # what keeps it from being usable; empty when it is ready
    daemons: tuple[KeeperStatus, ...] = ()


def up(spec: LabSpec, base: Path = DEFAULT_BASE, say: Callable[[str], None] = _quiet) -> Lab:
    """Start a lab and wait until it serves. A lab that fails to start is ended, but its logs stay until `down`."""
    folder = base.absolute() / spec.name
    taken = frozenset(port for lab in list_labs(base) for port in _ports(lab))
    lab = launch.describe(spec, folder, taken)
    base.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        raise LabError(
            f"there is a lab {spec.name} already, in {folder}", hint=f"vgpu lab down --name {spec.name}"
        ) from None
    folder.chmod(0o755)
    try:
        say(f"making lab {spec.name} in {folder}")
        if made := ensure_people():
            say(f"made the users {', '.join(made)}")
        build(lab)
        launch.start(lab)
        launch.wait_ready(lab, say)
    except BaseException:
        _end_processes(folder)
        raise
    return lab


def down(name: str, base: Path = DEFAULT_BASE) -> bool:
    """End everything of a lab, whatever state it is in, and remove its folder. False when there is none.

    Bounds: CANCEL_LIMIT_S for its jobs, SUPERVISOR_GRACE_S for its daemons, then SIGKILL.
    """
    folder = _folder(name, base)
    if not folder.is_dir():
        return False
    _check_owner(folder, name)
    with suppress(LabError):
        _cancel_jobs(load(name, base))
    _end_processes(folder)
    with suppress(LabError):
        _remove_cgroups(load(name, base))
    shutil.rmtree(folder)
    with suppress(OSError):  # not empty, or not ours
        base.rmdir()
    return True


def load(name: str, base: Path = DEFAULT_BASE) -> Lab:
    try:
        return from_text((_folder(name, base) / FILE_NAME).read_text())
    except (FileNotFoundError, NotADirectoryError):
        others = ", ".join(lab.name for lab in list_labs(base)) or "none"
        raise LabError(f"there is no lab {name} in {base} (labs there: {others})", hint="vgpu lab up") from None


def list_labs(base: Path = DEFAULT_BASE) -> tuple[Lab, ...]:
    """Those whose file can be read, up or not."""
    found = []
    for file in sorted(base.absolute().glob(f"*/{FILE_NAME}")):
        with suppress(LabError, OSError):
            found.append(from_text(file.read_text()))
    return tuple(found)


def status(name: str, base: Path = DEFAULT_BASE) -> LabStatus:
    lab = _owned(name, base)
    try:
        pid, daemons = control.status(lab)
    except LabError as error:
        return LabStatus(name=name, folder=lab.folder, supervisor=0, lacks=str(error))
    return LabStatus(name=name, folder=lab.folder, supervisor=pid, lacks=launch.lacks(lab), daemons=daemons)


def environment(name: str, base: Path = DEFAULT_BASE, node: str = "") -> dict[str, str]:
    """What a shell needs to use the lab; with `node`, also to see that node's simulated GPUs through NVML."""
    lab = load(name, base)
    ours = str(Path(sys.executable).parent)
    own = [ours, str(lab.bin)]
    path = [*own, *(part for part in os.environ.get("PATH", os.defpath).split(":") if part not in own)]
    variables = {
        "SLURM_CONF": str(lab.slurm_conf),
        "VGPU_LAB": lab.name,
        "VGPU_LAB_DIR": str(lab.folder.parent),
        "PATH": ":".join(path),
    }
    if lab.spec.pool:
        variables["VGPU_POOL_CONFIG"] = str(lab.pool_config)
    return variables | (simulated_gpus(lab, _node(lab, node)) if node else {})


def environment_text(variables: dict[str, str]) -> str:
    """Shell lines for `eval`."""
    return "".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables.items())


def kill(name: str, daemon: str, base: Path = DEFAULT_BASE) -> None:
    """SIGKILL; the supervisor starts it again."""
    lab = _owned(name, base)
    control.ask(lab, "kill", daemon=_daemon(lab, daemon))


def stop(name: str, daemon: str, base: Path = DEFAULT_BASE) -> None:
    """End it, and it stays down until `start`."""
    lab = _owned(name, base)
    control.ask(lab, "stop", daemon=_daemon(lab, daemon))


def start(name: str, daemon: str, base: Path = DEFAULT_BASE) -> None:
    """Start it, and wait until it serves. Raises LabError also when it does not in supervisor.SERVE_LIMIT_S."""
    lab = _owned(name, base)
    wanted = _daemon(lab, daemon)
    try:
        control.ask(lab, "start", daemon=wanted, wait=True)
    except LabError as error:
        raise LabError(str(error), hint=error.hint or launch.quote(lab, [wanted])) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What one NVML function shall do wrong, `times` times; see slurm_plugin.lab.simgpu.inject."""

    call: str
    code: int = 0  # nvmlReturn_t to answer; 0: as it would
    times: int = 1
    gpu: int = -1  # NVML index; -1: any
    delay_ms: int = 0
    crash: str = ""  # "before", "inside" or "after": where the calling process is killed


def fault(name: str, node: str, fault: Fault, base: Path = DEFAULT_BASE) -> None:
    lab = _owned(name, base)
    if not (fault.code or fault.delay_ms or fault.crash):
        raise LabError(
            "such a fault does nothing", hint="--code 999 (unknown error), 15 (GPU is lost), 19 (in use), or --delay-ms"
        )
    _check_gpu(lab, fault.gpu)
    simgpu.inject(_state(lab, node), **asdict(fault))


def stick(name: str, node: str, slice_uuid: str, base: Path = DEFAULT_BASE) -> None:
    """Let a slice refuse to be destroyed, with nothing to be seen that holds it."""
    simgpu.stick(_state(_owned(name, base), node), slice_uuid)


def lose(name: str, node: str, gpu: int, base: Path = DEFAULT_BASE) -> None:
    """Let a GPU fall off the bus."""
    lab = _owned(name, base)
    state = _state(lab, node)
    _check_gpu(lab, gpu)
    simgpu.lose(state, gpu)


def clear_faults(name: str, node: str, base: Path = DEFAULT_BASE) -> None:
    simgpu.clear(_state(_owned(name, base), node))


def reboot(name: str, node: str, base: Path = DEFAULT_BASE) -> None:
    """Cut a node's power and switch it on again: jobs die at once, and no GPU instance is left.

    The node is set DOWN meanwhile, which Slurm itself would do only after SlurmdTimeout: jobs there end as NODE_FAIL
    or are requeued. slurmd starts as after a boot (`-b`).
    """
    lab = _owned(name, base)
    daemons = [f"slurmd:{_node(lab, node)}", *([f"agent:{node}"] if lab.spec.pool else [])]
    for daemon in daemons:
        control.ask(lab, "halt", daemon=daemon)
    processes.kill(processes.jobs_of(lab.node_slurm_conf(node), lab.spool(node)))
    if lab.spec.pool:
        simgpu.reboot(lab.sim_state(node))
    down = ["scontrol", "update", f"nodename={node}", "state=down", "reason=power lost"]
    run_command(down, launch.slurm_environment(lab))
    for daemon in reversed(daemons):
        control.ask(lab, "start", daemon=daemon, extra=["-b"] if daemon.startswith("slurmd:") else [])


def _folder(name: str, base: Path) -> Path:
    """Where a lab of this name lies: never outside of `base`, whatever somebody calls it."""
    check_name(name)
    return base.absolute() / name


def _owned(name: str, base: Path) -> Lab:
    """The lab, if it is this user's to ask or to break. Raises LabError."""
    lab = load(name, base)
    _check_owner(lab.folder, name)
    return lab


def _check_owner(folder: Path, name: str) -> None:
    owner = folder.stat().st_uid
    if os.geteuid() not in (0, owner):
        who = next((user.pw_name for user in pwd.getpwall() if user.pw_uid == owner), f"uid {owner}")
        raise LabError(f"{who} runs lab {name}", hint=f"ask as that user, such as with sudo -u {who}")


def _check_gpu(lab: Lab, index: int) -> None:
    if index >= lab.spec.gpus:
        raise LabError(f"a node of lab {lab.name} has no GPU {index}", hint=f"they are 0 to {lab.spec.gpus - 1}")


def _state(lab: Lab, node: str) -> Path:
    path = lab.sim_state(_node(lab, node))
    if not lab.spec.pool:
        raise LabError(f"lab {lab.name} has no GPUs")
    return path


def _daemon(lab: Lab, name: str) -> str:
    names = [daemon.name for daemon in daemons_of(lab, sys.executable)]
    if name not in names:
        raise LabError(f"lab {lab.name} has no daemon '{name[:40]}'", hint=f"one of {', '.join(names)}")
    return name


def _node(lab: Lab, name: str) -> str:
    if name not in lab.nodes:
        raise LabError(f"lab {lab.name} has no node '{name[:40]}'", hint=f"one of {', '.join(lab.nodes)}")
    return name


def _ports(lab: Lab) -> tuple[int, ...]:
    return (lab.ports.slurmctld, lab.ports.slurmdbd, lab.ports.controller, *lab.ports.slurmd)


def _cancel_jobs(lab: Lab) -> None:
    """Let Slurm end the jobs as long as it can: its prolog and epilog then run as they should."""
    control.ask(lab, "status")
    env = launch.slurm_environment(lab)
    if not run_command(["squeue", "--noheader", "--format=%i"], env).strip():
        return
    for state in (
        "PENDING",
        "RUNNING",
        "SUSPENDED",
    ):  # in this order: else a waiting one starts in a running one's place
        run_command(["scancel", f"--state={state}"], env)
    processes.wait_until(lambda: not run_command(["squeue", "-h", "-o", "%i"], env).strip(), limit_s=CANCEL_LIMIT_S)
    for node in lab.nodes:  # the rest: slurmd itself would wait for them
        processes.kill(processes.jobs_of(lab.node_slurm_conf(node), lab.spool(node)))


def _remove_cgroups(lab: Lab) -> None:
    for node in lab.nodes if lab.spec.pool else ():
        device_cgroup.remove(cgroup_of(lab, node))


def _end_processes(folder: Path) -> None:
    supervisor = processes.daemons_of(folder).get("supervisor")
    if supervisor is not None:
        processes.end([supervisor], grace_s=SUPERVISOR_GRACE_S)
    for _ in range(SWEEPS):
        left = processes.all_of(folder)
        if not left:
            return
        processes.kill(left)
    raise LabError(f"processes of the lab in {folder} do not end: {[process.pid for process in left]}")
