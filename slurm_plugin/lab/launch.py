"""Making a lab's folder, starting its supervisor, and waiting until it serves."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from slurm_plugin.errors import LabError
from slurm_plugin.lab import control
from slurm_plugin.lab.daemons import daemons_of
from slurm_plugin.lab.network import free_ports
from slurm_plugin.lab.processes import MARK, wait_until
from slurm_plugin.lab.render import File, slurm_files
from slurm_plugin.lab.site import Lab, LabSpec, Ports, check_spec, to_text

COMMAND_LIMIT_S = 30.0
READY_LIMIT_S = 60.0
MAX_RESTARTS = 3  # of one daemon while the lab comes up: more, and it will not
LOG_LINES = 8  # of each log that an error quotes


def describe(spec: LabSpec, folder: Path, taken: frozenset[int]) -> Lab:
    """A lab that could start now: its ports are free. Raises LabError."""
    check_spec(spec, folder)
    _check_machine(spec)
    ports = free_ports(3 + spec.nodes, taken)
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
    text = run(["slurmctld", "-V"])
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None:
        raise LabError(f"can't read Slurm's version from '{text.strip()[:80]}'")
    return int(match[1]), int(match[2])


def run(argv: list[str], env: dict[str, str] | None = None) -> str:
    """stdout of a command. Raises LabError with the last line it said when it fails. Bounds: COMMAND_LIMIT_S."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=COMMAND_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no word why"]
        raise LabError(f"{argv[0]} failed ({done.returncode}): {said[-1][:300]}")
    return done.stdout


def build(lab: Lab) -> None:
    """Make the folder and all that is in it. Crash: a folder without a lab.json; `down` removes it."""
    folders = [lab.etc, lab.log, lab.run, lab.state]
    folders += [lab.state / "slurmctld", lab.state / "slurmd"]
    folders += [folder for node in lab.nodes for folder in (lab.etc / node, lab.spool(node))]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    write(File(path=lab.munge_key, text=secrets.token_hex(64), mode=0o400))
    for file in slurm_files(lab):
        write(file)
    for node in lab.nodes:
        for name in ("gres.conf", "cgroup.conf"):
            (lab.etc / node / name).symlink_to(lab.etc / name)
    if lab.spec.accounting:
        _make_database(lab)
    write(File(path=lab.file, text=to_text(lab)))


def write(file: File) -> None:
    fd = os.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, file.mode)
    with os.fdopen(fd, "w") as out:
        os.fchmod(out.fileno(), file.mode)  # whatever the umask
        out.write(file.text)


def _make_database(lab: Lab) -> None:
    lab.database.mkdir()
    shutil.chown(lab.database, "mysql", "mysql")
    argv = ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={lab.database}"]
    run([*argv, "--auth-root-authentication-method=socket", "--skip-test-db"])


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
    """Wait until every node is idle. Bounds: READY_LIMIT_S. Raises LabError, quoting the daemon that fails."""
    missing = ["the supervisor has not started"]

    def ready() -> bool:
        _fail_on_crash_loop(lab)
        missing[0] = lacks(lab)
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
    """What still has to happen before the lab can be used; empty when nothing."""
    down = [status.daemon for status in control.status(lab)[1] if status.wanted and not status.pid]
    if down:
        return f"{', '.join(down)} not running"
    try:
        text = run(["sinfo", "--noheader", "--Node", "--format=%N %T"], slurm_environment(lab))
    except LabError as error:
        return str(error)
    states = dict(line.split() for line in text.splitlines())
    idle = [node for node in lab.nodes if states.get(node) == "idle"]
    return "" if len(idle) == len(lab.nodes) else f"only {len(idle)} of {len(lab.nodes)} nodes idle"


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
