"""The people who submit jobs to a lab: accounts of the machine, made when they are missing."""

import pwd
import shutil
from pathlib import Path

from slurm_plugin.errors import LabError
from slurm_plugin.lab.command import run_command

PEOPLE = ("alice", "bob", "carol")


def ensure_people() -> tuple[str, ...]:
    """Give each of PEOPLE an account without a home. Returns those made here. Needs root. Raises LabError."""
    return tuple(name for name in PEOPLE if not _exists(name) and _make(name))


def remove_people(names: tuple[str, ...]) -> None:
    """Take back what `ensure_people` made; none of their processes may live. Raises LabError."""
    for name in names:
        run_command(["userdel", name])


def as_person(name: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """argv that runs as this person; root's environment is kept."""
    return ("setpriv", f"--reuid={name}", f"--regid={pwd.getpwnam(name).pw_gid}", "--init-groups", "--", *argv)


def home_of(name: str, homes: Path) -> Path:
    """This person's own folder in a folder of such, made when it is not there."""
    home = homes / name
    home.mkdir(parents=True, exist_ok=True)
    shutil.chown(home, name, pwd.getpwnam(name).pw_gid)
    return home


def _make(name: str) -> bool:
    """False when another lab that comes up at this moment was quicker."""
    try:
        run_command(["useradd", "--no-create-home", "--shell", "/bin/sh", name])
    except LabError:
        if _exists(name):
            return False
        raise
    return True


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
