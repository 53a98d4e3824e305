"""Files that decide what a daemon does: nobody but root, or the daemon's own user, may be able to change them."""

import os
import stat
from pathlib import Path

from slurm_plugin.errors import ConfigError


def check(path: Path, *, also: int = -1) -> None:
    """Can only root, this process's user and the user `also` change what is at `path`, or put something in its place?

    All folders on the way count, those behind links too; what does not exist yet is made by us. Sticky folders, such as
    /tmp, keep others from what is not theirs. Raises ConfigError with the command that mends it.
    """
    owners = {0, os.geteuid(), also}
    for start in (path, path.resolve()):
        for one in (start, *start.absolute().parents):
            try:
                facts = one.lstat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ConfigError(f"{one}: {error.strerror}") from None
            if wrong := _wrong(facts, owners, inside=one == start):
                raise ConfigError(f"{one} {wrong}; {path} could be somebody else's work", hint=_mend(one, facts))


def _wrong(facts: os.stat_result, owners: set[int], *, inside: bool) -> str:
    if facts.st_uid not in owners:
        return f"belongs to uid {facts.st_uid}"
    if stat.S_ISLNK(facts.st_mode):
        return ""  # what counts is the folder it is in
    mode = facts.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if facts.st_gid else 0))
    if mode and not (stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX and not inside):
        return "can be written by " + ("everybody" if mode & stat.S_IWOTH else f"group {facts.st_gid}")
    return ""


def _mend(path: Path, facts: os.stat_result) -> str:
    return f"chown root {path}" if facts.st_uid else f"chmod go-w {path}"
