"""Slurm's commands: no user's text in a name or a format, and nothing that they print is taken for more than it is."""

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from federation.executors import layout, slurm_slices
from federation.executors import slurm_commands as commands
from federation.executors.slurm_commands import Row, Where
from federation.model.spec import Batch, JobSpec
from federation.model.token import Key

KEY = Key(UUID(int=7), 3)
NAME = layout.name_of(KEY)
SPEC = JobSpec(user="ann", name=b"a|b\n%j", script=b"#!/bin/sh\n", cpus=3)


def test_a_job_carries_its_key_and_none_of_its_users_text() -> None:
    argv = commands.submit(KEY, SPEC, "/spool/x", Where())
    assert f"--job-name={NAME}" in argv
    assert {"--parsable", "--no-requeue", "--cpus-per-task=3"} <= set(argv)
    assert argv[-3:] == ["/spool/x/wrapper", "/spool/x", "0"]
    assert not any(b"a|b" in word.encode() for word in argv)


def test_what_is_asked_for_is_passed_on_and_what_is_not_is_left_to_slurm() -> None:
    spec = replace(SPEC, account="phys", gres="vgpu:20gb", memory_mib=500, time_limit_s=61)
    argv = commands.submit(KEY, spec, "/spool/x", Where(partition="gpu", account="other", qos="fed"))
    assert {"--account=phys", "--gres=vgpu:20gb", "--mem=500M", "--time=3", "--partition=gpu", "--qos=fed"} <= set(argv)
    assert argv[-1] == "61"
    plain = commands.submit(KEY, SPEC, "/spool/x", Where())
    assert not any(
        word.startswith(("--account", "--gres", "--mem", "--time", "--partition", "--qos")) for word in plain
    )


@pytest.mark.parametrize(
    ("text", "job_id"),
    [("17\n", "17"), ("17;cluster\n", "17"), ("hello of a plugin\n18\n", "18"), ("", ""), ("17", ""), ("no\n", "")],
)
def test_an_id_is_the_last_line_and_nothing_else(text: str, job_id: str) -> None:
    assert commands.parse_submit(text) == job_id


def test_rows_of_ours_are_known_by_their_name_and_others_are_passed_over() -> None:
    text = (
        f"17|1001|RUNNING|n1|150|{NAME}\n18|1001|PENDING||N/A|somebody's|x\n"
        f"19|1001|CANCELLED by 0||Unknown|{NAME}\n20|1001|CANCELLED|None assigned|N/A|{NAME}\n"
    )
    rows = commands.parse_rows(text)
    assert rows == {
        KEY: [
            Row(job_id="17", uid=1001, state="RUNNING", placed=True, started_at=150),
            Row(job_id="19", uid=1001, state="CANCELLED by 0"),
            Row(job_id="20", uid=1001, state="CANCELLED"),
        ]
    }


@pytest.mark.parametrize(
    "text", ["slurm_load_jobs error\n", "17|ann|RUNNING||x\n", "17|1001|RUNNING|n1|x\n", "17|1001\n", "\n"]
)
def test_what_is_no_row_makes_the_whole_answer_unknown(text: str) -> None:
    with pytest.raises(ValueError):
        commands.parse_rows(text)


def test_a_job_is_looked_for_in_every_partition() -> None:
    for argv in (commands.queue([KEY]), commands.accounting([KEY], 0.0)):
        assert f"--name={NAME}" in argv
        assert not any("partition" in word or word.startswith("-p") for word in argv)
    assert {"--all", "--states=all"} <= set(commands.queue([KEY]))


def test_the_accounting_is_asked_from_before_the_job_was_made_in_utc() -> None:
    assert "--starttime=2023-11-14T21:13:20" in commands.accounting([KEY], 1_700_000_000.0)
    assert "--starttime=1970-01-01T00:00:00" in commands.accounting([KEY], 0.0)


def test_signals_that_a_wrapper_can_t_hand_on_go_to_all_processes() -> None:
    assert commands.signal(KEY, 5, 10)[-1] == "--batch"
    for number in (9, 15, 18, 19, 20):
        assert commands.signal(KEY, 5, number)[-1] == "--full"


