"""The caller's end: look at the certificate that the other side shows, judge it, then pin it.

gRPC can't be told of revocation lists, and shows a caller no certificate. So a first connection asks for the
certificate, with TLS checking the chain both ways, and the channel is then made to believe that very certificate and no
other. When the other side renews its own, the channel can't connect again: dial anew whenever a call fails.
"""

import asyncio
import datetime
import os
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio
from cryptography import x509

from federation.errors import Unavailable, Untrusted
from federation.pki.certificates import pem
from federation.pki.credentials import Credentials, Keeper
from federation.pki.judge import judge
from federation.pki.names import dns_names

DIAL_S = 10.0  # longest wait for a certificate, and for the word that ours is believed
_FIRST_BYTES = 9  # the head of the first HTTP/2 frame: who sends it has believed our certificate

Options = Sequence[tuple[str, int | str]]
Clock = Callable[[], datetime.datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A channel to one site. It connects for as long as both ends keep the certificates it was made with."""

    channel: grpc.aio.Channel
    site: str
    far: x509.Certificate

    def check(self, credentials: Credentials, now: datetime.datetime) -> None:
        """Is the far side still believed? Raises Untrusted."""
        judge(self.far, credentials.trust, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """A site to be dialled."""

    site: str
    address: str  # host:port


@asynccontextmanager
async def connected(far: Far, keeper: Keeper, clock: Clock, options: Options = ()) -> AsyncIterator[grpc.aio.Channel]:
    """A channel, closed at the end of the block. Inside, Untrusted is raised when the far side is no longer believed.

    Raises what `dial` raises.
    """
    line = await dial(far.address, far.site, keeper.current, clock(), options)
    task, refusal = asyncio.current_task(), None

    def look() -> None:
        nonlocal refusal
        try:
            line.check(keeper.current, clock())
        except Untrusted as error:
            if task is not None and refusal is None:
                refusal = error
                task.cancel()

    left_s = (line.far.not_valid_after_utc - clock()).total_seconds()
    end = asyncio.get_running_loop().call_later(left_s + 1, look)
    try:
        with keeper.listening(look):
            yield line.channel
    except BaseException as error:  # our own cancellation may have become another error on its way
        if task is None or refusal is None:
            raise
        if task.uncancel() and isinstance(error, asyncio.CancelledError):  # somebody else has cancelled it, too
            raise
        raise refusal from None
    finally:
        end.cancel()
        await line.channel.close()


async def dial(
    address: str, site: str, credentials: Credentials, now: datetime.datetime, options: Options = ()
) -> Line:
    """A channel to `site` at "host:port".

    Raises Unavailable when nobody answers, Untrusted when who answers is not that site or does not believe us,
    ConfigError when our own certificate is no good.
    """
    credentials.check(now)
    far = x509.load_der_x509_certificate(await _look(address, site, credentials))
    proven = judge(far, credentials.trust, now)
    if proven != site:
        raise Untrusted(f"{address} is {proven}, not {site}", hint=f"see peers.{site}.address")
    if not dns_names(far):
        raise Untrusted(f"the certificate of {site} has no DNS name", hint="TLS wants one; any will do")
    tls = grpc.ssl_channel_credentials(pem(far), credentials.own.key_pem, credentials.own.certificate_pem)
    own = (("grpc.ssl_target_name_override", dns_names(far)[0]), ("grpc.enable_http_proxy", 0))
    channel = grpc.aio.secure_channel(address, tls, options=(*options, *own))
    return Line(channel=channel, site=site, far=far)


async def _look(address: str, site: str, credentials: Credentials) -> bytes:
    """The certificate that `address` shows, after it has taken ours."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(DIAL_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=_context(credentials))
            try:
                der: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                first = await reader.read(_FIRST_BYTES)
            finally:
                writer.transport.abort()
    except ssl.SSLCertVerificationError as error:
        raise Untrusted(f"the certificate of {site} at {address}: {error.verify_message}", hint="see tls.ca") from None
    except ssl.SSLError as error:
        raise Untrusted(f"{address} does not speak our TLS: {error.reason}", hint="is it a federation port?") from None
    except (OSError, TimeoutError, ValueError) as error:
        raise Unavailable(f"{site} does not answer at {address}: {error or 'no answer'}") from None
    if not der or not first:
        raise Untrusted(
            f"{site} at {address} does not believe our certificate",
            hint="its CAs must have ours, and its clock be right; its daemon's log says which",
        )
    return der


def _context(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # sites are not hosts: `judge` looks at the name
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=credentials.authorities_pem.decode("ascii"))
    context.set_alpn_protocols(["h2"])
    handle = os.memfd_create("certificate", os.MFD_CLOEXEC)  # ssl takes a key from a file only; this one is in memory
    try:
        os.write(handle, credentials.own.key_pem + credentials.own.certificate_pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    return context
