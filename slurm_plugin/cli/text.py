"""PURE: views to the lines a person reads."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from slurm_plugin import explanation
from slurm_plugin.cli.screen import LEGEND, LINE_MAX, age, fold, picture, safe, table
from slurm_plugin.cli.view import (
    GpuPlanView,
    GpuView,
    GrantView,
    JobView,
    NodeView,
    PauseView,
    PlanView,
    PoolView,
    ShapeView,
    SliceState,
    SliceView,
)
from slurm_plugin.explanation import Clock, Explanation
from slurm_plugin.history import Entry, History, What

Names = Callable[[int], str]  # uid -> what to call the user

UNUSED_S = 600.0  # a job may well read its data for some minutes
UNUSED_MAX = 20  # lines of the status


def status_lines(pool: PoolView, names: Names, now: float, clock: Clock = str, width: int = 0) -> list[str]:
    """The whole pool: a line a GPU, the queue, and what is wrong."""
    head = [
        f"pool {safe(pool.pool)}: {counted(len(pool.nodes), 'node')}, {slice_total(pool)}; controller"
        f" {safe(pool.controller_version)} up {age(now - pool.started_at)}, last pass {pool.last_pass_s * 1000:.0f} ms"
        + (", only observes" if pool.mode == "observe" else ""),
        *([pause_line(pool.pause, names, clock)] if pool.pause else ()),
    ]
    gpus = (row for node in pool.nodes for row in _gpu_rows(node))
    return [
        *fold(head, width),
        "",
        *table(("NODE", "SLURM", "GPU", "LAYOUT", "SLICES"), gpus, width),
        "",
        LEGEND,
        *(["", *_pending_table(pool, names, clock, width)] if pool.pending else ()),
        *(["", others_line(pool)] if pool.others else ()),
        *fold([*_unused_lines(pool, names, now), *_problem_lines(pool)], width),
    ]


def pause_line(pause: PauseView, names: Names, clock: Clock) -> str:
    """Since when nothing is re-cut, by whom and why."""
    why = f": {safe(pause.reason, LINE_MAX)}" if pause.reason else ""
    return f"re-cutting is paused since {clock(pause.since)} by {safe(names(pause.uid))}{why}"


def _unused_lines(pool: PoolView, names: Names, now: float) -> list[str]:
    """Slices that a job has and does not use, the longest first. Bound: UNUSED_MAX."""
    found = sorted(
        (piece.unused_since, node.name, grant.job_id, grant.uid, piece.profile)
        for node in pool.nodes
        for grant in node.grants
        for gpu in node.gpus
        for piece in gpu.slices
        if piece.uuid in grant.slices and 0 < piece.unused_since < now - UNUSED_S
    )
    lines = [
        f"unused: job {job} of {safe(names(uid))} on {safe(node)} has run nothing on its {safe(profile)}"
        f" for {age(now - since)}"
        for since, node, job, uid, profile in found[:UNUSED_MAX]
    ]
    more = [f"unused: {len(found) - UNUSED_MAX} more (see --json)"] if len(found) > UNUSED_MAX else []
    return ["", *lines, *more] if lines else []


def counted(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def slice_total(pool: PoolView) -> str:
    states = Counter(piece.state for node in pool.nodes for gpu in node.gpus for piece in gpu.slices)
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"
    return f"{counted(states.total(), 'slice')} ({told})"


def _gpu_rows(node: NodeView) -> list[tuple[str, ...]]:
    if not node.gpus:
        return [(node.name, node.slurm_state, "", "", _node_note(node) or "no GPU reported")]
    return [
        (node.name, node.slurm_state, str(gpu.index), picture(gpu), "; ".join(_gpu_notes(node, gpu)))
        for gpu in node.gpus
    ]


def _node_note(node: NodeView) -> str:
    return "" if node.agent_connected else "agent away"


def _gpu_notes(node: NodeView, gpu: GpuView) -> Iterable[str]:
    if note := _node_note(node):
        yield note
    if gpu.fault:
        yield f"FAULT: {gpu.fault}"
    for text, count in Counter(slice_note(piece) for piece in gpu.slices).items():
        yield text if count == 1 else f"{count}x {text}"


def slice_note(piece: SliceView) -> str:
    """A slice in a few words: `2g.20gb job 12`, `1g.10gb as m10`, `1g.10gb withheld`."""
    match piece.state:
        case SliceState.BUSY:
            return f"{piece.profile} {'job ' + '+'.join(map(str, piece.jobs)) if piece.jobs else 'busy'}"
        case SliceState.IDLE:
            return f"{piece.profile} as {piece.offered_as}"
        case SliceState.HELD:
            return f"{piece.profile} held by {piece.held_by}"
        case _:
            return f"{piece.profile} {piece.state}"


def _pending_table(pool: PoolView, names: Names, clock: Clock, width: int) -> list[str]:
    return table(
        ("PENDING", "USER", "PRIORITY", "NODES", "ASKS", "REASON"),
        (
            (
                str(job.job_id),
                names(job.uid),
                str(job.priority),
                str(job.nodes),
                f"vgpu:{job.gres_class}:{job.count}",
                job.reason + (f"; passed over until {clock(job.back_at)}" if job.back_at else ""),
            )
            for job in pool.pending
        ),
        width,
    )


def others_line(pool: PoolView) -> str:
    return f"{counted(pool.others, 'job')} of other users {'waits' if pool.others == 1 else 'wait'}"


def _problem_lines(pool: PoolView) -> list[str]:
    problems = [*pool.problems, *(f"{node.name}: {text}" for node in pool.nodes for text in node.problems)]
    return ["", *(f"problem: {safe(text)}" for text in problems)] if problems else []


def pool_problem_lines(pool: PoolView) -> list[str]:
    """What is wrong with the pool, and so with what is told of any node."""
    return [f"problem of the pool: {safe(text)}" for text in pool.problems]


def node_lines(node: NodeView, names: Names) -> list[str]:
    """One node: what Slurm counts, every GPU, every slice, every grant."""
    lines = [
        f"node {safe(node.name)}: Slurm {safe(node.slurm_state)}, agent {_agent(node)}",
        f"  Gres     {safe(node.gres)}",
        f"  GresUsed {safe(node.gres_used)}",
    ]
    if node.unconfined:
        lines.append(f"  jobs are in no device cgroup: {safe(node.unconfined)}")
    if node.unseen:
        lines.append(f"  nobody sees here who keeps {safe(node.unseen)}")
    for gpu in node.gpus:
        lines += ["", *gpu_lines(gpu)]
    if node.grants:
        lines += ["", *_grant_table(node.grants, names)]
    lines += [f"waiting: job {w.job_id} for vgpu:{safe(w.gres_class)}:{w.count}" for w in node.waiting]
    return lines + [f"problem: {safe(text)}" for text in node.problems]


def _agent(node: NodeView) -> str:
    return f"{safe(node.agent_version)} connected" if node.agent_connected else "away"


def gpu_lines(gpu: GpuView) -> list[str]:
    """One GPU and every slice on it."""
    head = f"GPU {gpu.index}  {picture(gpu)}  {safe(gpu.name)}, {gpu.memory_mib} MiB, {safe(gpu.uuid)}"
    fault = [f"  FAULT: {safe(gpu.fault)}"] if gpu.fault else []
    fault += [f"  held at {piece.start}: {safe(piece.held_by)}" for piece in gpu.slices if piece.held_by]
    differs = [f"  differs from the table: {safe(line)}" for line in gpu.differs]
    if not gpu.slices:
        return [head, *fault, *differs]
    rows = (
        (
            f"{piece.start}-{piece.start + piece.size - 1}",
            piece.profile,
            piece.state.value,
            piece.offered_as or "-",
            "+".join(map(str, piece.jobs)) or "-",
            f"{piece.gi}/{piece.ci if piece.ci >= 0 else '-'}",
            piece.uuid or "-",
        )
        for piece in gpu.slices
    )
    body = table(("AT", "PROFILE", "STATE", "OFFERED", "JOB", "GI/CI", "UUID"), rows)
    return [head, *fault, *(f"  {line}" for line in body), *differs]


def _grant_table(grants: Sequence[GrantView], names: Names) -> list[str]:
    return table(
        ("JOB", "USER", "CLASS", "SLICES", "ISOLATION"),
        (
            (
                str(grant.job_id),
                names(grant.uid),
                grant.gres_class or "none",
                str(len(grant.slices)),
                grant.isolation if grant.slices else "-",
            )
            for grant in grants
        ),
    )


def job_lines(job: JobView, names: Names, now: float, name: str = "") -> list[str]:
    """Which slices a job holds, where they lie, and how they are kept apart from others. `name`: as it was called."""
    name = name or str(job.job_id)
    lines: list[str] = []
    for held in job.grants:
        grant = held.grant
        asked = f"vgpu:{safe(grant.gres_class)}:{grant.count}" if grant.gres_class else "no slice"
        lines.append(
            f"job {name} of {safe(names(grant.uid))} on {safe(held.node)}: {asked},"
            f" for {age(now - grant.started_at)}, isolation {grant.isolation if grant.slices else 'none'}"
        )
        if held.slices:
            rows = (
                (
                    str(piece.gpu),
                    piece.profile,
                    f"{piece.start}-{piece.start + piece.size - 1}",
                    f"{piece.gi}/{piece.ci}",
                    piece.uuid,
                    piece.gpu_name,
                )
                for piece in held.slices
            )
            lines += [f"  {line}" for line in table(("GPU", "PROFILE", "AT", "GI/CI", "UUID", "MODEL"), rows)]
    lines += [f"job {name}: its prolog waits for a slice on {safe(node)}" for node in job.waiting_on]
    if job.pending is not None:
        nodes = f" on each of {job.pending.nodes} nodes" if job.pending.nodes > 1 else ""
        lines.append(
            f"job {name} of {safe(names(job.pending.uid))} waits for vgpu:{safe(job.pending.gres_class)}"
            f":{job.pending.count}{nodes}, priority {job.pending.priority}, Slurm's reason {safe(job.pending.reason)};"
            f" `vgpu explain {name}` says what would start it"
        )
    return lines


def explanation_lines(told: Explanation, names: Names, clock: Clock, name: str = "") -> list[str]:
    """Why a job waits. `name`: as it was asked for."""
    return [safe(line, LINE_MAX) for line in explanation.lines(told, clock, names(told.uid), name)]


def plan_lines(plan: PlanView, width: int = 0) -> list[str]:
    """Every GPU, with what would happen to it and why."""
    rows = ((gpu.node, str(gpu.index), gpu.action, _changes(gpu), gpu.why) for gpu in plan.gpus)
    actions = Counter(gpu.action for gpu in plan.gpus)
    total = ", ".join(f"{count} {action}" for action, count in sorted(actions.items())) or "none"
    told = [
        f"{counted(len(plan.gpus), 'GPU')}: {total}",
        *([f"for the queue: {safe(plan.why, LINE_MAX)}"] if plan.why else ()),
        *(f"waits on: {safe(text, LINE_MAX)}" for text in plan.waiting),
        *(f"problem: {safe(text, LINE_MAX)}" for text in plan.problems),
    ]
    return [*table(("NODE", "GPU", "ACTION", "LAYOUT", "WHY"), rows, width, LINE_MAX), "", *fold(told, width)]


def history_lines(told: History, names: Names, clock: Clock, width: int = 0) -> list[str]:
    """What became of the pool, the newest last."""
    rows = (
        (
            clock(entry.at),
            entry.what,
            entry.node + (f":{entry.index}" if entry.index >= 0 else ""),
            " ".join([*(f"-{shape}" for shape in entry.destroyed), *(f"+{shape}" for shape in entry.created)]),
            f"{entry.took_s:.1f}s" if entry.took_s else "",
            _history_why(entry, names),
        )
        for entry in told.entries
    )
    return table(("WHEN", "WHAT", "GPU", "CHANGE", "TOOK", "WHY"), rows, width, LINE_MAX)


def _history_why(entry: Entry, names: Names) -> str:
    if entry.what == What.GUARANTEE:
        return f"{entry.guarantee}: has {entry.have} of {entry.at_least}, {entry.why}"
    if entry.what in (What.PAUSED, What.RESUMED, What.APPLIED):
        return f"by {names(entry.uid)}" + (f": {entry.why}" if entry.why else "")
    return f"{entry.error}; {entry.why}" if entry.error else entry.why


def _changes(gpu: GpuPlanView) -> str:
    def listed(sign: str, shapes: Sequence[ShapeView]) -> list[str]:
        return [f"{sign}{shape.profile}@{shape.start}" for shape in shapes]

    shapes = [*listed("", gpu.keep), *listed("-", gpu.destroy), *listed("+", gpu.create)]
    if gpu.action == "leave":
        return " ".join([*shapes, "(unchanged)"])
    return " ".join(shapes) or "(empty)"
