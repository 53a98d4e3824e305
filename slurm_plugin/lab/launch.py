"""Describing a lab that can start here, starting its supervisor, and waiting until it serves."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from slurm_plugin import catalogue
from slurm_plugin.errors import ConfigError, LabError
from slurm_plugin.lab import control, simgpu
from slurm_plugin.lab.command import COMMAND_LIMIT_S, run_command
from slurm_plugin.lab.daemons import daemons_of
from slurm_plugin.lab.network import free_ports
from slurm_plugin.lab.pool_files import start_layout
from slurm_plugin.lab.processes import MARK, wait_until
from slurm_plugin.lab.site import Lab, LabSpec, Ports, check_spec
from slurm_plugin.mig.products import product_named

READY_LIMIT_S = 60.0
MAX_RESTARTS = 3  # of one daemon while the lab comes up: more, and it will not
USABLE_STATES = ("idle", "mixed", "allocated", "completing")
PAD = "pad"
LOG_LINES = 8  # of each log that an error quotes


def describe(spec: LabSpec, folder: Path, taken: frozenset[int]) -> Lab:
    """A lab that could start now: its ports are free. Raises LabError."""
    check_spec(spec, folder)
    _check_machine(spec)
    ports = free_ports(3 + spec.nodes + len(spec.clouds), taken)
    return Lab(
        spec=spec,
        folder=folder,
        hostname=socket.gethostname().partition(".")[0],
        ports=Ports(slurmctld=ports[0], slurmdbd=ports[1], controller=ports[2], slurmd=ports[3:]),
        slurm_version=_slurm_version(),
    )


def _check_machine(spec: LabSpec) -> None:
    if os.geteuid() != 0:
        raise LabError("a lab needs root: its daemons change users", hint="run it as root")
    needed = ["munged", "slurmctld", "slurmd", "scontrol", "sinfo"]
    needed += ["slurmdbd", "mariadbd", "mariadb-install-db"] if spec.accounting else []
    missing = [command for command in needed if shutil.which(command) is None]
    if missing:
        raise LabError(f"this machine lacks {', '.join(missing)}", hint="make setup installs what a lab needs")


def _slurm_version() -> tuple[int, int]:
    text = run_command(["slurmctld", "-V"])
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None:
        raise LabError(f"can't read Slurm's version from '{text.strip()[:80]}'")
    return int(match[1]), int(match[2])


def start(lab: Lab) -> None:
    """Leave the supervisor behind, listening. Raises LabError."""
    argv = [sys.executable, "-m", "slurm_plugin.lab.supervisor", str(lab.folder)]
    env = dict(os.environ) | {MARK: f"{lab.folder}:supervisor"}
    with (lab.log / "supervisor.out").open("ab") as out:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=env,
            cwd="/",
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
    if done.returncode != 0 or not wait_until(lambda: control.answers(lab), limit_s=COMMAND_LIMIT_S):
        raise LabError("the lab's supervisor did not start", hint=quote(lab, ["supervisor"]))


def wait_ready(lab: Lab, say: Callable[[str], None]) -> None:
    """Wait until jobs can run and every slice is there.

    Bounds: READY_LIMIT_S. Raises LabError, quoting the daemon that fails.
    """
    missing = ["the supervisor has not started"]

    def ready() -> bool:
        _fail_on_crash_loop(lab)
        missing[0] = lacks(lab) or cut_so_far(lab)
        return not missing[0]

    if not wait_until(ready, limit_s=READY_LIMIT_S):
        names = [status.daemon for status in control.status(lab)[1]]
        raise LabError(f"the lab is not ready after {READY_LIMIT_S:.0f} s: {missing[0]}", hint=quote(lab, names))
    say(f"lab {lab.name} is ready: {len(lab.nodes)} nodes, {lab.spec.gpus} GPUs each")


def _fail_on_crash_loop(lab: Lab) -> None:
    for status in control.status(lab)[1]:
        if status.restarts > MAX_RESTARTS:
            raise LabError(
                f"{status.daemon} ends as soon as it starts (exit status {status.last_exit})",
                hint=quote(lab, [status.daemon]),
            )


def lacks(lab: Lab) -> str:
    """What still has to happen before the lab can be used; empty when nothing. Raises LabError without a supervisor."""
    down = [status.daemon for status in control.status(lab)[1] if not status.pid]
    if down:
        return f"{', '.join(down)} not running"
    try:
        return _slurm_lacks(lab)
    except LabError as error:  # slurmctld does not answer yet
        return str(error)


def _slurm_lacks(lab: Lab) -> str:
    rows = run_command(["sinfo", "--noheader", "--Node", "--format=%N %T"], slurm_environment(lab)).splitlines()
    states = dict(row.split() for row in rows)
    away = [node for node in lab.served if states.get(node) not in USABLE_STATES]
    if away:
        return f"nodes not usable: {', '.join(f'{node} is {states.get(node)}' for node in away)}"
    return _pool_lacks(lab) if lab.spec.pool else ""


def _pool_lacks(lab: Lab) -> str:
    try:
        known = catalogue.parse(lab.catalogue.read_text()).nodes
    except (OSError, ConfigError) as error:
        return f"no catalogue: {error}"
    if set(lab.nodes) - known.keys():
        return f"the catalogue lacks {', '.join(sorted(set(lab.nodes) - known.keys()))}"
    rows = run_command(["scontrol", "--oneliner", "show", "node"], slurm_environment(lab)).splitlines()
    real = [row for row in rows if row.split()[0].removeprefix("NodeName=") not in lab.spec.clouds]
    unpublished = [row.split()[0] for row in real if " Gres=vgpu:" not in row or f"vgpu:{PAD}:" not in row]
    return f"no slice is offered on {', '.join(unpublished)}" if unpublished else ""


def cut_so_far(lab: Lab) -> str:
    """What of the layout in the lab's first pool.yaml has not been cut yet; empty when all is."""
    for node in lab.nodes if lab.spec.pool else ():
        wanted = sum(start_layout(product_named(lab.product_of(node))).values()) * lab.spec.gpus
        made = len(simgpu.snapshot(lab.sim_state(node)).slices())
        if made < wanted:
            return f"{node} has {made} of {wanted} slices"
    return ""


def slurm_environment(lab: Lab) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        "SLURM_CONF": str(lab.slurm_conf),
        "LC_ALL": "C",
    }


def quote(lab: Lab, daemons: list[str]) -> str:
    """The last lines these daemons have logged, each with its file's name before it."""
    quoted = [f"logs are in {lab.log}"]
    own = {daemon.name: daemon.log for daemon in daemons_of(lab, sys.executable)}
    for name in daemons:
        out = lab.log / f"{name.replace(':', '-')}.out"
        for path in filter(None, (own.get(name), out)):
            quoted += [f"{path.name}: {line}" for line in _tail(path)]
    return "\n".join(quoted)


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line[:300] for line in text.splitlines() if line.strip()][-LOG_LINES:]
