"""The people who submit jobs to a lab: accounts of the machine, made when they are missing."""

import pwd

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
    return ("setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups", "--", *argv)


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
