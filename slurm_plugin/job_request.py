"""PURE: what becomes of a whole job that asks for slices: one request per node, its partitions, and whether any node
could ever run it. The job_submit module has the same in Lua; `slurm_plugin.request` says how the two are held together.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from slurm_plugin.catalogue import Catalogue, Exclusive, Shape
from slurm_plugin.request import Refusal, Request, Rewrite, elements, parse, plural, resolve, shown

MAX_HOSTS = 5000  # names a -w or -x of one job may stand for
MAX_TASKS = 65_533  # a node's; Slurm keeps it in 16 bits
MAX_WORDS = 200  # bytes of the user's own words


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as slurmctld has it at submit. None: not given."""

    per_node: str = ""
    per_job: str = ""
    per_task: str = ""
    per_socket: str = ""
    nodes_min: int | None = None
    nodes_max: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    sockets_per_node: int | None = None
    cpus_per_task: int | None = None
    cpus_per_node: int | None = None  # --mincpus
    memory_per_node: int | None = None  # MiB
    memory_per_cpu: int | None = None  # MiB
    hosts: tuple[str, ...] | None = ()  # -w; None: it stands for too many
    not_hosts: tuple[str, ...] | None = ()  # -x
    exclusive: bool = False
    overcommit: bool = False  # tasks share CPUs
    partition: str | None = None  # None: leave it alone


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRewrite:
    """What job_submit writes into the job. The four texts replace the job's own; an empty one clears it."""

    per_node: str
    per_job: str
    per_task: str
    per_socket: str
    partition: str | None
    gres_class: str
    count: int  # slices on each node
    words: str  # what the user asked, for admin_comment
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    gres_class: str
    count: int
    cpus: int
    memory_mib: int
    text: str  # the request as a user would write it


def decide(job: Job, catalogue: Catalogue) -> JobRewrite | Refusal | None:
    """None: the job asks for no slice and nothing of it is changed."""
    fields = {"node": job.per_node, "job": job.per_job, "task": job.per_task, "socket": job.per_socket}
    read = {where: parse(text, gres=catalogue.gres, mem=catalogue.mem) for where, text in fields.items() if text}
    asked = {where: one for where, one in read.items() if one is not None}
    refused = [one for one in asked.values() if isinstance(one, Refusal)]
    if refused or not asked:
        return refused[0] if refused else None
    where, request = next(iter(asked.items()))
    if isinstance(request, Refusal) or len(asked) > 1:
        return Refusal(text=f"{catalogue.gres}: slices are asked for in {len(asked)} places; use --gres alone")
    rewrite = _per_node(job, where, request, catalogue)
    if isinstance(rewrite, Refusal):
        return rewrite
    partition = _partitions(job.partition, catalogue) if job.partition is not None else None
    refusal = partition if isinstance(partition, Refusal) else _unfit(job, rewrite, catalogue)
    if refusal or isinstance(partition, Refusal):
        return refusal
    return JobRewrite(
        per_node=rewrite.gres,
        per_job=request.rest if where == "job" else job.per_job,
        per_task=request.rest if where == "task" else job.per_task,
        per_socket=request.rest if where == "socket" else job.per_socket,
        partition=partition,
        gres_class=rewrite.gres_class,
        count=rewrite.count,
        words=(request.words if where == "node" else f"{request.words} per {where}")[:MAX_WORDS],
        notes=(*rewrite.notes, *_warnings(job, rewrite, catalogue)),
    )


def tasks_per_node(job: Job) -> int | None:
    """Tasks on every node of the job, when all have the same number for sure."""
    nodes = fixed_nodes(job)
    each = job.tasks_per_node
    if job.tasks is None:
        return each or 1
    if job.tasks == 1:
        return 1
    if each and (job.tasks == each * nodes if nodes else job.tasks % each == 0):
        return each
    if nodes == 1:
        return job.tasks
    return 1 if nodes == job.tasks else None


def fixed_nodes(job: Job) -> int | None:
    """How many nodes the job gets, when that is certain."""
    least, most = job.nodes_min or 1, job.nodes_max
    if most:
        return most if most == least else None
    one = job.nodes_min in (None, 1) and job.tasks in (None, 1) and len(job.hosts or ()) <= 1
    return 1 if one else None


