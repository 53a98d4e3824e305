"""What a federation is measured beside: grpc.aio with mutual TLS and nothing else, as a server or a client.

    python -m benchmarks.federation_bare serve|call FOLDER PORT

FOLDER has site.pem and ca.pem. Questions and answers are those of `benchmarks.federation_pair`.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from federation.pki.names import dns_of

ECHO, STREAM = "/bare/Echo", "/bare/Stream"
AT_ONCE = 32
PAYLOAD = bytes(2048)
PART = bytes(64 << 10)


class _Handlers(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:
        async def echo(request: bytes, context: Any) -> bytes:
            return request

        async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
            for _ in range(int(request)):
                yield PART

        if handler_call_details.method == ECHO:
            return grpc.unary_unary_rpc_method_handler(echo)
        return grpc.unary_stream_rpc_method_handler(stream)


async def serve(folder: Path, port: int) -> None:
    pair = ((folder / "site.pem").read_bytes(),) * 2
    tls = grpc.ssl_server_credentials([pair], (folder / "ca.pem").read_bytes(), require_client_auth=True)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Handlers(),))
    server.add_secure_port(f"127.0.0.1:{port}", tls)
    await server.start()
    await _answer({"used": _used})


async def call(folder: Path, port: int) -> None:
    pem = (folder / "site.pem").read_bytes()
    tls = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes(), pem, pem)
    options = (("grpc.ssl_target_name_override", dns_of("hpc")),)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", tls, options=options) as channel:
        echo: Any = channel.unary_unary(ECHO)
        stream: Any = channel.unary_stream(STREAM)

        async def calls(count: int) -> dict[str, Any]:
            left = iter(range(count))

            async def some() -> None:
                for _ in left:
                    await echo(PAYLOAD)

            start, used = time.perf_counter(), time.process_time()
            await asyncio.gather(*(some() for _ in range(AT_ONCE)))
            return {"s": time.perf_counter() - start, "cpu_s": time.process_time() - used}

        async def take(size: int, path: str) -> dict[str, Any]:
            start, used = time.perf_counter(), time.process_time()
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            async for part in stream(b"%d" % (size // len(PART))):
                os.write(handle, part)
            os.close(handle)
            return {"s": time.perf_counter() - start, "cpu_s": time.process_time() - used}

        await _answer({"calls": calls, "take": take, "used": _used})


async def _used() -> dict[str, Any]:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": spent.ru_utime + spent.ru_stime}


async def _answer(questions: dict[str, Any]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps({}), flush=True)
    while line := await reader.readline():
        told = json.loads(line)
        print(json.dumps(await questions[told.pop("do")](**told)), flush=True)


if __name__ == "__main__":
    role, place, number = sys.argv[1:]
    asyncio.run((serve if role == "serve" else call)(Path(place), int(number)))
