"""Certificates are renewed on both ends while a stream is open, and nobody restarts anything."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from federation.errors import ConfigError, Unavailable, Untrusted
from federation.pki.authority import CRL, SITE_FILE
from federation.pki.credentials import Keeper
from federation.pki.dial import Far, connected, dial
from tests.integration.federation.pki.world import SPEAK, STREAM, WAIT_S, dialled, echo, exchange, now, served, world


@pytest.mark.parametrize("method", [STREAM, SPEAK])
async def test_both_ends_renew_under_a_live_stream(tmp_path: Path, method: str) -> None:
    sites = world(tmp_path, "edge", "hpc")
    edge = sites.keeper("edge")
    async with served(sites, "hpc") as hpc, dialled(sites, "edge", "hpc", hpc.address) as line:
        call: Any = line.channel.stream_stream(method)()
        await exchange(call, b"before")
        old = hpc.keeper.current.leaf
        sites.renew("hpc")
        sites.renew("edge")
        assert hpc.keeper.reload()
        assert edge.reload()
        assert not edge.reload()  # nothing has changed since
        assert (await exchange(call, b"after")).endswith(b"after")
        line.check(edge.current, now())  # still believed

        fresh = await dial(hpc.address, "hpc", edge.current, now())
        async with fresh.channel:
            assert fresh.far != old
            assert fresh.far == hpc.keeper.current.leaf
            assert await echo(fresh) == b"edge hello"
            assert (await exchange(call, b"still")).endswith(b"still")


async def test_a_caller_gives_up_a_server_that_is_revoked(tmp_path: Path) -> None:
    """Though its own side of an open stream would go on for ever."""
    sites = world(tmp_path, "edge", "hpc", "lost")
    edge = sites.keeper("edge")
    waits, opened = asyncio.Event(), asyncio.Event()

    async def caller(address: str) -> None:
        async with connected(Far(site="hpc", address=address), edge, now) as channel:
            call: Any = channel.stream_stream(STREAM)()
            assert await exchange(call, b"x") == b"edge x"
            opened.set()
            await waits.wait()

    async with served(sites, "hpc") as hpc:
        calling = asyncio.create_task(caller(hpc.address))
        await asyncio.wait_for(opened.wait(), WAIT_S)
        sites.revoke("lost", told=("edge",))
        assert edge.reload()  # that changes nothing for hpc
        sites.revoke("hpc", told=("edge",))
        assert edge.reload()
        with pytest.raises(Untrusted, match="hpc was revoked"):
            await asyncio.wait_for(calling, WAIT_S)
        assert not edge._listeners

        sites.issue("hpc")
        assert hpc.keeper.reload()
        calling = asyncio.create_task(caller(hpc.address))
        opened.clear()
        await asyncio.wait_for(opened.wait(), WAIT_S)
        calling.cancel()  # somebody else's cancel is what it is
        with pytest.raises(asyncio.CancelledError):
            await calling


@pytest.mark.parametrize("cleans_up", [True, False])
@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_server_that_is_given_up_as_its_caller_is_cancelled(
    tmp_path: Path, cancelled: bool, cleans_up: bool
) -> None:
    """At one moment, and what is cleaned up then may fail: only who was cancelled by somebody else is cancelled."""
    sites = world(tmp_path, "edge", "hpc")
    edge = sites.keeper("edge")
    opened = asyncio.Event()

    async def calls(address: str) -> None:
        async with connected(Far(site="hpc", address=address), edge, now):
            try:
                opened.set()
                await asyncio.Event().wait()
            finally:
                if cleans_up:
                    raise Unavailable("the journal is closed")

    async def caller(address: str) -> int:
        with pytest.raises(Untrusted if cleans_up or not cancelled else asyncio.CancelledError):
            await calls(address)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    async with served(sites, "hpc") as hpc:
        calling = asyncio.create_task(caller(hpc.address))
        await asyncio.wait_for(opened.wait(), WAIT_S)
        sites.revoke("hpc", told=("edge",))
        assert edge.reload()
        if cancelled:
            calling.cancel()
        assert await asyncio.wait_for(calling, WAIT_S) == cancelled


async def test_a_channel_does_not_connect_to_a_certificate_that_it_has_not_judged(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    async with served(sites, "hpc") as hpc, dialled(sites, "edge", "hpc", hpc.address) as line:
        sites.renew("hpc")
        assert hpc.keeper.reload()
        with pytest.raises(grpc.aio.AioRpcError) as told:  # its first call: it was not connected yet
            await echo(line)
        assert told.value.code() is grpc.StatusCode.UNAVAILABLE
        async with dialled(sites, "edge", "hpc", hpc.address) as again:
            assert await echo(again) == b"edge hello"


async def test_what_can_not_be_loaded_leaves_the_last_good_in_force(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    path = tmp_path / "hpc" / SITE_FILE
    async with served(sites, "hpc") as hpc, dialled(sites, "edge", "hpc", hpc.address) as line:
        good = path.read_bytes()
        for bad, why in (
            (b"", "holds no certificate"),
            (good[:200], "holds no certificate"),
            (
                sites.credentials("edge").own.certificate_pem + good[: good.index(b"-----BEGIN CERT")],
                "is not the key of",
            ),
            ((tmp_path / "edge" / SITE_FILE).read_bytes(), "the certificate is now edge's, and this is hpc"),
        ):
            path.write_bytes(bad)
            assert not hpc.keeper.reload()
            assert why in hpc.keeper.fault
            assert await echo(line) == b"edge hello"
        path.write_bytes(good)
        assert not hpc.keeper.reload()
        assert hpc.keeper.fault == ""


async def test_an_older_list_of_revocations_takes_nothing_back(tmp_path: Path) -> None:
    """Such as one that a copy of a folder brings, with a certificate that is newer."""
    sites = world(tmp_path, "edge", "hpc", "lost")
    path = tmp_path / "hpc" / CRL
    async with served(sites, "hpc") as hpc, dialled(sites, "lost", "hpc", hpc.address) as line:
        assert await echo(line) == b"lost hello"
        before = path.read_bytes()
        sites.revoke("lost", told=("hpc",))
        newest = path.read_bytes()
        assert hpc.keeper.reload()
        sites.renew("hpc")
        path.write_bytes(before)
        assert hpc.keeper.reload()
        assert hpc.keeper.current.leaf == sites.credentials("hpc").leaf
        assert hpc.keeper.fault == "a revocation list is older than the one in force, which stays so"
        assert not hpc.keeper.reload()
        with pytest.raises(grpc.aio.AioRpcError, match="lost was revoked"):
            await echo(line)
        path.write_bytes(newest)
        assert not hpc.keeper.reload()
        assert hpc.keeper.fault == ""


async def test_a_daemon_that_watches_its_files_needs_no_signal(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc", "lost")
    async with served(sites, "hpc") as hpc, dialled(sites, "lost", "hpc", hpc.address) as line:
        assert await echo(line) == b"lost hello"
        changed = asyncio.Event()
        hpc.keeper.listen(changed.set)
        watching = asyncio.create_task(hpc.keeper.watch(hpc.gate.sweep, every_s=0.01))
        sites.revoke("lost", told=("hpc",))
        await asyncio.wait_for(changed.wait(), WAIT_S)
        with pytest.raises(grpc.aio.AioRpcError, match="lost was revoked"):
            await echo(line)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching


async def test_a_revocation_waits_for_nobodys_files(tmp_path: Path) -> None:
    sites = world(tmp_path, "hpc", "lost")
    keeper, changed, back = sites.keeper("hpc"), asyncio.Event(), threading.Event()
    hang = [asyncio.get_running_loop().run_in_executor(None, back.wait) for _ in range(100)]
    keeper.listen(changed.set)
    watching = asyncio.create_task(keeper.watch(lambda: None, every_s=0.01))
    sites.revoke("lost", told=("hpc",))
    try:
        await asyncio.wait_for(changed.wait(), WAIT_S)
    finally:
        back.set()
    watching.cancel()
    await asyncio.gather(watching, *hang, return_exceptions=True)


def test_a_daemon_does_not_start_on_files_that_can_not_be_loaded(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge")
    (tmp_path / "edge" / SITE_FILE).chmod(0o640)
    with pytest.raises(ConfigError, match="holds a key, and others can read it"):
        Keeper(lambda: sites.credentials("edge"))
