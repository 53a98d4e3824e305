"""What a job's folder, squeue and the accounting say together, and what silence of any of them means."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import pytest

from federation.errors import FedError, NoRoom, OutcomeUnknown, Refused, Unavailable
from federation.executors import layout
from federation.executors.layout import Claim, Ending, Record
from federation.executors.slurm import SETTLES_S, SlurmExecutor, SlurmPool
from federation.model.spec import JobSpec
from federation.model.states import End, Outcome
from federation.model.token import Key
from federation.ports import Place, Seen, Sight
from slurm_plugin.errors import SlurmError, SlurmUnavailable

KEY = Key(UUID(int=7), 1)
NAME = layout.name_of(KEY)
SPEC = JobSpec(user="ann", script=b"#!/bin/sh\n")
CLAIM = Claim(pid=1, start=2, boot="b", at=100.0)
WAITING = Record(uid=1001, since=50.0)
CLAIMED = Record(uid=1001, since=50.0, claim=CLAIM, sizes=(5, 6))
SILENT = SlurmUnavailable("squeue: Unable to contact slurm controller")
NO_DBD = SlurmError("sacct: Slurm accounting storage is disabled")


def row(state: str, uid: int = 1001, nodes: str = "", start: str = "99") -> str:
    return f"17|{uid}|{state}|{nodes}|{start}|{NAME}\n"


def ended(code: int | None, signal: int | None = None, *, by_term: bool = False, at: float = 200.0) -> Record:
    end = End.EXITED if signal is None else End.SIGNALED
    outcome = Outcome(end=end, exit_code=code, signal=signal, started_at=100.0, ended_at=at, stdout_size=1)
    return Record(uid=1001, since=50.0, claim=CLAIM, ending=Ending(outcome=outcome, by_term=by_term))


@dataclass
class Host:
    """Typed against the port; answers what it was told to."""

    record: Record
    says: Mapping[str, str | Exception] = field(default_factory=dict)
    ours: bool = True
    asked: list[str] = field(default_factory=list)
    fenced: list[Key] = field(default_factory=list)

    async def place(self, key: Key, user: str) -> Place:
        return Place(folder=Path("/w"), stdout=Path("/o"), stderr=Path("/e"))

    async def lay(self, key: Key, spec: JobSpec, user: str) -> str:
        return "/spool/x"

    async def records(self, keys: Sequence[Key]) -> Mapping[Key, Record]:
        return dict.fromkeys(keys, self.record)

    async def here(self, key: Key, outcome: Outcome) -> bool:
        return True

    async def fence(self, key: Key, end: End | None = None) -> bool:
        self.fenced.append(key)
        self.record = replace(self.record, claim=Claim(fence=True, end=end)) if self.ours else self.record
        return self.ours

    async def forget(self, key: Key) -> None:
        self.asked.append("forget")

    async def text(self, path: Path) -> str:
        return ""

    async def run(self, argv: Sequence[str], user: str = "") -> str:
        self.asked.append(argv[0])
        said = self.says[argv[0]]
        if isinstance(said, Exception):
            raise said
        return said


async def look(host: Host) -> Seen | None:
    return (await SlurmExecutor(SlurmPool(name="hpc"), host).look([KEY])).get(KEY)


async def sight(record: Record, squeue: str | Exception, sacct: str | Exception = "") -> Sight | None:
    seen = await look(Host(record, {"squeue": squeue, "sacct": sacct}))
    return seen.sight if seen else None


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (SlurmUnavailable("sbatch: Socket timed out on send/recv operation"), OutcomeUnknown),
        ("", OutcomeUnknown),
        ("it went well\n", OutcomeUnknown),
        (SlurmError("sbatch: error: Batch job submission failed: Invalid account"), Refused),
        (SlurmError("sbatch: error: Slurm temporarily unable to accept job"), NoRoom),
        (SlurmError("Job violates accounting/QOS policy (job submit limit, user's size"), NoRoom),
        (SlurmError("sbatch: error: Requested node configuration is not available"), Unavailable),
    ],
)
async def test_what_sbatch_says_is_an_answer_or_is_none(said: str | Exception, error: type[FedError]) -> None:
    with pytest.raises(error) as raised:
        await SlurmExecutor(SlurmPool(name="hpc"), Host(WAITING, {"sbatch": said})).submit(KEY, SPEC, "ann")
    assert type(raised.value) is error


async def test_what_is_claimed_is_not_submitted_again() -> None:
    host = Host(CLAIMED, {"sbatch": "18\n"})
    await SlurmExecutor(SlurmPool(name="hpc"), host).submit(KEY, SPEC, "ann")
    assert host.asked == []


async def test_a_squeue_that_fails_is_no_verdict() -> None:
    for record in (WAITING, CLAIMED, ended(1), Record()):
        assert await sight(record, SILENT) is None
        assert await sight(record, SlurmError("squeue: error: something")) is None
        assert await sight(record, "slurm_load_jobs: what?\n") is None


async def test_an_accounting_that_fails_is_no_verdict_and_one_that_is_not_there_is_none_to_ask() -> None:
    assert await sight(WAITING, "", SlurmUnavailable("sacct: Connection refused")) is None
    assert await sight(WAITING, "", NO_DBD) is Sight.ABSENT
    assert await sight(CLAIMED, "", NO_DBD) is Sight.GONE
    host = Host(CLAIMED, {"squeue": "", "sacct": NO_DBD})
    executor = SlurmExecutor(SlurmPool(name="hpc"), host)
    await executor.look([KEY])
    await executor.look([KEY])
    assert host.asked == ["squeue", "sacct", "squeue"]


async def test_a_good_end_on_record_needs_no_slurm() -> None:
    host = Host(ended(0), {})
    seen = await look(host)
    assert seen is not None
    assert (seen.sight, host.asked) == (Sight.EXITED, [])


async def test_a_job_that_slurm_forgot_is_absent_before_its_claim_and_gone_after() -> None:
    assert await sight(WAITING, "") is Sight.ABSENT
    assert await sight(Record(), "") is Sight.ABSENT
    assert await sight(CLAIMED, "") is Sight.GONE


async def test_an_accounting_that_missed_an_end_keeps_no_job_alive() -> None:
    assert await sight(CLAIMED, "", row("RUNNING")) is Sight.GONE
    assert await sight(WAITING, "", row("PENDING")) is Sight.ABSENT


@pytest.mark.parametrize(
    "state", ["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SPECIAL_EXIT", "NEW_WORD"]
)
async def test_a_job_that_lives_waits_until_its_claim_and_runs_after(state: str) -> None:
    assert await sight(WAITING, row(state)) is Sight.PENDING
    assert await sight(CLAIMED, row(state)) is Sight.RUNNING


async def test_a_job_of_another_user_with_the_same_name_is_not_ours() -> None:
    assert await sight(WAITING, row("PENDING", uid=1002)) is Sight.ABSENT
    assert await sight(CLAIMED, row("RUNNING", uid=1002)) is Sight.GONE


async def test_of_two_copies_the_one_that_lives_counts() -> None:
    assert await sight(WAITING, row("COMPLETED") + row("PENDING")) is Sight.PENDING


@pytest.mark.parametrize(
    ("state", "end"),
    [("CANCELLED by 0", End.CANCELLED), ("BOOT_FAIL", End.NODE_FAIL), ("DEADLINE", End.TIMEOUT), ("FAILED", End.LOST)],
)
async def test_what_ended_before_its_claim_is_claimed_by_us_and_then_over(state: str, end: End) -> None:
    host = Host(WAITING, {"squeue": "", "sacct": row(state)})
    seen = await look(host)
    assert seen is not None
    assert seen.outcome is not None
    assert (seen.sight, seen.outcome.end, seen.outcome.started_at, host.fenced) == (Sight.EXITED, end, None, [KEY])
    again = await look(Host(host.record))  # the first answer was lost, and Slurm may have forgotten
    assert again is not None
    assert again.outcome is not None
    assert (again.sight, again.outcome.end, again.outcome.started_at) == (Sight.EXITED, end, None)


async def test_what_its_node_could_not_start_and_cancelled_is_handed_over_again() -> None:
    assert await sight(WAITING, row("FAILED", nodes="n1")) is Sight.ABSENT  # its wrapper had no room for a claim
    assert await sight(WAITING, row("COMPLETED", nodes="n1")) is Sight.EXITED
    cancelled = row("CANCELLED", nodes="n[1-2]")
    assert await look(Host(WAITING, {"squeue": cancelled, "sacct": ""})) == Seen(sight=Sight.ABSENT, handle="17")
    assert await look(Host(WAITING, {"squeue": "", "sacct": ""})) == Seen(sight=Sight.ABSENT)
    assert await sight(WAITING, "", row("CANCELLED by 0", nodes="n1")) is Sight.ABSENT
    assert await sight(WAITING, cancelled + row("PENDING")) is Sight.PENDING
    assert await sight(CLAIMED, cancelled) is Sight.EXITED
    host = Host(WAITING, {"squeue": cancelled + row("CANCELLED", nodes=""), "sacct": ""})
    await look(host)
    assert host.fenced == [KEY]  # the second one was cancelled while it waited


class FullFor(Host):
    """For this attempt's folder there is no room."""

    async def fence(self, key: Key, end: End | None = None) -> bool:
        if key == KEY:
            raise Unavailable("the attempt can't be claimed: No space left on device")
        return await super().fence(key, end)


