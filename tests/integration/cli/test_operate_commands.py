"""`vgpu pause`, `resume`, `history` and `top` as a user runs them, the last one on a terminal of its own."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.cli.test_pool_commands import PATIENCE_S, VGPU, Site, site, socket

__all__ = ["site", "socket"]  # fixtures

ROWS, COLUMNS = 12, 60


async def test_pause_and_resume_say_what_is_so_now(site: Site) -> None:
    paused, again, resumed = [
        await site.vgpu(*argv) for argv in (["pause", "a new driver"], ["pause"], ["resume", "--json"])
    ]
    assert (paused.code, paused.err) == (0, "")
    assert paused.out.startswith("re-cutting is paused since ")
    assert paused.out.endswith("by root: a new driver\n")
    assert again.err == "hint: it was so before; nothing was changed\n"
    document = json.loads(resumed.out)
    assert (document["kind"], document["pause"], document["changed"]) == ("pause", None, True)
    assert site.controller.asked == ["a new driver", "", ""]


async def test_a_dry_run_asks_for_nothing(site: Site) -> None:
    pause, resume = await asyncio.gather(*(site.vgpu(verb, "--dry-run") for verb in ("pause", "resume")))
    assert (pause.code, pause.out) == (resume.code, resume.out) == (0, "re-cutting is not paused\n")
    assert pause.err == "hint: without --dry-run it would be paused\n"
    assert resume.err == "hint: it is so already; nothing would change\n"
    assert site.controller.asked == []


async def test_history_asks_for_what_is_wanted_and_tells_of_more(site: Site) -> None:
    text, document, wrong = [
        await site.vgpu(*argv)
        for argv in (
            ["history", "--node", "n1", "--since", "2026-05-31", "--limit", "7"],
            ["history", "--json"],
            ["history", "--since", "soon"],
        )
    ]
    assert text.code == 0
    assert text.out.splitlines()[1].split()[2:] == ["changed", "n1:0", "+3g.40gb@0", "as", "told"]
    assert text.err == "hint: there are older ones: --limit 35\n"
    assert site.controller.asked[0].startswith("n1 17")
    assert site.controller.asked[0].endswith(" 7")
    assert site.controller.asked[1] == " 0 200"
    none = await site.vgpu("history", "--node", "n9")
    assert (none.code, none.err) == (0, "hint: nothing of this is on record; has the pool a node 'n9'?\n")
    (entry,) = json.loads(document.out)["entries"]
    assert (entry["created"], entry["index"]) == (["3g.40gb@0"], 0)
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.startswith("error: Invalid value for '--since': 'soon' is no time")


async def test_top_into_a_pipe_is_one_frame(site: Site) -> None:
    for argv in (["top"], ["top", "--once"]):
        ended = await site.vgpu(*argv)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.count("[####][-][~]..") == 1
        assert "\x1b" not in ended.out


class Terminal:
    """One end of a terminal of ROWS by COLUMNS; a command has the other."""

    def __init__(self, end: int, other: int) -> None:
        self.end, self.other = end, other
        self.text = ""

    async def until(self, what: str) -> None:
        """Read until the command has written this."""
        async with asyncio.timeout(PATIENCE_S):
            while what not in self.text:
                self.text += (await asyncio.to_thread(os.read, self.end, 65536)).decode()


@contextmanager
def terminal() -> Iterator[Terminal]:
    end, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    try:
        yield Terminal(end, other)
    finally:
        os.close(end)
        os.close(other)


async def start(site: Site, terminal: Terminal) -> asyncio.subprocess.Process:
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "VGPU_POOL_CONFIG": str(site.config), "TERM": "xterm"}
    ours = terminal.other
    argv = ("env", "--default-signal=INT", *VGPU, "top")  # whoever runs the tests in the background has it ignored
    return await asyncio.create_subprocess_exec(*argv, env=env, stdin=ours, stdout=ours, stderr=ours)


@pytest.mark.parametrize(("how", "code"), [("q", 0), ("ctrl-c", 130)])
async def test_top_shows_frame_after_frame_and_leaves_the_terminal_as_it_was(site: Site, how: str, code: int) -> None:
    with terminal() as mine:
        before = termios.tcgetattr(mine.other)
        running = await start(site, mine)
        await mine.until("pool hpc")
        site.controller.problems.append("seen in the next frame")
        await mine.until("seen in the next frame")
        if how == "q":
            os.write(mine.end, b"q")
        else:
            running.send_signal(signal.SIGINT)
        await mine.until("\x1b[?1049l")
        assert await asyncio.wait_for(running.wait(), PATIENCE_S) == code
        assert termios.tcgetattr(mine.other) == before
    assert mine.text.startswith("\x1b[?1049h")
    frames = mine.text.split("\x1b[H")[1:]
    assert all(frame.count("\r\n") < ROWS for frame in frames)
    assert "Traceback" not in mine.text


async def test_top_goes_on_while_its_controller_is_away(site: Site, tmp_path: Path) -> None:
    with terminal() as mine:
        running = await start(site, mine)
        await mine.until("pool hpc")
        site.controller.away = True
        await mine.until("error: ")
        site.controller.away = False
        site.controller.problems.append("it is back")
        await mine.until("it is back")
        os.write(mine.end, b"q")
        await mine.until("\x1b[?1049l")
        assert await asyncio.wait_for(running.wait(), PATIENCE_S) == 0
