"""What users hear of others' jobs where Slurm keeps jobs private: that slices are held, and how many jobs wait.

`own` are the jobs that one may hear of. A reason names no other job, and a problem that is about one is left out.
Those whom the controller trusts hear all.
"""

import logging
import re
from collections.abc import Iterable, MutableSequence, Sequence, Set
from dataclasses import replace
from typing import TypeVar

from slurm_plugin.controller.desk import Desk
from slurm_plugin.errors import SlurmError
from slurm_plugin.explanation import Explanation
from slurm_plugin.link.server import Caller
from slurm_plugin.ports import Slurm
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

log = logging.getLogger(__name__)
T = TypeVar("T")

REREAD_S = 60.0  # between two questions to Slurm
_JOBS = re.compile(r"\bjobs? \d+(?:(?:, | and |\+)(?:job )?\d+)*(?: more)?")


class Discretion:
    def __init__(self, desk: Desk, slurm: Slurm) -> None:
        self._desk = desk
        self._slurm = slurm
        self._private = True  # until Slurm says otherwise
        self._asked_at = float("-inf")

    async def own(self, caller: Caller) -> Set[int] | None:
        """The only jobs that this caller may hear of. None: he may hear of all."""
        if caller.trusted or not await self._is_private():
            return None
        return {job.job_id for job in self._desk.books.jobs if job.uid == caller.uid}

    async def _is_private(self) -> bool:
        if self._desk.tick() - self._asked_at >= REREAD_S:
            self._asked_at = self._desk.tick()
            try:
                self._private = await self._slurm.private_jobs()
            except SlurmError as error:
                log.warning("discretion.unknown", extra={"error": str(error), "private": self._private})
        return self._private


def of_status(told: pb.PoolStatus, own: Set[int] | None) -> pb.PoolStatus:
    if own is None:
        return told
    pending = [job for job in told.pending if job.job_id in own]
    told.others = len(told.pending) - len(pending)
    _keep(told.pending, pending)
    _keep(told.problems, _may_hear(told.problems, own))
    told.plan = _veiled(told.plan, own)
    for node in told.nodes:
        _keep(node.problems, _may_hear(node.problems, own))
        _of_inventory(node.inventory, own)
    return told


def _of_inventory(inventory: pb.Inventory, own: Set[int]) -> None:
    """A slice that another one has is held, and by nobody's name."""
    grants = [grant if grant.job_id in own else pb.Grant(slices=grant.slices) for grant in inventory.grants]
    held = {slice_ for grant in grants if grant.job_id for slice_ in grant.slices}
    _keep(inventory.grants, grants)
    _keep(inventory.waiting, [prolog for prolog in inventory.waiting if prolog.job_id in own])
    _keep(inventory.alarms, _may_hear(inventory.alarms, own))
    _keep(inventory.garbled, [job_id for job_id in inventory.garbled if job_id in own])
    for one in (one for gpu in inventory.gpus for one in gpu.instances if one.uuid not in held):
        one.unused_since = 0.0
        one.held_by = "somebody" if one.held_by else ""


def of_plan(told: pb.PlanReply, own: Set[int] | None) -> pb.PlanReply:
    if own is None:
        return told
    for gpu in told.gpus:
        gpu.why = _veiled(gpu.why, own)
    told.why = _veiled(told.why, own)
    _keep(told.problems, _may_hear(told.problems, own))
    _keep(told.waiting, _may_hear(told.waiting, own))
    return told


def of_history(told: pb.HistoryReply, own: Set[int] | None) -> pb.HistoryReply:
    if own is None:
        return told
    for entry in told.entries:
        entry.why, entry.error = _veiled(entry.why, own), _veiled(entry.error, own)
    return told


def of_explanation(told: Explanation, own: Set[int] | None) -> Explanation:
    if own is None:
        return told
    blockers = tuple(job if job.job_id in own else replace(job, job_id=0) for job in told.blockers)
    change = replace(told.change, why=_veiled(told.change.why, own)) if told.change else None
    return replace(told, blockers=blockers, change=change, planner=_veiled(told.planner, own))


def _may_hear(lines: Iterable[str], own: Set[int]) -> list[str]:
    return [line for line in lines if all(_named(found) <= own for found in _JOBS.finditer(line))]


def _veiled(text: str, own: Set[int]) -> str:
    return _JOBS.sub(lambda found: found[0] if _named(found) <= own else "other jobs", text)


def _named(found: "re.Match[str]") -> set[int]:
    return set(map(int, re.findall(r"\d+", found[0])))


def _keep(field: MutableSequence[T], kept: Sequence[T]) -> None:
    del field[:]
    field.extend(kept)
