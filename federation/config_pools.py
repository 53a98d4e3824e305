"""The pools of fed.yaml, as what their executors are made from.

What a kind of pool needs is imported where there is one: paramiko takes a quarter of a daemon's start.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from federation.config_schema import LocalPoolSection, LoginSection, PoolSection, SlurmPoolSection, SshPoolSection
from federation.executors.spool import Spool

if TYPE_CHECKING:
    from federation.executors.local import LocalPool
    from federation.executors.slurm import SlurmPool
    from federation.executors.ssh_host import SshPlace
    from federation.executors.ssh_link import Login
    from slurm_plugin.slurm.process import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedPool:
    """Slurm here."""

    slurm: "SlurmPool"
    folder: Path
    site: "Site"
    least_uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DistantPool:
    """Slurm behind a login node."""

    slurm: "SlurmPool"
    login: "Login"
    place: "SshPlace"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    most_jobs: int
    backend: "LocalPool | MountedPool | DistantPool"
    told: PoolSection  # as the file has it


def pool_rules(name: str, pool: PoolSection, least_uid: int) -> PoolRules:
    return PoolRules(most_jobs=pool.most_jobs, backend=_backend(name, pool, least_uid), told=pool)


def _backend(name: str, pool: PoolSection, least_uid: int) -> "LocalPool | MountedPool | DistantPool":
    if pool.local is not None:
        return _local(name, pool, pool.local, least_uid)
    if pool.slurm is not None:
        from slurm_plugin.slurm.process import Site

        slurm, site = pool.slurm, Site(conf=pool.slurm.conf, bin_dir=pool.slurm.bin_dir)
        made = _slurm(name, pool.most_jobs, slurm)
        return MountedPool(slurm=made, folder=slurm.folder, site=site, least_uid=least_uid)
    assert pool.ssh is not None  # one of them is: the schema holds it
    return _distant(name, pool.most_jobs, pool.ssh, least_uid)


def _distant(name: str, most_jobs: int, ssh: SshPoolSection, least_uid: int) -> DistantPool:
    from federation.executors.ssh_host import SshPlace

    place = SshPlace(
        copies=Spool(ssh.folder),
        users=frozenset(ssh.users),
        root=ssh.there,
        bin_dir=str(ssh.bin_dir or ""),
        least_uid=least_uid,
    )
    return DistantPool(slurm=_slurm(name, most_jobs, ssh), login=_login(ssh, ssh.jump), place=place)


def _local(name: str, pool: PoolSection, local: LocalPoolSection, least_uid: int) -> "LocalPool":
    from federation.executors.local import LocalPool

    return LocalPool(
        name=name,
        spool=Spool(local.folder),
        cpus=local.cpus or os.cpu_count() or 1,
        memory_mib=local.memory_mib,
        most_jobs=pool.most_jobs,
        longest_s=local.longest_s,
        price_per_hour=local.price_per_hour,
        least_uid=least_uid,
    )


def _slurm(name: str, most_jobs: int, slurm: SlurmPoolSection | SshPoolSection) -> "SlurmPool":
    from federation.executors.slurm import SlurmPool
    from federation.executors.slurm_commands import Where

    return SlurmPool(
        name=name,
        where=Where(partition=slurm.partition, account=slurm.account, qos=slurm.qos),
        most_jobs=most_jobs,
        starts_in_s=slurm.starts_in_s,
        price_per_hour=slurm.price_per_hour,
        gpu_price_per_hour=slurm.gpu_price_per_hour,
        catalogue=slurm.catalogue,
    )


def _login(section: LoginSection, jump: LoginSection | None = None) -> "Login":
    from federation.executors.ssh_link import Login

    return Login(
        host=section.host,
        user=section.user,
        known_hosts=section.known_hosts,
        port=section.port,
        key=section.key,
        agent=section.agent,
        jump=_login(jump) if jump is not None else None,
    )
