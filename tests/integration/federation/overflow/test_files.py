"""Files of a Slurm job that runs elsewhere: read and written as its user, all or nothing, and never a second run."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pytest

import federation.overflow.staging
from federation.model.spec import Input
from federation.overflow import attaching
from federation.overflow.facts import Rule, Widened
from federation.overflow.frames import Ended, Refusal
from federation.overflow.staging import Source, take
from federation.overflow.widened import save
from federation.stage.spool import Spool
from slurm_plugin.lab.people import ensure_people
from tests.integration.federation.daemons import passable
from tests.integration.federation.overflow.gate import PATIENCE_S, USER, Gate, uid_of, until

IN, OUT = b"_SLURM_SPANK_OPTION_vgpu_burst_stage_in", b"_SLURM_SPANK_OPTION_vgpu_burst_stage_out"
DONE = Ended(by_signal=False, value=0)


@pytest.fixture
def gate() -> Iterator[Gate]:
    ensure_people()
    with passable() as folder:
        yield Gate(folder)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("federation.store.room.FILES_LEAVE_BYTES", 0)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={8 << 20}", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def staging(inputs: bytes, outputs: bytes = b"") -> tuple[tuple[bytes, bytes], ...]:
    return ((IN, inputs), (OUT, outputs))


@pytest.mark.parametrize("array_id", [0, 40])
async def test_a_job_brings_no_more_than_the_rule_lets_it_that_it_was_widened_by(gate: Gate, array_id: int) -> None:
    """Whatever its submitter's environment said of that."""
    gate.rules = {"gpu": Rule(most_input_bytes=1 << 20)}
    (gate.home / "data").write_bytes(b"x" * (2 << 20))
    row = Widened(
        root=array_id or 42,
        submitted_at=100,
        uid=uid_of(USER),
        rule="gpu",
        partitions=("gpu",),
        price=0.0,
        account="",
        at=0.0,
    )
    job = gate.job(array_id=array_id, task_id=3 if array_id else -1)
    async with gate.up() as up:
        await up.runner.read(lambda store: save(store, [row]))
        ended = await gate.proxy(b"true\n", job, env=(*staging(b"data"), (b"VGPU_BURST_INPUT_MIB", b"1"))).run()
        assert ended == Refusal(text="--stage-in: more than 1 MiB")
        assert await gate.proxy(b"[ -e data ]\n", gate.job(43), env=staging(b"data")).run() == DONE


class Slow:
    """A file system: whoever reads there waits until he is let."""

    def __init__(self) -> None:
        self.read, self.asked, self.go = 0, threading.Semaphore(0), threading.Semaphore(0)

    def chunk(self, *_: object) -> bytes:
        self.asked.release()
        assert self.go.acquire(timeout=PATIENCE_S)
        self.read += 1
        return b"x"


async def test_whose_proxy_is_lost_as_its_inputs_are_copied_is_copied_once_at_a_time(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread can't be called off: the next one for the job begins when it is over, and it is over soon."""
    slow = Slow()
    monkeypatch.setattr(federation.overflow.staging, "_chunk", slow.chunk)
    monkeypatch.setattr(attaching, "PATIENCE_S", 0.1)
    (gate.home / "data").write_bytes(b"x")
    job = gate.job()
    first = gate.proxy(b"[ -e data ]\n", job, env=staging(b"data"))
    async with gate.up():
        dies = asyncio.create_task(first.run())
        await asyncio.to_thread(slow.asked.acquire)
        dies.cancel()
        second = gate.again(first, gate.slurm.put(replace(job, restarts=1, submitted_at=200)))
        running = asyncio.create_task(second.run())
        await until(lambda: second.remarks == ["waits: its inputs are still being copied for its run before"])
        assert not slow.asked.acquire(blocking=False)
        monkeypatch.undo()
        slow.go.release()
        assert await running == DONE
    assert slow.read == 1


async def test_files_go_there_and_come_back_as_the_users_own(gate: Gate) -> None:
    data = gate.home / "a b"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "x\n").write_bytes(b"forty-two" * 300_000)
    (gate.home / "one.txt").write_bytes(b"")
    script = b"mkdir out; cp 'a b/deep/'x* out/big; [ -e one.txt ] && chmod 640 out/big && echo y > out/y\n"
    async with gate.up():
        proxy = gate.proxy(script, env=staging(b"a b,one.*", b"out/*"))
        assert await proxy.run() == DONE
    assert (gate.home / "out/big").read_bytes() == b"forty-two" * 300_000
    facts = (gate.home / "out/big").stat()
    assert (facts.st_uid, facts.st_mode & 0o777) == (uid_of(USER), 0o640)
    assert sorted(one.name for one in (gate.home / "out").iterdir()) == ["big", "y"]
    assert (proxy.output, proxy.errors) == (b"", b"")


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        (b"secret", "--stage-in: secret can't be read: Permission denied"),
        (b"data,not-there", "--stage-in: no file is meant by not-there"),
        (b"link", "--stage-in: no file is meant by link"),
        (b"../x", "none of them"),
    ],
)
async def test_what_can_not_be_brought_ends_the_job_with_a_sentence_before_it_begins(
    gate: Gate, inputs: bytes, why: str
) -> None:
    for name in ("secret", "data"):
        (gate.home / name).write_bytes(b"x")
    (gate.home / "secret").chmod(0o600)
    (gate.home / "link").symlink_to("/etc/shadow")
    proxy = gate.proxy(b"touch %s/wrong\n" % bytes(gate.home), env=staging(inputs))
    async with gate.up():
        ended = await proxy.run()
    assert isinstance(ended, Refusal)
    assert why in ended.text
    assert not (gate.home / "wrong").exists()
    assert not list(gate.jobs.attempts())


