"""What every backend of a pool does: a job once, its bytes as they are, its end as it was."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from federation.errors import Refused, Unavailable
from federation.model.spec import Batch, JobSpec
from federation.model.states import End
from federation.model.token import Key
from federation.ports import Sight
from tests.contract.federation.executors.rig import NOBODY_NOW, PATIENCE_S, POLL_S, USER, Rig, sha256

EVERY_BYTE = bytes(range(1, 256))
ONCE = b"#!/bin/sh\necho ran >> ran\nuntil [ -e go-on ]; do sleep 0.05; done\n"


@pytest.mark.parametrize("code", [0, 1, 128, 137, 143, 255])
async def test_an_exit_code_is_never_taken_for_a_signal(rig: Rig, code: int) -> None:
    outcome, _, _ = await rig.run(f"#!/bin/sh\nexit {code}\n".encode())
    assert (outcome.end, outcome.exit_code, outcome.signal) == (End.EXITED, code, None)
    assert outcome.started_at is not None
    assert outcome.ended_at is not None
    assert outcome.started_at <= outcome.ended_at


@pytest.mark.parametrize("number", [9, 11, 15])
async def test_a_death_by_a_signal_is_never_taken_for_an_exit_code(rig: Rig, number: int) -> None:
    outcome, _, _ = await rig.run(f"#!/bin/sh\nkill -{number} $$\n".encode())
    assert (outcome.end, outcome.exit_code, outcome.signal) == (End.SIGNALED, None, number)


async def test_every_byte_of_script_arguments_and_environment_arrives(rig: Rig) -> None:
    value = EVERY_BYTE + b"a,b\n\n'\"`$(exit 1)!|"
    script = b"""#!/bin/sh
