"""PURE: what the virtual nodes of one pool are to say: whether they take jobs and why not, and which slices they offer.

A slice of the far pool that is free serves several classes, and is offered here under one only, to what waits for it.
A job that has started on a virtual node and not yet at the far side takes one that the pool still tells of as free.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from federation.policy.choose import MOST_NODES, Pool
from slurm_plugin import catalogue, request
from slurm_plugin.catalogue import Catalogue, Class
from slurm_plugin.errors import ConfigError

MOST_WANTS = 10_000  # waiting jobs that are looked at in one go
_TEXTS = 64  # catalogues that are kept read


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A job of Slurm's that waits for slices, or what waits of an array."""

    gres_class: str  # as job_submit here has it
    count: int  # slices of one task
    tasks: int = 1
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What of a pool's virtual nodes is known here."""

    most_jobs: int
    running: int = 0  # jobs on them
    unsent: int = 0  # of these, what the far side does not know yet
    unbegun: Mapping[str, int] = field(default_factory=dict)  # class -> slices of those that do not run there yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Taking:
    """`jobs`: how many more; 0: none, because of `why`."""

    jobs: int
    why: str = ""


def taking(pool: Pool | None, here: Here) -> Taking:
    """What the pool's nodes take now. A pool that is not heard takes nothing."""
    if pool is None:
        return Taking(jobs=0, why="its site does not tell of it")
    if not pool.linked:
        return Taking(jobs=0, why=f"no link to {pool.site}")
    if pool.cools_for_s > 0:
        return Taking(jobs=0, why="left alone for a while after failures")
    jobs = min(pool.room.free_jobs - pool.sent - here.unsent, here.most_jobs - here.running)
    if jobs > 0:
        return Taking(jobs=jobs)
    full = here.running >= here.most_jobs
    why = f"{here.most_jobs} jobs run there, the most that fed.yaml allows" if full else pool.room.why or "it is full"
    return Taking(jobs=0, why=why)


def offered(pool: Pool, jobs: int, here: Here, wants: Iterable[Want]) -> Counter[tuple[str, int]]:
    """Tasks that may start, by class and slices of each; those of high priority first."""
    known = _catalogue(pool.room.catalogue)
    found: Counter[tuple[str, int]] = Counter()
    if known is None:
        return found
    free, taken = dict(pool.room.slices), Counter[str]()
    for name, count in here.unbegun.items():
        if (meant := _meant(pool.room.catalogue, name)) is not None:
            taken[meant.name] += count
    for want in sorted(wants, key=lambda one: -one.priority)[:MOST_WANTS]:
        if jobs <= 0:
            break
        meant = _meant(pool.room.catalogue, want.gres_class)
        if meant is None:
            continue
        room = free.get(meant.name, 0) - _gone(known, meant, taken)
        tasks = max(0, min(want.tasks, jobs, room // want.count))
        if tasks:
            found[want.gres_class, want.count] += tasks
            taken[meant.name] += tasks * want.count
            jobs -= tasks
    return found


def spread(tasks: Mapping[tuple[str, int], int], nodes: Sequence[str]) -> dict[str, Counter[str]]:
    """Slices to offer on each of these nodes, by class: each task's on one, and as many on all."""
    each: dict[str, Counter[str]] = {node: Counter() for node in nodes}
    first = 0
    for (name, count), number in sorted(tasks.items()):
        for nth in range(min(number, len(nodes))):
            node = nodes[(first + nth) % len(nodes)]
            each[node][name] += count * (number // len(nodes) + (nth < number % len(nodes)))
        first += number
    return each


def _gone(known: Catalogue, meant: Class, taken: Mapping[str, int]) -> int:
    """Slices that could serve this class and are somebody else's."""
    mine = set(meant.profiles)
    return sum(count for name, count in taken.items() if mine & set(known.by_name[name].profiles))


@lru_cache(maxsize=_TEXTS)
def _catalogue(text: str) -> Catalogue | None:
    try:
        return catalogue.parse(text, most_nodes=MOST_NODES) if text else None
    except ConfigError:
        return None


@lru_cache(maxsize=_TEXTS * 16)
def _meant(text: str, name: str) -> Class | None:
    """What a class of here is in the pool whose catalogue this is; None: it has nothing of that name."""
    known = _catalogue(text)
    if known is None:
        return None
    asked = request.parse(f"{known.gres}:{name}:1", gres=known.gres, mem=known.mem)
    found = request.resolve(asked, known) if isinstance(asked, request.Request) else None
    return None if found is None or isinstance(found, request.Refusal) else known.by_name[found.gres_class]
