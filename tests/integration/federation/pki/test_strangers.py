"""Who is not let in, what each side is told of it, and that nobody else notices."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from federation.errors import ConfigError, Unavailable, Untrusted
from federation.pki.authority import CERTIFICATE, create, hand_out
from federation.pki.certificates import LEAF_LIFE, Extra, Stamp, make_authority, make_leaf, pem
from federation.pki.credentials import Peer
from federation.pki.dial import dial
from tests.integration.federation.pki.world import (
    DAY,
    ECHO,
    STREAM,
    WAIT_S,
    Served,
    World,
    dialled,
    echo,
    echoes,
    exchange,
    now,
    served,
    world,
)


@asynccontextmanager
async def undisturbed(sites: World, hpc: Served) -> AsyncIterator[None]:
    """A good peer's stream is open before, and goes on after, what happens inside."""
    async with dialled(sites, "edge", "hpc", hpc.address) as line:
        call: Any = line.channel.stream_stream(STREAM)()
        assert await exchange(call, b"before") == b"edge before"
        yield
        assert await exchange(call, b"after") == b"edge after"
        assert await echo(line) == b"edge hello"


async def refused(address: str, key: bytes, chain: bytes, roots: bytes) -> tuple[grpc.StatusCode, str]:
    """What a caller is told who does not look before he dials."""
    tls = grpc.ssl_channel_credentials(roots, key, chain)
    options = (("grpc.ssl_target_name_override", "hpc.fed.internal"),)
    async with grpc.aio.secure_channel(address, tls, options=options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await echoes(channel)(b"", timeout=WAIT_S)
    return told.value.code(), told.value.details() or ""


async def test_peers_prove_their_sites_to_each_other(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    async with served(sites, "hpc") as hpc, dialled(sites, "edge", "hpc", hpc.address) as line:
        assert await echo(line) == b"edge hello"
        assert await echo(line) == b"edge hello"
    assert hpc.decisions == [("edge", ECHO, "")]  # told once a certificate, not once a call


async def test_a_stranger_from_another_ca(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    (tmp_path / "other").mkdir()
    others = world(tmp_path / "other", "edge", "hpc")
    async with served(sites, "hpc") as hpc, undisturbed(sites, hpc):
        with pytest.raises(Untrusted, match=r"certificate of hpc at .*: unable to get local issuer certificate"):
            await dial(hpc.address, "hpc", others.credentials("edge"), now())
        forged = others.credentials("edge")
        trusting = others.root / "edge" / CERTIFICATE
        trusting.write_bytes(trusting.read_bytes() + (sites.root / "hpc" / CERTIFICATE).read_bytes())
        with pytest.raises(Untrusted, match=r"hpc at .* does not believe our certificate"):
            await dial(hpc.address, "hpc", others.credentials("edge"), now())
        code, _ = await refused(
            hpc.address, forged.own.key_pem, forged.own.certificate_pem, pem(sites.authority.certificate)
        )
        assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_revoked_certificate(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc", "lost")
    async with served(sites, "hpc") as hpc, undisturbed(sites, hpc):
        async with dialled(sites, "lost", "hpc", hpc.address) as line:
            call: Any = line.channel.stream_stream(STREAM)()
            assert await exchange(call, b"x") == b"lost x"
            sites.revoke("lost", told=("hpc",))
            assert hpc.keeper.reload()
            with pytest.raises(grpc.aio.AioRpcError) as told:  # the open stream ends
                await asyncio.wait_for(call.read(), WAIT_S)
            assert told.value.code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError, match="the certificate of lost was revoked"):
                await echo(line)  # on the old connection, too
        async with dialled(sites, "lost", "hpc", hpc.address) as line:
            with pytest.raises(grpc.aio.AioRpcError, match="the certificate of lost was revoked"):
                await echo(line)
    assert [what for what in hpc.decisions if what[2]] == [
        ("lost", STREAM, "the certificate of lost was revoked"),
        ("lost", ECHO, "the certificate of lost was revoked"),
        ("lost", ECHO, "the certificate of lost was revoked"),
    ]


async def test_a_caller_sees_that_the_server_was_revoked(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    async with served(sites, "hpc") as hpc, dialled(sites, "edge", "hpc", hpc.address) as line:
        keeper = sites.keeper("edge")
        line.check(keeper.current, now())
        sites.revoke("hpc", told=("edge",))
        assert keeper.reload()
        with pytest.raises(Untrusted, match="hpc was revoked"):
            line.check(keeper.current, now())
        with pytest.raises(Untrusted, match="hpc was revoked"):
            await dial(hpc.address, "hpc", keeper.current, now())


async def test_a_certificate_that_ended(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    sites.peers.append(Peer(site="late"))
    sites.issue("late", at=now() - 2 * DAY, life=DAY)
    late = sites.credentials("late")
    async with served(sites, "hpc") as hpc, undisturbed(sites, hpc):
        with pytest.raises(ConfigError, match=r"our own certificate: the certificate of late ended on"):
            await dial(hpc.address, "hpc", late, now())
        with pytest.raises(Untrusted, match=r"hpc at .* does not believe our certificate"):
            await dial(hpc.address, "hpc", late, now() - DAY - datetime.timedelta(hours=1))  # its clock is behind
        code, _ = await refused(
            hpc.address, late.own.key_pem, late.own.certificate_pem, pem(sites.authority.certificate)
        )
        assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_ends_when_its_certificate_does(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    time = now()
    async with served(sites, "hpc", clock=lambda: time) as hpc, dialled(sites, "edge", "hpc", hpc.address) as line:
        call: Any = line.channel.stream_stream(STREAM)()
        await exchange(call, b"x")
        hpc.gate.sweep()
        assert await exchange(call, b"y") == b"edge y"
        time += 31 * DAY
        hpc.gate.sweep()
        with pytest.raises(grpc.aio.AioRpcError, match="the certificate of edge ended on"):
            await asyncio.wait_for(call.read(), WAIT_S)


async def test_a_site_that_is_not_on_the_list(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    sites.issue("guest")
    async with served(sites, "hpc") as hpc, undisturbed(sites, hpc):
        async with dialled(sites, "guest", "hpc", hpc.address) as line:
            with pytest.raises(grpc.aio.AioRpcError, match="site guest is not on the list of peers"):
                await echo(line)
        sites.peers.append(Peer(site="guest"))  # the list is reloaded like the rest
        assert hpc.keeper.reload()
        async with dialled(sites, "guest", "hpc", hpc.address) as line:
            assert await echo(line) == b"guest hello"


async def test_a_server_that_is_another_site(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc", "cloud")
    async with served(sites, "hpc") as hpc, undisturbed(sites, hpc):
        with pytest.raises(Untrusted, match="is hpc, not cloud"):
            await dial(hpc.address, "cloud", sites.credentials("edge"), now())


async def test_a_ca_may_be_held_to_its_own_site(tmp_path: Path) -> None:
    """Both CAs are believed, but each for its own site."""
    sites = world(tmp_path, "edge", "hpc")
    other = create(tmp_path / "ca2", "other", Extra(), now())
    forged = other.issue("edge", Extra(), LEAF_LIFE, now())
    hand_out(other, forged, tmp_path / "forged")
    first = tmp_path / "first.pem"
    first.write_bytes(pem(sites.authority.certificate))
    bundle = tmp_path / "hpc" / CERTIFICATE
    bundle.write_bytes(bundle.read_bytes() + pem(other.certificate))
    sites.peers = [Peer(site="edge", ca=first), Peer(site="hpc")]
    async with served(sites, "hpc") as hpc:
        key, chain = forged.key_pem, forged.certificate_pem
        code, why = await refused(hpc.address, key, chain, pem(sites.authority.certificate))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "from another CA than the one given for it" in why


async def test_a_name_outside_what_the_ca_may_write(tmp_path: Path) -> None:
    """Whoever got hold of the CA's key can make no certificate that TLS anywhere takes for another host's."""
    sites = world(tmp_path, "edge", "hpc")
    limits = Extra(dns=("example.org",))
    thief = make_authority("test", sites.authority._pair.key, Stamp(serial=1, now=now(), life=DAY * 100), limits)
    roots = pem(sites.authority.certificate)
    options = (("grpc.ssl_target_name_override", "hpc.fed.internal"),)
    async with served(sites, "hpc") as hpc, undisturbed(sites, hpc):
        for names, let_in in ((), True), (("www.example.org",), False):
            key = ec.generate_private_key(ec.SECP256R1())
            made = make_leaf(thief, "edge", key, Stamp(serial=7, now=now(), life=DAY), Extra(dns=names))
            tls = grpc.ssl_channel_credentials(roots, made.key_pem, made.certificate_pem)
            async with grpc.aio.secure_channel(hpc.address, tls, options=options) as channel:
                call = echoes(channel)(b"", timeout=WAIT_S)
                assert await call.code() is (grpc.StatusCode.OK if let_in else grpc.StatusCode.UNAVAILABLE)


async def test_plain_text_both_ways(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    async with served(sites, "hpc") as hpc, undisturbed(sites, hpc):
        async with grpc.aio.insecure_channel(hpc.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as told:
                await echoes(channel)(b"", timeout=WAIT_S)
        assert told.value.code() is grpc.StatusCode.UNAVAILABLE

    async def speaks_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    plain = await asyncio.start_server(speaks_http, "127.0.0.1", 0)
    async with plain:
        port = plain.sockets[0].getsockname()[1]
        with pytest.raises(Untrusted, match="does not speak our TLS"):
            await dial(f"127.0.0.1:{port}", "hpc", sites.credentials("edge"), now())
    with pytest.raises(Unavailable, match="hpc does not answer"):
        await dial(f"127.0.0.1:{port}", "hpc", sites.credentials("edge"), now())


async def test_an_old_tls_is_refused(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.load_cert_chain(sites.files("edge").certificate)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with served(sites, "hpc") as hpc, undisturbed(sites, hpc):
        host, port = hpc.address.split(":")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(host, int(port), ssl=old)


async def test_a_caller_that_shows_no_certificate(tmp_path: Path) -> None:
    sites = world(tmp_path, "edge", "hpc")
    tls = grpc.ssl_channel_credentials(pem(sites.authority.certificate))
    options = (("grpc.ssl_target_name_override", "hpc.fed.internal"),)
    async with served(sites, "hpc") as hpc, undisturbed(sites, hpc):
        channel = grpc.aio.secure_channel(hpc.address, tls, options=options)
        assert await echoes(channel)(b"", timeout=WAIT_S).code() is grpc.StatusCode.UNAVAILABLE
        await channel.close()
