"""Proxies come to a gateway: a job of Slurm's runs elsewhere, once, and its output and its end come to its proxy."""

import asyncio
import logging
import pwd
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from federation.access import local
from federation.access.rates import Rate
from federation.config_overflow import OverflowConfig
from federation.errors import Unavailable
from federation.model.states import Origin
from federation.overflow import attaching, gateway, holding, pacing, visit
from federation.overflow.burst import Phase, SlurmJob
from federation.overflow.bursts import burst_of, newest_bursts
from federation.overflow.frames import Acknowledged, Ended, Hello, Refusal, Stream
from slurm_plugin.lab.people import ensure_people
from tests.integration.federation.daemons import passable
from tests.integration.federation.overflow.gate import (
    NODE,
    OTHER,
    PATIENCE_S,
    USER,
    Gate,
    Proxy,
    connected,
    uid_of,
    until,
)
from tests.unit.federation.overflow.wire import to_daemon


@pytest.fixture
def folder() -> Iterator[Path]:
    ensure_people()
    with passable() as found:
        yield found


@pytest.fixture
def gate(folder: Path) -> Gate:
    return Gate(folder)


def exited(code: int) -> Ended:
    return Ended(by_signal=False, value=code)


def ended_by(number: int) -> Ended:
    return Ended(by_signal=True, value=number)


async def test_a_job_runs_elsewhere_and_its_output_and_code_are_its_proxys(gate: Gate) -> None:
    proxy = gate.proxy(
        b'echo out; echo err >&2; id -un; echo "$1 $DATA$LANG"; exit 7\n', args=(b"-n  x",), env=((b"DATA", b"d"),)
    )
    async with gate.up():
        assert await proxy.run() == exited(7)
    assert (proxy.output, proxy.errors) == (b"out\nalice\n-n  x d\n", b"err\n")
    assert proxy.remarks == []


async def test_it_is_on_record_when_all_that_a_job_wrote_is_in_its_files(gate: Gate) -> None:
    """Only then nothing of it has to be kept here."""
    proxy = gate.proxy(b"echo out\n")
    proxy.acknowledges = False

    async def recorded() -> list[bool]:
        return [one.written for one in await gate.runner.read(lambda store: newest_bursts(store, "", 10))]

    async with gate.up() as up, asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await until(lambda: proxy.output == b"out\n")
        await up.sees((await gate.key()).token, lambda job: job.state is Origin.DONE)
        assert await recorded() == [False]
        await proxy.acknowledge()
        assert await running == exited(0)
        assert await recorded() == [True]


async def test_streams_that_are_one_file_come_in_their_order(gate: Gate) -> None:
    proxy = gate.proxy(b"for n in 1 2 3; do echo out $n; echo err $n >&2; done\n", joined=True)
    async with gate.up():
        assert await proxy.run() == exited(0)
    assert (proxy.output, proxy.errors) == (b"out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n", b"")


async def test_a_death_by_a_signal_is_the_proxys_death_by_the_same(gate: Gate) -> None:
    proxy = gate.proxy(b"kill -SEGV $$\n")
    async with gate.up():
        assert await proxy.run() == ended_by(11)


LOOP = b"""n=0
while [ ! -e %s/stop ]; do n=$((n + 1)); echo line $n; echo err $n >&2; sleep 0.01; done
echo $n > %s/count
exit 3
"""


def wrote(proxy: Proxy, most: int) -> bool:
    return len(proxy.output) > most


async def test_output_is_whole_over_restarts_of_the_daemon_and_nothing_runs_twice(gate: Gate) -> None:
    home = bytes(gate.home)
    proxy = gate.proxy(LOOP % (home, home))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        for most in (300, 600, 900):
            async with gate.up():
                await until(partial(wrote, proxy, most))
        (gate.home / "stop").touch()
        async with gate.up():
            assert await running == exited(3)
    count = int((gate.home / "count").read_text())
    assert proxy.output == b"".join(b"line %d\n" % n for n in range(1, count + 1))
    assert proxy.errors == b"".join(b"err %d\n" % n for n in range(1, count + 1))


