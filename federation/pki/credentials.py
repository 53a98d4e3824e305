"""What a daemon shows of itself and what it believes of others, read from files, and read again when they change."""

import asyncio
import datetime
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from federation.errors import ConfigError, FedError, Untrusted
from federation.pki import files
from federation.pki.certificates import Pair, fingerprint, pem
from federation.pki.judge import Trust, judge
from federation.pki.names import site_of

log = logging.getLogger(__name__)

POLL_S = 5.0  # how often a daemon looks whether its files have changed
MAX_LISTS = 64  # revocation lists
WARN_PART = 3  # warn when less than one part in so many of a certificate's life is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One site on the list. `ca`: a file; then a certificate of any other CA is not believed for it."""

    site: str
    ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    certificate: Path
    key: Path  # may be the same file
    authorities: tuple[Path, ...]
    crls: tuple[Path, ...] = ()
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    site: str
    own: Pair
    trust: Trust

    @property
    def leaf(self) -> x509.Certificate:
        return self.own.certificate

    @property
    def authorities_pem(self) -> bytes:
        return b"".join(pem(one) for one in self.trust.authorities)

    def check(self, now: datetime.datetime) -> None:
        """Would the other sites believe us? Raises ConfigError."""
        alone = Trust(authorities=self.trust.authorities, revoked=self.trust.revoked, allowed={self.site: b""})
        try:
            judge(self.leaf, alone, now)
        except Untrusted as error:
            raise ConfigError(f"our own certificate: {error}", hint=error.hint) from None

    def ending(self, now: datetime.datetime) -> bool:
        """Should it have been renewed by now?"""
        life = self.leaf.not_valid_after_utc - self.leaf.not_valid_before_utc
        return self.leaf.not_valid_after_utc - now < life / WARN_PART


def load(paths: Files) -> Credentials:
    """Raises ConfigError for files that others could have written, and for what does not fit together."""
    leaf = files.certificates_in(paths.certificate)[0]
    key = files.key_in(paths.key)
    if key.public_key() != leaf.public_key():
        raise ConfigError(f"{paths.key} is not the key of {paths.certificate}")
    authorities = [one for path in paths.authorities for one in files.certificates_in(path)]
    pins = {peer.site: _pin(peer, authorities) for peer in paths.peers}
    trust = Trust(authorities=tuple(authorities), revoked=_revoked(paths.crls, authorities), allowed=pins)
    try:
        return Credentials(site=site_of(leaf), own=Pair(key=key, certificate=leaf), trust=trust)
    except Untrusted as error:
        raise ConfigError(f"{paths.certificate}: {error}", hint=error.hint) from None


def _pin(peer: Peer, authorities: list[x509.Certificate]) -> bytes:
    if peer.ca is None:
        return b""
    own = files.certificates_in(peer.ca)
    if len(own) != 1 or own[0] not in authorities:
        raise ConfigError(f"{peer.ca} of peer {peer.site} must hold one CA that tls.ca has too")
    return fingerprint(own[0])


def _revoked(paths: tuple[Path, ...], authorities: list[x509.Certificate]) -> frozenset[tuple[bytes, int]]:
    return frozenset().union(*(_serials(path, files.read(path), tuple(authorities)) for path in paths))


@functools.lru_cache(maxsize=MAX_LISTS)  # a daemon looks every few seconds, and a list may be long
def _serials(path: Path, data: bytes, authorities: tuple[x509.Certificate, ...]) -> frozenset[tuple[bytes, int]]:
    found: set[tuple[bytes, int]] = set()
    for crl in files.crls_of(path, data):
        issuer = next((one for one in authorities if _signed(crl, one)), None)
        if issuer is None:
            raise ConfigError(f"{path} has a revocation list of a CA that is not believed here", hint="see tls.ca")
        mark = fingerprint(issuer)
        found |= {(mark, one.serial_number) for one in crl}
    return frozenset(found)


def _signed(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    public = authority.public_key()
    kinds = (ec.EllipticCurvePublicKey, rsa.RSAPublicKey, ed25519.Ed25519PublicKey)
    return crl.issuer == authority.subject and isinstance(public, kinds) and crl.is_signature_valid(public)


class Keeper:
    """The credentials in force: the last good ones, whatever becomes of the files.

    `current` may be read from any thread. What listens is called after each change.
    """

    def __init__(self, read: Callable[[], Credentials]) -> None:
        """`read` looks at the files, the list of peers included. Raises what it raises the first time."""
        self._read = read
        self._listeners: list[Callable[[], None]] = []
        self.current = read()
        self.fault = ""  # why the files as they are now are not in force

    def listen(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    @contextmanager
    def listening(self, changed: Callable[[], None]) -> Iterator[None]:
        """The same for as long as the block lasts."""
        self._listeners.append(changed)
        try:
            yield
        finally:
            self._listeners.remove(changed)

    async def watch(self, tick: Callable[[], None], every_s: float = POLL_S) -> None:
        """Look again and again, for ever; the files are read on a thread. `tick` is called after each look."""
        while True:
            await asyncio.sleep(every_s)
            if (fresh := await asyncio.to_thread(self._look)) is not None:
                self._take(fresh)
            tick()

    def reload(self) -> bool:
        """Look again now, such as on a signal. Has anything changed?"""
        if (fresh := self._look()) is not None:
            self._take(fresh)
        return fresh is not None

    def _look(self) -> Credentials | None:
        """What is to be in force from now on, if it is something else. On any thread."""
        try:
            fresh = self._read()
        except FedError as error:
            self._wrong(str(error))
            return None
        if fresh.site != self.current.site:
            self._wrong(f"the certificate is now {fresh.site}'s, and this is {self.current.site}")
            return None
        self.fault = ""
        return None if _facts(fresh) == _facts(self.current) else fresh

    def _wrong(self, why: str) -> None:
        if why != self.fault:
            log.error("credentials.not_reloaded", extra={"why": why})
        self.fault = why

    def _take(self, fresh: Credentials) -> None:
        self.current = fresh
        log.info("credentials.reloaded", extra={"serial": f"{fresh.leaf.serial_number:x}"})
        for changed in list(self._listeners):
            changed()


def _facts(one: Credentials) -> tuple[object, ...]:
    allowed: Mapping[str, bytes] = one.trust.allowed
    return one.leaf, one.trust.authorities, one.trust.revoked, dict(allowed)
