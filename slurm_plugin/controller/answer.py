"""What the controller answers a user who asks about one job."""

import asyncio

from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.explain import explain, job_named
from slurm_plugin.errors import RequestError
from slurm_plugin.explanation import Explanation
from slurm_plugin.link.server import Caller


async def explained(desk: Desk, caller: Caller, job_id: int, element: int | None = None) -> Explanation:
    """Raises RequestError when the queue, as last read, has no such job, or it is not the caller's to ask about."""
    state = desk.state(desk.views(), desk.config)
    job, name = job_named(state, job_id, element), f"{job_id}" if element is None else f"{job_id}_{element}"
    if job is None:
        hint = f"squeue -j {name} says whether Slurm has it; a job that asks for no vgpu is not the pool's"
        raise RequestError(f"no job {name} waits for vgpu or runs with it", hint=hint)
    if job.uid != caller.uid and not caller.trusted:
        raise RequestError(f"job {name} is another user's", hint="root and SlurmUser may ask about every job")
    return await asyncio.to_thread(explain, state, desk.decision, job)
