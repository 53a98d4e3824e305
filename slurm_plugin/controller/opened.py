"""PURE: what became of slices that are kept for an account and were offered for one of its jobs.

Slurm gives a slice to the first job that it can start. A job may be stopped by what the pool does not see, and then
another account's has the slice: that job is passed over at once, before a second one is lost to it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from slurm_plugin.controller.state import State
from slurm_plugin.controller.wants import Demand


def taken(state: State) -> dict[str, bool]:
    """Those of the slices that are held now: by a job that they were not kept for?"""
    opened = frozenset[str]().union(*(loan.opened for loan in state.loans.jobs.values() if loan.opened))
    if not opened:
        return {}
    accounts = {(job.job_id, job.started_at): job.account for job in state.jobs if job.on_nodes}
    kept_for = {(promise.served.name, promise.guarantee.account) for promise in state.promises}
    found: dict[str, bool] = {}
    for node in state.nodes.values():
        for uuid in opened & node.view.holder.keys():
            grant = node.view.holder[uuid]
            if (account := accounts.get((grant.run.job_id, grant.run.started_at))) is not None:
                found[uuid] = (grant.gres_class, account) not in kept_for
    return found


def settled(wanted: Sequence[Demand], starting: Collection[str]) -> Iterable[Demand]:
    """`starting`: slices that running jobs are about to take. Who takes one that was opened for a job is not known yet.

    Until it is, no more is opened for that job.
    """
    for one in wanted:
        if not one.opened:
            yield one
        elif one.opened.isdisjoint(starting):
            yield replace(one, opened=frozenset())
        else:
            yield replace(one, passed=True)
