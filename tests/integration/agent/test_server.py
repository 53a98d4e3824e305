import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from slurm_plugin.agent import server as server_module
from slurm_plugin.agent.device_cgroup import DeviceCgroup
from slurm_plugin.agent.peer import Peer, StepProcess, peer_of
from slurm_plugin.agent.server import HookServer
from slurm_plugin.agent.store import Store
from slurm_plugin.agent.tasks import Tasks
from slurm_plugin.agent.threads import Threads
from slurm_plugin.model import Gpu, Grant, Instance, RunKey
from slurm_plugin.ports import GresItem
from tests.integration.agent.bench import FIRST, PATIENCE_S, SECOND, Bench
from tests.unit.agent.world import run


class Site:
    """An agent that listens, and a caller of it."""

    def __init__(self, bench: Bench, tasks: Tasks, path: Path) -> None:
        self.bench, self.tasks, self.path = bench, tasks, path

    async def say(self, request: bytes, *, hang_up: bool = True) -> list[str]:
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        try:
            writer.write(request)
            async with asyncio.timeout(PATIENCE_S):
                return (await reader.read()).decode().splitlines()
        finally:
            writer.close()
            await writer.wait_closed()

    async def start(self, job_id: int, gres_class: str = "m20", count: int = 1, uid: int = 0) -> None:
        self.bench.slurm.runs[job_id] = run(job_id, gres_class, count, uid=uid)
        assert await self.say(b"prolog job=%d\n" % job_id) == ["exit 0"]


@asynccontextmanager
async def listening(bench: Bench, folder: Path) -> AsyncIterator[Site]:
    async with bench.running():
        threads = Threads()
        cgroup = DeviceCgroup(frozenset, proc_root=folder, folder="vgpu-test")  # names no device major: one lock
        tasks = Tasks(
            bench.book, bench.runs, slurm=bench.slurm, store=Store(bench.folder), threads=threads, cgroup=cgroup
        )
        tasks.ask_pause_s = 0.0
        await tasks.start()
        server = HookServer(bench.runs, tasks, profile_of=bench.profile_of)
        await server.listen(folder / "agent.sock")
        try:
            yield Site(bench, tasks, folder / "agent.sock")
        finally:
            await server.close()
            tasks.close()
            threads.close()


@pytest_asyncio.fixture
async def site(bench: Bench, tmp_path: Path) -> AsyncIterator[Site]:
    async with listening(bench, tmp_path) as site:
        yield site


