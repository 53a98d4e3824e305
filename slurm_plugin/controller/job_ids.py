"""Keeping slurmctld from giving the id of a job that it forgot to another one.

A slurmctld that is killed forgets the jobs of its last seconds, and would use their ids again: then nodes drain,
prologs do not run, and what has ended is shown as running. It never gives an id below FirstJobId, which it reads as it
starts and when it is reconfigured. So a file that slurm.conf includes has FirstJobId ahead of those given.

Crash: the next controller writes the file anew.

Source: Slurm's src/slurmctld/job_mgr.c, get_next_job_id.
"""

import asyncio
import logging
from pathlib import Path

from slurm_plugin import atomic
from slurm_plugin.controller.desk import Desk
from slurm_plugin.errors import SlurmError
from slurm_plugin.pool import Mode
from slurm_plugin.ports import JobIds, Slurm

log = logging.getLogger(__name__)

AHEAD = 10_000  # of the next id: so many at the most are left out when slurmctld starts or is reconfigured
LEAST = AHEAD // 2  # ... and fewer than this would be too few at 2,000 jobs a second
LOOK_S = 2.0
FIRST = 1
LOCAL_BITS = (1 << 26) - 1  # the rest of an id names the cluster of a federation


def first_job_id(ids: JobIds) -> int:
    """Near the last id, after which Slurm begins anew at FirstJobId, that is the first one of all."""
    ahead = (ids.following & LOCAL_BITS) + AHEAD
    return ahead if ahead + AHEAD < ids.most else FIRST


class Ahead:
    """The file `controller.job_ids` of pool.yaml, one line: FirstJobId."""

    def __init__(self, desk: Desk, slurm: Slurm, path: Path) -> None:
        self._desk = desk
        self._slurm = slurm
        self._path = path
        self._written = 0

    async def run(self) -> None:
        """For ever, whatever Slurm says and whether the file can be written."""
        while True:
            if self._desk.config.mode is Mode.MANAGE:
                await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        try:
            ids = await self._slurm.job_ids()
        except SlurmError as error:
            log.warning("job_ids.not_read", extra={"error": str(error)})
            return
        wanted = first_job_id(ids)
        if self._written and 0 <= wanted - self._written < LEAST:
            return
        try:
            line = f"FirstJobId={wanted}\n".encode()
            await asyncio.to_thread(atomic.write, self._path, line, mode=0o644)
        except OSError as error:
            self._desk.problems["job_ids"] = f"can't write {self._path}: {error.strerror}"
            return
        self._desk.problems.pop("job_ids", None)
        self._written = wanted
