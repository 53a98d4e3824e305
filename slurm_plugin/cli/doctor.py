"""PURE: what is wrong with the pool, each fault with the line to paste. For Slurm's settings see `slurm.checks`.

A count may be wrong for the moment between a job's end and the next publication. Codes in PASSING are such: `doctor`
looks twice and reports only those it finds both times.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slurm_plugin.catalogue import Catalogue
from slurm_plugin.cli.screen import safe
from slurm_plugin.cli.view import GpuView, NodeView, PoolView, SliceState
from slurm_plugin.pool import GresNames
from slurm_plugin.ports import GresItem
from slurm_plugin.slurm.checks import Finding
from slurm_plugin.slurm.gres import parse_gres

PROLOG_WAIT_S = 45.0  # the agent gives up after 30 s; a prolog that waits longer is stuck
TEXT_MAX = 1000  # characters of one line of a finding
PASSING = frozenset({"over-published", "under-published", "below-used", "unpublished"})


Takes = Callable[[str, int], bool]  # (node, NVML index): is this GPU the pool's?


def _all_gpus(_node: str, _index: int) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    checked: tuple[str, ...]  # what was looked at
    findings: tuple[Finding, ...]


def report_lines(report: Report) -> list[str]:
    """For each fault: what, why, and the line to paste."""
    lines = [f"checked: {', '.join(report.checked)}"]
    for finding in report.findings:
        lines += [
            "",
            f"[{finding.code}] {safe(finding.what, TEXT_MAX)}",
            f"  why:   {safe(finding.why, TEXT_MAX)}",
            *(
                f"  {'paste:' if nth == 0 else '      '} {safe(line, TEXT_MAX)}"
                for nth, line in enumerate(finding.paste.splitlines())
            ),
        ]
    count = len(report.findings)
    return [*lines, "", f"{count} finding{'' if count == 1 else 's'}" if count else "nothing is wrong"]


def pool_findings(pool: PoolView, names: GresNames, now: float, takes: Takes = _all_gpus) -> tuple[Finding, ...]:
    """Every fault that the controller's view of the pool shows, node by node. `now` is Unix seconds."""
    found = [
        Finding(
            code="controller",
            what=text,
            why="the controller itself reports this",
            paste="journalctl -u vgpu-controller --since -10min",
        )
        for text in pool.problems
    ]
    for node in pool.nodes:
        found += _node_problems(node)
        found += _agent(node)
        found += _counts(node, names)
        found += _grants(node)
        found += _waiting(node, now)
        for gpu in node.gpus:
            if takes(node.name, gpu.index):
                found += _gpu(node, gpu)
    return tuple(found)


def catalogue_findings(catalogue: Catalogue, pool: PoolView) -> tuple[Finding, ...]:
    """Where the catalogue that job_submit reads says otherwise than the live pool."""
    found = []
    for node in pool.nodes:
        if node.gpus and node.name not in catalogue.nodes:
            found.append(
                Finding(
                    code="not-in-catalogue",
                    what=f"{node.name}: the catalogue does not know this node",
                    why="job_submit refuses requests that only this node could serve",
                    paste="systemctl restart vgpu-controller",
                )
            )
        for gpu in node.gpus:
            for piece in gpu.slices:
                served = catalogue.by_name.get(piece.offered_as)
                if piece.offered_as and (served is None or piece.profile not in served.profiles):
                    found.append(
                        Finding(
                            code="wrong-offer",
                            what=f"{node.name}: {piece.uuid} ({piece.profile}) is offered as {piece.offered_as}",
                            why="the catalogue does not let that profile serve that class",
                            paste="systemctl restart vgpu-controller",
                        )
                    )
    return tuple(found)


