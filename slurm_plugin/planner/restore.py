"""Back to the default: GPUs that nobody uses and nobody waits for, as far as everything stays served."""

from slurm_plugin.mig.layouts import counts_of, place
from slurm_plugin.planner.greedy import stay
from slurm_plugin.planner.market import Answer, Market, market
from slurm_plugin.planner.problem import GpuState, Problem
from slurm_plugin.planner.trim import Made, Move


def restored(problem: Problem, asked: Market, now: Answer) -> tuple[list[Move], Answer]:
    """The moves, and what serves whom after them: one state after the other, each only when all is served all the same.

    `now` serves everything that is asked.
    """
    states = dict(problem.states)
    left = problem.limits.changing if problem.limits.changing is not None else sum(states.values())
    moves = []
    for turn, state in enumerate(sorted(problem.states, key=lambda state: state.order)):
        target = _target(problem, state)
        count = min(left, problem.states[state])
        if target is None or not count:
            continue
        trial = dict(states)
        after = GpuState(model=state.model, place=state.place, idle=target, default=state.default)
        trial[state] -= count
        trial[after] = trial.get(after, 0) + count
        question = Problem(models=problem.models, states=trial, limits=problem.limits)
        then = stay(market(question, asked.wants))
        if sum(then.served.values()) == sum(want.count for want in asked.wants):
            states, left, now = trial, left - count, then
            moves.append(Move(turn, state, Made.of(state.idle, target), count))
    return moves, now


def _target(problem: Problem, state: GpuState) -> tuple[tuple[str, int], ...] | None:
    if not state.open or state.fixed or state.blocked or not state.default:
        return None
    if counts_of(state.idle) == {name: count for name, count in state.default if count}:
        return None
    return place(problem.models[state.model], dict(state.default), keep=state.idle)
