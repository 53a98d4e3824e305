"""PURE: what is wrong with the pool itself. For Slurm's settings see `slurm.checks`, for what each means `findings`.

A count may be wrong for the moment between a job's end and the next publication; `examine` looks twice at such faults.
"""

import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slurm_plugin.catalogue import Catalogue
from slurm_plugin.cli.doctor_gpus import gpu_findings
from slurm_plugin.cli.screen import fold, safe
from slurm_plugin.cli.view import NodeView, PauseView, PoolView, SliceState
from slurm_plugin.findings import Finding, found
from slurm_plugin.pool import GresNames, Mode
from slurm_plugin.ports import GresItem, QueuedJob
from slurm_plugin.slurm.gres import parse_gres

WAITING_PROLOG_S = 10.0  # a slice that was published is there at once, or after an epilog
WAIT_S = 30.0  # the agent's own default, of one that does not tell
STUCK_PROLOG_S = 15.0  # longer than the agent waits: it should have given up
NO_GRANT_S = 60.0  # as long as a prolog may take
CLOCK_S = 10.0  # how far apart the clocks of node and controller may be
TEXT_MAX = 1000  # characters of one line of a finding
_HOLDS_NOTHING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
# What the controller reports of a node, and the checks that say the same and how to mend it.
_NO_CATALOGUE = {"no-catalogue", "catalogue"}
_CLOCKS = re.compile(r"munge refuses (\S+): its clock is not the controller's")
_RIVAL = re.compile(r"somebody else changes what is published on ")
# Slurm's own words for why it drained a node.
_DRAINED = (
    (re.compile(r"count changed|count reported lower|gres/"), "drained-by-count"),
    (re.compile(r"^Prolog error\b"), "drained-by-prolog"),
    (re.compile(r"^Duplicate jobid\b"), "drained-by-id"),
)
_SAID_BETTER = (
    (re.compile(r"its agent is away"), {"agent-away"}),
    (re.compile(r"Slurm has it "), {"drained", "down", *(code for _, code in _DRAINED)}),
    (re.compile(r"its \S+ total is |it has no Gres="), {"gres-total"}),
    (re.compile(r"Slurm does not know this node"), {"no-node"}),
    (re.compile(r"job \d+ runs here and has no slice"), {"no-grant"}),
)

Takes = Callable[[str, int], bool]  # (node, NVML index): is this GPU the pool's?


def _all_gpus(_node: str, _index: int) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    checked: tuple[str, ...]  # what was looked at
    findings: tuple[Finding, ...]


def report_lines(report: Report, width: int = 0) -> list[str]:
    """For each fault: what, why, and the line to paste, which is never folded."""
    lines = list(fold([f"checked: {', '.join(report.checked)}"], width))
    for finding in report.findings:
        what, why = safe(finding.what, TEXT_MAX), safe(finding.why, TEXT_MAX)
        lines += [
            "",
            *fold([f"[{finding.code}] {what}", f"  why:   {why}"], width),
            *(
                f"  {'paste:' if nth == 0 else '      '} {safe(line, TEXT_MAX)}"
                for nth, line in enumerate(finding.paste.splitlines())
            ),
        ]
    count = len(report.findings)
    return [*lines, "", f"{count} finding{'' if count == 1 else 's'}" if count else "nothing is wrong"]


def pool_findings(pool: PoolView, names: GresNames, now: float, takes: Takes = _all_gpus) -> tuple[Finding, ...]:
    """Every fault that the controller's view of the pool shows, node by node. `now` is Unix seconds.

    A controller that only observes publishes nothing, and then counts are not judged.
    """
    findings = [_problem(text) for text in pool.problems]
    findings += [_paused(pool.pause)] if pool.pause else []
    for node in pool.nodes:
        findings += _node_problems(node)
        findings += _slurm_state(node)
        findings += _agent(node, pool.controller_version)
        if pool.mode != Mode.OBSERVE:
            findings += _counts(node, names)
        findings += _grants(node)
        findings += _waiting(node, now)
        findings += _gpu_also(node, takes)
        for gpu in node.gpus:
            if takes(node.name, gpu.index):
                findings += gpu_findings(node, gpu)
    return tuple(findings)


def _problem(text: str) -> Finding:
    if clocks := _CLOCKS.fullmatch(text):
        return found("clock-refused", problem=text, host=shlex.quote(clocks[1]))
    return found("rival" if _RIVAL.match(text) else "controller", problem=text)