WAITS = b"""echo begins
echo >> %s/begun
until [ -e %s/go-on ]; do sleep 0.01; done
echo ends
"""


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_run_that_slurm_starts_again_goes_on_with_what_runs(gate: Gate, keeps: bool) -> None:
    """Its slurmstepd was killed. Files that are opened anew get all of it, those that are appended to the rest."""
    home = bytes(gate.home)
    job = gate.job()
    first = gate.proxy(WAITS % (home, home), job)
    async with gate.up():
        first.files[Stream.STDOUT] += b"before\n" * keeps
        dies = asyncio.create_task(first.run())
        await until(lambda: first.output.endswith(b"begins\n"))
        dies.cancel()
        again = gate.slurm.put(replace(job, restarts=1, submitted_at=200, started_at=320))
        second = gate.again(first, again)
        second.files[Stream.STDOUT] += first.output * keeps
        (gate.home / "go-on").touch()
        assert await second.run() == exited(0)
    assert second.output == b"before\n" * keeps + b"begins\nends\n"
    assert (gate.home / "begun").read_text() == "\n"
    assert len(list(gate.jobs.attempts())) == 1


async def test_what_others_append_to_its_file_is_not_taken_for_its_output(gate: Gate) -> None:
    home = bytes(gate.home)
    job = gate.job()
    first = gate.proxy(b"head -c 3000000 /dev/zero\n" + WAITS % (home, home), job)
    async with gate.up() as up:
        dies = asyncio.create_task(first.run())
        await until(lambda: first.output.endswith(b"begins\n"))

        async def acked() -> int:
            burst = await up.runner.read(lambda store: burst_of(store, job.job_id))
            return burst.stdout_acked if burst else 0

        assert 1 << 20 <= await acked() < len(first.output)  # not each byte
        dies.cancel()
        while await acked() != len(first.output):  # noqa: ASYNC110 - in the journal
            await asyncio.sleep(0.01)
        again = gate.slurm.put(replace(job, restarts=1, submitted_at=200, started_at=320))
        second = gate.again(first, again)
        second.files[Stream.STDOUT] += first.output + b"others\n"
        (gate.home / "go-on").touch()
        assert await second.run() == exited(0)
    assert second.output == first.output + b"others\nends\n"


async def test_the_end_of_a_job_waits_for_a_proxy(gate: Gate) -> None:
    job = gate.job()
    first = gate.proxy(b"touch %s/begun; echo all; exit 9\n" % bytes(gate.home), job)
    async with gate.up() as up:
        dies = asyncio.create_task(first.run())
        await gate.waits_for(gate.home / "begun")
        dies.cancel()
        key = next(iter(gate.jobs.attempts()))
        await up.sees(key.token, lambda found: found.outcome is not None)
    second = gate.again(first, gate.slurm.put(replace(job, restarts=1, submitted_at=200)))
    async with gate.up():
        assert await second.run() == exited(9)
    assert second.output == b"all\n"


SLEEPS = b"trap 'echo got; exit 5' USR1\ntouch %s/begun\nwhile :; do sleep 0.05; done\n"


async def test_a_signal_reaches_the_script_and_no_other_does(gate: Gate) -> None:
    proxy = gate.proxy(SLEEPS % bytes(gate.home))
    async with gate.up() as up, asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await gate.waits_for(gate.home / "begun")
        key = next(iter(gate.jobs.attempts()))
        await up.sees(key.token, lambda found: found.started_at is not None)
        await proxy.signal(signal.SIGUSR1)
        assert await running == exited(5)
    assert proxy.output == b"got\n"


ENDS = [("CANCELLED", "None"), ("TIMEOUT", "TimeLimit")]


@pytest.mark.parametrize(("state", "reason"), ENDS)
async def test_what_slurm_ends_is_stopped_and_its_last_words_come(gate: Gate, state: str, reason: str) -> None:
    script = b"trap 'echo last; kill -KILL $$' TERM\ntouch %s/begun\nwhile :; do sleep 0.05; done\n"
    job = gate.job()
    proxy = gate.proxy(script % bytes(gate.home), job)
    async with gate.up(), asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await gate.waits_for(gate.home / "begun")
        gate.slurm.put(replace(job, state="COMPLETING", reason=reason))
        await proxy.signal(signal.SIGTERM)
        assert await running == ended_by(signal.SIGKILL)
    assert proxy.output == b"last\n"


