"""PURE: what is wrong with a GPU of the pool, and the line that ends it."""

import re
import shlex
from collections.abc import Iterator

from slurm_plugin.cli.view import GpuView, NodeView, SliceState
from slurm_plugin.findings import Finding, found

# As `nvml.holders` has it, with nothing else in the brackets. The name is the process's own choice.
_HOLDER = re.compile(r"held by pid (\d+)\b(?: \([^\s,()]+, (?P<service>[\w@.-]+\.service)\))?")


def gpu_findings(node: NodeView, gpu: GpuView) -> Iterator[Finding]:
    facts = {"node": node.name, "index": gpu.index, "host": shlex.quote(node.name)}
    if gpu.mig in ("disabled", "pending") and "MIG" in (gpu.fault or "MIG"):
        why = f" ({gpu.fault})" if gpu.fault else ""
        line = _into_mig(gpu.fault, shlex.quote(node.name), gpu.index)
        yield found("mig-off", mig=gpu.mig + why, line=line, **facts)
    elif gpu.fault:
        jobs = sorted({job for piece in gpu.slices for job in piece.jobs})
        named = f" (job {', '.join(map(str, jobs))} has slices there)" if jobs else ""
        line = _out_of_fault(gpu.fault, shlex.quote(node.name), gpu.index)
        yield found("gpu-fault", fault=gpu.fault, jobs=named, line=line, **facts)
    if gpu.mig == "enabled" and not gpu.slices and not gpu.fault:
        yield found("empty-gpu", **facts)
    for piece in gpu.slices:
        at = {"profile": piece.profile, "start": piece.start, "gi": piece.gi}
        if piece.state is SliceState.HELD:
            yield _held(piece.held_by, **facts, **at)
        if piece.state is SliceState.FOREIGN:
            yield found("foreign-instance", **facts, **at)
        if piece.state is SliceState.HALF_MADE:
            yield found("half-made", **facts, **at)


def _held(who: str, **facts: object) -> Finding:
    if pid := re.search(r"pid (\d+)", who):
        return found("slice-held", who=who, pid=pid[1], **facts)
    if cgroup := re.search(r"/[\w@:/.-]+", who):
        return found("slice-outlived", who=who, cgroup=cgroup[0], **facts)
    return found("slice-unseen" if who.startswith("nobody knows") else "slice-claimed", who=who, **facts)


def _into_mig(fault: str, host: str, index: int) -> str:
    """What brings a GPU into MIG mode; by itself one before Hopper is reset only with `reset_gpus`."""
    switch = f"ssh {host} nvidia-smi -i {index} -mig 1"
    said = _said(fault)
    if "virtual machine" in said:
        return f"{switch}   # and then reboot this virtual machine"
    if said != fault:
        return _out_of_fault(fault, host, index)
    if "not in force" in said:
        return f"scontrol reboot ASAP {host}"
    if fault:
        return f"{switch}   # nothing may use the GPU; or have reset_gpus: true under planning in pool.yaml"
    return f"ssh {host} 'nvidia-smi -i {index} -mig 1 && nvidia-smi --gpu-reset -i {index}'"


def _out_of_fault(fault: str, host: str, index: int) -> str:
    """What to do about a GPU that is out of use: end what holds it, else reset it, else restart its node."""
    said = _said(fault)
    if "(NVML 15)" in said:
        return f"scontrol update nodename={host} state=drain reason='GPU {index} is lost'; scontrol reboot ASAP {host}"
    if holder := _HOLDER.match(fault, len(said)):
        service = holder["service"]
        ends = f"systemctl stop {shlex.quote(service)}" if service and "slurm" not in service else f"kill {holder[1]}"
        return f"ssh {host} {ends} && vgpu apply"
    if "quarantined" in said:
        return (
            f"ssh {host} 'fuser -v /dev/nvidia{index}'   # stop what is there, such as DCGM, and vgpu apply;"
            f" else, without jobs there: ssh {host} nvidia-smi --gpu-reset -i {index}, or reboot the node"
        )
    return f"ssh {host} nvidia-smi -q -i {index}"


def _said(fault: str) -> str:
    """What the agent itself says. From the first holder on there are names that processes choose for themselves."""
    return fault.partition("held by ")[0]
