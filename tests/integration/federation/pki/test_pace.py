"""A peer over its rate waits, loses nothing, and slows nobody else."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from federation.access.rates import Rate
from federation.pki.gate import MESSAGE_BYTES
from federation.pki.pace import Pace
from tests.integration.federation.pki.world import STREAM, WAIT_S, dialled, echo, exchange, served, world


async def test_a_stream_over_its_rate_is_slowed_down_and_whole(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc", "cloud")
    rate = Rate(per_s=200.0, burst=20.0)
    async with served(sites, "hpc", rate=rate) as hpc, dialled(sites, "edge", "hpc", hpc.address) as line:
        call: Any = line.channel.stream_stream(STREAM)()
        started = time.monotonic()
        sent = [f"{nth}".encode() for nth in range(100)]

        async def send() -> None:
            for what in sent:
                await call.write(what)
            await call.done_writing()

        sending = asyncio.create_task(send())
        async with dialled(sites, "cloud", "hpc", hpc.address) as other:
            quick: Any = other.channel.stream_stream(STREAM)()
            for nth in range(100):
                assert await exchange(quick, b"x") == b"cloud x"
                assert nth < 100
        received = [await asyncio.wait_for(call.read(), WAIT_S) for _ in sent]
        await sending
    assert received == [b"edge " + what for what in sent]
    assert hpc.pace.paused > 0
    assert time.monotonic() - started >= (len(sent) - rate.burst) / rate.per_s


async def test_a_message_that_is_too_long_ends_its_own_call_only(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    async with served(sites, "hpc") as hpc, dialled(sites, "edge", "hpc", hpc.address) as line:
        call: Any = line.channel.stream_stream(STREAM)()
        assert await exchange(call, b"before") == b"edge before"
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as told:
            await echo(line, bytes(MESSAGE_BYTES + 1))
        assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await exchange(call, b"after") == b"edge after"


async def test_calls_over_the_rate_are_refused_with_when_to_come_again(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    async with (
        served(sites, "hpc", rate=Rate(per_s=0.001, burst=2.0)) as hpc,
        dialled(sites, "edge", "hpc", hpc.address) as line,
    ):
        assert await echo(line) == b"edge hello"
        assert await echo(line) == b"edge hello"
        with pytest.raises(grpc.aio.AioRpcError, match="site edge calls too often") as told:
            await echo(line)
    assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_batch_counts_as_what_is_in_it() -> None:
    pace = Pace(lambda _: Rate(per_s=50.0, burst=10.0), time.monotonic, count=lambda batch: len(str(batch)))

    async def sent() -> AsyncIterator[str]:
        for batch in ("0123456789", "a", "b"):
            yield batch

    started = time.monotonic()
    assert [batch async for batch in pace.stream("edge", sent())] == ["0123456789", "a", "b"]
    assert time.monotonic() - started >= 2 / 50.0
    assert pace.paused >= 2
