"""Opening files as a job's user, so that the kernel asks of every path whether *he* may.

A daemon of root's takes on the user's file system identity (fsuid, fsgid, groups) on the one thread that opens, and
gives it back. Unlike seteuid this is one thread's and nobody else's, and the user can't signal or trace the daemon
meanwhile; with an fsuid that is not root's the kernel takes from the thread the capabilities that pass over file modes.
What was opened stays open: bytes are moved by any thread later. A daemon that is not root's serves its own user only.
"""

import ctypes
import os
import platform
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from federation.errors import ConfigError, Refused, Unavailable

LEAST_UID = 1000  # below are root and the system's own
MAX_GROUPS = 65_536  # Linux's own bound
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "ppc64le": 81}  # glibc's setgroups() changes every thread
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user of this host, as this host knows him: no number of these ever came over a wire."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str = ""


def account_of(name: str, *, least_uid: int = LEAST_UID) -> Account:
    """Raises Refused: root, or the system's own; Unavailable: unknown, as all are while a name service is away."""
    try:
        found = pwd.getpwnam(name)
    except ValueError:
        raise Refused(f"{name!r} is no user's name") from None
    except KeyError:
        raise Unavailable(f"there is no user {name!r} on this host", hint="see peers.SITE.users") from None
    if found.pw_uid == 0 or found.pw_uid < least_uid:
        raise Refused(f"user {name} has uid {found.pw_uid}: jobs of other sites never run as one below {least_uid}")
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid)[:MAX_GROUPS])
    if found.pw_gid == 0 or 0 in groups:
        raise Refused(f"user {name} is in root's group")
    return Account(name=found.pw_name, uid=found.pw_uid, gid=found.pw_gid, groups=groups, home=found.pw_dir)


@contextmanager
def acting_as(account: Account) -> Iterator[None]:
    """This thread opens files as that user; there must be no await inside. Raises Refused, ConfigError.

    Crash: a thread that can't come back ends the process: it must not go on as the user.
    """
    if os.geteuid() != 0:
        if account.uid != os.geteuid():
            raise Refused(f"the daemon is not root's, so it can't open files as {account.name}")
        yield
        return
    before = os.getgroups()
    try:
        _become(account.uid, account.gid, account.groups)
        yield
    finally:
        try:
            _become(0, os.getegid(), tuple(before))
        except OSError:
            os.abort()


def _become(uid: int, gid: int, groups: tuple[int, ...]) -> None:
    """Root's rights are given up last and taken back first: only with them can groups be set."""
    if uid == 0:
        _set(_libc.setfsuid, uid)
    _set_groups(groups)
    _set(_libc.setfsgid, gid)
    if uid != 0:
        _set(_libc.setfsuid, uid)


def _set(call: object, wanted: int) -> None:
    """setfsuid(2) and setfsgid(2) tell the old value, and nothing about success: ask again with one that fails."""
    assert callable(call)
    call(wanted)
    if call(-1) != wanted:
        raise OSError(f"can't take on {wanted}")


def _set_groups(groups: tuple[int, ...]) -> None:
    number = _SETGROUPS.get(platform.machine())
    if number is None:
        raise ConfigError(f"can't act as users on {platform.machine()}", hint="run the daemon as the one user")
    array = (ctypes.c_uint32 * len(groups))(*groups)
    if _libc.syscall(ctypes.c_long(number), ctypes.c_size_t(len(groups)), array) != 0:
        raise OSError(ctypes.get_errno(), "setgroups")
