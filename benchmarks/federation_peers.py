"""Many peers of one site, in one process: each with a certificate and a link of its own, and follows as a site does.

    python -m benchmarks.federation_peers ROOT PORT NAME...

ROOT has a folder with certificates for each name. It prints {} once all are linked, and lives until stdin ends.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc.aio

from federation.engine.origin import FOLLOW_S
from federation.model.messages import Follow, Message
from federation.peer.links import OPTIONS, Links
from federation.peer.session import Border
from federation.pki.credentials import Files, Keeper, Peer, load
from federation.pki.dial import Far, connected
from federation.serving import now

FAR = "hpc"


async def receive(site: str, messages: Sequence[Message]) -> None:
    """It has no journal."""


def _dial(folder: Path, port: int) -> Callable[[], AbstractAsyncContextManager[grpc.aio.Channel]]:
    pem = folder / "site.pem"
    files = Files(
        certificate=pem, key=pem, authorities=(folder / "ca.pem",), crls=(folder / "crl.pem",), peers=(Peer(site=FAR),)
    )
    keeper = Keeper(lambda: load(files))

    @asynccontextmanager
    async def dial() -> AsyncIterator[grpc.aio.Channel]:
        options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        async with connected(Far(site=FAR, address=f"127.0.0.1:{port}"), keeper, now, options) as channel:
            yield channel

    return dial


async def peer(folder: Path, port: int, linked: asyncio.Event) -> None:
    async def link(site: str, up: bool) -> None:
        if up:
            linked.set()

    links = Links(Border(site=folder.name, software="benchmark", receive=receive), link)
    async with asyncio.TaskGroup() as group:
        group.create_task(links.keep(FAR, _dial(folder, port)))
        while True:
            links.send(FAR, Follow(journal=None, after=0))
            await asyncio.sleep(FOLLOW_S)


async def main(root: Path, port: int, names: Sequence[str]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    up = [asyncio.Event() for _ in names]
    tasks = [asyncio.create_task(peer(root / name, port, one)) for name, one in zip(names, up, strict=True)]
    for one in up:
        await one.wait()
    print(json.dumps({}), flush=True)
    await reader.read()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
