"""What the pool offers as a whole, made anew when its GPUs are others, and the catalogue on disk that says so."""

import logging
from collections.abc import Collection, Mapping, Sequence

from slurm_plugin import catalogue
from slurm_plugin.controller.keep import Keep
from slurm_plugin.controller.offered import Geometry, Offered, offered
from slurm_plugin.controller.state import Serving
from slurm_plugin.errors import ConfigError
from slurm_plugin.guarantees import Promise
from slurm_plugin.planning import Reach
from slurm_plugin.pool import PoolConfig
from slurm_plugin.ports import SlurmNode

log = logging.getLogger(__name__)


class Shopfront:
    """A good catalogue on disk stays until a better one is known: users submit by it while agents are away."""

    def __init__(self, keep: Keep, operators: Sequence[int]) -> None:
        self._keep = keep
        self._operators = operators
        self._made_for: object = None
        self._written = keep.present_catalogue()
        self._listed = _nodes_in(self._written)
        self._stamp = keep.catalogue_stamp()
        self.offered: Offered | None = None
        self.text = ""  # the catalogue as it must be; empty before anything is known

    @property
    def serving(self) -> Serving:
        return self.offered.serving if self.offered else Serving()

    @property
    def promises(self) -> tuple[Promise, ...]:
        return self.offered.promises if self.offered else ()

    @property
    def reaches(self) -> Mapping[str, Reach]:
        return self.offered.reaches if self.offered else {}

    @property
    def problems(self) -> tuple[str, ...]:
        if self.offered is None:
            return ("no agent has told of a GPU yet: the catalogue stays as it is",)
        return self.offered.problems

    def follow(self, config: PoolConfig, facts: Mapping[str, tuple[Geometry, SlurmNode]]) -> None:
        """Make the classes and the catalogue anew when GPUs or nodes are others than before."""
        key = (config, {name: (gpus, node.cpus, node.memory_mib) for name, (gpus, node) in facts.items()})
        if key != self._made_for:
            made = offered(config, facts, self._operators)
            if made is not None:
                self.offered, self.text = made, catalogue.render(made.catalogue)
            self._made_for = key

    def would_offer(self, config: PoolConfig, facts: Mapping[str, tuple[Geometry, SlurmNode]]) -> Offered | None:
        """What another pool.yaml comes to. Changes nothing."""
        return offered(config, facts, self._operators) or self.offered

    async def write(self, expected: Collection[str]) -> None:
        """Write what changed, here or on disk. `expected`: nodes that may soon tell of their GPUs. Raises OSError."""
        if self._keep.catalogue_stamp() != self._stamp:  # it was deleted, or is no longer what was written
            log.warning("catalogue.altered", extra={"rewritten": bool(self.text)})
            self._stamp, self._written, self._listed = self._keep.catalogue_stamp(), "", frozenset()
        if self.text in ("", self._written) or not self._listed.isdisjoint(expected):
            return
        self._stamp = await self._keep.catalogue(self.text)
        self._written, self._listed = self.text, _nodes_in(self.text)
        log.info("catalogue.written", extra={"nodes": len(self._listed)})


def _nodes_in(text: str) -> frozenset[str]:
    try:
        return frozenset(catalogue.parse(text).nodes) if text else frozenset()
    except ConfigError:
        return frozenset()
