"""Times that people write, and what they read of the history and of a pause."""

import time
from dataclasses import replace

import pytest
import typer

from slurm_plugin import history
from slurm_plugin.cli import operate
from slurm_plugin.cli.convert import pool_view
from slurm_plugin.cli.operate import _since
from slurm_plugin.cli.text import history_lines, pause_line, plan_lines, status_lines
from slurm_plugin.cli.view import PauseView, PlanView
from slurm_plugin.history import Entry, History, What
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from tests.unit.cli.pools import status

NOW = 1_700_000_000.0


def clock(at: float) -> str:
    return f"at {at:.0f}"


def test_the_bounds_are_those_of_the_controller() -> None:
    assert (operate.LIMIT, operate.LIMIT_MAX) == (history.LIMIT, history.LIMIT_MAX)


@pytest.mark.parametrize(
    ("text", "at"),
    [("", 0.0), ("90s", NOW - 90), ("30m", NOW - 1800), ("1h", NOW - 3600), ("2d", NOW - 172800), ("1w", NOW - 604800)],
)
def test_a_length_of_time_is_counted_back(text: str, at: float) -> None:
    assert _since(text, NOW) == at


def test_a_time_longer_ago_than_there_are_seconds_is_the_beginning() -> None:
    assert _since("999999999w", NOW) == 0.0


@pytest.mark.parametrize(
    ("text", "form"),
    [("2026-05-31", "%Y-%m-%d"), ("2026-05-31T14:05", "%Y-%m-%dT%H:%M"), ("2026-05-31T14:05:59", "%Y-%m-%dT%H:%M:%S")],
)
def test_a_date_is_the_local_one(text: str, form: str) -> None:
    assert time.strftime(form, time.localtime(_since(text, NOW))) == text


@pytest.mark.parametrize(
    "text", ["1", "h", "-1h", "1.5h", "1 h", "yesterday", "2026-13-01", "2026-05-31 14:05", "9" * 30]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no time"):
        _since(text, NOW)


def test_the_history_is_a_line_an_entry() -> None:
    failed = Entry(at=3, what=What.FAILED, node="n1", gpu="GPU-a", index=3, why="as above", error="in use")
    lines = history_lines(
        History(
            entries=(
                Entry(at=1, what=What.STARTED),
                replace(
                    failed,
                    at=2,
                    what=What.CHANGED,
                    destroyed=("1g.10gb@0", "1g.10gb@1"),
                    created=("2g.20gb@0",),
                    why="2g.20gb for 1 job of 2g.20gb",
                    took_s=2.54,
                    error="",
                ),
                failed,
                Entry(at=4, what=What.GUARANTEE, guarantee="class x: at least 2", have=1, at_least=2, why="1 lacks"),
                Entry(at=5, what=What.PAUSED, why="driver\nupdate", uid=7),
                Entry(at=6, what=What.APPLIED, uid=7),
            ),
            more=False,
        ),
        lambda uid: f"user {uid}",
        clock,
    )
    assert [line.split("  ")[0] for line in lines] == ["WHEN", *(f"at {nth}" for nth in range(1, 7))]
    words = lines[2].split()
    assert words[2:8] == ["changed", "n1:3", "-1g.10gb@0", "-1g.10gb@1", "+2g.20gb@0", "2.5s"]
    assert lines[2].endswith("  2g.20gb for 1 job of 2g.20gb")
    assert lines[3].endswith("in use; as above")
    assert lines[4].endswith("class x: at least 2: has 1 of 2, 1 lacks")
    assert lines[5].endswith(r"by user 7: driver\nupdate")
    assert lines[6].endswith("by user 7")


def test_a_pause_is_in_the_status_and_says_who_and_why() -> None:
    pool = status()
    pool.pause.CopyFrom(pb.Pause(since=1000, uid=7, reason="\x1b[31mred"))
    line = status_lines(pool_view(pool), lambda uid: f"user {uid}", NOW, clock)[1]
    assert line == r"re-cutting is paused since at 1000 by user 7: \x1b[31mred"
    assert pause_line(PauseView(since=1, uid=0, reason=""), str, clock) == "re-cutting is paused since at 1 by 0"
    assert pool_view(status()).pause is None


def test_a_plan_says_what_it_comes_to_and_whom_it_does_not_serve() -> None:
    plan = PlanView(gpus=(), problems=("p",), why="1 GPU changes", waiting=("job 7: no room",))
    assert plan_lines(plan)[-3:] == ["for the queue: 1 GPU changes", "waits on: job 7: no room", "problem: p"]