def _paused(pause: PauseView) -> Finding:
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(pause.since))
    return found("paused", since=since, uid=pause.uid, reason=f": {pause.reason}" if pause.reason else "")


def catalogue_findings(catalogue: Catalogue, pool: PoolView) -> tuple[Finding, ...]:
    """Where the catalogue that job_submit reads says otherwise than the live pool."""
    findings = []
    for node in pool.nodes:
        if node.gpus and node.name not in catalogue.nodes:
            findings.append(found("not-in-catalogue", node=node.name))
        for gpu in node.gpus:
            for piece in gpu.slices:
                served = catalogue.by_name.get(piece.offered_as)
                if piece.offered_as and (served is None or piece.profile not in served.profiles):
                    facts = {"uuid": piece.uuid, "profile": piece.profile, "name": piece.offered_as}
                    findings.append(found("wrong-offer", node=node.name, **facts))
    findings += [
        found("unknown-class", job=job.job_id, name=job.gres_class, count=job.count)
        for job in pool.pending
        if job.gres_class not in catalogue.by_name
    ]
    return tuple(findings)


def job_findings(
    pool: PoolView, jobs: tuple[QueuedJob, ...], names: GresNames, wait_partition: str, now: float
) -> tuple[Finding, ...]:
    """Where Slurm's jobs and the agents' grants differ, and jobs that Slurm will never start."""
    return (*_held(jobs, names, wait_partition), *_stale(pool, jobs), *_lacking(pool, jobs, now))


def _held(jobs: tuple[QueuedJob, ...], names: GresNames, wait_partition: str) -> Iterator[Finding]:
    for job in jobs:
        if job.state == "PENDING" and job.reason == "BadConstraints":
            asked = ",".join(f"{item.name}:{item.type}:{item.count}" for item in job.gres if item.name == names.name)
            partitions = ",".join(dict.fromkeys((*job.partitions, wait_partition)))
            yield found("held-job", job=job.job_id, reason=job.reason, asked=asked, partitions=partitions)
        elif job.launch_failed:
            yield found("refused-job", job=job.job_id, reason=job.reason)


def _stale(pool: PoolView, jobs: tuple[QueuedJob, ...]) -> Iterator[Finding]:
    there = {(job.job_id, job.started_at, node) for job in jobs for node in job.on_nodes}
    for node in pool.nodes:
        for grant in node.grants:
            if grant.slices and (grant.job_id, grant.started_at, node.name) not in there:
                facts = {"job": grant.job_id, "slices": ", ".join(grant.slices), "host": shlex.quote(node.name)}
                yield found("stale-grant", node=node.name, **facts)


def _lacking(pool: PoolView, jobs: tuple[QueuedJob, ...], now: float) -> Iterator[Finding]:
    granted = {(grant.job_id, grant.started_at, node.name) for node in pool.nodes for grant in node.grants}
    untold = {(job_id, node.name) for node in pool.nodes for job_id in node.garbled}
    untold |= {(prolog.job_id, node.name) for node in pool.nodes for prolog in node.waiting}
    connected = {node.name for node in pool.nodes if node.agent_connected}
    for job in jobs:
        age = now - job.started_at
        if job.state in _HOLDS_NOTHING or job.state == "COMPLETING" or age < NO_GRANT_S:
            continue
        for name in job.on_nodes:
            has_none = (job.job_id, job.started_at, name) not in granted and (job.job_id, name) not in untold
            if name in connected and has_none:
                yield found("no-grant", node=name, job=job.job_id, state=job.state, age=f"{age:.0f}")


def _node_problems(node: NodeView) -> Iterator[Finding]:
    for text in node.problems:
        code = "two-agents" if text.startswith("two agents speak for it") else "node"
        yield found(code, node=node.name, problem=text, host=shlex.quote(node.name))


