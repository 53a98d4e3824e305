"""PURE: how well the guarantees are kept at this moment."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from slurm_plugin.controller.question import guarantees
from slurm_plugin.controller.state import Agent, NodeState, State
from slurm_plugin.guarantees import Margin, Promise
from slurm_plugin.mig.products import product_of

_Takers = tuple[int, ...]  # which guarantees a slice may be kept for


def margins(state: State, open_nodes: Collection[str]) -> tuple[Margin, ...]:
    """`open_nodes` take jobs: idle slices elsewhere serve nobody. Nothing while an agent is not back yet.

    No idle slice is counted for two guarantees: each takes first what fewest others could have.
    """
    if not state.promises or any(node.agent is Agent.EXPECTED for node in state.nodes.values()):
        return ()
    asked = guarantees(state, {})
    idle = _idle(state, open_nodes)
    have = [0 if one.idle else one.held for one in asked]
    for nth in sorted(range(len(asked)), key=lambda n: (sum(c for takers, c in idle.items() if n in takers), n)):
        _take(idle, have, nth, max(0, asked[nth].at_least - have[nth]))
    for nth in range(len(asked)):
        have[nth] += sum(count for takers, count in idle.items() if nth in takers)
    return tuple(Margin(guarantee=one.name, at_least=one.at_least, have=have[nth]) for nth, one in enumerate(asked))


def _take(idle: Counter[_Takers], have: list[int], nth: int, needed: int) -> None:
    for takers in sorted((t for t in idle if nth in t), key=lambda t: (len(t), t)):
        taken = min(needed, idle[takers])
        idle[takers] -= taken
        have[nth] += taken
        needed -= taken


def _idle(state: State, open_nodes: Collection[str]) -> Counter[_Takers]:
    found: Counter[_Takers] = Counter()
    for name in open_nodes:
        node = state.nodes[name]
        takers = _takers(node, state.promises)
        found.update(
            takers[piece.profile]
            for piece in node.view.slices
            if piece.uuid not in node.view.holder and piece.profile in takers
        )
    return found


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
