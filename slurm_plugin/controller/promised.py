"""PURE: how well the guarantees are kept at this moment, and which re-cuts would leave one short meanwhile."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from slurm_plugin.controller.question import guarantees
from slurm_plugin.controller.recuts import Room, Target
from slurm_plugin.controller.state import Agent, NodeState, State
from slurm_plugin.guarantees import Margin, Promise
from slurm_plugin.mig.geometry import Layout, mask
from slurm_plugin.mig.products import product_of
from slurm_plugin.model import Gpu
from slurm_plugin.planner.problem import Guarantee

_Takers = tuple[int, ...]  # which guarantees a slice may be kept for


def margins(state: State, open_nodes: Collection[str], away: Collection[str] = ()) -> tuple[Margin, ...]:
    """`open_nodes` take jobs: idle slices elsewhere serve nobody, nor do those that are `away`.

    Nothing while an agent is not back yet.
    """
    if not state.promises or any(node.agent is Agent.EXPECTED for node in state.nodes.values()):
        return ()
    asked = guarantees(state, {})
    have = _have(asked, _idle(state, open_nodes, away))
    return tuple(Margin(guarantee=one.name, at_least=one.at_least, have=have[nth]) for nth, one in enumerate(asked))


def harmless(state: State, open_nodes: Collection[str], targets: Mapping[str, Target]) -> dict[str, Target]:
    """Those of new targets that leave no guarantee short, or shorter than it is, until all of them are done.

    What a GPU is to have keeps nothing before it is there. So where a GPU has to lose what keeps one, the part of it
    comes first that makes something else in its stead.
    """
    if not state.promises or not targets:
        return dict(targets)
    away = {uuid for gpu, one in state.recuts.targets.items() for uuid in _going(state, gpu, one)}
    away |= {uuid for gpu, room in state.recuts.rooms.items() if gpu not in targets for uuid in _in(state, gpu, room)}
    asked, idle = guarantees(state, {}), _idle(state, open_nodes, away)
    least = [min(one.at_least, have) for one, have in zip(asked, _have(asked, idle), strict=True)]
    found: dict[str, Target] = {}
    for gpu, target in targets.items():
        takers = _takers(state.nodes[target.node], state.promises)
        for one in (target, *_ahead(state, gpu, target, takers)):
            left = Counter(idle)
            left.subtract(_kept_for(takers, one.destroy))
            if all(have >= needed for have, needed in zip(_have(asked, left), least, strict=True)):
                found[gpu], idle = one, left
                break
    return found


def sparing(state: State, open_nodes: Collection[str], rooms: Mapping[str, Room]) -> dict[str, Room]:
    """Those of the rooms, by GPU, that keep back nothing a guarantee would lack: its own jobs may just have left it.

    A job has all its room or none.
    """
    if not state.promises or not rooms:
        return dict(rooms)
    away = {uuid for gpu, one in state.recuts.targets.items() for uuid in _going(state, gpu, one)}
    asked = guarantees(state, {})
    found: dict[str, Room] = {}
    idle = _idle(state, open_nodes, away)
    least = [min(one.at_least, there) for one, there in zip(asked, _have(asked, idle), strict=True)]
    jobs: dict[int, dict[str, Room]] = {}
    for gpu, room in rooms.items():
        jobs.setdefault(room.job_id, {})[gpu] = room
    for own in jobs.values():
        more = away.union(*(_in(state, gpu, room) for gpu, room in own.items()))
        there = {room.node for room in own.values()}.intersection(open_nodes)
        left = Counter(idle)
        left.subtract(_idle(state, there, away))
        left.update(_idle(state, there, more))
        if all(have >= needed for have, needed in zip(_have(asked, left), least, strict=True)):
            found |= own
            away, idle = more, left
    return found


def _ahead(state: State, gpu: str, target: Target, takers: Mapping[str, _Takers]) -> Iterator[Target]:
    """The part of a target that makes what could keep a guarantee, and destroys no more than that needs."""
    there = _gpu(state, gpu, target.node)
    sizes = {profile.name: profile.size for profile in there.profiles} if there else {}
    create = tuple(placed for placed in target.create if placed[0] in takers)
    bits = _bits(sizes, create)
    destroy = tuple(placed for placed in target.destroy if _bits(sizes, (placed,)) & bits)
    if create and destroy != target.destroy:
        yield replace(target, create=create, destroy=destroy, ahead=True, why=f"{target.why}; this part first")


def _bits(sizes: Mapping[str, int], layout: Layout) -> int:
    bits = 0
    for name, start in layout:
        bits |= mask(start, sizes.get(name, 0))
    return bits


def _have(asked: Sequence[Guarantee], idle: Mapping[_Takers, int]) -> list[int]:
    """What keeps each: slices that its account holds, where those count, and idle ones.

    No idle slice is counted for two that need it: each takes first what fewest others could have.
    """
    left = Counter(idle)
    have = [0 if one.idle else one.held for one in asked]
    for nth in sorted(range(len(asked)), key=lambda n: (sum(c for takers, c in idle.items() if n in takers), n)):
        needed = asked[nth].at_least - have[nth]
        for takers in sorted((t for t in left if nth in t), key=lambda t: (len(t), t)):
            taken = max(0, min(needed, left[takers]))
            left[takers] -= taken
            have[nth] += taken
            needed -= taken
    return [held + sum(c for takers, c in left.items() if nth in takers) for nth, held in enumerate(have)]


def _idle(state: State, open_nodes: Collection[str], away: Collection[str]) -> Counter[_Takers]:
    found: Counter[_Takers] = Counter()
    near = any(promise.reach.hosts for promise in state.promises)  # else nodes with GPUs of the same names are alike
    known: dict[tuple[frozenset[str], str], Mapping[str, _Takers]] = {}
    for name in open_nodes:
        node = state.nodes[name]
        alike = (frozenset(gpu.name for gpu in node.view.gpus), name if near else "")
        if (takers := known.get(alike)) is None:
            takers = known[alike] = _takers(node, state.promises)
        found.update(
            takers[piece.profile]
            for piece in node.view.slices
            if piece.uuid not in node.view.holder and piece.uuid not in away and piece.profile in takers
        )
    return found


def _going(state: State, gpu: str, target: Target) -> Iterable[str]:
    there = _gpu(state, gpu, target.node)
    return (i.uuid for i in there.instances if (i.profile, i.start) in target.destroy) if there else ()


def _in(state: State, gpu: str, room: Room) -> Iterable[str]:
    """Slices that are kept back for a job."""
    there = _gpu(state, gpu, room.node)
    return (i.uuid for i in there.instances if mask(i.start, i.size) & room.bits) if there else ()


def _gpu(state: State, gpu: str, node: str) -> Gpu | None:
    here = state.nodes.get(node)
    return next((one for one in here.view.gpus if one.uuid == gpu), None) if here else None


def _kept_for(takers: Mapping[str, _Takers], layout: Layout) -> Counter[_Takers]:
    return Counter(takers[profile] for profile, _ in layout if profile in takers)


def _takers(node: NodeState, promises: Sequence[Promise]) -> Mapping[str, _Takers]:
    """By profile, for slices of this node."""
    products = {product.key for gpu in node.view.gpus if (product := product_of(gpu.name))}
    takers: dict[str, _Takers] = {}
    for nth, promise in enumerate(promises):
        reach = promise.reach
        if (reach.products and products.isdisjoint(reach.products)) or (reach.hosts and node.name not in reach.hosts):
            continue
        for profile in promise.served.profiles:
            takers[profile] = (*takers.get(profile, ()), nth)
    return takers