# \xff\xfe `|
printf %s "$VALUE" | sha256sum
printf %s "$1$2" | sha256sum
sha256sum < ../script
"""
    outcome, out, err = await rig.run(script, args=(value, b"-n"), env=((b"VALUE", value),))
    assert (outcome.end, outcome.exit_code, err) == (End.EXITED, 0, b"")
    assert out.replace(b"  -", b"").split() == [sha256(value), sha256(value + b"-n"), sha256(script)]


async def test_every_byte_of_a_batch_jobs_name_arrives(rig: Rig) -> None:
    name = EVERY_BYTE + b"a|b\n%j'$(exit 1)"
    _, out, _ = await rig.run(b'#!/bin/sh\nprintf %s "$SLURM_JOB_NAME" | sha256sum\n', name=name, batch=Batch())
    assert out.split()[0] == sha256(name)


async def test_both_streams_are_apart_and_whole(rig: Rig) -> None:
    script = b"#!/bin/sh\nhead -c 3000000 /dev/zero\nhead -c 2000000 /dev/zero >&2 &\nprintf end\nwait\n"
    _, out, err = await rig.run(script)
    assert (out == bytes(3_000_000) + b"end", err == bytes(2_000_000)) == (True, True)


async def test_a_job_runs_as_its_user_in_its_own_folder_with_a_plain_environment(rig: Rig) -> None:
    key = Key(uuid4(), 1)
    place = await rig.executor.place(key, USER)
    (place.folder / "input").write_bytes(b"\x00in")
    (place.folder / "input").chmod(0o644)
    script = b'#!/bin/sh\nid -un\ncat input\ncat input > output\numask\necho "$HOME $USER ${TZ-none} ${LC_ALL-none}"\n'
    await rig.submit(script, key, outputs=(b"output",))
    outcome = await rig.ended(key)
    assert outcome.exit_code == 0, place.stderr.read_bytes()
    assert place.stdout.read_bytes() == b"alice\n\x00in0022\n/home/alice alice none none\n"
    assert (place.folder / "output").read_bytes() == b"\x00in"


async def test_what_is_handed_over_many_times_runs_once(rig: Rig) -> None:
    key = Key(uuid4(), 1)
    await asyncio.gather(*(rig.submit(ONCE, key) for _ in range(3)))
    await rig.until(key, Sight.RUNNING)
    await rig.wrote(key, "ran")
    rig.restart()
    await rig.submit(ONCE, key)
    (await rig.wrote(key, "ran")).with_name("go-on").touch()
    assert (await rig.ended(key)).exit_code == 0
    await rig.submit(ONCE, key)
    assert (await rig.ended(key)).exit_code == 0
    assert (await rig.wrote(key, "ran")).read_text() == "ran\n"


async def test_another_attempt_is_another_job(rig: Rig) -> None:
    token = uuid4()
    first = await rig.submit(b"#!/bin/sh\nexit 1\n", Key(token, 1))
    second = await rig.submit(b"#!/bin/sh\nexit 2\n", Key(token, 2))
    assert [(await rig.ended(key)).exit_code for key in (first, second)] == [1, 2]


async def test_what_was_fenced_before_its_start_never_runs(rig: Rig) -> None:
    key = Key(uuid4(), 1)
    assert await rig.executor.fence(key)
    assert await rig.executor.fence(key)
    await rig.executor.submit(key, JobSpec(user=USER, script=ONCE), USER)
    assert (await rig.until(key, Sight.FENCED)).outcome is None
    assert not (rig.spool.folder(key) / "work" / "ran").exists()


async def test_a_job_that_started_can_t_be_fenced_and_is_stopped_with_all_it_started(rig: Rig) -> None:
    script = b"#!/bin/sh\ntrap '' TERM\nsleep 1000 &\necho $! > child\nwhile :; do sleep 0.1; done\n"
    key = await rig.submit(script)
    child = int((await rig.wrote(key, "child")).read_text() or "0")
    assert not await rig.executor.fence(key)
    await rig.executor.stop(key)
    outcome = await rig.ended(key)
    assert outcome.end in (End.SIGNALED, End.CANCELLED)
    assert child
    await gone(child)
    await rig.executor.stop(key)  # of what is over: nothing


async def test_to_stop_what_is_not_there_does_nothing(rig: Rig) -> None:
    key = Key(uuid4(), 1)
    await rig.executor.stop(key)
    await rig.executor.signal(key, 10)
    assert (await rig.executor.look([key]))[key].sight is Sight.ABSENT


async def test_a_signal_reaches_the_job_once_and_does_not_end_it(rig: Rig) -> None:
    script = b"#!/bin/sh\ntrap 'echo usr1' USR1\ntouch ready\nuntil [ -e go-on ]; do sleep 0.05; done\nexit 7\n"
    key = await rig.submit(script)
    ready = await rig.wrote(key, "ready")
    await rig.executor.signal(key, 10)
    stdout = rig.spool.folder(key) / "stdout"
    async with asyncio.timeout(30):
        while not stdout.read_bytes():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    ready.with_name("go-on").touch()
    assert (await rig.ended(key)).exit_code == 7
    assert (await rig.place(key)).stdout.read_bytes() == b"usr1\n"


async def test_a_signal_of_a_batch_job_of_slurms_goes_to_its_script_alone(rig: Rig) -> None:
    script = b"""#!/bin/sh