@pytest.mark.parametrize("folder", [b"/tmp", b""])
@pytest.mark.parametrize("shared", [False, True])
async def test_a_job_whose_folder_is_not_on_the_gateway_takes_nothing_from_where_slurm_put_it(
    gate: Gate, folder: bytes, monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    monkeypatch.setattr(attaching, "PATIENCE_S", 0.0)
    monkeypatch.setattr(attaching, "AGAIN_S", 0.02)
    gate.slurm.work_dir, gate.shared_files = "/nfs/alice/work", shared
    proxy = gate.proxy(b"pwd\n", env=() if shared else staging(b"", b"out"), folder=folder)
    async with gate.up(), asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await until(lambda: bool(proxy.remarks))
        assert proxy.remarks == ["waits: its folder is not on this gateway: requeue it once it is"]
        assert not list(gate.jobs.attempts())
        if folder:
            gate.slurm.work_dir = "/tmp/"  # what the user asked for
            assert await running == DONE
        running.cancel()


async def test_a_job_that_needs_no_folder_runs_without(gate: Gate) -> None:
    gate.slurm.work_dir = "/nfs/alice/work"
    async with gate.up():
        assert await gate.proxy(b"true\n", folder=b"").run() == DONE


async def test_results_that_can_not_be_written_wait_and_the_job_never_runs_again(gate: Gate) -> None:
    script = b"echo run >> %s/runs; echo result > result\n" % bytes(gate.home)
    proxy = gate.proxy(script, env=staging(b"", b"result"))
    (gate.home / "runs").write_bytes(b"")
    (gate.home / "runs").chmod(0o666)
    async with gate.up() as up, asyncio.TaskGroup() as group:
        gate.home.chmod(0o555)
        running = group.create_task(proxy.run())
        await gate.waits_for(gate.home / "runs")
        key = await gate.key()
        await until(lambda: key in up.mover.progress and "Permission denied" in up.mover.progress[key].why)
        await until(lambda: '"files":"results, stopped"' in gate.slurm.records[42].note)
        assert not running.done()
        gate.home.chmod(0o755)
        assert await running == DONE
        assert '"files"' not in gate.slurm.records[42].note
    assert (gate.home / "result").read_bytes() == b"result\n"
    assert (gate.home / "runs").read_bytes() == b"run\n"


async def test_while_its_inputs_are_read_its_note_says_so(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    (gate.home / "data").write_bytes(b"x")
    may_go = asyncio.Event()

    async def slow(spool: Spool, token: UUID, source: Source) -> tuple[Input, ...]:
        await may_go.wait()
        return await take(spool, token, source)

    monkeypatch.setattr(attaching, "take", slow)
    proxy = gate.proxy(b"cat data\n", env=staging(b"data"))
    async with gate.up(), asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await until(lambda: '"files":"inputs are read"' in gate.slurm.records[42].note)
        may_go.set()
        assert await running == DONE
        assert '"files"' not in gate.slurm.records[42].note


async def test_a_pool_that_shares_the_files_stages_nothing_and_runs_where_the_job_was_submitted(gate: Gate) -> None:
    gate.shared_files = True
    (gate.home / "data").write_bytes(b"read\n")
    stdin = os.fsencode(gate.home / "data")
    proxy = gate.proxy(b"pwd; cat; echo here > mark\n", env=staging(b"not-there", b"nor-this"), stdin=stdin)
    async with gate.up():
        assert await proxy.run() == DONE
    assert proxy.output == bytes(gate.home) + b"\nread\n"
    assert (gate.home / "data").exists()
    assert (gate.home / "mark").read_bytes() == b"here\n"
    assert not list((gate.state / "jobs").glob("*/inputs"))


async def test_what_a_job_reads_comes_with_it(gate: Gate) -> None:
    """With a file of its folder, and without one: it may lie anywhere, and its name is none of the job's."""
    (gate.home / "one").write_bytes(b"")
    data = b"forty-two\0" * 200_000
    (gate.folder / "da ta").write_bytes(data)
    stdin = os.fsencode(gate.folder / "da ta")
    async with gate.up():
        for job_id, env, names in ((42, (), b""), (43, staging(b"one"), b"one\n")):
            proxy = gate.proxy(b"ls -A; sha256sum\n", gate.job(job_id), stdin=stdin, env=env)
            assert await proxy.run() == DONE
            assert proxy.output == names + f"{sha256(data).hexdigest()}  -\n".encode()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("secret", "--input: secret can't be read: Permission denied"),
        ("gone", "--input: gone can't be read: No such file or directory"),
        ("pipe", "is no regular file"),
        ("large", "--input: more than 1 MiB"),
    ],
)
async def test_what_a_job_can_not_read_ends_it_before_it_begins(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.setattr(attaching, "MOST_BYTES", 1 << 20)
    (gate.home / "secret").write_bytes(b"x")
    (gate.home / "secret").chmod(0o600)
    os.mkfifo(gate.home / "pipe")
    (gate.home / "large").write_bytes(b"x" * ((1 << 20) + 1))
    proxy = gate.proxy(b"true\n", stdin=os.fsencode(gate.home / name))
    async with gate.up():
        ended = await proxy.run()
    assert isinstance(ended, Refusal)
    assert why in ended.text
    assert not list(gate.jobs.attempts())


async def test_a_job_has_its_umask_and_its_place_in_an_array_there(gate: Gate) -> None:
    array = tuple((b"SLURM_ARRAY_TASK_" + name, b"%d" % value) for name, value in ((b"COUNT", 3), (b"MAX", 9)))
    job = gate.job(array_id=40, task_id=5)
    proxy = gate.proxy(
        b"umask; echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_MAX\n", job, umask=0o027, env=array
    )
    async with gate.up():
        assert await proxy.run() == DONE
    assert proxy.output == b"0027\n40 5 9\n"


async def test_a_disk_of_the_daemons_that_is_full_is_waited_for(gate: Gate, small_disk: Path) -> None:
    (gate.home / "data").write_bytes(b"x" * (2 << 20))
    (gate.state / "jobs").symlink_to(small_disk)
    (fills := small_disk / "fills").write_bytes(b"x" * (7 << 20))
    proxy = gate.proxy(b"wc -c < data\n", env=staging(b"data"))
    async with gate.up(), asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await until(lambda: bool(proxy.remarks))
        assert proxy.remarks == ["waits: can't keep the inputs: No space left on device"]
        assert not list(gate.jobs.attempts())
        fills.unlink()
        assert await running == DONE
        again = gate.again(proxy, gate.slurm.put(replace(gate.slurm.records[42], restarts=1, submitted_at=200)))
        again.files |= proxy.files  # appended to
        assert await again.run() == DONE
    assert (again.output, again.errors) == (b"2097152\n", f"fed: {proxy.remarks[0]}\n".encode())


async def test_output_that_the_daemon_has_no_room_for_comes_once_it_has(gate: Gate, small_disk: Path) -> None:
    (gate.state / "jobs").symlink_to(small_disk)
    (fills := small_disk / "fills").write_bytes(b"x" * (4 << 20))
    proxy = gate.proxy(b"head -c 6000000 /dev/zero; echo end; touch %s/over\n" % bytes(gate.home))
    async with gate.up(), asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await gate.waits_for(gate.home / "over")
        await until(lambda: len(proxy.output) > 1_000_000)
        assert not running.done()
        fills.unlink()
        assert await running == DONE
    assert proxy.output == bytes(6_000_000) + b"end\n"
