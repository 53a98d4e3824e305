"""PURE: room that is kept for a job that needs several slices of one node, and finds no node that could have them.

All of it is kept at once, on the node where what is in the way ends first, and what is free of it already waits for the
rest: kept one by one it would lie idle on many nodes, and none would ever be whole.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from slurm_plugin.controller.look import Here
from slurm_plugin.controller.recuts import Room
from slurm_plugin.controller.rooms import Ends, ends, has_engines, in_the_way, may_keep, soon_enough
from slurm_plugin.controller.state import State
from slurm_plugin.controller.wants import Demand
from slurm_plugin.mig.geometry import mask
from slurm_plugin.model import Gpu, GpuProfile, MigMode

_Rank = tuple[bool, int, int]  # is there an end that is not known, when the last one is, how many jobs are in the way


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where one slice could be. What is free first comes first."""

    rank: _Rank
    gpu: Gpu
    start: int
    profile: GpuProfile
    behind: tuple[int, ...]

    @property
    def order(self) -> tuple[_Rank, int, int]:
        return (self.rank, self.gpu.index, self.start)


def bundle(
    state: State, here: Iterable[Here], demand: Demand, taken: Collection[str], *, first: bool
) -> dict[str, Room]:
    """By GPU, all room that a job needs; nothing when it can't come to be. `taken`: GPUs on which none may be kept.

    `first`: in line, so that it is kept however long it takes.
    """
    when = ends(state)
    able: list[tuple[_Rank, str, list[_Piece]]] = []
    for node in here:
        pieces = sorted(_pieces(state, node, when, demand, taken, first=first), key=lambda piece: piece.order)[
            : demand.count
        ]
        if len(pieces) == demand.count and any(piece.behind for piece in pieces):
            ranks = [piece.rank for piece in pieces]
            rank = (any(r[0] for r in ranks), max(r[1] for r in ranks), sum(r[2] for r in ranks))
            able.append((rank, node.state.name, pieces))
    chosen = sorted(able, key=lambda one: one[:2])[: demand.nodes]
    if len(chosen) < demand.nodes:
        return {}
    found: dict[str, Room] = {}
    for _, name, pieces in chosen:
        for uuid in dict.fromkeys(piece.gpu.uuid for piece in pieces):
            there = [piece for piece in pieces if piece.gpu.uuid == uuid]
            found[uuid] = replace(_room(state, name, demand.job_id, there), first=first)
    return waiting_together(found)


def ever_fits(state: State, here: Iterable[Here], demand: Demand) -> bool:
    """Could all of a job's slices be on these nodes if nothing else were? Told sooner than where."""
    names = state.serving.profiles.get(demand.gres_class, ())
    able = (node for node in here if sum(_most(gpu, names) for gpu in node.state.view.gpus) >= demand.count)
    return len(list(islice(able, demand.nodes))) == demand.nodes


def _most(gpu: Gpu, names: Collection[str]) -> int:
    return max((_apart(one.starts, one.size) for one in gpu.profiles if one.name in names), default=0)


@lru_cache(maxsize=256)
def _apart(starts: tuple[int, ...], size: int) -> int:
    count = end = 0
    for start in sorted(starts):
        if start >= end:
            count, end = count + 1, start + size
    return count


def _room(state: State, node: str, job_id: int, pieces: Sequence[_Piece]) -> Room:
    """Of pieces of one profile on one GPU."""
    never = any(piece.rank[0] for piece in pieces)
    return Room(
        node=node,
        profile=pieces[0].profile.name,
        start=pieces[0].start,
        size=pieces[0].profile.size,
        job_id=job_id,
        since=state.now,
        until=0 if never else max(piece.rank[1] for piece in pieces),
        behind=tuple(sorted({job for piece in pieces for job in piece.behind})),
        more=tuple(piece.start for piece in pieces[1:]),
        several=True,
    )


def _pieces(
    state: State, node: Here, when: Ends, demand: Demand, taken: Collection[str], *, first: bool
) -> Iterator[_Piece]:
    """Pieces of a node that can be together: on each GPU of the first profile that serves and has any.

    Each is beside those before it alone: whoever takes fewer leaves out the last ones.
    """
    for gpu in node.state.view.gpus:
        usable = gpu.mig is MigMode.ENABLED and node.state.group.takes(gpu.index) and gpu.uuid not in taken
        for name in state.serving.profiles.get(demand.gres_class, ()) if usable and may_keep(state, node, gpu) else ():
            bits = count = 0
            for piece in sorted(_ranked(state, node, when, gpu, name, first=first), key=lambda piece: piece.order):
                own = mask(piece.start, piece.profile.size)
                if not bits & own and has_engines(gpu, name, bits | own, count + 1):
                    bits, count = bits | own, count + 1
                    yield piece
            if bits:
                break


def _ranked(state: State, node: Here, when: Ends, gpu: Gpu, name: str, *, first: bool) -> Iterator[_Piece]:
    for profile in gpu.profiles:
        for start in profile.starts if profile.name == name else ():
            found = in_the_way(state, when, node, gpu, mask(start, profile.size))
            if found is not None and soon_enough(state, found[1], first=first):
                behind, until = found
                yield _Piece((bool(behind) and not until, until, len(behind)), gpu, start, profile, behind)


def waiting_together(rooms: Mapping[str, Room]) -> dict[str, Room]:
    """Room that is free waits as long as jobs are in the way of its job's other room."""
    behind = {room.job_id for room in rooms.values() if room.behind}
    return {uuid: replace(room, waits=room.job_id in behind) for uuid, room in rooms.items()}
