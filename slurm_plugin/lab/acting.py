"""Commands of the people who submit jobs to a lab."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.errors import LabError
from slurm_plugin.lab import commands
from slurm_plugin.lab.people import PEOPLE, as_person, home_of

SHELL = ("bash",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """What is to be run, with all of its variables, and where."""

    argv: tuple[str, ...]
    env: dict[str, str]
    home: Path


def acting(name: str, person: str, argv: tuple[str, ...], base: Path) -> Acting:
    """As after `eval "$(vgpu lab env)"`, in this person's folder in the lab; without argv, a shell. Raises LabError."""
    lab = commands.load(name, base)
    if os.geteuid() != 0:
        raise LabError("only root can act as somebody else", hint="run it as root")
    try:
        pwd.getpwnam(person)
    except (KeyError, ValueError):
        raise LabError(f"there is no user '{person[:40]}'", hint=f"a lab makes {', '.join(PEOPLE)}") from None
    home = home_of(person, lab.homes)
    own = {"HOME": str(home), "USER": person, "LOGNAME": person}
    return Acting(
        argv=as_person(person, argv or SHELL),
        env=dict(os.environ) | commands.environment(name, base) | own,
        home=home,
    )