async def test_a_folder_that_takes_nothing_more_hides_no_other_job() -> None:
    other = Key(UUID(int=8), 1)
    over = row("FAILED")
    host = FullFor(WAITING, {"squeue": over + over.replace(NAME, layout.name_of(other)), "sacct": ""})
    seen = await SlurmExecutor(SlurmPool(name="hpc"), host).look([KEY, other])
    assert {key: one.sight for key, one in seen.items()} == {other: Sight.EXITED}


async def test_what_started_after_all_is_looked_at_again() -> None:
    host = Host(WAITING, {"squeue": row("FAILED"), "sacct": ""}, ours=False)
    assert await look(host) is None


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("TIMEOUT", End.TIMEOUT),
        ("NODE_FAIL", End.NODE_FAIL),
        ("PREEMPTED", End.PREEMPTED),
        ("OUT_OF_MEMORY", End.OUT_OF_MEMORY),
        ("CANCELLED by 1000", End.CANCELLED),
    ],
)
async def test_an_end_that_left_no_record_is_slurms_to_tell(state: str, end: End) -> None:
    seen = await look(Host(CLAIMED, {"squeue": row(state), "sacct": ""}))
    assert seen is not None
    assert seen.outcome is not None
    assert (seen.outcome.end, seen.outcome.stdout_size, seen.outcome.stderr_size) == (end, 5, 6)
    assert seen.outcome.started_at == 100.0


