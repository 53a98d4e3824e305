"""The process that reads the queue through pyslurm, with a pyslurm that the test writes."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.slurm import pyslurm_queue
from slurm_plugin.slurm.commands import SlurmCommands
from slurm_plugin.slurm.process import Site
from slurm_plugin.slurm.pyslurm_queue import PyslurmQueue, PyslurmUnusable
from slurm_plugin.slurm.queue import Pool
from slurm_plugin.slurm.reading import QueueReading

RUNNING = "22.05.8"
HANGS_S = 5.0  # for so long an answer is waited for
PLAYED = """
import json, os
from pathlib import Path
from types import SimpleNamespace

__version__ = "22.5.3"
HERE = Path(__file__).parent

class RPCError(Exception):
    pass

class Job(SimpleNamespace):
    def __getattr__(self, name):
        if name == "gres_per_node" and self.unreadable:
            raise IndexError
        return None

class Jobs(dict):
    @classmethod
    def load(cls):
        print("a word of the library's own")
        exec((HERE / "does.py").read_text())
        jobs = json.loads((HERE / "jobs.json").read_text())
        return cls((job["id"], Job(**{"unreadable": False, **job})) for job in jobs)
"""
JOB = {
    **{"id": 7, "user_id": 1000, "priority": 9, "state": "PENDING", "state_reason": "Resources", "num_nodes": 1},
    **{"cpus": 2, "partition": "gpu,vgpu-wait", "gres_per_node": {"vgpu:m20": 2}, "account": "physics"},
    **{"time_limit": 90, "submit_time": 1_790_000_000, "constraints": ["a&b"]},
}


class Library:
    """A pyslurm in a folder that processes of ours import from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code(PLAYED)
        self.does("pass")
        self.jobs([JOB])

    def code(self, text: str) -> None:
        (self.folder / "pyslurm.py").write_text(text)

    def does(self, text: str) -> None:
        (self.folder / "does.py").write_text(text)

    def jobs(self, jobs: Sequence[dict[str, object]]) -> None:
        (self.folder / "jobs.json").write_text(json.dumps(jobs))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Library(tmp_path)


async def version() -> str:
    return RUNNING


async def lines(queue: PyslurmQueue, *partitions: str) -> list[str]:
    return await queue.lines(partitions, version)


async def test_jobs_are_read_again_and_again_by_one_process(library: Library) -> None:
    queue, reading = PyslurmQueue(Site(), "vgpu"), QueueReading(Pool())
    library.does("(HERE / 'pid').write_text(str(os.getpid()))")
    try:
        (job,) = reading.jobs(await lines(queue))
        pid = (library.folder / "pid").read_text()
        assert (job.job_id, job.gres[0].type, job.gres[0].count, job.account, job.limit_s) == (
            7,
            "m20",
            2,
            "physics",
            5400,
        )
        assert (job.eligible, job.features, job.submitted_at) == (True, (frozenset({"a", "b"}),), 1_790_000_000)
        assert reading.jobs(await lines(queue))[0] is job
        assert (library.folder / "pid").read_text() == pid
    finally:
        await queue.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


async def test_only_the_pools_jobs_of_these_partitions_are_told(library: Library) -> None:
    library.jobs(
        [
            JOB,
            JOB | {"id": 8, "partition": "other"},
            JOB | {"id": 9, "gres_per_node": {"gpu": 1}},
            {name: value for name, value in JOB.items() if name != "gres_per_node"} | {"id": 10, "unreadable": True},
            JOB | {"id": 11, "gres_per_node": {"vgpu": {"count": 4, "indexes": "0"}}},
        ]
    )
    queue = PyslurmQueue(Site(), "vgpu")
    try:
        assert [row.split("\x1f")[0] for row in await lines(queue, "gpu")] == ["7", "11"]
        assert [row.split("\x1f")[0] for row in await lines(queue)] == ["7", "8", "11"]
        library.jobs([])
        assert await lines(queue) == []
    finally:
        await queue.close()


async def test_a_slurmctld_that_does_not_answer_is_no_end_of_the_process(library: Library) -> None:
    queue = PyslurmQueue(Site(), "vgpu")
    library.does("raise RPCError('no\\nanswer')")
    try:
        for _ in range(pyslurm_queue.MAX_STARTS + 1):
            with pytest.raises(SlurmUnavailable, match="pyslurm: no answer"):
                await lines(queue)
        library.does("pass")
        assert len(await lines(queue)) == 1
    finally:
        await queue.close()


