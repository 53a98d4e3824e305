"""PURE: what of fed.yaml takes effect in a daemon that runs, and what wants a restart."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from federation.config import FedConfig
from federation.config_overflow import OverflowConfig
from federation.config_pools import PoolRules

_FIXED = ("site", "state_dir", "listen", "least_uid", "audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`config` is in force from now on; `fresh` are pools that are to be begun."""

    config: FedConfig
    fresh: Mapping[str, PoolRules]
    restart_for: tuple[str, ...]  # keys whose new values wait for one


def change(now: FedConfig, wanted: FedConfig, begun: Mapping[str, PoolRules]) -> Change:
    """`begun`: every pool that this daemon has an executor for. One that is not in the file any more takes no jobs."""
    kept = {name: getattr(now, name) for name in _FIXED}
    waits = [name for name in _FIXED if getattr(wanted, name) != kept[name]]
    if wanted.local.socket != now.local.socket:
        waits.append("local.socket")
    fresh = {name: pool for name, pool in wanted.pools.items() if name not in begun}
    pools = {name: begun.get(name, pool) for name, pool in wanted.pools.items()}
    waits += [f"pools.{name}" for name, pool in wanted.pools.items() if pool.told != pools[name].told]
    overflow = _overflow(now.overflow, wanted.overflow)
    if overflow != wanted.overflow:
        waits.append("overflow")
    local = replace(wanted.local, socket=now.local.socket)
    config = replace(wanted, pools=pools, local=local, overflow=overflow, **kept)
    return Change(config=config, fresh=fresh, restart_for=tuple(waits))


def _overflow(now: OverflowConfig | None, wanted: OverflowConfig | None) -> OverflowConfig | None:
    """The rules of a daemon whose jobs overflow can change; the rest is what it was begun with."""
    return now if now is None or wanted is None else replace(now, rules=wanted.rules)
