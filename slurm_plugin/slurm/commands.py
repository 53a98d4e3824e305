"""The Slurm port by Slurm's own commands: squeue and scontrol, each call one short child process (3-6 ms)."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.model import RunKey
from slurm_plugin.ports import GresItem, JobIds, JobRun, Notes, QueuedJob, SlurmNode
from slurm_plugin.slurm import notes, queue, records, table
from slurm_plugin.slurm.hostlist import compress
from slurm_plugin.slurm.process import Runner, Runs, Site
from slurm_plugin.slurm.pyslurm_queue import PyslurmQueue, PyslurmUnusable
from slurm_plugin.slurm.queue import Pool
from slurm_plugin.slurm.reading import QueueReading

logger = logging.getLogger(__name__)
T = TypeVar("T")

NODES_A_CALL = 1000  # names in one scontrol call: one argument may have 128 KiB
LONG_BYTES = 64 * 1024  # an answer longer than this is read on a thread, so that nobody else waits for it
NOTIFY_TIMEOUT_S = 3.0  # the message is a courtesy, the cancel must not wait for it

_SQUEUE = ("squeue", "--noheader", "--all", "--local")
_UNSORTED = "--sort="  # else squeue sorts a long queue three times over
_UNKNOWN_JOB = "invalid job id"


class SlurmCommands:
    """Implements `slurm_plugin.ports.Slurm`, and what the command line and doctor read besides.

    Every call raises SlurmError (Slurm said no) or SlurmUnavailable (no answer: the outcome is unknown).
    """

    def __init__(
        self,
        site: Site | None = None,
        pool: Pool | None = None,
        *,
        runner: Runs | None = None,
        pyslurm: PyslurmQueue | None = None,
    ) -> None:
        """With `pyslurm` the queue is read through that as long as it can be."""
        self._runner: Runs = runner or Runner(site or Site())
        self._reading = QueueReading(pool or Pool())
        self._pyslurm = pyslurm

    async def run_of(self, job_id: int) -> JobRun | None:
        """This job's present run; None when Slurm does not know the id, or knows it as ended."""
        return queue.run_of(await self._job_rows(queue.START_FIELDS, f"--jobs={job_id}"), job_id)

    async def runs_on(self, node: str) -> tuple[JobRun, ...]:
        runs = queue.job_runs(await self._job_rows(queue.RUN_FIELDS, f"--nodelist={node}"))
        return tuple(run for run in runs if queue.holds_something(run))

    async def vgpu_jobs(self, partitions: Sequence[str] = ()) -> tuple[QueuedJob, ...]:
        if self._pyslurm is not None:
            try:
                lines = await self._pyslurm.lines(partitions, self._version)
                return await asyncio.to_thread(self._reading.jobs, lines)
            except PyslurmUnusable as error:
                logger.warning("slurm.pyslurm_unusable", extra={"why": str(error), "instead": "squeue"})
                self._pyslurm = None
        selection = [f"--partition={','.join(partitions)}"] if partitions else []
        mark = table.new_mark()
        form = table.squeue_letters(tuple(queue.QUEUE_FIELDS.values()), mark, queue.QUEUE_PLAIN)
        text = await self._runner.run([*_SQUEUE, *selection, _UNSORTED, "-o", form])
        return await _read(len(text), self._queue, text, mark)

    @property
    def reads_with(self) -> str:
        """What reads the queue."""
        return "squeue" if self._pyslurm is None else "pyslurm"

    async def _version(self) -> str:
        return (await self.config()).get("SLURM_VERSION", "")

    async def close(self) -> None:
        """End what was started for many calls."""
        if self._pyslurm is not None:
            await self._pyslurm.close()

    def _queue(self, text: str, mark: str) -> tuple[QueuedJob, ...]:
        return self._reading.jobs(table.lines(text, mark, queue.QUEUE_PLAIN))

    async def step_gres(self, job_id: int) -> dict[str, tuple[GresItem, ...]]:
        rows = await self._job_rows(queue.STEP_FIELDS, "--steps", f"--jobs={job_id}")
        return queue.step_gres(rows, job_id)

    async def requeue(self, run: RunKey, *, lift: bool = False) -> None:
        if name := await self._target(run):
            if lift:
                await self._runner.run(["scontrol", "update", f"jobid={name}", "requeue=1"])
            await self._runner.run(["scontrol", "requeue", name])
            logger.info("slurm.job_requeued", extra={"job": run.job_id, "started_at": run.started_at})

    async def cancel(self, run: RunKey, why: str) -> None:
        """Tell the job's owner `why` if somebody listens (srun, salloc, a running batch step), and cancel it."""
        name = await self._target(run)
        if name is None:
            return
        with contextlib.suppress(SlurmError):
            await self._runner.run(["scontrol", "notify", name, why], timeout_s=NOTIFY_TIMEOUT_S)
        await self._runner.run(["scancel", "--quiet", name])
        logger.info("slurm.job_cancelled", extra={"job": run.job_id, "started_at": run.started_at, "why": why})

    async def release(self, run: RunKey, reason: str = "") -> None:
        rows = await self._job_rows((*queue.TARGET_FIELDS, "Reason"), f"--jobs={run.job_id}")
        if name := queue.target((row[:-1] for row in rows if reason in ("", row[-1])), run):
            await self._runner.run(["scontrol", "release", name])
            logger.info("slurm.job_released", extra={"job": run.job_id})

    async def put_first(self, run: RunKey, priority: int, task: int = -1) -> None:
        if name := await self._target(run):
            name = f"{name}_{task}" if task >= 0 and name == str(run.job_id) else name
            await self._runner.run(["scontrol", "update", f"jobid={name}", f"priority={priority}"])
            logger.info("slurm.job_put_first", extra={"job": name, "priority": priority})

    async def notes(self, partitions: Sequence[str]) -> Notes:
        private = await self.private_jobs()
        rows = await self._job_rows(notes.SCAN_FIELDS, f"--partition={','.join(partitions)}")
        return Notes(by_job=notes.notes(rows), private=private)

    async def note(self, run: RunKey, note: str) -> None:
        found = notes.place(await self._job_rows(notes.FIELDS, f"--jobs={run.job_id}"), run)
        if found is not None and (comment := notes.noted(found[1], note)) != found[1]:
            await self._runner.run(["scontrol", "update", f"jobid={found[0]}", f"admincomment={comment}"])

    async def resume(self, node: str) -> None:
        await self._runner.run(["scontrol", "update", f"nodename={node}", "state=resume"])
        logger.info("slurm.node_resumed", extra={"node": node})

    async def started_at(self) -> int:
        text = (await self.config()).get("BOOT_TIME", "")
        if not text.isdecimal():
            raise SlurmError(f"scontrol show config printed '{text[:80]}' as BOOT_TIME")
        return int(text)

    async def job_ids(self) -> JobIds:
        config = await self.config()
        following, most = config.get("NEXT_JOB_ID", ""), config.get("MaxJobId", "")
        if not (following.isdecimal() and most.isdecimal()):
            raise SlurmError(
                f"scontrol show config printed '{following[:80]}' as NEXT_JOB_ID, '{most[:80]}' as MaxJobId"
            )
        return JobIds(following=int(following), most=int(most))

    async def private_jobs(self) -> bool:
        return "jobs" in (await self.config()).get("PrivateData", "").lower().split(",")

    async def nodes(self, names: Sequence[str] = ()) -> tuple[SlurmNode, ...]:
        """All nodes, or these. Slurm refuses the whole call for one unknown name."""
        argv = ["scontrol", "--oneliner", "--details", "--all", "show", "node"]
        if not names:
            text = await self._runner.run(argv)
            return await _read(len(text), records.parse_nodes, text)
        found: list[SlurmNode] = []
        for some in _batches(names):
            text = await self._runner.run([*argv, compress(some)])
            found += await _read(len(text), records.parse_nodes, text)
        return tuple(found)

    async def set_gres(self, nodes: Sequence[str], gres: str) -> None:
        """Set the whole Gres string of these nodes, live. Crash: batches of NODES_A_CALL nodes are each whole."""
        for some in _batches(nodes):
            await self._runner.run(["scontrol", "update", f"nodename={compress(some)}", f"gres={gres}"])

    async def set_comment(self, nodes: Sequence[str], comment: str) -> None:
        """The one text that Slurm keeps on a node in service: a Reason is gone at once there."""
        for some in _batches(nodes):
            await self._runner.run(["scontrol", "update", f"nodename={compress(some)}", f"comment={comment}"])

    async def set_partition(self, name: str, **fields: str) -> None:
        """Change these of its fields, live: all or none."""
        changes = [f"{key}={value}" for key, value in fields.items()]
        await self._runner.run(["scontrol", "update", f"partitionname={name}", *changes])

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
        mark = table.new_mark()
        return await self._rows(len(fields), mark, *selection, "-O", table.squeue_format(fields, mark))

    async def _rows(self, columns: int, mark: str, *options: str) -> list[list[str]]:
        try:
            text = await self._runner.run([*_SQUEUE, *options])
        except SlurmError as error:
            if _UNKNOWN_JOB in str(error).lower():
                return []
            raise
        return await _read(len(text), table.parse_table, text, columns, mark)

    async def _target(self, run: RunKey) -> str | None:
        """How to name this run's job; None when it is over. The id may be another job's, or another run's, by now."""
        name = queue.target(await self._job_rows(queue.TARGET_FIELDS, f"--jobs={run.job_id}"), run)
        if name is None:
            logger.warning("slurm.run_is_over", extra={"job": run.job_id, "started_at": run.started_at})
        return name


async def _read(size: int, parse: Callable[..., T], *args: object) -> T:
    if size <= LONG_BYTES:
        return parse(*args)
    return await asyncio.to_thread(parse, *args)


def _batches(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[at : at + NODES_A_CALL] for at in range(0, len(names), NODES_A_CALL)]