trap 'echo usr1; kill $!' USR1
sh -c 'trap "touch wrong" USR1; touch ready; until [ -e go-on ]; do sleep 0.05; done' &
wait
wait
"""
    key = await rig.submit(script, batch=Batch(joined=True))
    ready = await rig.wrote(key, "ready")
    await rig.executor.signal(key, 10)
    assert (await rig.ended(key)).end is End.EXITED
    assert (await rig.place(key)).stdout.read_bytes() == b"usr1\n"
    assert not ready.with_name("wrong").exists()


async def test_what_a_job_writes_can_be_read_while_it_runs(rig: Rig) -> None:
    key = await rig.submit(b"#!/bin/sh\nprintf 1\n" + ONCE.partition(b"\n")[2] + b"printf 2\n")
    stdout = (await rig.place(key)).stdout
    async with asyncio.timeout(30):
        while not (stdout.exists() and stdout.read_bytes()):
            await rig.executor.look([key])
            await asyncio.sleep(0.05)
    assert stdout.read_bytes() == b"1"
    (await rig.wrote(key, "ran")).with_name("go-on").touch()
    await rig.ended(key)
    assert stdout.read_bytes() == b"12"


async def test_a_job_outlives_its_daemon_and_ends_meanwhile(rig: Rig) -> None:
    key = await rig.submit(ONCE + b"exit 9\n")
    started = await rig.until(key, Sight.RUNNING)
    rig.restart()
    again = await rig.until(key, Sight.RUNNING)
    assert again.started_at == started.started_at
    (await rig.wrote(key, "ran")).with_name("go-on").touch()
    rig.restart()
    assert (await rig.ended(key)).exit_code == 9


async def test_a_job_that_is_over_its_time_limit_is_a_timeout(rig: Rig) -> None:
    outcome, out, _ = await rig.run(b"#!/bin/sh\necho begun\nexec sleep 1000\n", time_limit_s=2)
    assert (outcome.end, out) == (End.TIMEOUT, b"begun\n")
    assert (outcome.ended_at or 0) - (outcome.started_at or 0) < 20


async def test_what_is_forgotten_leaves_its_claim_and_never_runs_again(rig: Rig) -> None:
    key = await rig.submit(b"#!/bin/sh\nmkdir -m 0 closed\necho x\n")
    await rig.ended(key)
    await rig.executor.forget(key)
    await rig.executor.forget(key)
    assert [one.name for one in rig.spool.folder(key).iterdir()] == ["claim"]
    await rig.executor.submit(key, JobSpec(user=USER, script=ONCE), USER)
    assert not await rig.executor.fence(key)
    assert (await rig.until(key, Sight.GONE)).outcome is None


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (b"#!/bin/sh\r\ntrue\r\n", "DOS line breaks"),
        (b"true\n", "does not look like a batch script"),
        (b"", "does not look like a batch script"),
        (b"#!/bin/sh\n\0", "NUL"),
    ],
)
async def test_a_script_that_can_t_run_as_it_is_is_refused_with_the_reason(rig: Rig, script: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        await rig.submit(script)


async def test_a_user_that_is_not_allowed_is_refused_and_one_that_is_not_known_may_be_later(rig: Rig) -> None:
    key = Key(uuid4(), 1)
    for user, error in (("root", Refused), (NOBODY_NOW, Unavailable)):
        with pytest.raises(error):
            await rig.executor.submit(key, JobSpec(user=user, script=ONCE), user)
    assert (await rig.executor.look([key]))[key].sight is Sight.ABSENT


async def test_a_script_whose_interpreter_is_missing_says_so_in_its_errors(rig: Rig) -> None:
    outcome, _, err = await rig.run(b"#!/no/such/shell\n")
    assert outcome.exit_code == 127
    assert b"No such file" in err


async def test_room_is_what_is_idle(rig: Rig) -> None:
    room = await rig.executor.room()
    assert room.pool == "batch"
    assert room.free_jobs > 0
    assert room.free_cpus > 0
    assert room.most_cpus > 0


async def test_what_does_not_fit_now_waits_for_what_runs_by_its_time_limit(rig: Rig) -> None:
    most_cpus = (await rig.executor.room()).most_cpus
    key = await rig.submit(ONCE, cpus=most_cpus, time_limit_s=600)
    await rig.until(key, Sight.RUNNING)
    rig.restart()
    assert 400 < (await rig.executor.room()).starts_in_s <= 720  # Slurm's limit is later, and in minutes
    (await rig.wrote(key, "ran")).with_name("go-on").touch()
    await rig.ended(key)
    async with asyncio.timeout(PATIENCE_S):  # a Slurm has it in its queue for a moment yet
        while await waits_s(rig):  # noqa: ASYNC110 - a queue has no event
            await asyncio.sleep(POLL_S)


async def waits_s(rig: Rig) -> float:
    """As a daemon is told that has asked for nothing before."""
    rig.restart()
    return (await rig.executor.room()).starts_in_s


async def gone(pid: int) -> None:
    async with asyncio.timeout(30):
        while runs(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