async def test_a_job_that_is_cancelled_before_it_begins_there_never_does(gate: Gate) -> None:
    gate.cpus = 1
    (taken := gate.proxy(WAITS % (bytes(gate.home), bytes(gate.home)), gate.job(7)))
    proxy = gate.proxy(b"touch wrong\n")
    async with gate.up(), asyncio.TaskGroup() as group:
        first = group.create_task(taken.run())
        await gate.waits_for(gate.home / "begun")
        running = group.create_task(proxy.run())
        await proxy.welcomed.wait()
        gate.job(state="COMPLETING")
        await proxy.signal(signal.SIGTERM)
        assert await running == ended_by(signal.SIGTERM)
        (gate.home / "go-on").touch()
        assert await first == exited(0)
    assert proxy.output == proxy.errors == b""


async def test_a_requeue_by_the_user_begins_anew_once_the_old_attempt_is_over(gate: Gate) -> None:
    home = bytes(gate.home)
    script = b"echo $$ >> %s/runs\ntouch %s/begun\n[ ! -e %s/again ] || exit 4\nwhile :; do sleep 0.05; done\n"
    job = gate.job()
    first = gate.proxy(script % (home, home, home), job)
    async with gate.up(), asyncio.TaskGroup() as group:
        running = group.create_task(first.run())
        await gate.waits_for(gate.home / "begun")
        gate.slurm.put(replace(job, state="COMPLETING", restarts=1))
        await first.signal(signal.SIGTERM)
        assert await running == ended_by(signal.SIGTERM)
        (gate.home / "again").touch()
        again = gate.slurm.put(replace(job, restarts=1, submitted_at=200, started_at=320))
        second = gate.proxy(script % (home, home, home), again)
        assert await second.run() == exited(4)
    assert len((gate.home / "runs").read_text().split()) == 2
    assert len({key.token for key in gate.jobs.attempts()}) == 2


# -- who comes with somebody else's, or with nothing


async def refused(gate: Gate, proxy: Proxy) -> str:
    async with gate.up():
        ended = await proxy.run()
    assert isinstance(ended, Refusal)
    assert not list(gate.jobs.attempts())
    return ended.text


async def test_a_job_of_somebody_elses_is_not_given_to_him(gate: Gate) -> None:
    gate.job(user=OTHER)
    assert await refused(gate, gate.proxy(b"", gate.slurm.records[42])) == "job 42 is not alice's"


async def test_a_job_that_does_not_run_there_does_not_begin(gate: Gate) -> None:
    for wrong, why in (
        ({"partitions": ("gpu",)}, "job 42 did not come through partition cloud"),
        ({"batch": False}, "only batch jobs run on virtual nodes"),
        ({"state": "COMPLETING"}, "it was ended before it began"),
    ):
        job = gate.job()
        gate.slurm.put(replace(job, **wrong))
        assert await refused(gate, gate.proxy(b"", job)) == why


HELD: dict[str, Callable[[SlurmJob], SlurmJob]] = {
    "nobody knows it": lambda job: replace(job, job_id=43),
    "it waits": lambda job: replace(job, state="PENDING", nodes=()),
    "it runs again": lambda job: replace(job, restarts=1),
    "its id is another user's job's": lambda job: replace(job, uid=uid_of(OTHER), submitted_at=job.submitted_at + 1),
}


