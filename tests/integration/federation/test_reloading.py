"""A reload that fails half-way: what the file said before is in force, whole, and the next one is taken up."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from federation.cli.main import run
from federation.daemon import Daemon, reloaded
from federation.errors import Unavailable
from tests.integration.federation.daemons import PATIENCE_S

CONFIG = """version: 1
site: edge
state_dir: {folder}/state
tls: {{certificate: {folder}/edge/site.pem, ca: [{folder}/edge/ca.pem], crl: [{folder}/edge/crl.pem]}}
local: {{socket: {folder}/sock}}
audit: {{path: {folder}/audit.log}}
"""
POOL = "pools:\n  batch: {{local: {{folder: {folder}/spool}}}}\n"


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """It serves, and its file has got a pool since it began."""
    assert run(["pki", "init", "lab", "--folder", str(tmp_path / "pki")]) == 0
    assert run(["pki", "issue", "edge", "--folder", str(tmp_path / "pki"), "--out", str(tmp_path / "edge")]) == 0
    path = tmp_path / "fed.yaml"
    path.write_text(CONFIG.format(folder=tmp_path))
    daemon = Daemon(path)
    path.write_text((CONFIG + POOL).format(folder=tmp_path))
    async with daemon.running():
        yield daemon
    gc.unfreeze()


def pools(daemon: Daemon) -> tuple[list[str], list[str]]:
    """By its file, and by the rules that its engine goes by."""
    return list(daemon.config.pools), list(daemon.runner.engine.target.house.pools)


async def test_what_can_t_be_taken_up_whole_is_not_taken_up(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_: object) -> None:
        raise Unavailable("too many transactions wait for the journal's disk")

    with monkeypatch.context() as patch:
        patch.setattr(daemon.runner, "act", busy)
        with pytest.raises(Unavailable):
            await daemon.reload()
    assert pools(daemon) == ([], [])
    await daemon.reload()
    assert pools(daemon) == (["batch"], ["batch"])


@pytest.mark.parametrize("fault", [Unavailable("busy"), ZeroDivisionError()])
async def test_a_reload_that_fails_ends_nothing_and_is_told(
    daemon: Daemon, fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, failed, done, whole = asyncio.Event(), asyncio.Event(), asyncio.Event(), daemon.reload

    async def reload() -> None:
        if not failed.is_set():
            failed.set()
            raise fault
        await whole()
        done.set()

    monkeypatch.setattr(daemon, "reload", reload)
    with caplog.at_level(logging.INFO):
        task = asyncio.create_task(reloaded(daemon, asked))
        async with asyncio.timeout(PATIENCE_S):
            for event in (failed, done):
                asked.set()
                await event.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [one.message for one in caplog.records if "reloaded" in one.message] == [
        "daemon.not_reloaded",
        "daemon.reloaded",
    ]
