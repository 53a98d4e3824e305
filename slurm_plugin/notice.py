"""PURE: the answer to "why does my job wait?" as one short line, for a field of Slurm's that everybody may read.

No text of a user's is in it, nor a count that changes all the time: each change of it costs slurmctld a turn.
"""

from collections.abc import Sequence

from slurm_plugin.explanation import Clock, Explanation, Why

LISTED = 4  # jobs, nodes or slices named


def waits(one: Explanation, clock: Clock, *, private: bool) -> str:
    """Empty when Slurm's own reason says it. `private`: no other job is named."""
    match one.why:
        case Why.RUNS | Why.SLURM:
            return ""
        case Why.STARTING:
            said = "what it needs is offered to it, and Slurm may start it"
        case Why.PASSED_OVER:
            which = "it" if one.strikes else "another job of its user"
            said = (
                f"{which} did not start on what was offered (a limit, CPUs, memory); others first until"
                f" {clock(one.back_at)}"
            )
        case Why.BEHIND:
            held_back = "the idle slices are held back, for guarantees or other jobs"
            said = "jobs that come first want the idle slices too" if one.ahead else held_back
        case Why.CHANGE if one.change:
            later = " when jobs there end" if one.blockers else ""
            at = f" by {clock(one.change.at)}" if one.change.at else later
            said = f"{one.change.node} GPU {one.change.gpu} gets {', '.join(one.change.creates[:LISTED])}{at}"
        case Why.BUSY:
            said = _busy(one, clock, private=private)
        case Why.ROOM:
            said = "GPUs with room for it have to be cut anew first"
        case Why.NO_NODE:
            said = "no node where it may run takes jobs now"
        case _:
            said = "no slice of the pool as it is cut can serve it"
    return f"waits: {said}"


def runs(slices: Sequence[tuple[str, int, str]]) -> str:
    """`slices`: (node, GPU's index, profile) of each that it has."""
    return f"got {_listed([f'{profile} on {node} GPU {index}' for node, index, profile in slices])}"


def _busy(one: Explanation, clock: Clock, *, private: bool) -> str:
    if not one.blockers:
        return "jobs hold all that could serve it"
    places = {(job.node, index) for job in one.blockers for index in job.gpus}
    nodes = sorted({node for node, _ in places})
    node, index = min(places)
    where = f"{node} GPU {index} is free" if len(places) == 1 else f"there is room on {_listed(nodes)}"
    jobs = [str(job_id) for job_id in dict.fromkeys(job.job_id for job in one.blockers)]
    until = f"by {clock(one.free_at)}" if one.free_at else ""
    if private:
        return f"{where} {until or 'when other jobs end, which have no time limit'}"
    end = f"job {jobs[0]} ends" if len(jobs) == 1 else f"jobs {_listed(jobs)} end"
    return f"{where} when {end}{f', {until}' if until else ''}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
