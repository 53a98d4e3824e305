"""The Slurm port by Slurm's own commands: squeue and scontrol, each call one short child process (3-6 ms)."""

import contextlib
import logging
import secrets
import string
from collections.abc import Sequence

from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.ports import GresItem, JobRun, QueuedJob, SlurmNode
from slurm_plugin.slurm import queue, records, table
from slurm_plugin.slurm.hostlist import compress
from slurm_plugin.slurm.process import Runner, Runs, Site
from slurm_plugin.slurm.queue import Pool

logger = logging.getLogger(__name__)

NODES_A_CALL = 1000  # names in one scontrol call: one argument may have 128 KiB
NOTIFY_TIMEOUT_S = 3.0  # the message is a courtesy, the cancel must not wait for it

_SQUEUE = ("squeue", "--noheader", "--all", "--local")
_UNKNOWN_JOB = "invalid job id"


class SlurmCommands:
    """Implements `slurm_plugin.ports.Slurm`, and what the command line and doctor read besides.

    Every call raises SlurmError (Slurm said no) or SlurmUnavailable (no answer: the outcome is unknown).
    """

    def __init__(self, site: Site | None = None, pool: Pool | None = None, *, runner: Runs | None = None) -> None:
        self._runner: Runs = runner or Runner(site or Site())
        self._pool = pool or Pool()

    async def run_of(self, job_id: int) -> JobRun | None:
        """This job's present run; None when Slurm does not know the id, or knows it as ended."""
        for run in queue.job_runs(await self._job_rows(queue.RUN_FIELDS, f"--jobs={job_id}")):
            if run.key.job_id == job_id:
                return run
        return None

    async def runs_on(self, node: str) -> tuple[JobRun, ...]:
        runs = queue.job_runs(await self._job_rows(queue.RUN_FIELDS, f"--nodelist={node}"))
        return tuple(run for run in runs if queue.holds_something(run))

    async def vgpu_jobs(self) -> tuple[QueuedJob, ...]:
        return queue.queued_jobs(await self._job_rows(queue.QUEUE_FIELDS), self._pool)

    async def step_gres(self, job_id: int) -> dict[str, tuple[GresItem, ...]]:
        rows = await self._job_rows(queue.STEP_FIELDS, "--steps", f"--jobs={job_id}")
        return queue.step_gres(rows, job_id)

    async def requeue(self, job_id: int) -> None:
        name = await self._target(job_id)
        await self._runner.run(["scontrol", "requeue", name or str(job_id)])

    async def cancel(self, job_id: int, why: str) -> None:
        """Tell the job's owner `why` if somebody listens (srun, salloc, a running batch step), and cancel it."""
        name = await self._target(job_id)
        if name is None:
            return
        with contextlib.suppress(SlurmError):
            await self._runner.run(["scontrol", "notify", name, why], timeout_s=NOTIFY_TIMEOUT_S)
        await self._runner.run(["scancel", "--quiet", name])
        logger.info("slurm.job_cancelled", extra={"job": job_id, "why": why})

    async def nodes(self, names: Sequence[str] = ()) -> tuple[SlurmNode, ...]:
        """All nodes, or these. Slurm refuses the whole call for one unknown name."""
        argv = ["scontrol", "--oneliner", "--details", "--all", "show", "node"]
        if not names:
            return records.parse_nodes(await self._runner.run(argv))
        found: list[SlurmNode] = []
        for some in _batches(names):
            found += records.parse_nodes(await self._runner.run([*argv, compress(some)]))
        return tuple(found)

    async def set_gres(self, nodes: Sequence[str], gres: str) -> None:
        """Set the whole Gres string of these nodes, live. Crash: batches of NODES_A_CALL nodes are each whole."""
        for some in _batches(nodes):
            await self._runner.run(["scontrol", "update", f"nodename={compress(some)}", f"gres={gres}"])

    async def partitions(self) -> dict[str, dict[str, str]]:
        """Every partition's fields as `scontrol show partition` prints them, hidden ones too."""
        return records.parse_partitions(await self._runner.run(["scontrol", "-o", "-a", "show", "partition"]))

    async def config(self) -> dict[str, str]:
        """`scontrol show config` by name; what is unset is absent."""
        return records.parse_config(await self._runner.run(["scontrol", "show", "config"]))

    async def answer_to(self, gres: str) -> str:
        """What submitting a job with this --gres says, as a test that starts nothing; both when it is refused and not.

        Raises SlurmUnavailable.
        """
        try:
            return await self._runner.run(["sbatch", "--test-only", f"--gres={gres}", "--wrap=true"])
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            return str(error)

    async def _job_rows(self, fields: Sequence[str], *selection: str) -> list[list[str]]:
        mark = _mark()
        try:
            text = await self._runner.run([*_SQUEUE, *selection, "-O", table.squeue_format(fields, mark)])
        except SlurmError as error:
            if _UNKNOWN_JOB in str(error).lower():
                return []
            raise
        return table.parse_table(text, len(fields), mark)

    async def _target(self, job_id: int) -> str | None:
        return queue.target(await self._job_rows(queue.TARGET_FIELDS, f"--jobs={job_id}"), job_id)


def _mark() -> str:
    return "~" + "".join(secrets.choice(string.ascii_letters) for _ in range(table.MARK_BYTES))


def _batches(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[at : at + NODES_A_CALL] for at in range(0, len(names), NODES_A_CALL)]