def without_doubles(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Leave out what follows from another finding, and what the controller reports that a check says better."""

    def said_better(finding: Finding) -> bool:
        if finding.code == "catalogue-unread":
            return any(other.code in _NO_CATALOGUE for other in findings)
        if finding.code != "node":
            return False
        node, _, problem = finding.what.partition(": ")
        codes = {code for pattern, better in _SAID_BETTER if pattern.match(problem) for code in better}
        return any(other.code in codes and node in other.what for other in findings)

    return tuple(finding for finding in findings if not said_better(finding))


def _slurm_state(node: NodeView) -> Iterator[Finding]:
    reason = next((text.partition(": ")[2] for text in node.problems if text.startswith("Slurm has it ")), "")
    facts = {
        "node": node.name,
        "host": shlex.quote(node.name),
        "state": node.slurm_state,
        "reason": reason or "no reason given",
    }
    if "DRAIN" in node.slurm_state or "INVAL" in node.slurm_state:
        yield found(next((code for pattern, code in _DRAINED if pattern.search(reason)), "drained"), **facts)
    elif any(word in node.slurm_state for word in ("DOWN", "FAIL", "NOT_RESPONDING", "UNKNOWN", "*")):
        yield found("down", **facts)


def _agent(node: NodeView, controller_version: str) -> Iterator[Finding]:
    host = shlex.quote(node.name)
    if not node.agent_connected:
        yield found("agent-away", node=node.name, host=host)
        return
    if node.agent_version != controller_version:
        yield found(
            "version-mismatch", node=node.name, host=host, agent=node.agent_version, controller=controller_version
        )
    if abs(node.clock_ahead_s) > CLOCK_S:
        way = "before" if node.clock_ahead_s > 0 else "behind"
        yield found("clock-skew", node=node.name, host=host, ahead=f"{abs(node.clock_ahead_s):.0f}", way=way)


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
        yield found("unpublished", node=node.name)
        return
    there = (SliceState.IDLE, SliceState.UNKNOWN)
    idle: Counter[str] = Counter(p.offered_as for gpu in node.gpus for p in gpu.slices if p.state in there)
    # Jobs that are ending hold slices that Slurm counts as free already; jobs that start have yet to take theirs.
    held = sum(p.state is SliceState.BUSY for gpu in node.gpus for p in gpu.slices)
    ending = held - sum(n for name, n in used.items() if name != names.pad)
    for name in sorted(classes | set(idle) | {name for name in used if name not in ("", names.pad)}):
        free = published.get(name, 0) - used.get(name, 0)
        facts = {"name": name, "published": published.get(name, 0), "used": used.get(name, 0), "idle": idle[name]}
        if free < 0:
            yield found("below-used", node=node.name, **facts)
        elif free > idle[name] + max(0, ending):
            yield found("over-published", node=node.name, **facts)
        elif free < idle[name] + min(0, ending) and node.agent_connected:
            yield found("under-published", node=node.name, **facts)


def _grants(node: NodeView) -> Iterator[Finding]:
    present = {piece.uuid for gpu in node.gpus for piece in gpu.slices}
    holders: dict[str, list[int]] = {}
    for grant in node.grants:
        for uuid in grant.slices:
            holders.setdefault(uuid, []).append(grant.job_id)
        if gone := [uuid for uuid in grant.slices if uuid not in present]:
            yield found("lost-slice", node=node.name, job=grant.job_id, slices=", ".join(gone))
        host = shlex.quote(node.name)
        if grant.slices and "+modes" not in grant.isolation:
            yield found("open-devices", node=node.name, job=grant.job_id, host=host)
        if grant.slices and not node.unconfined and "+cgroup" not in grant.isolation:
            yield found("unconfined-job", node=node.name, job=grant.job_id, host=host)
        if grant.gres_class and len(grant.slices) < grant.count:
            yield found("short-grant", node=node.name, job=grant.job_id, asked=grant.count, held=len(grant.slices))
    for uuid, jobs in sorted(holders.items()):
        if len(jobs) > 1:
            listed = ", ".join(map(str, sorted(jobs)))
            yield found("double-grant", node=node.name, uuid=uuid, jobs=listed, job=max(jobs))


def _waiting(node: NodeView, now: float) -> Iterator[Finding]:
    for prolog in node.waiting:
        if (waited := now - prolog.since) > WAITING_PROLOG_S:
            limit_s = node.wait_s or WAIT_S
            code = "stuck-prolog" if waited > limit_s + STUCK_PROLOG_S else "waiting-prolog"
            facts = {"job": prolog.job_id, "waited": f"{waited:.0f}", "limit": f"{limit_s:g}"}
            facts["host"] = shlex.quote(node.name)
            yield found(code, node=node.name, **facts)


def _gpu_also(node: NodeView, takes: Takes) -> Iterator[Finding]:
    offered = sum(_by_type(parse_gres(node.gres), "gpu").values())
    free = sum(not takes(node.name, gpu.index) for gpu in node.gpus)
    if node.gpus and offered > free:
        yield found("gpu-also", node=node.name, gpus=offered, free=free, host=shlex.quote(node.name))
