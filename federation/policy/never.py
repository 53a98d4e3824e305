"""PURE: is there a pool that could run this job some day? What none could is refused when it is submitted.

Only what does not pass by itself is looked at, and never who is full, away or out of money. A pool that tells nothing
of a limit may have none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from federation.model.messages import Room
from federation.model.spec import JobSpec
from federation.policy.choose import NO_SLICES, Pool, Rules, forbidden, without
from slurm_plugin import request

MOST_NAMED = 3  # pools in one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    why: str
    instead: str = ""  # what its user would have said for it not to be one; empty: nothing helps


@dataclass(frozen=True, slots=True, kw_only=True)
class Never:
    why: str
    instead: str  # the nearest request that works; empty: none is known


def never(spec: JobSpec, pools: Sequence[Pool], rules: Rules, refused: Mapping[str, str] | None = None) -> Never | None:
    """`pools`: all that it may go to by its pin; `refused`: those that said no to it, and why. None: one could."""
    if not pools:
        return Never(why="there is no pool that it may go to", instead="")
    found = {pool.name: tuple(obstacles(spec, pool, rules, (refused or {}).get(pool.name, ""))) for pool in pools}
    if not all(found.values()):
        return None
    more = f"; and so with {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    whys = "; ".join(
        f"{name}: {', '.join(one.why for one in inside)}" for name, inside in list(found.items())[:MOST_NAMED]
    )
    curable = {name: inside for name, inside in found.items() if all(one.instead for one in inside)}
    nearest = min(curable, key=lambda name: len(curable[name]), default="")
    instead = f"{nearest} takes it with {', '.join(one.instead for one in curable[nearest])}" if nearest else ""
    return Never(why=f"no pool can run this: {whys}{more}", instead=instead)


def obstacles(spec: JobSpec, pool: Pool, rules: Rules, refused: str) -> Iterator[Obstacle]:
    room = pool.room
    if refused:
        yield Obstacle(why=refused)
    if no := forbidden(spec.account, pool, rules):
        yield Obstacle(why=no, instead="another --account")
    if room.longest_s and spec.time_limit_s > room.longest_s:
        yield Obstacle(
            why=f"its longest time limit is {clock(room.longest_s)}", instead=f"--time {clock(room.longest_s)}"
        )
    if room.most_cpus and spec.cpus > room.most_cpus:
        yield Obstacle(why=f"a job there has {room.most_cpus} CPUs at most", instead=f"--cpus {room.most_cpus}")
    if room.most_memory_mib and spec.memory_mib > room.most_memory_mib:
        most = room.most_memory_mib
        yield Obstacle(why=f"a job there has {most} MiB of memory at most", instead=f"--mem {most}M")
    if spec.gres:
        yield from _of_gres(spec, pool)


def _of_gres(spec: JobSpec, pool: Pool) -> Iterator[Obstacle]:
    if request.parse(spec.gres) is None:  # no slices: what a pool has of other resources is not told
        if not spec.pin:
            yield Obstacle(why=f"what it has of {spec.gres} is not known", instead=f"--to {pool.site}")
    elif no := without(_within(spec, pool.room), pool.room):
        yield Obstacle(why=no, instead="no --gres" if no == NO_SLICES else "")


def _within(spec: JobSpec, room: Room) -> JobSpec:
    """With no more than a job there may have of what is told apart."""
    cpus, memory_mib = (room.most_cpus or spec.cpus), (room.most_memory_mib or spec.memory_mib)
    return replace(spec, cpus=min(spec.cpus, cpus), memory_mib=min(spec.memory_mib, memory_mib))


def clock(seconds: int) -> str:
    """As --time takes it."""
    days, rest = divmod(seconds, 86_400)
    hours, minutes = divmod(rest // 60, 60)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{seconds % 60:02}"
