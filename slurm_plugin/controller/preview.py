"""What a pool.yaml would do to the pool as it is now, and what of it can't be right. Changes nothing."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

from slurm_plugin.controller import misfit, wire
from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.offered import Geometry, geometry
from slurm_plugin.controller.sights import Sights
from slurm_plugin.controller.state import Decision, State
from slurm_plugin.errors import SlurmError
from slurm_plugin.pool import Mode, PoolConfig
from slurm_plugin.ports import SlurmNode
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

ROUNDS = 2  # the first for what is guaranteed, where that lacks; then for what waits
LONG_AGO = 1.0  # Unix seconds


async def preview(desk: Desk, config: PoolConfig) -> pb.PlanReply:
    groups = {host: group for group in config.groups for host in group.hosts}
    views = desk.views()
    groups |= {name: member.here(groups[name]) for name, member in desk.roster.items() if name in groups}
    known = {name: replace(view, group=groups[name]) for name, view in views.nodes.items() if name in groups}
    state = desk.state(replace(views, nodes=known), config)
    facts = {
        name: (geometry(desk.roster[name].gpus, groups[name]), node)
        for name, node in desk.books.nodes.items()
        if name in groups and name in desk.roster
    }
    decision, whys = await asyncio.to_thread(_decided, desk, state, facts)
    problems = {name: tuple(lines) for name, lines in decision.problems.items()}
    problems[""] = (*_paused(desk), *await _mistakes_told(desk, config), *_unknown(desk, groups))
    return wire.plan_message(decision.plan, problems, decision.recuts, "; ".join(dict.fromkeys(whys)))


async def mistakes(desk: Desk, config: PoolConfig) -> list[str]:
    """What is wrong in a pool.yaml about the Slurm and the GPUs that are there. Raises SlurmError."""
    partitions = await desk.books.partitions()
    gpus = {host: gpus for host in config.hosts if host in desk.roster and (gpus := desk.roster[host].gpus)}
    return await asyncio.to_thread(misfit.mistakes, config, partitions, gpus, dict(desk.books.nodes))


def _decided(desk: Desk, state: State, facts: Mapping[str, tuple[Geometry, SlurmNode]]) -> tuple[Decision, list[str]]:
    """As the next passes would decide, were neither the pool paused or only observed, nor the batch window open."""
    config = replace(state.config, mode=Mode.MANAGE)
    state = replace(_asked_anew(state), config=config, paused=False)
    if (made := desk.shop.would_offer(config, facts)) is not None:
        state = replace(state, serving=made.serving, promises=made.promises, reaches=made.reaches)
    decision = decide(state)
    whys = [decision.recuts.why]
    for _ in range(ROUNDS - 1):
        if decision.recuts.targets.keys() <= state.recuts.targets.keys():
            break
        state = _asked_anew(replace(state, recuts=decision.recuts))
        decision = decide(state)
        whys.append(decision.recuts.why)
    return decision, [why for why in whys if why]


def _asked_anew(state: State) -> State:
    """Nothing waits for others to come along, and no question was asked before.

    What was seen is the passes' own, which go on meanwhile.
    """
    recuts = replace(state.recuts, lacking_since=LONG_AGO, looked_at=0.0, vain=None, sights=Sights())
    return replace(state, recuts=recuts)


def _paused(desk: Desk) -> tuple[str, ...]:
    return ("re-cutting is paused: nothing of this is done until `vgpu resume`",) if desk.pause else ()


async def _mistakes_told(desk: Desk, config: PoolConfig) -> tuple[str, ...]:
    try:
        return tuple(await mistakes(desk, config))
    except SlurmError as error:
        return (f"Slurm does not tell its partitions: {error}",)


def _unknown(desk: Desk, hosts: Iterable[str]) -> tuple[str, ...]:
    unknown = sorted(name for name in hosts if name not in desk.roster or desk.roster[name].gpus is None)
    shown = ", ".join(unknown[:10]) + (" ..." if len(unknown) > 10 else "")
    return (f"no agent has told of the GPUs of {shown}",) if unknown else ()