class Step:
    """A step of a job: `sleep` stands for its slurmstepd, and the test for a task of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[asyncio.subprocess.Process] = []
        self.now: StepProcess | None = None
        self.all: dict[int, StepProcess] = {}
        monkeypatch.setattr("slurm_plugin.agent.tasks.step_of", lambda pid, _proc: self.all.get(pid, self.now))

    async def enter(self, job_id: int, step: str) -> StepProcess:
        process = await asyncio.create_subprocess_exec("sleep", "600")
        self.processes.append(process)
        self.now = StepProcess(job_id=job_id, step=step, pid=process.pid, started=1)
        self.all[process.pid] = self.now
        return self.now

    async def leave(self, step: StepProcess) -> None:
        process = next(one for one in self.processes if one.pid == step.pid)
        process.kill()
        await process.wait()
        self.processes.remove(process)


@pytest_asyncio.fixture
async def step(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Step]:
    step = Step(monkeypatch)
    yield step
    for process in step.processes:
        process.kill()
        await process.wait()


def visible(lines: list[str]) -> tuple[str, ...]:
    assert lines[-1] == "exit 0", lines
    exports = dict(line.removeprefix("out export ").split("=", 1) for line in lines[:-1])
    assert exports["VGPU_SLICES"] == exports["CUDA_VISIBLE_DEVICES"]
    assert exports["NVIDIA_VISIBLE_DEVICES"] == (exports["CUDA_VISIBLE_DEVICES"] or "void")
    return tuple(exports["CUDA_VISIBLE_DEVICES"].split(",")) if exports["CUDA_VISIBLE_DEVICES"] else ()


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\n",
        b"prolog job=1",
        b"prolog job=1\r\n",
        b"prolog  job=1\n",
        b"prolog job=-1\n",
        b"prolog job=1;x\n",
        b"prolog job=99999999999\n",
        b"prolog uid=0 job=1\n",
        b"prolog\n",
        b"epilog job=0\n",
        b"reboot\n",
        b"task job=1\n",
        b"task localid=0 ntasks=2 localid=0 ntasks=2 localid=0\n",
        b"\0\xff" * 20 + b"\n",
        b"x" * 100_000,
        b"task " + b"localid=0 " * 1000 + b"\n",
    ],
)
async def test_what_is_no_request_is_refused_and_does_nothing(
    site: Site, request_: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "READ_S", 0.05)
    site.bench.slurm.runs[1] = run(1)
    lines = await site.say(request_)
    assert lines[-1] == "exit 1"
    assert site.bench.held() == {}


async def test_prolog_and_epilog_are_roots_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.start(1)
    monkeypatch.setattr(server_module, "peer_of", lambda _: Peer(pid=os.getpid(), uid=1000))
    site.bench.slurm.runs[2] = run(2)
    assert (await site.say(b"prolog job=2\n"))[-1] == "exit 1"
    assert (await site.say(b"epilog job=1\n"))[-1] == "exit 1"
    assert site.bench.held() == {1: (FIRST,)}


async def test_callers_that_say_nothing_end_and_keep_nobody_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "READ_S", 0.2)
    silent = [await asyncio.open_unix_connection(str(site.path)) for _ in range(100)]
    await site.start(1)
    for reader, writer in silent:
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"exit 1\n")
        writer.close()
        await writer.wait_closed()


async def test_one_user_can_not_take_all_the_room(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CALLS_PER_USER", 3)
    users = iter([1000, 1000, 1000, 1000])
    monkeypatch.setattr(server_module, "peer_of", lambda one: Peer(pid=peer_of(one).pid, uid=next(users, 0)))
    silent = [await asyncio.open_unix_connection(str(site.path)) for _ in range(3)]
    assert await site.say(b"") == ["again"]
    await site.start(1)
    for _, writer in silent:
        writer.close()
        await writer.wait_closed()


async def test_a_caller_that_leaves_a_waiting_prolog_ends_its_wait(site: Site) -> None:
    site.bench.slurm.runs[1] = run(1, "m20", 9)
    _, writer = await asyncio.open_unix_connection(str(site.path))
    writer.write(b"prolog job=1\n")
    await site.bench.until(lambda: len(site.bench.runs.binding.waiting) == 1)
    writer.close()
    await site.bench.until(lambda: not site.bench.runs.binding.waiting)
    assert (site.bench.slurm.requeued, site.bench.slurm.cancelled) == ([], [])


async def test_the_socket_is_everybodys_and_replaces_an_old_one(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "agent.sock").write_text("left over")
    async with listening(bench, tmp_path) as site:
        assert site.path.stat().st_mode & 0o777 == 0o666
        await site.start(1)


async def test_the_batch_script_sees_all_its_job_has(site: Site, step: Step) -> None:
    await site.start(1, "m20", 2)
    await step.enter(1, "batch")
    lines = await site.say(b"task localid=0\n")
    assert visible(lines) == (FIRST, SECOND)
    assert "out export VGPU_PROFILES=1g.20gb,1g.20gb" in lines
    assert "out export VGPU_CLASS=m20" in lines


async def test_a_step_of_as_many_tasks_as_slices_has_one_a_task(site: Site, step: Step) -> None:
    await site.start(1, "m20", 2)
    await step.enter(1, "0")
    site.bench.slurm.steps = {"1.0": (GresItem(name="vgpu", type="m20", count=2),)}
    assert visible(await site.say(b"task localid=0 ntasks=2\n")) == (FIRST,)
    assert visible(await site.say(b"task localid=1 ntasks=2\n")) == (SECOND,)
    assert visible(await site.say(b"task localid=0 ntasks=1\n")) == (FIRST, SECOND)
    assert visible(await site.say(b"task localid=7 ntasks=2\n")) == (FIRST, SECOND)


async def test_a_step_that_asked_for_none_sees_none(site: Site, step: Step) -> None:
    await site.start(1, "m20", 2)
    await step.enter(1, "0")
    site.bench.slurm.steps = {"1.0": ()}
    assert visible(await site.say(b"task localid=0 ntasks=1\n")) == ()
    assert (await site.say(b"bind localid=0\n"))[-1] == "exit 1"


async def test_steps_side_by_side_see_different_slices_until_they_end(site: Site, step: Step) -> None:
    await site.start(1, "m20", 2)
    site.bench.slurm.steps = {f"1.{n}": (GresItem(name="vgpu", type="m20", count=1),) for n in range(4)}
    first = await step.enter(1, "0")
    assert visible(await site.say(b"task localid=0 ntasks=1\n")) == (FIRST,)
    await step.enter(1, "1")
    assert visible(await site.say(b"task localid=0 ntasks=1\n")) == (SECOND,)
    await step.leave(first)
    await site.bench.until(lambda: len(site.tasks._shares) == 1)
    await step.enter(1, "2")
    assert visible(await site.say(b"task localid=0 ntasks=1\n")) == (FIRST,)
    assert visible(await site.say(b"task localid=0 ntasks=1\n")) == (FIRST,)
    await step.enter(1, "3")
    assert len(visible(await site.say(b"task localid=0 ntasks=1\n"))) == 1


async def test_shares_of_running_steps_survive_the_agent(bench: Bench, step: Step, tmp_path: Path) -> None:
    bench.slurm.steps = {f"1.{n}": (GresItem(name="vgpu", type="m20", count=1),) for n in range(2)}
    async with listening(bench, tmp_path) as site:
        await site.start(1, "m20", 2)
        await step.enter(1, "0")
        assert visible(await site.say(b"task localid=0 ntasks=1\n")) == (FIRST,)
    async with listening(bench, tmp_path) as site:
        await step.enter(1, "1")
        assert visible(await site.say(b"task localid=0 ntasks=1\n")) == (SECOND,)


async def test_a_step_slurm_says_nothing_of_sees_all_its_job_has(site: Site, step: Step) -> None:
    await site.start(1, "m20", 2)
    await step.enter(1, "0")
    assert visible(await site.say(b"task localid=0 ntasks=1\n")) == (FIRST, SECOND)


async def test_a_task_of_a_job_without_slices_keeps_its_environment(site: Site, step: Step) -> None:
    await site.start(1, "")
    await step.enter(1, "batch")
    assert await site.say(b"task localid=0\n") == ["exit 0"]


async def test_a_task_without_a_grant_of_its_run_is_refused(site: Site, step: Step) -> None:
    await step.enter(9, "batch")
    assert await site.say(b"task localid=0\n") == [
        "err job 9 has no slice on this node; see 'vgpu show job 9'",
        "exit 1",
    ]


async def test_only_a_batch_script_without_its_slices_sends_its_job_back(site: Site, step: Step) -> None:
    """A step that is refused is its script's affair: what ran before it is not to be lost."""
    site.bench.rules.wait_s = 0.01
    site.bench.slurm.runs[9] = run(9, "m20", 9)
    await step.enter(9, "0")
    assert (await site.say(b"task localid=0\n"))[-1] == "exit 1"
    assert site.bench.slurm.requeued == []
    await step.enter(9, "batch")
    assert (await site.say(b"task localid=0\n"))[-1] == "exit 1"
    assert site.bench.slurm.requeued == [9]


