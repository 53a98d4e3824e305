"""What a daemon shows of itself and what it believes of others, read from files, and read again when they change."""

import asyncio
import datetime
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography import x509

from federation.errors import ConfigError, FedError, Untrusted
from federation.pki import files
from federation.pki.certificates import Pair, fingerprint, is_of, number_of, pem
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
    numbers: Mapping[bytes, int] = field(default_factory=dict)  # fingerprint of a CA -> of its newest revocation list

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocations:
    """One list. `issuer`: its CA's fingerprint."""

    issuer: bytes
    number: int
    serials: frozenset[tuple[bytes, int]]


def load(paths: Files) -> Credentials:
    """Raises ConfigError for files that others could have written, and for what does not fit together."""
    leaf = files.certificates_in(paths.certificate)[0]
    key = files.key_in(paths.key)
    if key.public_key() != leaf.public_key():
        raise ConfigError(f"{paths.key} is not the key of {paths.certificate}")
    authorities = [one for path in paths.authorities for one in files.certificates_in(path)]
    pins = {peer.site: _pin(peer, authorities) for peer in paths.peers}
    lists = [one for path in paths.crls for one in _lists_in(path, files.read(path), tuple(authorities))]
    revoked = frozenset[tuple[bytes, int]]().union(*(one.serials for one in lists))
    trust = Trust(authorities=tuple(authorities), revoked=revoked, allowed=pins)
    numbers = {one.issuer: one.number for one in sorted(lists, key=lambda one: one.number)}
    try:
        return Credentials(site=site_of(leaf), own=Pair(key=key, certificate=leaf), trust=trust, numbers=numbers)
    except Untrusted as error:
        raise ConfigError(f"{paths.certificate}: {error}", hint=error.hint) from None


def _pin(peer: Peer, authorities: list[x509.Certificate]) -> bytes:
    if peer.ca is None:
        return b""
    own = files.certificates_in(peer.ca)
    if len(own) != 1 or own[0] not in authorities:
        raise ConfigError(f"{peer.ca} of peer {peer.site} must hold one CA that tls.ca has too")
    return fingerprint(own[0])


@functools.lru_cache(maxsize=MAX_LISTS)  # a daemon looks every few seconds, and a list may be long
def _lists_in(path: Path, data: bytes, authorities: tuple[x509.Certificate, ...]) -> tuple[Revocations, ...]:
    found = []
    for crl in files.crls_of(path, data):
        issuer = next((one for one in authorities if is_of(crl, one)), None)
        if issuer is None:
            raise ConfigError(f"{path} has a revocation list of a CA that is not believed here", hint="see tls.ca")
        mark = fingerprint(issuer)
        serials = frozenset((mark, one.serial_number) for one in crl)
        found.append(Revocations(issuer=mark, number=number_of(crl), serials=serials))
    return tuple(found)


class Keeper:
    """The credentials in force: the last good ones, whatever becomes of the files.

    `current` may be read from any thread. What listens is called after each change.
    """

    def __init__(self, read: Callable[[], Credentials]) -> None:
        """`read` looks at the files, the list of peers included. Raises what it raises the first time."""
        self._read = read
        self._listeners: list[Callable[[], None]] = []
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="credentials")  # a revocation waits for nobody's files
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
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(every_s)
            if (fresh := await loop.run_in_executor(self._threads, self._look)) is not None:
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
        newest = _never_older(fresh, self.current)
        if newest is fresh:
            self.fault = ""
        else:
            self._wrong("a revocation list is older than the one in force, which stays so")
        return None if _facts(newest) == _facts(self.current) else newest

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
    return one.leaf, one.trust.authorities, one.trust.revoked, dict(one.numbers), dict(allowed)


def _never_older(fresh: Credentials, current: Credentials) -> Credentials:
    """What a newer list has revoked stays so, such as when a folder is copied that was made before."""
    kept = {mark: number for mark, number in current.numbers.items() if fresh.numbers.get(mark, number) < number}
    if not kept:
        return fresh
    revoked = fresh.trust.revoked | {one for one in current.trust.revoked if one[0] in kept}
    return replace(fresh, trust=replace(fresh.trust, revoked=revoked), numbers={**fresh.numbers, **kept})
