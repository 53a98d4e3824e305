"""The slices of a Slurm pool, read as seldom as other sites' jobs allow.

Reading takes at most a tenth of the time, and of slurmctld's: on a large cluster it is done less often.
"""

import logging
import time
from collections.abc import Collection
from pathlib import Path

from federation.executors.host import Host
from federation.executors.slurm_commands import Where
from federation.executors.slurm_slices import GRES, Offer, offered, query
from slurm_plugin.catalogue import Catalogue, parse
from slurm_plugin.errors import ConfigError

log = logging.getLogger(__name__)

CATALOGUE_S = 60.0  # between looks at the catalogue: it changes when a pool is set up anew
REST = 10  # how much longer than a look the pause after it is


class Slices:
    def __init__(self, host: Host, catalogue: Path, where: Where) -> None:
        self._host, self._path, self._where = host, catalogue, where
        self._known: Catalogue | None = None
        self._text = ""
        self._offer = Offer()
        self._look_at = self._read_at = 0.0  # seconds that only pass

    async def offer(self, gres: Collection[str]) -> Offer:
        """`gres`: names of what the pool's nodes have. Raises Unavailable, SlurmError, ValueError for no answer."""
        if time.monotonic() >= self._read_at:
            await self._read()
        if (self._known.gres if self._known else GRES) not in gres:
            return Offer(complete=bool(gres))  # without any its partition is closed, and nothing of it is told
        begun = time.monotonic()
        if begun >= self._look_at:
            said = await self._host.run(query(self._where))
            try:
                self._offer = offered(self._known, said, self._where)
            except ConfigError as error:  # a name that no catalogue can tell: the pool has its CPUs all the same
                self._offer = Offer()
                log.warning("pool.slices_not_told", extra={"why": str(error)})
            self._look_at = time.monotonic() + REST * (time.monotonic() - begun)
        return self._offer

    async def _read(self) -> None:
        text = await self._host.text(self._path)
        self._read_at = time.monotonic() + CATALOGUE_S
        if text == self._text:
            return
        self._text = text
        try:
            self._known = parse(text) if text else None
        except ConfigError as error:
            self._known = None
            log.warning("pool.catalogue_unread", extra={"path": str(self._path), "why": str(error)})
