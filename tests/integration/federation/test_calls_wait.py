"""A daemon that has no CPU for a while: what waits for it still waits then."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from federation.peer.links import OPTIONS

CALLS = 1200  # more than gRPC lets wait by itself
HELD_S = 35.0  # longer than it lets them
PATIENCE_S = 120.0
SERVER = """
import asyncio, sys, time
import grpc, grpc.aio
from federation.peer.links import OPTIONS
from federation.pki.gate import OPTIONS as OWN

async def echo(asks, _):
    async for one in asks:
        yield one

async def main():
    server = grpc.aio.server(options=(*OWN, *OPTIONS))
    handlers = {"echo": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    time.sleep(float(sys.argv[1]))
    await server.wait_for_termination()

asyncio.run(main())
"""


@pytest.mark.soak
async def test_calls_that_a_daemon_takes_up_late_are_not_given_up() -> None:
    argv = [sys.executable, "-c", SERVER, str(HELD_S)]
    server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = int(await asyncio.to_thread(server.stdout.readline))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            await channel.channel_ready()
            server.stdin.write(b"\n")
            server.stdin.flush()
            async with asyncio.timeout(PATIENCE_S):
                assert await asyncio.gather(*(echoed(channel) for _ in range(CALLS))) == [b"one"] * CALLS
    finally:
        server.kill()
        server.communicate()


async def echoed(channel: grpc.aio.Channel) -> bytes:
    over = asyncio.Event()

    async def asks() -> AsyncIterator[bytes]:
        yield b"one"
        await over.wait()

    echo: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/test/echo")
    try:
        return await anext(aiter(echo(asks())))
    finally:
        over.set()
