"""The people who submit jobs to a lab: accounts of the machine, made when they are missing."""

import pwd

from slurm_plugin.lab.command import run_command

PEOPLE = ("alice", "bob")


def ensure_people() -> tuple[str, ...]:
    """Give each of PEOPLE an account without a home. Returns those that had none. Needs root. Raises LabError."""
    made = tuple(name for name in PEOPLE if not _exists(name))
    for name in made:
        run_command(["useradd", "--no-create-home", "--shell", "/bin/sh", name])
    return made


def remove_people(names: tuple[str, ...]) -> None:
    """Take back what `ensure_people` made; none of their processes may live. Raises LabError."""
    for name in names:
        run_command(["userdel", name])


def as_person(name: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """argv that runs as this person; root's environment is kept."""
    return ("setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups", "--", *argv)


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
