"""A user of this machine who is not root, for tests that act as one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from federation.access.acting import Account

UID, GID = 54321, 54321


def person(name: str = "ann", uid: int = UID) -> Account:
    """No passwd entry is needed: an account is what the daemon looked up before."""
    return Account(name=name, uid=uid, gid=uid, groups=(uid,))


@contextmanager
def open_way(path: Path) -> Iterator[None]:
    """Let other users pass the test's own folders."""
    closed = [one for one in path.parents if not one.stat().st_mode & 0o001]
    before = {one: one.stat().st_mode & 0o7777 for one in closed}
    for one in closed:
        one.chmod(before[one] | 0o011)
    try:
        yield
    finally:
        for one, mode in before.items():
            one.chmod(mode)
