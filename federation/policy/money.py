"""What a job costs: reserved by its time limit when a pool is chosen, settled by the time that it ran."""

from federation.model.spec import JobSpec
from federation.model.states import Outcome

DEFAULT_RUN_S = 3600  # what a job without a time limit is taken to need


def limit_s(spec: JobSpec) -> int:
    return spec.time_limit_s or DEFAULT_RUN_S


def settled(reserved: float, spec: JobSpec, outcome: Outcome, most_s: float) -> float:
    """What an attempt cost that is over. `most_s`: how long it can have run, whatever the far clock says."""
    if outcome.started_at is None:
        return 0.0
    if outcome.ended_at is None:
        return reserved
    ran_s = min(max(0.0, outcome.ended_at - outcome.started_at), max(0.0, most_s))
    return reserved * ran_s / limit_s(spec)
