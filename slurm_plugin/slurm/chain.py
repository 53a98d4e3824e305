"""How the pool's hooks and a site's own run side by side, and the daemons' units: texts to paste. Pure."""

from pathlib import PurePosixPath

from slurm_plugin.slurm.site import SlurmSide

# Found by taking one away at a time; the lab's daemons run with exactly these.
AGENT_CAPABILITIES = (
    "CAP_CHOWN",  # a slice's device nodes, to the job's user and back
    "CAP_DAC_OVERRIDE",  # the list of a user's open descriptors; a folder in cgroup2's root, which is mode 0555
    "CAP_MKNOD",  # a node the driver's tools have not made
    "CAP_SYS_ADMIN",  # MIG instances, and device programs on cgroups
    "CAP_SYS_PTRACE",  # what descriptors of other users' processes name
)
CONTROLLER_CAPABILITIES: tuple[str, ...] = ()  # it talks to munged, slurmctld and agents, and writes its own files

_UNIT = """\
[Unit]
Description={what}
Documentation=man:slurm.conf(5)
After=network-online.target munge.service
Wants=network-online.target
{order}# What keeps a daemon from starting may end by itself, such as a folder that is not mounted yet: never given up.
StartLimitIntervalSec=0

[Service]
Type={type}
ExecStart={venv}/bin/python -I -m {module} --config {config}
{own}
Restart=always
RestartSec=1
OOMScoreAdjust=-500
LimitNOFILE=65536
CapabilityBoundingSet={capabilities}
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""

# Not below the controller's: on a host with both, systemd makes all in that one the controller's user's.
_OF_AGENT = """\
StateDirectory=vgpu-agent
RuntimeDirectory=vgpu
# The hooks' socket and the grants outlive a restart of the daemon.
RuntimeDirectoryPreserve=yes"""

_OF_CONTROLLER = """\
# controller.user of pool.yaml: munge gives what agents and `vgpu` say to this user only.
User={user}
StateDirectory=vgpu{more}"""


def agent_unit(side: SlurmSide) -> str:
    """slurmd starts, and registers, when the agent says that the slices are there: no job meets a node without them."""
    return _UNIT.format(
        type="notify",
        what="vgpu agent: GPU slices of this node",
        order="Before=slurmd.service\n",
        venv=side.paths.venv,
        module="slurm_plugin.agent",
        own=_OF_AGENT,
        capabilities=" ".join(AGENT_CAPABILITIES),
        config="/etc/vgpu/agent.yaml",
    )


def controller_unit(side: SlurmSide) -> str:
    return _UNIT.format(
        type="exec",
        what="vgpu controller: which slice is offered as what",
        order="After=slurmctld.service\n",
        venv=side.paths.venv,
        module="slurm_plugin.controller",
        own=_OF_CONTROLLER.format(user=side.user, more=_writable(side)),
        capabilities=" ".join(CONTROLLER_CAPABILITIES),
        config="/etc/vgpu/pool.yaml",
    )


def _writable(side: SlurmSide) -> str:
    """A shared folder for the catalogue, and a state folder elsewhere: ProtectSystem leaves /var/lib/vgpu alone."""
    folders = {PurePosixPath(side.catalogue).parent, PurePosixPath(side.state_dir)}
    folders |= {PurePosixPath(side.job_ids).parent} if side.job_ids else set()
    elsewhere = sorted(str(folder) for folder in folders if not folder.is_relative_to("/var/lib/vgpu"))
    return f"\nReadWritePaths={' '.join(elsewhere)}" if elsewhere else ""


def job_submit_lua(side: SlurmSide) -> str:
    """For a site that has a job_submit.lua: what goes into it. Without one, install the ready file."""
    lua = side.paths.lua
    return f"""\
-- vgpu.lua lies beside your job_submit.lua, on every host that runs slurmctld. Once at the top:
local vgpu = dofile("{lua}/vgpu.lua"); vgpu.catalogue = "{side.catalogue}"

-- First in slurm_job_submit(job_desc, part_list, submit_uid):
local rc = vgpu.submit(job_desc, part_list, submit_uid); if rc ~= slurm.SUCCESS then return rc end

-- First in slurm_job_modify(job_desc, job_rec, part_list, modify_uid):
local rc = vgpu.modify(job_desc, job_rec, part_list, modify_uid); if rc ~= slurm.SUCCESS then return rc end

-- Slurm reads job_submit.lua anew when its time stamp is newer, and never looks at vgpu.lua: touch it after an update.
-- A site with no job_submit.lua installs the pool's, beside vgpu.lua in {lua}.
"""


def cli_filter_lua(side: SlurmSide) -> str:
    """The optional part, in the order that breaks nothing; and the lines for a site that has a cli_filter.lua."""
    lua = side.paths.lua
    return f"""\
-- Optional: with it srun takes every form of a request, inside a job too. Once slurm.conf names it, sbatch, srun and
-- salloc fail on every host that lacks the file, so keep this order:
-- 1. On every host that reads this slurm.conf: vgpu.lua and cli_filter.lua in {lua}, and the catalogue at
--    {side.catalogue}, readable by all (a shared folder, or a copy made every minute; without it only
--    srun inside a job is told what to write).
-- 2. Then, and not before, in slurm.conf, which the commands read each time they run:
--        CliFilterPlugins=lua

-- A site with a cli_filter.lua keeps it, puts vgpu.lua beside it, and adds, once at the top:
local vgpu = dofile("{lua}/vgpu.lua"); vgpu.catalogue = "{side.catalogue}"

-- First in slurm_cli_pre_submit(options, pack_offset):
local rc = vgpu.cli(options); if rc ~= slurm.SUCCESS then return rc end

-- A site with no cli_filter.lua installs the pool's, beside vgpu.lua in {lua}.
"""


def prologs(side: SlurmSide) -> str:
    """For a site with its own prolog, epilog or task prolog."""
    paths, etc = side.paths, side.paths.slurm_etc
    return f"""\
# Prolog and Epilog: folders, from which Slurm runs every file in order. The pool's prolog comes last, so that a node
# your checks refuse binds nothing; its epilog comes last too, so that what your cleaning ends no longer holds a slice.
#   slurm.conf:
Prolog={etc}/prolog.d/*
Epilog={etc}/epilog.d/*
#   on each node:
ln -s {paths.prolog} {etc}/prolog.d/90-vgpu-prolog
ln -s {paths.epilog} {etc}/epilog.d/90-vgpu-epilog

# Or, at the end of the one script you have (both always end with 0, so they never drain a node):
{paths.prolog}
{paths.epilog}

# TaskProlog: Slurm knows one. At the end of yours (what it prints, such as `export CUDA_VISIBLE_DEVICES=...`, goes to
# Slurm with your own; it fails only where a job would run without the slice it asked for):
{paths.task_prolog} || exit 1
"""
