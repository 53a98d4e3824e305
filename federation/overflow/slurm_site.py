"""What overflow asks and tells its own cluster's Slurm: each call one short command."""

from collections.abc import Sequence
from typing import Protocol

from federation.overflow.burst import SlurmJob


class SlurmSite(Protocol):
    """Every call raises Unavailable when slurmctld does not answer: that decides nothing. Refused: it said no.

    `name` is a job's as `SlurmJob.name` has it; Slurm's own forms such as `12_[3-7]` are names too.
    """

    async def job(self, job_id: int) -> SlurmJob | None:
        """None: slurmctld answers, and does not know it."""

    async def jobs(self, job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        """Of these, those that slurmctld knows, by id, ended ones too."""

    async def jobs_on(self, partition: str) -> tuple[SlurmJob, ...]:
        """Those that wait for, or run in, this partition."""

    async def set_limit(self, name: str, seconds: int) -> None: ...

    async def requeue(self, name: str) -> None: ...

    async def cancel(self, name: str) -> None: ...

    async def pin(self, names: Sequence[str], partition: str) -> tuple[str, ...]:
        """Let them start in this partition only. Tells who could not be: such as those that have started."""

    async def widen(self, names: Sequence[str], partitions: Sequence[str]) -> tuple[str, ...]:
        """Let them start in these, the first ones first. Tells who could not be."""

    async def note(self, job_id: int, json_text: str) -> None:
        """Put this on the job, in the place of what overflow wrote there before; empty: nothing."""

    async def signal_request(self, job_id: int) -> str:
        """What `sbatch --signal` asked for, such as `B:USR1@60`; empty: nothing."""
