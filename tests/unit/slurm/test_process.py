import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.slurm import process
from slurm_plugin.slurm.commands import NODES_A_CALL, SlurmCommands
from slurm_plugin.slurm.hostlist import expand
from slurm_plugin.slurm.process import Runner, Site


def command(folder: Path, name: str, script: str) -> Site:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Site(bin_dir=folder, conf=folder / "slurm.conf", timeout_s=10)


async def test_a_child_sees_no_environment_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%j")
    monkeypatch.setenv("SLURM_CONF", "/elsewhere")
    site = command(tmp_path, "squeue", "env; pwd >/dev/null; read line || echo stdin-empty")
    lines = set((await Runner(site).run(["squeue"])).splitlines())
    assert {f"SLURM_CONF={tmp_path}/slurm.conf", "LC_ALL=C", "TZ=UTC", "SLURM_TIME_FORMAT=%s", "stdin-empty"} <= lines
    assert not any(line.startswith("SQUEUE_FORMAT") for line in lines)


@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "scontrol: error: Socket timed out on send/recv operation",
        "slurm_update error: Resource temporarily unavailable",
        'error: Munge encode failed: Failed to access "/run/munge": No such file',
        "slurm_load_node error: Slurm backup controller in standby mode",
        "Unexpected message received for job 1",
        "sbatch: error: Batch job submission failed: Unexpected missing socket error",
        "squeue: error: Header lengths are longer than data received",
        "sbatch: error: Batch job submission failed: Rate limit exceeded, please retry later",
    ],
)
async def test_no_answer_is_an_unknown_outcome(tmp_path: Path, said: str) -> None:
    site = command(tmp_path, "scontrol", f"echo '{said}' >&2; exit 1")
    with pytest.raises(SlurmUnavailable) as failed:
        await Runner(site).run(["scontrol", "update"])
    assert failed.value.transient
    assert failed.value.hint


async def test_a_no_is_a_no(tmp_path: Path) -> None:
    site = command(tmp_path, "scontrol", "echo 'slurm_update error: Invalid node name specified' >&2; exit 1")
    with pytest.raises(SlurmError, match="scontrol update: slurm_update error: Invalid node name") as failed:
        await Runner(site).run(["scontrol", "update"])
    assert not isinstance(failed.value, SlurmUnavailable)


async def test_a_missing_command_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="could not be started") as failed:
        await Runner(Site(bin_dir=tmp_path)).run(["squeue"])
    assert "PATH" in failed.value.hint


@pytest.mark.parametrize(
    ("number", "transient"),
    [(errno.EAGAIN, True), (errno.EMFILE, True), (errno.ENOMEM, True), (errno.EACCES, False), (errno.ENOENT, False)],
    ids=lambda value: errno.errorcode[value] if value > 1 else str(value),
)
async def test_a_host_short_of_room_is_no_answer_and_not_a_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, transient: bool
) -> None:
    async def no_child(*_argv: str, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", no_child)
    runner = Runner(Site(bin_dir=tmp_path))
    for _ in range(process.MAX_AT_ONCE + 1):  # a failed start gives its turn back
        with pytest.raises(SlurmError, match="could not be started") as failed:
            await runner.run(["squeue"])
        assert isinstance(failed.value, SlurmUnavailable) is transient


async def test_the_wait_for_a_turn_is_bounded_in_time_and_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MAX_AT_ONCE", 1)
    monkeypatch.setattr(process, "MAX_WAITING", 1)
    started = tmp_path / "started"
    os.mkfifo(started)
    runner = Runner(command(tmp_path, "squeue", f"echo $$ > {tmp_path}/pid; echo x > {started}; exec sleep 60"))
    holds = asyncio.create_task(runner.run(["squeue"]))
    await asyncio.to_thread(started.read_text)
    waits = asyncio.create_task(runner.run(["squeue"], timeout_s=0.3))
    await asyncio.sleep(0)
    with pytest.raises(SlurmUnavailable, match="1 other commands are waiting"):
        await runner.run(["squeue"])
    with pytest.raises(SlurmUnavailable, match=r"took all of 0\.3 s"):
        await waits
    assert runner.refused == 2
    holds.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holds


async def test_a_child_past_its_limit_is_killed_and_reaped(tmp_path: Path) -> None:
    site = command(tmp_path, "squeue", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    with pytest.raises(SlurmUnavailable, match=r"no answer in 0\.3 s"):
        await Runner(site).run(["squeue"], timeout_s=0.3)
    assert not _alive(tmp_path)


async def test_a_cancelled_call_leaves_no_child(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    site = command(tmp_path, "squeue", f"echo $$ > {tmp_path}/pid; echo x > {started}; exec sleep 60")
    call = asyncio.create_task(Runner(site).run(["squeue"]))
    await asyncio.to_thread(started.read_text)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not _alive(tmp_path)


def _alive(folder: Path) -> bool:
    return Path(f"/proc/{(folder / 'pid').read_text().strip()}").exists()


async def test_an_endless_answer_is_refused_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_OUTPUT_BYTES", 1000)
    site = command(tmp_path, "squeue", "head -c 300000 /dev/zero")
    with pytest.raises(SlurmError, match="more than 1000 bytes"):
        await Runner(site).run(["squeue"])


async def test_bytes_that_are_no_text_do_not_break_a_call(tmp_path: Path) -> None:
    site = command(tmp_path, "squeue", r"printf '\377\376ok'")
    assert (await Runner(site).run(["squeue"])).endswith("ok")


class Kept:
    """Keeps the commands, answers nothing."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
        self.calls.append(list(argv))
        return ""


async def test_many_nodes_are_set_in_calls_that_fit_an_argument() -> None:
    kept = Kept()
    names = [f"gpu{number}" for number in range(1, 2 * NODES_A_CALL + 2)]
    await SlurmCommands(runner=kept).set_gres(names, "vgpu:1")
    assert len(kept.calls) == 3
    assert all(len(argument) < 100_000 for call in kept.calls for argument in call)
    sent = [name for call in kept.calls for name in expand(call[2].removeprefix("nodename="))]
    assert sorted(sent) == sorted(names)
