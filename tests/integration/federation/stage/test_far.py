"""A call that gRPC gives up itself is no cancelling of ours: who made it hears why, and makes it again."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from federation.errors import FedError, Unavailable
from federation.model.spec import Input, JobSpec
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.proto.federation.v1.federation_pb2_grpc import FederationServicer, add_FederationServicer_to_server
from federation.stage.far import Remote
from federation.stage.mover import Mover
from federation.stage.pull import Pull
from federation.stage.spool import Home, Spool
from tests.integration.federation.site import until
from tests.integration.federation.stage.bench import KEY, ROOT, file_of

WAIT_S = 30.0


class Target(FederationServicer):
    """Has nothing, and takes every chunk."""

    def __init__(self) -> None:
        self.came = asyncio.Event()

    async def Which(self, request: pb.ChunkList, context: Any) -> pb.ChunkList:
        return pb.ChunkList(key=request.key)

    async def Put(self, request_iterator: AsyncIterator[pb.Chunk], context: Any) -> pb.PutReply:
        count = 0
        async for _ in request_iterator:
            count += 1
            self.came.set()
        return pb.PutReply(chunks=count)


@asynccontextmanager
async def remote(target: FederationServicer) -> AsyncIterator[Remote]:
    server = grpc.aio.server()
    add_FederationServicer_to_server(target, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Remote(channel)
    finally:
        await server.stop(0)


@pytest.mark.parametrize("error", [FedError("they are damaged"), FileNotFoundError("inputs/0"), ZeroDivisionError()])
async def test_what_fails_on_our_side_of_a_call_is_told_as_it_is(error: Exception) -> None:
    async def chunks() -> AsyncIterator[pb.Chunk]:
        yield pb.Chunk(data=b"x")
        raise error

    async with remote(Target()) as far:
        with pytest.raises(type(error)) as told:
            await asyncio.wait_for(far.put(chunks()), WAIT_S)
    assert told.value is error


async def test_outputs_whose_asks_fail_are_unavailable() -> None:
    async def asks() -> AsyncIterator[pb.OutputAsk]:
        raise ZeroDivisionError
        yield

    async with remote(Target()) as far:
        with pytest.raises(Unavailable):
            await asyncio.wait_for(anext(aiter(far.outputs(asks()))), WAIT_S)


class Gives(Target):
    """Up each output as soon as it is asked for."""

    async def Outputs(self, request_iterator: AsyncIterator[pb.OutputAsk], context: Any) -> None:
        await anext(aiter(request_iterator))
        await context.abort(grpc.StatusCode.CANCELLED, "too busy")


async def test_an_output_that_the_other_end_gives_up_leaves_nothing_that_asks(tmp_path: Path) -> None:
    pull = Pull(KEY, tmp_path)
    async with remote(Gives()) as far:
        before = asyncio.all_tasks()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(pull.run(far), WAIT_S)

        async def nothing_asks() -> bool:
            return not any("request_iterator" in str(one) for one in asyncio.all_tasks() - before)

        await until(nothing_asks)


async def test_who_is_cancelled_is_cancelled() -> None:
    async def chunks() -> AsyncIterator[pb.Chunk]:
        yield pb.Chunk(data=b"x")
        await asyncio.Event().wait()

    async with remote(target := Target()) as far:
        task = asyncio.ensure_future(far.put(chunks()))
        await asyncio.wait_for(target.came.wait(), WAIT_S)
        task.cancel()
        await asyncio.wait((task,), timeout=WAIT_S)
    assert task.cancelled()


async def test_inputs_that_are_damaged_say_why_they_do_not_go_on(tmp_path: Path) -> None:
    key, data, spool = Key(KEY.token, 1), os.urandom(100), Spool(tmp_path)
    inputs, file = spool.begin(key.token, Home(user="root", folder=str(tmp_path))), file_of(b"in", data)
    (inputs / "0").write_bytes(data)
    spool.finish(key.token, pb.Manifest(files=[file]))
    (inputs / "0").write_bytes(data[:-1])
    spec = JobSpec(user="root", inputs=(Input(path=b"in", size=len(data), sha256=file.sha256),))
    async with remote(Target()) as far:
        mover = Mover(spool, lambda: pytest.fail("nobody asks"), lambda _: far, lambda _: ROOT)
        mover.push_inputs("hpc", key, spec)
        await until(lambda: _is(bool(mover.progress[key].why)))
        assert mover.progress[key].why == "the inputs kept here are damaged. cancel the job and submit it again"
        await mover.close()


async def _is(done: bool) -> bool:
    return done