def test_room_is_what_is_idle_in_partitions_that_are_up() -> None:
    lines = (
        "3/5/0/8|1-00:00:00|up|a|8|4000|vgpu:4\n0/2/0/2|30:00|up|b|2|900|(null)\n"
        "0/90/0/90|infinite|down|c|90|9000|gpu:1\n"
    )
    room, gres = commands.parse_room(lines, "hpc")
    assert (room.pool, room.free_cpus, room.longest_s) == ("hpc", 7, 86_400)
    assert (room.most_cpus, room.most_memory_mib) == (8, 4000)
    assert gres == {"vgpu", "(null)"}
    open_end, _ = commands.parse_room("0/3/0/3|infinite|up|a|1+|500|(null)\n", "hpc")
    assert (open_end.longest_s, open_end.most_cpus, open_end.most_memory_mib) == (0, 0, 500)
    for wrong in (
        "sinfo: error\n",
        "a|b|up|d|8|9|e\n",
        "0/1/0/1|infinite|up|a|x|9|e\n",
        "0/1/0/1|infinite|up|a|(null)\n",
    ):
        with pytest.raises(ValueError):
            commands.parse_room(wrong, "hpc")


def test_the_partition_that_a_job_goes_to_by_default_is_the_one_that_counts() -> None:
    lines = "0/8/0/8|infinite|up|gpu*|8|9|vgpu:4\n0/8/0/8|infinite|up|all|8|9|vgpu:4,tape:1\n"
    room, gres = commands.parse_room(lines, "hpc")
    assert (room.free_cpus, *gres) == (8, "vgpu")


@pytest.mark.parametrize(("text", "seconds"), [("30:00", 1800), ("1:00:00", 3600), ("2-00:00:01", 172_801), ("5", 5)])
def test_a_time_limit_is_in_seconds(text: str, seconds: int) -> None:
    assert commands.seconds(text) == seconds


@pytest.mark.parametrize(
    ("asked", "limit_s", "passed_on"),
    [
        ("B:USR1@300", 3600, "--signal=B:USR1@360"),  # Slurm's limit is a minute later than the user's
        ("B:USR1@300", 3601, "--signal=B:USR1@419"),
        ("10", 0, "--signal=10@60"),
    ],
)
def test_a_warning_before_the_limit_comes_as_long_before_the_users_own(
    asked: str, limit_s: int, passed_on: str
) -> None:
    spec = replace(SPEC, batch=Batch(warning=asked), time_limit_s=limit_s)
    assert passed_on in commands.submit(KEY, spec, "/spool/x", Where())
    assert not any(word.startswith("--signal") for word in commands.submit(KEY, SPEC, "/spool/x", Where()))


@pytest.mark.parametrize(
    ("queue", "at"),
    [
        ("", 0.0),
        ("RUNNING|1000|5000|None\nRUNNING|1000|3000|None\n", 3000.0),  # nothing waits: room is there at the next end
        ("RUNNING|1000|N/A|None\n", 0.0),  # it has no limit
        (
            "RUNNING|1000|3000|None\nPENDING|N/A|N/A|Dependency\n",
            3000.0,
        ),  # that one is before nobody
        ("RUNNING|1000|3000|None\nPENDING|3000|9000|Resources\nPENDING|7000|9000|Priority\n", 7000.0),
        ("RUNNING|1000|3000|None\nPENDING|N/A|N/A|Priority\n", 0.0),  # who is behind it waits longer than for that end
    ],
)
def test_when_there_is_room_is_what_the_queue_foresees(queue: str, at: float) -> None:
    assert commands.parse_waits(queue) == at


def test_a_queue_that_can_t_be_read_foresees_nothing() -> None:
    with pytest.raises(ValueError, match="slurm_load_jobs"):
        commands.parse_waits("slurm_load_jobs error: Zero Bytes were transmitted\n")


@pytest.mark.parametrize("asks", [commands.room, commands.waits, slurm_slices.query])
def test_sinfo_is_given_a_partition_or_told_to_show_all_and_never_both(asks: Callable[[Where], list[str]]) -> None:
    assert "--all" in asks(Where())
    named = asks(Where(partition="gpu"))
    assert "--partition=gpu" in named
    assert "--all" not in named