def _per_node(job: Job, where: str, request: Request, catalogue: Catalogue) -> Rewrite | Refusal:
    """The request as one per node. The other GRES of the per-node list stay in it; those of another list stay there."""
    count: int | None = request.count
    if where == "task":
        tasks = tasks_per_node(job)
        count = request.count * tasks if tasks else None
    elif where == "job":
        nodes = fixed_nodes(job)
        count = request.count // nodes if nodes and request.count % nodes == 0 else None
    elif where == "socket":
        count = request.count * job.sockets_per_node if job.sockets_per_node else None
    if where == "node":
        return resolve(request, catalogue)
    found = resolve(replace(request, weight=None, others=(), count=count or 1), catalogue)
    if isinstance(found, Refusal):
        return found
    if count is None or request.weight is not None:
        example = f"--gres={catalogue.gres}:{found.gres_class}:{request.count}"
        what = f"how many slices a node needs can't be told from {plural(request.count, 'slice')} per {where}"
        return Refusal(text=f"{catalogue.gres}: {what}; ask per node: {example}")
    return replace(found, gres=",".join((*elements(job.per_node), found.gres)))


def _partitions(text: str, catalogue: Catalogue) -> str | Refusal:
    """The job's partitions and behind them the wait partition of each that is the pool's."""
    waits = dict(catalogue.partitions)
    chosen = [name for name in text.split(",") if name and name not in waits.values()]
    behind = [waits[name] for name in chosen if name in waits]
    if not behind:
        names = ",".join(waits)
        return Refusal(text=f"{catalogue.gres}: partition '{shown(text)}' has no slices; use --partition={names}")
    return ",".join(dict.fromkeys((*chosen, *behind)))


def _warnings(job: Job, rewrite: Rewrite, catalogue: Catalogue) -> Iterable[str]:
    count = rewrite.count
    yield from _unmade(job, rewrite, catalogue)
    if count > 1 and tasks_per_node(job) == 1:
        yield (
            f"{catalogue.gres}: warning: {count} slices for one task, and a CUDA process uses only one; "
            f"--ntasks-per-node={count} gives each task its own"
        )


def _unmade(job: Job, rewrite: Rewrite, catalogue: Catalogue) -> Iterable[str]:
    """The job fits, but the layouts of today make too few of its slices: no layout comes about by waiting."""
    need = _need(job, rewrite, catalogue)
    if job.hosts:
        of, nodes, there = (
            " of these nodes",
            len(set(job.hosts)),
            Counter(catalogue.nodes[host] for host in set(job.hosts)),
        )
    else:
        of, nodes, there = "", job.nodes_min or 1, _population(job, catalogue)
    shapes = [(catalogue.by_shape[one], number) for one, number in there.items() if number > 0]
    ready = sum(
        number for shape, number in shapes if shape.makes(need.gres_class) >= need.count and not _lack(shape, need)
    )
    if ready < nodes:
        what = "too few nodes have a layout that makes" if ready else f"no layout{of} makes"
        most = max(shape.makes(need.gres_class) for shape, _ in shapes)
        hint = f"; did you mean {catalogue.gres}:{need.gres_class}:{most}?" if 0 < most < need.count else ""
        yield f"{catalogue.gres}: warning: {what} {need.text} now; this job waits until an admin changes that{hint}"


def _population(job: Job, catalogue: Catalogue) -> Counter[int]:
    """Nodes of each shape that the job does not exclude."""
    population = Counter(dict(catalogue.population))
    population.subtract(catalogue.nodes[host] for host in set(job.not_hosts or ()) if host in catalogue.nodes)
    return population


