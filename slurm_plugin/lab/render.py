"""PURE: the files of a lab, as path -> (text, mode)."""

from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.lab.site import CPUS_PER_NODE, MEMORY_MIB_PER_NODE, Lab
from slurm_plugin.pool import GresNames
from slurm_plugin.slurm import gateway
from slurm_plugin.slurm import render as pool_lines
from slurm_plugin.slurm.site import HookPaths, NodeLine, SlurmSide

DEFAULT_MEMORY_PER_CPU_MIB = 1_000
PARTITION = "gpu"
WAIT_PARTITION = "vgpu-wait"
CLOUD_PARTITION = "cloud"
CLOUD_CPUS = 4096
CLOUD_MEMORY_MIB = 16_000_000
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
    for node in lab.served:
        text = f"Include {lab.etc / 'common.conf'}\n" + _hook_lines(lab, node)
        files.append(File(path=lab.node_slurm_conf(node), text=text))
    if lab.spec.clouds:
        files += _spank_files(lab)
    if lab.spec.accounting:
        files.append(File(path=lab.etc / "slurmdbd.conf", text=_slurmdbd_conf(lab), mode=0o600))
    return tuple(files)


def cloud_side(lab: Lab) -> gateway.CloudSide:
    ports = lab.ports.slurmd[len(lab.nodes) :]
    lines = [
        gateway.VirtualLine(
            names=(name,),
            gateway=lab.hostname,
            address="127.0.0.1",
            cpus=CLOUD_CPUS,
            memory_mib=CLOUD_MEMORY_MIB,
            ports=(port,),
        )
        for name, port in zip(lab.spec.clouds, ports, strict=True)
    ]
    names = GresNames() if lab.spec.pool else None
    return gateway.CloudSide(partition=CLOUD_PARTITION, lines=tuple(lines), gres=names)


def _gateway_paths(lab: Lab, node: str) -> gateway.GatewayPaths:
    return gateway.GatewayPaths(
        programs=str(lab.spank),
        socket=str(lab.gateway_socket),
        marks=str(lab.run / "marks"),
        etc=str(lab.node_slurm_conf(node).parent),
    )


def _spank_files(lab: Lab) -> list[File]:
    """Options for the commands, the plugin for each virtual node's slurmd, and the hooks of those."""
    files = [File(path=lab.etc / "plugstack.conf", text=gateway.options_line(str(lab.spank)))]
    for node in lab.spec.clouds:
        paths = _gateway_paths(lab, node)
        etc = lab.node_slurm_conf(node).parent
        files += [
            File(path=etc / "plugstack.conf", text=f"include {etc}/plugstack.conf.d/*.conf\n"),
            File(path=Path(paths.plugstack), text=gateway.plugstack_line([node], paths)),
            File(path=lab.hooks(node) / "vgpu-prolog", text=gateway.prolog(paths), mode=0o755),
            File(path=lab.hooks(node) / "vgpu-epilog", text=gateway.EPILOG, mode=0o755),
        ]
    return files


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
        "KillWait": 5 if lab.spec.clouds else 1,  # a proxy tells of its end before it is killed
        "SlurmdTimeout": 60,
        "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0",
    }
    settings |= _accounting(lab) | _pool_settings(lab) | ({"PrologFlags": "Alloc"} if lab.spec.clouds else {})
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
        for name, port in zip(lab.nodes, lab.ports.slurmd, strict=False)
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
    cloud = node in lab.spec.clouds
    settings = pool_lines.settings(slurm_side(lab, node)) if lab.spec.pool or cloud else {}
    lines = "".join(f"{name}={settings[name]}\n" for name in _HOOK_SETTINGS if name in settings)
    return lines + gateway.SETTINGS if cloud else lines


def _node_lines(lab: Lab) -> list[str]:
    side = slurm_side(lab, lab.nodes[0])
    partitions = [f"PartitionName={PARTITION} Nodes={side.hosts} Default=YES State=UP MaxTime=INFINITE"]
    if lab.spec.pool:
        nodes = [pool_lines.node_line(side, line) for line in side.nodes]
        partitions.append(pool_lines.wait_partition_line(side))
    else:
        nodes = [f"NodeName={line.hosts[0]} {line.attributes}" for line in side.nodes]
    if lab.spec.clouds:
        cloud = cloud_side(lab)
        nodes += [gateway.node_line(line, cloud.gres) for line in cloud.lines]
        partitions.append(gateway.partition_line(cloud))
    return [*nodes, *partitions]


def _gres_conf(lab: Lab) -> str:
    if not lab.spec.pool:
        return ""
    virtual = gateway.gres_conf(cloud_side(lab)) if lab.spec.clouds else ""
    return pool_lines.gres_conf(slurm_side(lab, lab.nodes[0])) + virtual


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
