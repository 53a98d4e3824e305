"""A site's pools in service: an executor each, made from fed.yaml."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from federation.config_pools import DistantPool, MountedPool, PoolRules
from federation.executors.host import MountedHost
from federation.executors.local import LocalExecutor
from federation.executors.slurm import SlurmExecutor
from federation.executors.spool import Spool
from federation.model.token import Key
from federation.ports import Executor, Places

Changed = Callable[[str, tuple[Key, ...]], None]


class Backend(Executor, Places, Protocol):
    """A pool's jobs, and their files."""


@dataclass(slots=True)
class Backends:
    """`closing`: what ends connections."""

    pools: dict[str, Backend] = field(default_factory=dict)
    closing: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def add(self, more: "Backends") -> None:
        self.pools.update(more.pools)
        self.closing += more.closing

    async def close(self) -> None:
        for close in self.closing:
            await close()


def backends(pools: Mapping[str, PoolRules], changed: Changed) -> Backends:
    """`changed` is told of attempts that a backend has seen beginning or ending. Nothing is connected to yet."""
    found = Backends()
    for name, rules in pools.items():
        backend = rules.backend
        if isinstance(backend, MountedPool):
            host = MountedHost(
                Spool(backend.folder, shared=True),
                backend.site,
                least_uid=backend.least_uid,
                changed=partial(changed, name),
            )
            found.pools[name] = SlurmExecutor(backend.slurm, host)
        elif isinstance(backend, DistantPool):
            from federation.executors.ssh_host import SshHost  # as in config_pools
            from federation.executors.ssh_link import SshLink

            there = SshHost(SshLink(backend.login), backend.place)
            found.pools[name] = SlurmExecutor(backend.slurm, there)
            found.closing.append(there.close)
        else:
            found.pools[name] = LocalExecutor(replace(backend, changed=lambda pool, key: changed(pool, (key,))))
    return found
