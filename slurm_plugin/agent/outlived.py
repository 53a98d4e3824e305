"""Processes that outlive their run, made to hold still while we look whether they still have a slice.

A chain of forks is gone from each of its processes before that can be looked at, but it does not leave its cgroup. What
is asked to hold still can be killed all the same.

Source: Linux Documentation/admin-guide/cgroup-v2.rst (cgroup.freeze: since 5.2).
"""

import contextlib
import logging
import select
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.model import RunKey

log = logging.getLogger(__name__)

STILL_S = 0.25  # longest wait for all of them: a process in a call to a dead disk never holds still


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlived:
    """Processes that are there after their run's end. `still`: they do nothing until they are let go on."""

    run: RunKey
    cgroup: Path
    still: bool


def hold(cgroups: Iterable[tuple[RunKey, Path]]) -> tuple[Outlived, ...]:
    """What is there does nothing from here on, as far as it can be made to. Bound: STILL_S for all."""
    there = [(run, folder) for run, folder in cgroups if is_populated(folder)]
    asked = [_ask_to_hold(folder) for _, folder in there]
    until = time.monotonic() + STILL_S
    return tuple(
        Outlived(run=run, cgroup=folder, still=was_asked and _holds(folder, until))
        for (run, folder), was_asked in zip(there, asked, strict=True)
    )


def is_populated(folder: Path) -> bool:
    try:
        return "populated 1" in (folder / "cgroup.events").read_text()
    except OSError:
        return False  # it went


def _ask_to_hold(folder: Path) -> bool:
    try:
        (folder / "cgroup.freeze").write_text("1")
    except OSError as error:
        log.warning("cgroup.not_frozen", extra={"cgroup": str(folder), "error": str(error)})
        return False
    return True


def _holds(folder: Path, until: float) -> bool:
    """Wait until a cgroup that was asked to holds still, or is empty. `until`: of the monotonic clock."""
    try:
        with (folder / "cgroup.events").open() as events:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            while True:
                events.seek(0)
                said = events.read()
                if "frozen 1" in said or "populated 0" in said:
                    return True
                if (left := until - time.monotonic()) <= 0:
                    return False
                poll.poll(1000 * left)
    except OSError:
        return True  # it went


def go_on(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / "cgroup.freeze").write_text("0")
