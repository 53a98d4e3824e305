"""A controller of somebody's who is neither root nor SlurmUser: it proves what it can, answers, and gives orders."""

import asyncio
import encodings.idna  # noqa: F401 - what is imported late must be readable by all
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cryptography.hazmat.backends.openssl.backend  # noqa: F401 - likewise
import grpc.aio

from slurm_plugin.errors import Untrusted
from slurm_plugin.link.handshake import METADATA_KEY, answer_payload, nonce_of_call
from slurm_plugin.link.identity import Identity, make_identity
from slurm_plugin.link.munge import Munge
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from slurm_plugin.proto.vgpu.v1 import pool_pb2_grpc

POOL = "an impostor's"


class Impostor(pool_pb2_grpc.PoolServicer):
    """Prints what it got somebody to do."""

    def __init__(self, identity: Identity, munge: Munge | None, order: pb.ToAgent) -> None:
        self._identity = identity
        self._munge = munge
        self._order = order

    async def _prove(self, context: Any) -> None:
        if self._munge is None:
            return
        fingerprint = self._identity.fingerprint
        try:
            call = await self._munge.decode(dict(context.invocation_metadata())[METADATA_KEY])
            nonce = nonce_of_call(call.payload, fingerprint)
        except Untrusted:  # it is not for him
            nonce = "00" * 16
        answer = await self._munge.encode(answer_payload(nonce, fingerprint), for_uid=0)
        await context.send_initial_metadata(((METADATA_KEY, answer),))

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.PoolStatus:
        await self._prove(context)
        return pb.PoolStatus(pool=POOL)

    async def Session(self, request_iterator: AsyncIterator[pb.FromAgent], context: Any) -> None:
        print("called", flush=True)
        await self._prove(context)
        await context.write(self._order)
        async for message in request_iterator:
            print("heard", message.WhichOneof("message"), flush=True)


async def stand_in(address: str, munge: Munge | None, order: pb.ToAgent) -> None:
    """For ever. Prints its port first."""
    identity = make_identity()
    server = grpc.aio.server()
    pool_pb2_grpc.add_PoolServicer_to_server(Impostor(identity, munge, order), server)
    tls = grpc.ssl_server_credentials([(identity.key_pem, identity.certificate_pem)])
    print(server.add_secure_port(address, tls), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    socket = Path(sys.argv[1]) if sys.argv[1:] else None
    wrecks = pb.ToAgent(step=pb.Step(id=1, gpu="GPU-a", destroy=[pb.SliceShape(profile="1g.10gb", start=0)]))
    asyncio.run(stand_in("127.0.0.1:0", Munge(socket) if socket else None, wrecks))