@pytest.mark.parametrize("does", ["os._exit(1)", "raise KeyError"])
async def test_a_process_that_fails_is_started_anew_a_few_times_and_then_not_used(library: Library, does: str) -> None:
    queue = PyslurmQueue(Site(), "vgpu")
    assert len(await lines(queue)) == 1
    library.does(does)
    for _ in range(1 + pyslurm_queue.MAX_STARTS):
        with pytest.raises(SlurmUnavailable):
            await lines(queue)
    with pytest.raises(PyslurmUnusable, match="gave no answer"):
        await lines(queue)


async def test_a_process_that_hangs_is_waited_for_no_longer_than_a_command(library: Library) -> None:
    queue = PyslurmQueue(Site(timeout_s=HANGS_S), "vgpu")
    library.does("import time; time.sleep(60)")
    with pytest.raises(SlurmUnavailable):
        await lines(queue)
    library.does("pass")
    assert len(await lines(queue)) == 1
    await queue.close()


async def test_a_process_that_can_not_be_started_is_an_answer_that_did_not_come(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = PyslurmQueue(Site(), "vgpu")
    with monkeypatch.context() as short:
        short.setattr(sys, "executable", str(library.folder / "nothing"))
        with pytest.raises(SlurmUnavailable, match="could not be started: No such file"):
            await lines(queue)
    assert len(await lines(queue)) == 1
    await queue.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text.replace("22.5.3", "24.11.0"), "it is 24.11.0, and Slurm is 22.05.8"),
        (lambda text: text.replace("22.5.3", "unknown"), "it is unknown, and Slurm"),
        (lambda text: "raise ImportError('libslurm.so.38: not found')", "libslurm.so.38: not found"),
        (lambda text: "import os; os._exit(1)", "importing it ends the process"),
    ],
)
async def test_a_pyslurm_that_does_not_fit_is_not_used(
    library: Library, change: Callable[[str], str], why: str
) -> None:
    library.code(change(PLAYED))
    with pytest.raises(PyslurmUnusable, match=why):
        await lines(PyslurmQueue(Site(), "vgpu"))


async def test_where_pyslurm_can_not_be_used_squeue_is(library: Library, caplog: pytest.LogCaptureFixture) -> None:
    library.code("import os; os._exit(1)")

    class Commands:
        async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
            if argv[0] == "scontrol":
                return f"SLURM_VERSION = {RUNNING}\n"
            asked.append(argv[0])
            return ""

    asked: list[str] = []
    slurm = SlurmCommands(runner=Commands(), pyslurm=PyslurmQueue(Site(), "vgpu"))
    assert slurm.reads_with == "pyslurm"
    assert await slurm.vgpu_jobs() == ()
    assert await slurm.vgpu_jobs() == ()
    assert (slurm.reads_with, asked) == ("squeue", ["squeue"] * 2)
    assert [record.getMessage() for record in caplog.records] == ["slurm.pyslurm_unusable"]


async def test_a_reading_that_is_cancelled_leaves_no_process(library: Library) -> None:
    queue = PyslurmQueue(Site(), "vgpu")
    library.does("(HERE / 'pid').write_text(str(os.getpid())); import time; time.sleep(60)")
    reading = asyncio.create_task(lines(queue))
    pid = library.folder / "pid"
    async with asyncio.timeout(20):
        while queue._process is None or not (pid.exists() and pid.read_text()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    process = queue._process  # held: what nobody holds may be ended by Python
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert process.returncode is not None
    assert not Path(f"/proc/{pid.read_text()}").exists()  # noqa: ASYNC240


def test_the_process_ends_when_its_parent_does(library: Library) -> None:
    """Its input ends then."""
    import subprocess

    argv = [sys.executable, "-m", "slurm_plugin.slurm.pyslurm_child"]
    env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(argv, env=env, input=b"", capture_output=True, timeout=30, check=True)
    assert ended.stdout == b"22.5.3\n"


def test_the_error_is_one_of_slurms() -> None:
    assert issubclass(PyslurmUnusable, SlurmError)