async def test_a_task_of_another_user_is_refused(site: Site, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.start(1, uid=1001)
    await step.enter(1, "0")
    monkeypatch.setattr(server_module, "peer_of", lambda _: Peer(pid=os.getpid(), uid=1000))
    assert await site.say(b"task localid=0\n") == ["err job 1 is another user's", "exit 1"]


async def test_a_process_in_no_step_is_refused(site: Site) -> None:
    assert await site.say(b"task localid=0\n") == ["err this process is in no job step of this node", "exit 1"]


class Confined:
    """What tasks were let open, instead of a program on a cgroup. `looked` is set by each look at a grant's slices."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.to: list[list[int]] = []
        self.looked = asyncio.Event()
        monkeypatch.setattr(site.tasks._cgroup, "confine", self._confine)
        slices = site.bench.book.slices

        def look(grant: Grant) -> tuple[tuple[Gpu, Instance], ...]:
            self.looked.set()
            return slices(grant)

        monkeypatch.setattr(site.bench.book, "slices", look)

    def _confine(self, _run: RunKey, minors: list[int], _pid: int, _step: StepProcess) -> bool:
        self.to.append(minors)
        return True


async def test_while_the_pool_is_observed_only_jobs_with_its_slices_are_confined(
    site: Site, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have GPUs by a GRES of the site's own."""
    confined = Confined(site, monkeypatch)
    await site.start(1, "")
    await site.start(2, "m20")
    for observe in (True, False):
        site.bench.book.terms = replace(site.bench.book.terms, observe=observe)
        for job_id in (1, 2):
            await step.enter(job_id, "batch")
            assert (await site.say(b"task localid=0\n"))[-1] == "exit 0"
    assert confined.to == [[0, 1], [], [0, 1]]


@pytest.mark.parametrize("read", [0, 1], ids=["none yet", "one of two"])
async def test_a_task_is_confined_to_all_its_job_has_or_waits_until_that_was_read(
    site: Site, step: Step, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    """What confined it to less would lock the whole job out, tasks that compute too."""
    await site.start(1, "m20", 2)
    await step.enter(1, "batch")
    whole = site.bench.seen()
    confined = Confined(site, monkeypatch)
    site.bench.book.see((replace(whole, instances=whole.instances[:read]),))
    call = asyncio.create_task(site.say(b"task localid=0\n"))
    await asyncio.wait_for(confined.looked.wait(), PATIENCE_S)
    site.bench.book.see((whole,))
    assert visible(await call) == (FIRST, SECOND)
    assert confined.to == [[0, 1, 20, 21]]


async def test_a_task_whose_slices_can_not_be_read_is_refused_and_its_job_not_locked_out(
    site: Site, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start(1, "m20", 2)
    await step.enter(1, "batch")
    confined = Confined(site, monkeypatch)
    site.tasks.seen_pause_s = 0.0
    site.bench.book.see(())
    assert (await site.say(b"task localid=0\n"))[-1] == "exit 1"
    assert confined.to == []


async def test_a_second_lock_that_comes_late_is_told_and_so_is_who_was_before_it(
    site: Site, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroup, changed = site.tasks._cgroup, asyncio.Event()
    await site.start(1)
    await site.start(2)
    slurmstepd = await step.enter(1, "batch")
    step.now = None
    step.all[os.getpid()] = slurmstepd
    assert site.bench.book.isolation(1) == "mig+modes"
    site.tasks.changed = changed.set
    monkeypatch.setattr(cgroup, "start", lambda: setattr(cgroup, "why_not", ""))
    await site.tasks.tend()
    assert [site.bench.book.isolation(job_id) for job_id in (1, 2)] == ["mig+modes", "mig+modes+cgroup"]
    assert changed.is_set()
    await site.tasks.tend()
    assert site.bench.book.isolation(1) == "mig+modes"  # it is there still
    del step.all[os.getpid()]
    changed.clear()
    await site.tasks.tend()
    assert site.bench.book.isolation(1) == "mig+modes+cgroup"
    assert changed.is_set()


async def test_a_process_of_another_user_is_none_of_the_job_s(
    site: Site, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as what slurmd itself runs in a step of the job, or another node's step where nodes share a machine."""
    await site.start(1, uid=1001)
    slurmstepd = await step.enter(1, "extern")
    step.now = None
    step.all[os.getpid()] = slurmstepd
    monkeypatch.setattr(site.tasks._cgroup, "start", lambda: setattr(site.tasks._cgroup, "why_not", ""))
    await site.tasks.tend()
    assert site.bench.book.isolation(1) == "mig+modes+cgroup"


async def test_ranks_bind_one_slice_each_and_go_round(site: Site, step: Step) -> None:
    await site.start(1, "m20", 2)
    await step.enter(1, "batch")
    got = [
        await site.say(request)
        for request in (b"bind localid=0\n", b"bind localid=1\n", b"bind localid=2\n", b"bind\n")
    ]
    assert got == [[f"out {slice_}", "exit 0"] for slice_ in (FIRST, SECOND, FIRST, FIRST)]


FLOOD = """
import os, select, socket, sys
os.setgid(65534), os.setuid(65534)
kept, told = [], 0
while True:
    one = socket.socket(socket.AF_UNIX)
    one.setblocking(False)
    try:
        one.connect(sys.argv[1])
        one.send(b"task localid=0\\n")
    except OSError:
        one.close()
        select.select([], [], [], 0.001)
        continue
    kept = [*kept, one][-600:]
    told += 1
    if told <= 100:
        print(flush=True)
"""


async def test_a_flood_of_a_users_calls_delays_no_job_start(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder != Path("/tmp"):
            folder.chmod(0o755)
    argv = (sys.executable, "-c", FLOOD, str(site.path))
    floods = [await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE) for _ in range(2)]
    try:
        for flood in floods:
            assert flood.stdout is not None
            for _ in range(100):
                await asyncio.wait_for(flood.stdout.readline(), PATIENCE_S)
        roots = Site(site.bench, site.tasks, site.path.with_name("agent.sock.root"))
        took_s = []
        for job_id in range(1, 10):
            began = time.monotonic()
            await roots.start(job_id, "")
            took_s.append(time.monotonic() - began)
    finally:
        for flood in floods:
            flood.kill()
            await flood.wait()
    print(f"starts under flood: median {sorted(took_s)[4] * 1000:.0f} ms, longest {max(took_s) * 1000:.0f} ms")
    assert sorted(took_s)[4] < 1.0
    assert len([one for one in caplog.records if one.message.startswith("hook.")]) <= 1
    assert roots.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("gres_class", "held"), [("m20", (FIRST, SECOND)), ("", ())], ids=["with", "without"])
async def test_a_run_whose_id_was_another_jobs_and_that_had_no_prolog_gets_its_own_slices(
    site: Site, step: Step, gres_class: str, held: tuple[str, ...]
) -> None:
    """slurmctld has forgotten the first job, and slurmd believes that it has run this one's prolog."""
    await site.start(1, gres_class, 2)
    await step.enter(1, "batch")
    await site.say(b"task localid=0\n")
    assert site.bench.held().get(1, ()) == held
    site.bench.slurm.runs[1] = run(1, "m20", 1, started_at=999)
    await step.enter(1, "batch")
    assert len(visible(await site.say(b"task localid=0\n"))) == 1
    assert site.bench.book.grants[1].run.started_at == 999
