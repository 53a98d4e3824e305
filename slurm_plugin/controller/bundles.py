"""PURE: room that is kept for a job that needs several slices of one node, and finds no node that could have them.

All of it is kept at once, on the node where what is in the way ends first, and what is free of it already waits for the
rest: kept one by one it would lie idle on many nodes, and none would ever be whole.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from slurm_plugin.controller.look import Here
from slurm_plugin.controller.recuts import Room
from slurm_plugin.controller.rooms import AHEAD_S, Ends, may_keep, room_now
from slurm_plugin.controller.state import State
from slurm_plugin.controller.wants import Demand
from slurm_plugin.model import Gpu, MigMode

_Rank = tuple[bool, int, int]  # is there an end that is not known, when the last one is, how many jobs are in the way
_Piece = tuple[_Rank, int, int, str, Room]  # rank, index of the GPU, start; GPU; the room of one slice


def bundle(state: State, here: Iterable[Here], when: Ends, demand: Demand, taken: Collection[str]) -> dict[str, Room]:
    """By GPU, all room that a job needs; nothing when it can't come to be. `taken`: GPUs on which none may be kept."""
    able: list[tuple[_Rank, str, list[_Piece]]] = []
    for node in here:
        pieces = sorted(_pieces(state, node, when, demand, taken), key=lambda piece: piece[:3])[: demand.count]
        if len(pieces) == demand.count and any(piece[-1].behind for piece in pieces):
            ranks = [piece[0] for piece in pieces]
            rank = (any(r[0] for r in ranks), max(r[1] for r in ranks), sum(r[2] for r in ranks))
            able.append((rank, node.state.name, pieces))
    chosen = sorted(able, key=lambda one: one[:2])[: demand.nodes]
    if len(chosen) < demand.nodes:
        return {}
    found: dict[str, Room] = {}
    for _, _, pieces in chosen:
        for *_, uuid, room in pieces:
            found[uuid] = _with(found[uuid], room) if uuid in found else room
    return waiting_together(found)


def _pieces(state: State, node: Here, when: Ends, demand: Demand, taken: Collection[str]) -> Iterator[_Piece]:
    """Rooms on a node that do not overlap: on each GPU of the first profile that serves and has any."""
    for gpu in node.state.view.gpus:
        usable = gpu.mig is MigMode.ENABLED and node.state.group.takes(gpu.index) and gpu.uuid not in taken
        for name in state.serving.profiles.get(demand.gres_class, ()) if usable and may_keep(state, node, gpu) else ():
            ranked = sorted(_ranked(state, node, when, gpu, name), key=lambda piece: piece[:3])
            bits, some = 0, list[_Piece]()
            for piece in ranked:
                if not bits & piece[-1].bits:
                    bits |= piece[-1].bits
                    some.append((*piece[:4], replace(piece[-1], job_id=demand.job_id)))
            if some:
                yield from some
                break


def _ranked(state: State, node: Here, when: Ends, gpu: Gpu, name: str) -> Iterator[_Piece]:
    shapes = [profile for profile in gpu.profiles if profile.name == name]
    for size, start in ((shape.size, start) for shape in shapes for start in shape.starts):
        asked = Room(node=node.state.name, profile=name, start=start, size=size, job_id=0, since=state.now)
        room = room_now(state, when, node, gpu, asked)
        if room is not None and room.until <= state.now + AHEAD_S:
            never = bool(room.behind) and not room.until
            yield (never, room.until, len(room.behind)), gpu.index, start, gpu.uuid, room


def _with(one: Room, other: Room) -> Room:
    known = all(not room.behind or room.until for room in (one, other))
    return replace(
        one,
        more=(*one.more, other.start),
        behind=tuple(sorted({*one.behind, *other.behind})),
        until=max(one.until, other.until) if known else 0,
    )


def waiting_together(rooms: Mapping[str, Room]) -> dict[str, Room]:
    """Room that is free waits as long as jobs are in the way of its job's other room."""
    behind = {room.job_id for room in rooms.values() if room.behind}
    return {uuid: replace(room, waits=room.job_id in behind) for uuid, room in rooms.items()}