@pytest.mark.parametrize("now", HELD.values(), ids=HELD)
async def test_a_proxy_whose_end_slurm_would_take_for_that_of_another_run_is_not_answered(
    gate: Gate,
    now: Callable[[SlurmJob], SlurmJob],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(attaching, "HELD_S", 0.02)
    caplog.set_level(logging.INFO)
    home = bytes(gate.home)
    job = gate.job()
    first = gate.proxy(WAITS % (home, home), job)
    async with gate.up():
        dies = asyncio.create_task(first.run())
        await gate.waits_for(gate.home / "begun")
        dies.cancel()
        del gate.slurm.records[job.job_id]
        gate.slurm.put(now(job))
        late = gate.again(first, job)
        running = asyncio.create_task(late.run())
        await until(lambda: caplog.messages.count("proxy.held") > 2)
        assert not running.done()
        gate.slurm.put(replace(job, state="CANCELLED"))
        assert await running == ended_by(signal.SIGKILL)
        assert (late.output, late.errors) == (b"", b"")
    assert (gate.home / "begun").read_text() == "\n"


@pytest.mark.parametrize("now", HELD.values(), ids=HELD)
async def test_nor_is_it_when_its_job_ends_elsewhere(
    gate: Gate,
    now: Callable[[SlurmJob], SlurmJob],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(holding, "HELD_S", 0.02)
    monkeypatch.setattr(visit, "BY_SLURM_S", 0.02)
    caplog.set_level(logging.INFO)
    home = bytes(gate.home)
    job = gate.job()
    proxy = gate.proxy(WAITS % (home, home), job)
    async with gate.up():
        running = asyncio.create_task(proxy.run())
        await until(lambda: proxy.output == b"begins\n")
        del gate.slurm.records[job.job_id]
        gate.slurm.put(now(job))
        (gate.home / "go-on").touch()
        await until(lambda: caplog.messages.count("proxy.held") > 2)
        assert not running.done()
        gate.slurm.put(replace(job, state="CANCELLED"))
        assert isinstance(await running, Ended)


@pytest.mark.parametrize("now", [{"nodes": ("cloud-hpc-2",)}])
async def test_a_proxy_of_a_run_that_is_over_ends_without_a_word(gate: Gate, now: dict[str, Any]) -> None:
    """The file that it would write to is another run's by now; and that run's job goes on."""
    home = bytes(gate.home)
    job = gate.job()
    first = gate.proxy(WAITS % (home, home), job)
    async with gate.up() as up:
        dies = asyncio.create_task(first.run())
        await gate.waits_for(gate.home / "begun")
        dies.cancel()
        gate.slurm.put(replace(job, **now))
        stale = gate.again(first, job)
        assert await stale.run() == ended_by(signal.SIGKILL)
        assert (stale.output, stale.errors) == (b"", b"")
        (burst,) = await up.runner.read(lambda store: newest_bursts(store, "", 10))
        assert burst.phase is Phase.OPEN
        (gate.home / "go-on").touch()
        await up.sees(burst.token, lambda found: found.outcome is not None)


async def test_a_daemon_that_can_not_tell_who_or_where_it_is_leaves_what_runs_alone(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of users come from a service that may be away; fed.yaml may lack a node for a while."""
    home, away = bytes(gate.home), asyncio.Event()

    def nobody(uid: int) -> pwd.struct_passwd:
        away.set()
        raise KeyError(uid)

    proxy = gate.proxy(WAITS % (home, home))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        async with gate.up():
            await gate.waits_for(gate.home / "begun")
        with monkeypatch.context() as without:
            without.setattr(local, "pwd", SimpleNamespace(getpwuid=nobody))
            async with gate.up():
                await away.wait()
                await gone(gate)
        with monkeypatch.context() as without:
            whole, asked = OverflowConfig.serving, asyncio.Event()
            without.setattr(OverflowConfig, "serving", lambda config, node: asked.set())
            async with gate.up():
                await asked.wait()
                await gone(gate)
            assert whole is not OverflowConfig.serving
        (gate.home / "go-on").touch()
        async with gate.up():
            assert await running == exited(0)
    assert proxy.output == b"begins\nends\n"


async def test_whom_the_name_service_knows_late_keeps_nobody_else_waiting(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, knows, late = threading.Event(), threading.Event(), []

    def slow(uid: int) -> pwd.struct_passwd:
        if uid == uid_of(OTHER):
            asked.set()
            if not knows.wait(PATIENCE_S / 3):
                late.append(uid)
        return pwd.getpwuid(uid)

    monkeypatch.setattr(local, "pwd", SimpleNamespace(getpwuid=slow))
    home = bytes(gate.home)
    proxy, theirs = gate.proxy(WAITS % (home, home)), gate.proxy(b"exit 2\n", gate.job(43, OTHER))
    other = Proxy(gate.socket, theirs.hello, user=OTHER)
    async with gate.up():
        running = asyncio.create_task(proxy.run())
        await until(lambda: proxy.output == b"begins\n")
        waits = asyncio.create_task(other.run())
        await asyncio.to_thread(asked.wait)
        (gate.home / "go-on").touch()
        assert await running == exited(0)
        knows.set()
        assert await waits == exited(2)
    assert not late


async def gone(gate: Gate) -> None:
    """The gateway has done with every connection that there was."""
    await until(lambda: not any("serve" in str(task.get_coro()) for task in asyncio.all_tasks()))


async def test_a_node_that_is_none_of_ours_is_refused(gate: Gate) -> None:
    assert "n1 is no virtual node" in await refused(gate, gate.proxy(b"", gate.job(), node="n1"))


async def test_what_no_backend_could_run_is_refused_with_a_sentence_and_leaves_nothing(gate: Gate) -> None:
    job = gate.job()
    proxy = gate.proxy(b"", job)
    proxy.hello = replace(proxy.hello, script=b"echo no shebang\n")
    text = await refused(gate, proxy)
    assert "must begin with #!" in text
    async with gate.up():  # and the journal has it as stopped: the next run begins anew
        again = gate.slurm.put(replace(job, restarts=1, submitted_at=200))
        assert await gate.proxy(b"exit 6\n", again).run() == exited(6)


async def test_a_pool_that_can_not_run_a_job_however_long_it_waits_ends_it(gate: Gate) -> None:
    gate.longest_s = 60
    job = gate.job(limit_s=61)
    assert "hpc/batch can't run this job: its longest time limit is 60 s" in await refused(gate, gate.proxy(b"", job))


async def test_slices_that_nobody_can_ask_for_are_refused(gate: Gate) -> None:
    gate.slurm.wants = replace(gate.slurm.wants, gres="vgpu:1/0")
    assert "1/0" in await refused(gate, gate.proxy(b""))


async def test_a_pool_that_refuses_a_job_for_good_ends_it(gate: Gate) -> None:
    gate.slurm.wants = replace(gate.slurm.wants, cpus=65)
    assert "the job wants 65" in await refused(gate, gate.proxy(b""))


@pytest.mark.parametrize(
    "said",
    [
        b"H\xff\xff\xff\xff",
        b"H\x00\xc0\x00\x01",
        b"A\x00\x00\x00\x10" + bytes(16),
        b"\x00" * 5,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_no_hello_is_hung_up_on_and_harms_nobody(gate: Gate, said: bytes) -> None:
    async with gate.up():
        reader, writer = await asyncio.open_unix_connection(sock=connected(gate.socket, USER))
        writer.write(said)
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        assert await gate.proxy(b"exit 2\n").run() == exited(2)


async def test_a_hello_that_can_not_be_read_is_answered_so(gate: Gate) -> None:
    async with gate.up():
        _, writer = connection = await asyncio.open_unix_connection(sock=connected(gate.socket, USER))
        writer.write(b"H\x00\x00\x00\x03\x02\x00\x00")
        async with asyncio.timeout(30):
            assert (await connection[0].read()).startswith(b"R")
        writer.close()


async def test_a_signal_is_heard_while_output_is_taken_by_nobody(gate: Gate) -> None:
    home = bytes(gate.home)
    script = (
        b"trap 'touch %s/got; exit 5' USR1\nhead -c 3000000 /dev/zero\ntouch %s/begun\nwhile :; do sleep 0.05; done\n"
    )
    proxy = gate.proxy(script % (home, home))
    proxy.takes.clear()
    async with gate.up() as up, asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await gate.waits_for(gate.home / "begun")
        await up.sees((await gate.key()).token, lambda found: found.started_at is not None)
        await proxy.is_full.wait()
        await proxy.signal(signal.SIGUSR1)
        await gate.waits_for(gate.home / "got")
        proxy.takes.set()
        assert await running == exited(5)
    assert proxy.output == bytes(3_000_000)


async def test_who_takes_nothing_more_is_not_waited_for(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "GONE_S", 0.01)
    home = bytes(gate.home)
    proxy = gate.proxy(b"head -c 3000000 /dev/zero\n" + WAITS % (home, home))
    proxy.takes.clear()
    async with gate.up() as up:
        running = asyncio.create_task(proxy.run())
        await proxy.is_full.wait()
        await proxy.say(Acknowledged(stdout=1 << 40, stderr=0))  # it is hung up on
        await gone(gate)
        running.cancel()
        (gate.home / "go-on").touch()
        await up.sees((await gate.key()).token, lambda found: found.outcome is not None)


async def test_who_acknowledges_what_was_never_sent_is_hung_up_on(gate: Gate) -> None:
    proxy = gate.proxy(WAITS % (bytes(gate.home), bytes(gate.home)))
    async with gate.up(), asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await until(lambda: proxy.output == b"begins\n")
        await proxy.say(Acknowledged(stdout=10_000, stderr=0))
        (gate.home / "go-on").touch()
        assert await running == exited(0)
    assert proxy.output == b"begins\nends\n"


async def test_one_user_can_not_take_all_connections_by_saying_nothing(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "MOST_STRANGERS", 3)
    async with gate.up(), asyncio.TaskGroup() as group:
        silent = [await asyncio.open_unix_connection(sock=connected(gate.socket, OTHER)) for _ in range(4)]
        assert await silent[3][0].read() == b""
        assert await group.create_task(gate.proxy(b"exit 2\n").run()) == exited(2)
        for _, writer in silent:
            writer.close()


async def said_hello(gate: Gate, script: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A proxy of OTHER's, of a job that Slurm does not tell of now."""
    reader, writer = await asyncio.open_unix_connection(sock=connected(gate.socket, OTHER))
    writer.write(to_daemon(Hello(job_id=7, node=NODE, script=script)))
    return reader, writer


@pytest.mark.parametrize(("most", "script"), [("MOST_STRANGERS", b""), ("MOST_KEPT", b"#" * 80_000)])
async def test_one_user_can_not_have_all_memory_by_waiting(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, most: str, script: bytes
) -> None:
    monkeypatch.setattr(gateway, most, 3 if most == "MOST_STRANGERS" else 300_000)
    whole = gate.slurm.job

    async def job(job_id: int) -> SlurmJob | None:
        if job_id == 7:
            raise Unavailable("no word of this one")
        return await whole(job_id)

    monkeypatch.setattr(gate.slurm, "job", job)
    async with gate.up() as up:
        three = [await said_hello(gate, script) for _ in range(3)]
        await until(lambda: up.overflow.gateway.strangers == 3)
        reader, writer = await said_hello(gate, script)
        with suppress(ConnectionError):
            assert await reader.read() == b""  # and no word of what it waits for
        assert up.overflow.gateway.strangers == 3
        assert await gate.proxy(b"exit 2\n").run() == exited(2)
        await until(lambda: up.overflow.gateway.strangers == 0)  # they are to come again: others have a turn
        for _, one in (*three, (reader, writer)):
            one.close()


async def test_one_user_can_not_keep_others_hellos_from_being_read(gate: Gate) -> None:
    async with gate.up():
        slow = [await asyncio.open_unix_connection(sock=connected(gate.socket, OTHER)) for _ in range(16)]
        for _, writer in slow:
            writer.write(b"H\0\1\xff\xff")
        async with asyncio.timeout(20):  # less than the longest wait for one
            assert await gate.proxy(b"exit 2\n#" + b"x" * 100_000).run() == exited(2)
        for _, writer in slow:
            writer.close()


async def test_of_a_run_that_goes_on_with_what_runs_no_script_is_kept(gate: Gate) -> None:
    home = bytes(gate.home)
    job = gate.job()
    first = gate.proxy(WAITS % (home, home), job)
    async with gate.up() as up:
        dies = asyncio.create_task(first.run())
        await gate.waits_for(gate.home / "begun")
        dies.cancel()
        second = gate.again(first, gate.slurm.put(replace(job, restarts=1, submitted_at=200)))
        running = asyncio.create_task(second.run())
        await until(lambda: second.output == b"begins\n")
        assert [one.hello.script for one in up.overflow.gateway.visits] == [b""]
        (gate.home / "go-on").touch()
        assert await running == exited(0)


# -- Slurm, or the disk, is away


async def test_a_slurm_that_does_not_answer_is_waited_for(gate: Gate) -> None:
    gate.slurm.away = True
    proxy = gate.proxy(b"exit 2\n", gate.job())
    async with gate.up(), asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        await until(lambda: bool(proxy.remarks))
        assert not list(gate.jobs.attempts())
        gate.slurm.away = False
        assert await running == exited(2)
    assert proxy.remarks == ["waits: slurmctld does not answer"]
    assert (proxy.output, proxy.errors) == (b"", b"fed: waits: slurmctld does not answer\n")


async def test_what_the_daemon_wrote_into_a_jobs_output_costs_no_byte_of_it_later(gate: Gate) -> None:
    """A file that is appended to has the remark before what the job wrote; its next run goes on behind all of that."""
    home = bytes(gate.home)
    job = gate.job()
    gate.slurm.away = True
    first = gate.proxy(WAITS % (home, home), job, joined=True)
    first.files[Stream.STDOUT] += b"before\n"
    async with gate.up():
        dies = asyncio.create_task(first.run())
        await until(lambda: bool(first.remarks))
        gate.slurm.away = False
        await until(lambda: first.output.endswith(b"begins\n"))
        dies.cancel()
        second = gate.again(first, gate.slurm.put(replace(job, restarts=1, submitted_at=200)))
        second.files[Stream.STDOUT] += first.output
        (gate.home / "go-on").touch()
        assert await second.run() == exited(0)
    assert second.output == b"before\nfed: waits: slurmctld does not answer\nbegins\nends\n"


async def test_a_note_that_slurm_refuses_is_no_word_on_the_job(gate: Gate) -> None:
    gate.slurm.refusals = 2
    proxy = gate.proxy(b"exit 2\n")
    async with gate.up():
        assert await proxy.run() == exited(2)
    assert (proxy.output, proxy.errors) == (b"", b"")


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_remark_costs_no_byte_of_what_the_next_runs_write(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """Whether a run's file is appended to, or opened anew."""
    monkeypatch.setattr(attaching, "PATIENCE_S", 0.1)
    home, said = bytes(gate.home), b"fed: waits: slurmctld does not answer\n"
    job = gate.job()
    first = gate.proxy(WAITS % (home, home), job, joined=True)
    async with gate.up():
        dies = asyncio.create_task(first.run())
        await until(lambda: first.output == b"begins\n")
        dies.cancel()
        gate.slurm.away = True
        job = gate.slurm.put(replace(job, restarts=1, submitted_at=200))
        second = gate.again(first, job)
        second.files[Stream.STDOUT] += first.output * keeps
        dies = asyncio.create_task(second.run())
        await until(lambda: bool(second.remarks))
        gate.slurm.away = False
        whole = b"begins\n" + said if keeps else said + b"begins\n"
        await until(lambda: second.welcomed.is_set() and len(second.output) >= len(whole))
        assert second.output == whole
        dies.cancel()
        third = gate.again(first, gate.slurm.put(replace(job, restarts=2, submitted_at=300)))
        third.files[Stream.STDOUT] += second.output * keeps
        (gate.home / "go-on").touch()
        assert await third.run() == exited(0)
    assert third.output == second.output * keeps + b"begins\n" * (not keeps) + b"ends\n"


async def test_ends_are_given_out_no_faster_than_a_slurmctld_likes(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing.Pacer.__init__, "__defaults__", (Rate(per_s=5.0, burst=1.0),))
    proxies = [gate.proxy(b"", gate.job(nth)) for nth in range(1, 5)]
    begun = asyncio.get_running_loop().time()
    async with gate.up():
        assert await asyncio.gather(*(proxy.run() for proxy in proxies)) == [exited(0)] * 4
    assert asyncio.get_running_loop().time() - begun > 0.6
