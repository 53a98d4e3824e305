"""Which controller a command line is about: what the options say, else what pool.yaml says."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.cli.options import Where
from slurm_plugin.cli.output import say
from slurm_plugin.config import load_place, load_pool
from slurm_plugin.errors import ConfigError
from slurm_plugin.pool import ControllerPlace, PoolConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    address: str  # host:port
    uid: int  # whom the controller runs as
    munge_socket: Path | None  # None: munge's own


def target_of(where: Where) -> Target:
    """Raises ConfigError when neither the options nor a pool.yaml say where the controller is."""
    place = _place(where)
    if place is None and not where.controller:
        raise ConfigError(
            f"no pool file that can be read: {where.config}",
            hint="say where the controller is: vgpu --controller HOST:PORT, VGPU_CONTROLLER or VGPU_POOL_CONFIG",
        )
    uid = where.controller_uid
    if uid is None:
        uid = _uid_of(place.user) if place else 0
    return Target(
        address=_checked(where.controller) or (place.dial if place else ""),
        uid=uid,
        munge_socket=where.munge_socket or (place.munge_socket if place else None),
    )


def _place(where: Where) -> ControllerPlace | None:
    """Where pool.yaml says the controller is. A file that is wrong elsewhere is warned of."""
    try:
        pool = pool_of(where)
    except ConfigError as error:
        say(f"warning: {error}")
        try:
            return load_place(where.config)
        except ConfigError:
            if where.controller:
                return None
            raise error from None
    return pool.controller if pool else None


def _checked(address: str) -> str:
    host, _, port = address.rpartition(":")
    if address and not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f"'{address}' is not HOST:PORT", hint="vgpu --controller ctl.example.org:6820 ...")
    return address


def pool_of(where: Where) -> PoolConfig | None:
    """What pool.yaml says, or None when this user can read none. Raises ConfigError when it is wrong."""
    return load_pool(where.config) if os.access(where.config, os.R_OK) else None


def _uid_of(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ConfigError(
            f"this host has no user {user!r}, whom the controller runs as", hint="vgpu --controller-uid UID ..."
        ) from None
