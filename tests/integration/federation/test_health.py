"""Who is a peer may ask a daemon's health, by gRPC's own protocol; to nobody else it says anything."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_status import rpc_status

from federation.cli.main import run
from federation.config import load_config
from federation.pki.credentials import Credentials
from federation.pki.dial import dial
from federation.serving import SERVICE
from tests.integration.federation.daemons import PATIENCE_S, Pair, pair


@pytest.fixture(scope="module")
def both() -> Iterator[Pair]:
    with pair() as found:
        yield found


def of(folder: Path, site: str) -> Credentials:
    """Of a site whose certificate the same CA has made."""
    config = folder / f"{site}.yaml"
    assert run(["pki", "issue", site, "--folder", str(folder / "pki"), "--out", str(folder / site)]) == 0
    config.write_text((folder / "edge/fed.yaml").read_text().replace("edge", site))
    return load_config(config).credentials()


async def asked(both: Pair, credentials: Credentials, service: str) -> HealthCheckResponse:
    address = load_config(both.hpc.config).listen
    line = await dial(address, "hpc", credentials, datetime.now(UTC))
    try:
        return await HealthStub(line.channel).Check(HealthCheckRequest(service=service), timeout=PATIENCE_S)
    finally:
        await line.channel.close()


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_a_peer_is_told(both: Pair, service: str) -> None:
    answer = await asked(both, load_config(both.edge.config).credentials(), service)
    assert answer.status == HealthCheckResponse.SERVING


async def test_of_what_is_not_served_nothing_is_said(both: Pair) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asked(both, load_config(both.edge.config).credentials(), "other.Service")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_site_that_is_no_peer_is_refused_and_told_why_in_a_status_that_every_client_reads(both: Pair) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asked(both, of(both.home.parent, "stranger"), "")
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    status: status_pb2.Status = rpc_status.from_call(raised.value)
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason, status.message) == ("federation", "untrusted", raised.value.details())
    assert "stranger" in status.message


async def test_who_shows_no_certificate_has_no_answer(both: Pair) -> None:
    credentials = load_config(both.edge.config).credentials()
    tls = grpc.ssl_channel_credentials(credentials.authorities_pem)
    async with grpc.aio.secure_channel(load_config(both.hpc.config).listen, tls) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await HealthStub(channel).Check(HealthCheckRequest(), timeout=PATIENCE_S)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