async def test_an_end_that_left_no_record_and_that_slurm_calls_good_is_believed_of_nobody() -> None:
    assert await sight(CLAIMED, row("COMPLETED")) is Sight.GONE
    assert await sight(CLAIMED, row("FAILED")) is Sight.GONE


async def test_slurm_tells_why_a_job_was_killed_that_recorded_its_death() -> None:
    for record, state, end in (
        (ended(None, 9), "OUT_OF_MEMORY", End.OUT_OF_MEMORY),
        (ended(None, 15, by_term=True), "TIMEOUT", End.TIMEOUT),
        (ended(0, by_term=True), "PREEMPTED", End.PREEMPTED),
        (ended(137), "OUT_OF_MEMORY", End.OUT_OF_MEMORY),
        (ended(None, 15), "CANCELLED by 0", End.CANCELLED),
        (ended(3), "FAILED", End.EXITED),
        (ended(None, 9), "FAILED", End.SIGNALED),
    ):
        seen = await look(Host(record, {"squeue": row(state), "sacct": ""}))
        assert seen is not None
        assert seen.outcome is not None
        assert seen.outcome.end is end
        assert seen.outcome.stdout_size == 1


async def test_one_that_slurm_took_back_before_it_started_says_nothing_of_the_one_that_ran() -> None:
    rows = row("CANCELLED by 0", nodes="n1") + row("FAILED", nodes="n1")
    record = ended(None, 9)
    seen = await look(Host(record, {"squeue": rows, "sacct": ""}))
    assert seen is not None
    assert record.ending is not None
    assert seen.outcome == record.ending.outcome


