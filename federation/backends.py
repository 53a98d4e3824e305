"""A site's pools in service: an executor each, made from fed.yaml.

What a kind of pool needs is imported where there is one, as in config_pools.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from federation.config_pools import DistantPool, MountedPool, PoolRules
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
            found.pools[name] = _mounted(backend, partial(changed, name))
        elif isinstance(backend, DistantPool):
            _add_distant(found, name, backend)
        else:
            from federation.executors.local import LocalExecutor

            found.pools[name] = LocalExecutor(replace(backend, changed=lambda pool, key: changed(pool, (key,))))
    return found


def _mounted(pool: MountedPool, changed: Callable[[tuple[Key, ...]], None]) -> Backend:
    from federation.executors.host import MountedHost
    from federation.executors.slurm import SlurmExecutor
    from federation.executors.spool import Spool

    host = MountedHost(Spool(pool.folder, shared=True), pool.site, least_uid=pool.least_uid, changed=changed)
    return SlurmExecutor(pool.slurm, host)


def _add_distant(found: Backends, name: str, pool: DistantPool) -> None:
    from federation.executors.slurm import SlurmExecutor
    from federation.executors.ssh_host import SshHost
    from federation.executors.ssh_link import SshLink

    there = SshHost(SshLink(pool.login), pool.place)
    found.pools[name] = SlurmExecutor(pool.slurm, there)
    found.closing.append(there.close)