def _unfit(job: Job, rewrite: Rewrite, catalogue: Catalogue) -> Refusal | None:
    """Why no node, or too few, could ever run this job. The wait partition makes Slurm skip its own check."""
    gres = catalogue.gres
    if job.exclusive and catalogue.exclusive is Exclusive.REFUSE:
        return Refusal(text=f"{gres}: --exclusive would take every slice of a node from the others; leave it out")
    if job.hosts is None or job.not_hosts is None:
        return Refusal(text=f"{gres}: the node list is not understood, or stands for more than {MAX_HOSTS} nodes")
    need = _need(job, rewrite, catalogue)
    stranger = next((host for host in job.hosts if host not in catalogue.nodes), None)
    if stranger is not None:
        return Refusal(text=f"{gres}: node {shown(stranger)} is not in this pool")
    for host in job.hosts:
        lack = _lack(catalogue.by_shape[catalogue.nodes[host]], need)
        if lack:
            return Refusal(text=f"{gres}: node {shown(host)} can't run this job: it {lack}")
    population = _population(job, catalogue)
    shapes = [shape for shape in catalogue.shapes if population[shape.id] > 0]
    fitting = [shape for shape in shapes if not _lack(shape, need)]
    if not fitting:
        return Refusal(text=f"{gres}: {_nothing_fits(shapes, need)}")
    return _too_few(job, need, [(shape.cpus, population[shape.id]) for shape in fitting], catalogue)


def _need(job: Job, rewrite: Rewrite, catalogue: Catalogue) -> _Need:
    """What the job needs at least of each node."""
    tasks = 1 if job.overcommit else min(job.tasks_per_node or 1, job.tasks or MAX_TASKS)
    cpus = max(job.cpus_per_node or 1, (job.cpus_per_task or 1) * tasks)
    memory = max(job.memory_per_node or 0, (job.memory_per_cpu or 0) * cpus)
    text = f"{catalogue.gres}:{rewrite.gres_class}:{rewrite.count}"
    return _Need(gres_class=rewrite.gres_class, count=rewrite.count, cpus=cpus, memory_mib=memory, text=text)


def _lack(shape: Shape, need: _Need) -> str:
    """What a node of this shape lacks, or ""."""
    most = shape.most.get(need.gres_class, 0)
    if most < need.count:
        return f"can hold {plural(most, 'slice')} of class {need.gres_class}, not {need.count}"
    if shape.cpus < need.cpus:
        return f"has {plural(shape.cpus, 'CPU')}, not {need.cpus}"
    return f"has {shape.memory_mib} MiB of memory, not {need.memory_mib}" if shape.memory_mib < need.memory_mib else ""


def _nothing_fits(shapes: Iterable[Shape], need: _Need) -> str:
    """The first thing that all nodes lack, with the most there is of it."""
    shapes = list(shapes)
    most = max((shape.most.get(need.gres_class, 0) for shape in shapes), default=0)
    if most < need.count:
        gres = need.text.partition(":")[0]
        made = max((shape.makes(need.gres_class) for shape in shapes), default=0)
        hint = f"; did you mean {gres}:{need.gres_class}:{made}?" if made else ""
        return f"no node can hold {plural(need.count, 'slice')} of class {need.gres_class} at once{hint}"
    shapes = [shape for shape in shapes if shape.most.get(need.gres_class, 0) >= need.count]
    cpus = max(shape.cpus for shape in shapes)
    if cpus < need.cpus:
        return f"no node with room for {need.text} has {plural(need.cpus, 'CPU')}; the most is {cpus}"
    memory = max(shape.memory_mib for shape in shapes if shape.cpus >= need.cpus)
    return f"no node with room for {need.text} has {need.memory_mib} MiB of memory; the most is {memory}"


def _too_few(job: Job, need: _Need, fitting: list[tuple[int, int]], catalogue: Catalogue) -> Refusal | None:
    """`fitting` is (CPUs, how many nodes) of all that could run a part of the job."""
    nodes = max(job.nodes_min or 1, len(set(job.hosts or ())))
    have = sum(number for _, number in fitting)
    if have < nodes:
        return Refusal(
            text=f"{catalogue.gres}: {plural(nodes, 'node')} with room for {need.text} "
            f"{'is' if nodes == 1 else 'are'} needed, and this pool has {have}"
        )
    room = job.nodes_max or have
    wanted = 0 if job.overcommit else (job.tasks or 1) * (job.cpus_per_task or 1)
    cpus = 0
    for each, number in sorted(fitting, reverse=True):
        cpus += each * min(number, room)
        room -= min(number, room)
    if cpus < wanted:
        return Refusal(
            text=f"{catalogue.gres}: the nodes with room for {need.text} have {plural(cpus, 'CPU')}, not {wanted}"
        )
    return None
