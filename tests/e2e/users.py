"""Two people who submit jobs. Made on the machine when they are missing, and left there."""

import pwd
import subprocess

USERS = ("alice", "bob")


def ensure_users() -> None:
    """Needs root."""
    for name in USERS:
        try:
            pwd.getpwnam(name)
        except KeyError:
            subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", name], check=True)
