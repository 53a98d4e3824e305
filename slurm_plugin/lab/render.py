"""PURE: the files of a lab, as path -> (text, mode)."""

from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.lab.site import CPUS_PER_NODE, MEMORY_MIB_PER_NODE, Lab
from slurm_plugin.slurm import render as pool_lines
from slurm_plugin.slurm.site import HookPaths, NodeLine, SlurmSide

DEFAULT_MEMORY_PER_CPU_MIB = 1_000
PARTITION = "gpu"
WAIT_PARTITION = "vgpu-wait"
_HOOK_SETTINGS = ("Prolog", "Epilog", "TaskProlog")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    path: Path
    text: str
    mode: int = 0o644


def slurm_files(lab: Lab) -> tuple[File, ...]:
    """slurm.conf in its parts, and what lies beside it."""
    files = [
        File(path=lab.etc / "common.conf", text=common_conf(lab)),
        File(path=lab.slurm_conf, text=f"Include {lab.etc / 'common.conf'}\n" + _hook_lines(lab, lab.nodes[0])),
        File(path=lab.job_ids, text="FirstJobId=1\n"),
        File(path=lab.etc / "gres.conf", text=_gres_conf(lab)),
        File(path=lab.etc / "cgroup.conf", text=_cgroup_conf(lab)),
    ]
    for node in lab.nodes:
        text = f"Include {lab.etc / 'common.conf'}\n" + _hook_lines(lab, node)
        files.append(File(path=lab.node_slurm_conf(node), text=text))
    if lab.spec.accounting:
        files.append(File(path=lab.etc / "slurmdbd.conf", text=_slurmdbd_conf(lab), mode=0o600))
    return tuple(files)


def common_conf(lab: Lab) -> str:
    """All of slurm.conf but the hooks."""
    settings: dict[str, object] = {
        "ClusterName": lab.name,
        "SlurmctldHost": f"{lab.hostname}(127.0.0.1)",
        "SlurmctldPort": lab.ports.slurmctld,
        # Without these the daemons listen on every address of the machine.
        "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
        "SlurmUser": "root",
        "AuthInfo": f"socket={lab.munge_socket},cred_expire={lab.spec.requeue_delay_s}",
        "StateSaveLocation": lab.state / "slurmctld",
        "SlurmdSpoolDir": lab.state / "slurmd" / "%n",
        "SlurmctldPidFile": lab.run / "slurmctld.pid",
        "SlurmdPidFile": lab.run / "slurmd-%n.pid",
        "SlurmctldLogFile": lab.log / "slurmctld.log",
        "SlurmdLogFile": lab.log / "slurmd-%n.log",
        # No cgroups: a lab must run where they are read-only, and several slurmds share one machine.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": DEFAULT_MEMORY_PER_CPU_MIB,
        # The nodes claim more CPUs and memory than the machine has.
        "SlurmdParameters": "config_overrides",
        # The slurm.conf of a node differs from the controller's in its hook paths, on purpose.
        "DebugFlags": "NO_CONF_HASH",
        "ReturnToService": 2,
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "KillWait": 1,
        "SlurmdTimeout": 60,
        "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0",
    }
    settings |= _accounting(lab) | _pool_settings(lab)
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += [f"Include {lab.job_ids}"] if lab.spec.pool else []
    return "\n".join([*lines, *_node_lines(lab), *lab.spec.slurm_lines]) + "\n"


def _accounting(lab: Lab) -> dict[str, object]:
    if not lab.spec.accounting:
        return {"AccountingStorageType": "accounting_storage/none"}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": lab.ports.slurmdbd,
        # munged's socket again: AuthInfo is not read for this connection.
        "AccountingStoragePass": lab.munge_socket,
    }


def slurm_side(lab: Lab, node: str) -> SlurmSide:
    """What the pool needs of this lab's Slurm, with the hooks of this node."""
    size = f"CPUs={CPUS_PER_NODE} RealMemory={MEMORY_MIB_PER_NODE}"
    lines = [
        NodeLine(
            hosts=(name,),
            gpus=lab.spec.gpus,
            attributes=f"NodeHostname={lab.hostname} NodeAddr=127.0.0.1 Port={port} {size}",
        )
        for name, port in zip(lab.nodes, lab.ports.slurmd, strict=True)
    ]
    return SlurmSide(
        partitions=(PARTITION,),
        wait_partition=WAIT_PARTITION,
        nodes=tuple(lines),
        paths=HookPaths(programs=str(lab.hooks(node)), lua=str(lab.etc), slurm_etc=str(lab.etc)),
        accounting=lab.spec.accounting,
    )


def _pool_settings(lab: Lab) -> dict[str, object]:
    settings = pool_lines.settings(slurm_side(lab, lab.nodes[0])) if lab.spec.pool else {}
    return {name: value for name, value in settings.items() if name not in _HOOK_SETTINGS}


def _hook_lines(lab: Lab, node: str) -> str:
    settings = pool_lines.settings(slurm_side(lab, node)) if lab.spec.pool else {}
    return "".join(f"{name}={settings[name]}\n" for name in _HOOK_SETTINGS if name in settings)


def _node_lines(lab: Lab) -> list[str]:
    side = slurm_side(lab, lab.nodes[0])
    partition = f"PartitionName={PARTITION} Nodes={side.hosts} Default=YES State=UP MaxTime=INFINITE"
    if not lab.spec.pool:
        return [*(f"NodeName={line.hosts[0]} {line.attributes}" for line in side.nodes), partition]
    nodes = [pool_lines.node_line(side, line) for line in side.nodes]
    return [*nodes, partition, pool_lines.wait_partition_line(side)]


def _gres_conf(lab: Lab) -> str:
    return pool_lines.gres_conf(slurm_side(lab, lab.nodes[0])) if lab.spec.pool else ""


def _cgroup_conf(lab: Lab) -> str:
    # 22.05 does not know the word and does not look for cgroups with the plugins above; later ones do.
    return "CgroupPlugin=disabled\n" if lab.slurm_version >= (23, 11) else ""


def _slurmdbd_conf(lab: Lab) -> str:
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={lab.munge_socket}",
        "DbdHost": lab.hostname,
        "DbdAddr": "127.0.0.1",
        "DbdPort": lab.ports.slurmdbd,
        "CommunicationParameters": "NoInAddrAny",
        "SlurmUser": "root",
        "StorageType": "accounting_storage/mysql",
        # "localhost" is the unix socket, which slurmdbd learns from MYSQL_UNIX_PORT.
        "StorageHost": "localhost",
        "StorageUser": "root",
        "StorageLoc": "slurm_acct",
        "PidFile": lab.run / "slurmdbd.pid",
        "LogFile": lab.log / "slurmdbd.log",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
