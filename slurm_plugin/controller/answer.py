"""What the controller answers a user who asks about one job."""

import asyncio
import time
from dataclasses import replace

from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.explain import explain
from slurm_plugin.controller.state import State
from slurm_plugin.errors import RequestError
from slurm_plugin.explanation import Explanation
from slurm_plugin.link.server import Caller
from slurm_plugin.ports import QueuedJob
from slurm_plugin.slurm.queue import has_element

LOOKS, LOOK_S = 100, 0.05  # so long is waited for a reading of the queue that begins after the question


async def explained(desk: Desk, caller: Caller, job_id: int, element: int | None = None) -> Explanation:
    """Raises RequestError when the queue has no such job, or it is not the caller's to ask about."""
    state = desk.state(desk.views(), desk.config)
    job, name = job_named(state, job_id, element), f"{job_id}" if element is None else f"{job_id}_{element}"
    if job is None:
        await _read_anew(desk)  # it may have come a moment ago
        state = desk.state(desk.views(), desk.config)
        job = job_named(state, job_id, element)
    if job is None:
        hint = f"squeue -j {name} says whether Slurm has it; a job that asks for no vgpu is not the pool's"
        raise RequestError(f"no job {name} waits for vgpu or runs with it", hint=hint)
    if job.uid != caller.uid and not caller.trusted:
        raise RequestError(f"job {name} is another user's", hint="root and SlurmUser may ask about every job")
    return await asyncio.to_thread(explain, state, desk.decision, job)


async def _read_anew(desk: Desk) -> None:
    asked = time.monotonic()
    desk.wake.set()
    for _ in range(LOOKS):
        if desk.books.as_of >= asked:
            return
        await asyncio.sleep(LOOK_S)


def job_named(state: State, job_id: int, element: int | None = None) -> QueuedJob | None:
    """The job of this id, for an array's own id its pending elements first; or one element of this array."""
    if element is not None:
        array = (job for job in state.jobs if job.array_id == job_id and has_element(job.elements, element))
        return next((replace(job, tasks=min(1, job.tasks)) for job in array), None)
    own = [job for job in state.jobs if job.job_id == job_id or job.array_id == job_id]
    return min(own, key=lambda job: (bool(job.on_nodes), job.job_id != job_id, job.job_id), default=None)
