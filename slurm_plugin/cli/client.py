"""Asking the controller: each question over a link of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from slurm_plugin.cli.convert import pause_state, plan_view, pool_view
from slurm_plugin.cli.target import Target
from slurm_plugin.cli.view import PauseState, PlanView, PoolView
from slurm_plugin.explanation import Explanation
from slurm_plugin.explanation_wire import from_wire
from slurm_plugin.history import History
from slurm_plugin.history_wire import from_wire as history_from_wire
from slurm_plugin.link.client import Link, open_link
from slurm_plugin.link.munge import Munge

T = TypeVar("T")


def fetch_pool(target: Target) -> PoolView:
    """Raises LinkError, Untrusted; so do the others."""
    return pool_view(_ask(target, lambda link: link.status()))


def fetch_plan(target: Target, pool_yaml: str) -> PlanView:
    """What the controller would change for this pool.yaml; empty: the one it has. Also raises ConfigError."""
    return plan_view(_ask(target, lambda link: link.plan(pool_yaml)))


def request_apply(target: Target) -> PlanView:
    """Also raises ConfigError when the controller's pool.yaml is wrong."""
    return plan_view(_ask(target, lambda link: link.apply()).plan)


def fetch_explanation(target: Target, job_id: int, element: int | None) -> Explanation:
    """Also raises RequestError when the controller knows no such job, or it is another user's."""
    return from_wire(_ask(target, lambda link: link.explain(job_id, element)))


def request_pause(target: Target, *, wanted: bool, reason: str = "") -> PauseState:
    """Also raises RequestError; so does the next."""
    return pause_state(_ask(target, lambda link: link.pause(wanted=wanted, reason=reason)))


def fetch_history(target: Target, node: str, since: float, limit: int) -> History:
    return history_from_wire(_ask(target, lambda link: link.history(node=node, since=since, limit=limit)))


def _ask(target: Target, question: Callable[[Link], Awaitable[T]]) -> T:
    async def ask() -> T:
        munge = Munge(target.munge_socket)
        async with await open_link(target.address, munge=munge, server_uid=target.uid) as link:
            return await question(link)

    return asyncio.run(ask())