@pytest.mark.parametrize("state", ["CANCELLED", "FAILED", "COMPLETED"])
async def test_what_became_of_a_later_start_says_nothing_of_the_one_that_ran(state: str) -> None:
    """A slurmctld that forgot the first start ends that, and its slurmd refuses the second."""
    later = row(state, nodes="n1", start="101")
    assert await sight(CLAIMED, later) is Sight.GONE
    for record in (ended(None, 9), ended(None, 15)):
        seen = await look(Host(record, {"squeue": later, "sacct": ""}))
        assert seen is not None
        assert record.ending is not None
        assert seen.outcome == record.ending.outcome
    for record in (ended(None, 15, by_term=True), ended(0, by_term=True)):
        seen = await look(Host(record, {"squeue": later, "sacct": ""}))
        assert seen is not None
        assert seen.outcome is not None
        assert seen.outcome.end is End.LOST
        assert seen.outcome.stdout_size == 1


@pytest.mark.parametrize(
    ("state", "start", "end"),
    [
        *(("CANCELLED", start, End.CANCELLED) for start in ("99", "100", "N/A", "Unknown")),
        ("TIMEOUT", "105", End.TIMEOUT),
        ("NODE_FAIL", "105", End.NODE_FAIL),
    ],
)
async def test_a_start_that_is_not_later_or_ended_as_no_refused_one_does_is_the_one_that_ran(
    state: str, start: str, end: End
) -> None:
    seen = await look(Host(CLAIMED, {"squeue": row(state, nodes="n1", start=start), "sacct": ""}))
    assert seen is not None
    assert seen.outcome is not None
    assert seen.outcome.end is end


@pytest.mark.parametrize("state", ["CANCELLED by 0", "NODE_FAIL", "PREEMPTED", "TIMEOUT"])
async def test_what_ended_by_itself_did_so_whatever_a_slurm_that_was_away_calls_it(state: str) -> None:
    for record in (ended(3), ended(None, 11)):
        seen = await look(Host(record, {"squeue": row(state), "sacct": ""}))
        assert seen is not None
        assert record.ending is not None
        assert seen.outcome == record.ending.outcome


async def test_slurm_gets_time_to_say_why_a_job_ended_and_no_more() -> None:
    now = time.time()
    assert await sight(ended(1, at=now), row("COMPLETING")) is Sight.RUNNING
    assert await sight(ended(1, at=now - SETTLES_S - 1), row("COMPLETING")) is Sight.EXITED
    assert await sight(ended(0, at=now), row("COMPLETING")) is Sight.EXITED


async def test_a_cancel_that_got_no_answer_is_not_taken_for_done() -> None:
    executor = SlurmExecutor(SlurmPool(name="hpc"), Host(CLAIMED, {"scancel": SILENT}))
    with pytest.raises(Unavailable):
        await executor.stop(KEY)
    gone = SlurmError("scancel: error: Kill job error on job id 17: Invalid job id specified")
    await SlurmExecutor(SlurmPool(name="hpc"), Host(CLAIMED, {"scancel": gone})).stop(KEY)


async def test_what_is_fenced_is_taken_out_of_slurm_as_far_as_that_is_possible() -> None:
    host = Host(WAITING, {"scancel": SILENT})
    assert await SlurmExecutor(SlurmPool(name="hpc"), host).fence(KEY)
    assert (host.fenced, host.asked) == ([KEY], ["scancel"])
    seen = await look(Host(Record(uid=1001, claim=Claim(fence=True))))
    assert seen == Seen(sight=Sight.FENCED)


SINFO = "8/0/0/8|infinite|up|batch*|8|4000|(null)\n"


async def test_when_there_is_room_is_told_by_the_queue_asked_now_and_then_and_else_by_its_file() -> None:
    pool = SlurmPool(name="hpc", starts_in_s=900.0)
    host = Host(WAITING, {"sinfo": SINFO, "squeue": f"RUNNING|1000|{time.time() + 500:.0f}|None\n"})
    executor = SlurmExecutor(pool, host)
    for _ in range(2):
        assert 400 < (await executor.room()).starts_in_s <= 501
    assert host.asked.count("squeue") == 1
    for silent in (SILENT, "?\n", ""):
        room = await SlurmExecutor(pool, Host(WAITING, {"sinfo": SINFO, "squeue": silent})).room()
        assert (room.free_jobs, room.starts_in_s) == (pool.most_jobs, 900.0)
