"""Making a lab's folder, with all that its daemons read: files, keys, hooks, simulated GPUs, an empty database."""

import os
import secrets
import shlex
import shutil
from pathlib import Path

from slurm_plugin.errors import LabError
from slurm_plugin.lab import simgpu
from slurm_plugin.lab.command import run_command
from slurm_plugin.lab.pool_files import pool_files
from slurm_plugin.lab.render import CLOUD_PARTITION, File, slurm_files
from slurm_plugin.lab.site import Lab, to_text
from slurm_plugin.slurm.gateway import NO_TASK, OPTIONS_PLUGIN, PLUGIN, PROXY

_HOOKS = Path(__file__).parent.parent / "hooks"
SPANK = Path(__file__).parent.parent / "spank" / "build"
HOOK_CLIENT = _HOOKS / "client" / "build" / "vgpu-hook"
HOOK_NAMES = ("vgpu-prolog", "vgpu-epilog", "vgpu-taskprolog", "vgpu-bind")
LUA_FOLDER = _HOOKS / "lua"
LUA_FILES = ("vgpu.lua", "job_submit.lua", "cli_filter.lua")
# All nodes of a lab share a machine, and each has its own: a job takes that of the node it is on.
_BIND = '#!/bin/sh\nexec {hooks}/"${{SLURMD_NODENAME:-{node}}}"/vgpu-bind "$@"\n'
_LUA_CATALOGUE = 'CATALOGUE = "/var/lib/vgpu/catalogue"'  # the line of the ready files that a site changes
_LUA_CLOUD = 'CLOUD = ""'  # likewise


def build(lab: Lab) -> None:
    """Make the folder and all that is in it. Crash: a folder without a lab.json; `down` removes it."""
    folders = [lab.etc, lab.log, lab.run, lab.state, lab.state / "slurmctld"]
    folders += [folder for node in lab.served for folder in (lab.etc / node, lab.spool(node))]
    folders += [folder for node in lab.spec.clouds for folder in (lab.etc / node / "plugstack.conf.d", lab.hooks(node))]
    for folder in folders:
        _make(folder)
    _make(lab.jobs, mode=0o711)
    write(File(path=lab.munge_key, text=secrets.token_hex(64), mode=0o400))
    for file in slurm_files(lab):
        write(file)
    beside = ["gres.conf", "cgroup.conf"]
    if lab.spec.pool:
        _build_pool(lab)
        beside += LUA_FILES
    if lab.spec.clouds:
        _copy_spank(lab)
    for node in lab.served:
        for name in beside:
            (lab.etc / node / name).symlink_to(lab.etc / name)
    if lab.spec.accounting:
        _make_database(lab)
    write(File(path=lab.file, text=to_text(lab)))


def _build_pool(lab: Lab) -> None:
    for built in (HOOK_CLIENT, simgpu.LIBRARY):
        if not built.exists():
            raise LabError(f"{built.name} has not been built", hint="make native")
    for node in lab.nodes:
        simgpu.create(lab.sim_state(node), product=lab.product_of(node), count=lab.spec.gpus, seed=f"{lab.name}:{node}")
        _make(lab.hooks(node))
        shutil.copy(HOOK_CLIENT, lab.hooks(node) / HOOK_CLIENT.name)
        for name in HOOK_NAMES:
            (lab.hooks(node) / name).symlink_to(HOOK_CLIENT.name)
    _make(lab.bin)
    bind = _BIND.format(hooks=shlex.quote(str(lab.hooks(lab.nodes[0]).parent)), node=lab.nodes[0])
    write(File(path=lab.bin / "vgpu-bind", text=bind, mode=0o755))
    for name in LUA_FILES:
        text = (LUA_FOLDER / name).read_text().replace(_LUA_CATALOGUE, f'CATALOGUE = "{lab.catalogue}"')
        if lab.spec.clouds:
            text = text.replace(_LUA_CLOUD, f'CLOUD = "{CLOUD_PARTITION}"')
        write(File(path=lab.etc / name, text=text))
    for file in pool_files(lab):
        write(file)


def _copy_spank(lab: Lab) -> None:
    """Where every user can read them, as on a real host."""
    _make(lab.spank)
    for built in (*(SPANK / name for name in (PLUGIN, OPTIONS_PLUGIN, PROXY, NO_TASK)), HOOK_CLIENT):
        if not built.exists():
            raise LabError(f"{built.name} has not been built", hint="make native")
        shutil.copy(built, lab.spank / built.name)
    for node in lab.spec.clouds:
        (lab.hooks(node) / "vgpu-taskprolog").symlink_to(lab.spank / NO_TASK)


def _make(folder: Path, mode: int = 0o755) -> None:
    """A folder that jobs' users can look through, or pass, whatever the umask."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)


def write(file: File) -> None:
    fd = os.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, file.mode)
    with os.fdopen(fd, "w") as out:
        os.fchmod(out.fileno(), file.mode)  # whatever the umask
        out.write(file.text)


def _make_database(lab: Lab) -> None:
    lab.database.mkdir()
    shutil.chown(lab.database, "mysql", "mysql")
    argv = ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={lab.database}"]
    run_command([*argv, "--auth-root-authentication-method=socket", "--skip-test-db"])