def lasting(first: tuple[Finding, ...], second: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The second look's findings, less those that pass by themselves and were not there at the first."""
    before = {(finding.code, finding.what.split(":")[0]) for finding in first}
    return tuple(f for f in second if f.code not in PASSING or (f.code, f.what.split(":")[0]) in before)


def _node_problems(node: NodeView) -> Iterator[Finding]:
    for text in node.problems:
        yield Finding(
            code="node",
            what=f"{node.name}: {text}",
            why="the controller reports this of the node",
            paste=f"vgpu show node {shlex.quote(node.name)}",
        )
    if "DRAIN" in node.slurm_state or "INVAL" in node.slurm_state:
        yield Finding(
            code="drained",
            what=f"{node.name}: Slurm's state is {node.slurm_state}",
            why="no job starts there; a registration with another count drains a node, and only an admin ends a drain",
            paste=f"scontrol update nodename={shlex.quote(node.name)} state=resume",
        )


def _agent(node: NodeView) -> Iterator[Finding]:
    if not node.agent_connected:
        yield Finding(
            code="agent-away",
            what=f"{node.name}: its agent is not connected to the controller",
            why="jobs there still start on what is published, but nothing is re-cut and no count is renewed",
            paste=f"ssh {shlex.quote(node.name)} systemctl restart vgpu-agent",
        )


def _by_type(items: tuple[GresItem, ...], name: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for item in items:
        if item.name == name:
            counts[item.type] += item.count
    return dict(counts)


def _counts(node: NodeView, names: GresNames) -> Iterator[Finding]:
    published, used = (_by_type(parse_gres(text), names.name) for text in (node.gres, node.gres_used))
    classes = {name for name in published if name not in ("", names.pad)}
    if "" in published and not classes:
        yield _recount(node, "unpublished", "no class is published", "Slurm is at its untyped base: no vgpu job starts")
        return
    idle: Counter[str] = Counter(p.offered_as for gpu in node.gpus for p in gpu.slices if p.state is SliceState.IDLE)
    ending = sum(len(grant.slices) for grant in node.grants) - sum(n for name, n in used.items() if name != names.pad)
    for name in sorted(classes | set(idle) | {name for name in used if name not in ("", names.pad)}):
        free = published.get(name, 0) - used.get(name, 0)
        label = f"class {name}: {published.get(name, 0)} published, {used.get(name, 0)} used, {idle[name]} idle"
        if free < 0:
            yield _recount(node, "below-used", label, "Slurm's counters wrap when fewer are published than are used")
        elif free > idle[name] + max(0, ending):
            yield _recount(node, "over-published", label, "a job may start that no slice serves; it is then requeued")
        elif free < idle[name] and node.agent_connected:
            yield _recount(node, "under-published", label, "idle slices stay unused")


def _recount(node: NodeView, code: str, label: str, why: str) -> Finding:
    return Finding(
        code=code,
        what=f"{node.name} {label}",
        why=f"{why}; the controller puts this right in a few seconds when it can",
        paste="systemctl restart vgpu-controller",
    )


def _grants(node: NodeView) -> Iterator[Finding]:
    present = {piece.uuid for gpu in node.gpus for piece in gpu.slices}
    holders: dict[str, list[int]] = {}
    for grant in node.grants:
        for uuid in grant.slices:
            holders.setdefault(uuid, []).append(grant.job_id)
        if gone := [uuid for uuid in grant.slices if uuid not in present]:
            yield Finding(
                code="lost-slice",
                what=f"{node.name}: job {grant.job_id} holds {', '.join(gone)}, which is not there",
                why="a slice was destroyed outside the pool, or the node restarted under the job",
                paste=f"scontrol requeue {grant.job_id} || scancel {grant.job_id}",
            )
        if grant.gres_class and len(grant.slices) < grant.count:
            yield Finding(
                code="short-grant",
                what=f"{node.name}: job {grant.job_id} asked {grant.count} and holds {len(grant.slices)}",
                why="Slurm believes that the job has more than it can see",
                paste=f"scontrol requeue {grant.job_id} || scancel {grant.job_id}",
            )
    for uuid, jobs in sorted(holders.items()):
        if len(jobs) > 1:
            yield Finding(
                code="double-grant",
                what=f"{node.name}: {uuid} is held by jobs {', '.join(map(str, sorted(jobs)))}",
                why="two jobs share one slice: this must never happen, please report it",
                paste=f"scancel {max(jobs)}",
            )


def _waiting(node: NodeView, now: float) -> Iterator[Finding]:
    for prolog in node.waiting:
        if (waited := now - prolog.since) > PROLOG_WAIT_S:
            yield Finding(
                code="stuck-prolog",
                what=f"{node.name}: the prolog of job {prolog.job_id} has waited {waited:.0f} s for a slice",
                why="the agent gives up after 30 s and requeues the job; this one it could not",
                paste=f"scontrol requeue {prolog.job_id} || scancel {prolog.job_id}",
            )


def _gpu(node: NodeView, gpu: GpuView) -> Iterator[Finding]:
    where, host = f"{node.name} GPU {gpu.index}", shlex.quote(node.name)
    if gpu.fault:
        yield Finding(
            code="gpu-fault",
            what=f"{where}: {gpu.fault}",
            why="the GPU is left out of the pool until this is gone",
            paste=f"ssh {host} nvidia-smi -q -i {gpu.index}",
        )
    if gpu.mig in ("disabled", "pending"):
        yield Finding(
            code="mig-off",
            what=f"{where}: MIG mode is {gpu.mig}",
            why="no slice can be cut; some models need a reset or a reboot after the change",
            paste=f"ssh {host} 'nvidia-smi -i {gpu.index} -mig 1 && nvidia-smi --gpu-reset -i {gpu.index}'",
        )
    if gpu.mig == "enabled" and not gpu.slices and not gpu.fault:
        yield Finding(
            code="empty-gpu",
            what=f"{where}: MIG is enabled and nothing is cut",
            why="it serves no job, and Slurm's own NVML plugin would take it for a whole GPU",
            paste="vgpu plan && vgpu apply",
        )
    for piece in gpu.slices:
        at = f"{piece.profile} at {piece.start}"
        if piece.state is SliceState.FOREIGN:
            yield Finding(
                code="foreign-instance",
                what=f"{where}: {at} (GPU instance {piece.gi}) is not of the pool's shape",
                why="the pool works round it for ever and never offers it",
                paste=f"ssh {host} 'nvidia-smi mig -i {gpu.index} -gi {piece.gi} -dci;"
                f" nvidia-smi mig -i {gpu.index} -gi {piece.gi} -dgi'",
            )
        if piece.state is SliceState.HALF_MADE:
            yield Finding(
                code="half-made",
                what=f"{where}: {at} (GPU instance {piece.gi}) has no compute instance",
                why="its memory is taken and nothing can run on it",
                paste=f"ssh {host} nvidia-smi mig -i {gpu.index} -gi {piece.gi} -dgi",
            )
