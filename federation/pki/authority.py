"""A CA in a folder: ca.key and ca.pem, crl.pem, and a record in issued/ of every certificate that it ever made.

Crash: a record is on disk before the certificate is anywhere else, so what exists can be revoked.
"""

import datetime
import fcntl
import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from federation.errors import ConfigError
from federation.pki import files
from federation.pki.certificates import (
    AUTHORITY_LIFE,
    Extra,
    Pair,
    Revoked,
    Stamp,
    check_permitted,
    is_of,
    make_authority,
    make_crl,
    make_leaf,
    number_of,
    pem,
    revoked_in,
)
from federation.pki.names import check_site, dns_names, dns_of, site_of

MAX_RECORDS = 100_000
KEPT = datetime.timedelta(days=90)  # how long a certificate that ended stays on record
MAX_LIFE = datetime.timedelta(days=397)
KEY, CERTIFICATE, CRL, RECORDS, LOCK = "ca.key", "ca.pem", "crl.pem", "issued", ".lock"
SITE_FILE = "site.pem"  # key and certificate in one file: a renewal changes both at once


class State(StrEnum):
    GOOD = "good"
    ENDED = "ended"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    site: str
    serial: int
    begins_at: datetime.datetime
    ends_at: datetime.datetime
    state: State
    certificate: x509.Certificate


class Authority:
    """One CA, opened. Every change holds the folder's lock."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        self.folder = folder
        self._pair = pair

    @property
    def certificate(self) -> x509.Certificate:
        return self._pair.certificate

    def issue(self, site: str, extra: Extra, life: datetime.timedelta, now: datetime.datetime) -> Pair:
        """A first certificate for a site. Raises ConfigError when it has a good one."""
        with self._locked(now):
            self.check_room(site, extra, now)
            return self._make(site, extra, life, now)

    def renew(self, site: str, life: datetime.timedelta, now: datetime.datetime) -> Pair:
        """Another certificate and key with the names of the newest; the old one stays good until it ends."""
        with self._locked(now):
            newest = self.newest(site, now)
            if newest.state is State.REVOKED:
                raise ConfigError(f"the newest certificate of {site} was revoked", hint=f"fed pki issue {site}")
            return self._make(site, _extra(site, newest.certificate), life, now)

    def revoke(self, site: str, serial: int | None, now: datetime.datetime) -> list[Issued]:
        """All good certificates of a site, or the one. Nobody believes them who has the new crl.pem."""
        with self._locked(now):
            doomed = [one for one in self.good(site, now) if serial in (None, one.serial)]
            if not doomed:
                which = "" if serial is None else f" with serial {serial:x}"
                raise ConfigError(f"{site} has no good certificate{which}", hint="fed pki list")
            known = {one.serial_number for one in _records(self.folder)}
            revoked = [one for one in revoked_in(self.crl()) if one.serial in known]
            revoked += [Revoked(serial=one.serial, at=now) for one in doomed]
            crl = make_crl(self._pair, revoked, number=number_of(self.crl()) + 1, now=now)
            files.write(self.folder / CRL, crl_pem(crl))
            return doomed

    def crl(self) -> x509.CertificateRevocationList:
        return files.crls_in(self.folder / CRL)[0]

    def issued(self, now: datetime.datetime) -> list[Issued]:
        """All on record, by site and age."""
        revoked = {one.serial for one in revoked_in(self.crl())}
        found = [_seen(one, revoked, now) for one in _records(self.folder)]
        return sorted(found, key=lambda one: (one.site, one.begins_at, one.ends_at))

    def newest(self, site: str, now: datetime.datetime) -> Issued:
        """Raises ConfigError for a site that never had one."""
        past = [one for one in self.issued(now) if one.site == site]
        if not past:
            raise ConfigError(f"{site} never had a certificate of this CA", hint=f"fed pki issue {site}")
        return past[-1]

    def good(self, site: str, now: datetime.datetime) -> list[Issued]:
        return [one for one in self.issued(now) if one.site == site and one.state is State.GOOD]

    def check_room(self, site: str, extra: Extra, now: datetime.datetime) -> None:
        """What `issue` would refuse. Raises ConfigError."""
        check_site(site)
        check_permitted(self.certificate, extra)
        if good := self.good(site, now):
            until = f"{good[-1].ends_at:%Y-%m-%d}"
            raise ConfigError(f"{site} has a certificate until {until}", hint=f"fed pki renew {site}, or revoke it")

    def _make(self, site: str, extra: Extra, life: datetime.timedelta, now: datetime.datetime) -> Pair:
        if not datetime.timedelta(0) < life <= MAX_LIFE:
            raise ConfigError(
                f"a certificate lives 1 to {MAX_LIFE.days} days", hint="30 and a timer that renews are best"
            )
        stamp = Stamp(serial=x509.random_serial_number(), now=now, life=life)
        pair = make_leaf(self._pair, site, ec.generate_private_key(ec.SECP256R1()), stamp, extra)
        files.write(self.folder / RECORDS / f"{stamp.serial:040x}.pem", pair.certificate_pem)
        return pair

    @contextmanager
    def _locked(self, now: datetime.datetime) -> Iterator[None]:
        with _lock(self.folder):
            records = _records(self.folder)
            for one in records:
                if one.not_valid_after_utc + KEPT < now:
                    (self.folder / RECORDS / f"{one.serial_number:040x}.pem").unlink(missing_ok=True)
            if len(records) >= MAX_RECORDS:
                raise ConfigError(f"{self.folder} has {MAX_RECORDS} certificates on record")
            yield


def create(folder: Path, name: str, permitted: Extra, now: datetime.datetime) -> Authority:
    """A new CA. Raises ConfigError: an old one is never overwritten.

    Crash: without ca.pem there is no CA yet; what is there is in the way, and named.
    """
    check_new(folder, name)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock(folder):
            check_new(folder, name)
            stamp = Stamp(serial=x509.random_serial_number(), now=now, life=AUTHORITY_LIFE)
            pair = make_authority(name, ec.generate_private_key(ec.SECP256R1()), stamp, permitted)
            (folder / RECORDS).mkdir(mode=0o700)
            files.write(folder / KEY, pair.key_pem, secret=True)
            files.write(folder / CRL, crl_pem(make_crl(pair, (), number=1, now=now)))
            files.write(folder / CERTIFICATE, pair.certificate_pem)
    except OSError as error:
        raise ConfigError(f"can't make {folder}: {error.strerror}") from None
    return Authority(folder, pair)


def check_new(folder: Path, name: str) -> None:
    """Raises ConfigError."""
    check_site(name)
    files.check_place(folder)
    for one in (CERTIFICATE, KEY, CRL, RECORDS):
        if (folder / one).exists():
            if one is not CERTIFICATE:
                raise ConfigError(f"{folder} holds a CA that was never finished", hint=f"rm -r {folder}, and try again")
            raise ConfigError(f"{folder / one} exists", hint="a CA is never overwritten: take another folder")


def open_authority(folder: Path, now: datetime.datetime) -> Authority:
    """Raises ConfigError for a folder that others can change, a CA that ended, a clock that is behind it."""
    if not (folder / CERTIFICATE).exists():
        raise ConfigError(f"there is no CA in {folder}", hint=f"fed pki init NAME --folder {folder}")
    certificate = files.certificates_in(folder / CERTIFICATE)[0]
    key = files.key_in(folder / KEY)
    if key.public_key() != certificate.public_key():
        raise ConfigError(f"{folder / KEY} is not the key of {folder / CERTIFICATE}")
    if now >= certificate.not_valid_after_utc:
        raise ConfigError(
            f"the CA in {folder} ended on {certificate.not_valid_after_utc:%Y-%m-%d}",
            hint="make another; sites can believe both meanwhile: tls.ca is a list",
        )
    if now < certificate.not_valid_before_utc:
        raise ConfigError(
            f"the CA in {folder} begins on {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, "
            f"and here it is {now:%Y-%m-%d %H:%M} UTC",
            hint="set this host's clock",
        )
    return Authority(folder, Pair(key=key, certificate=certificate))


def hand_out(authority: Authority, pair: Pair, out: Path) -> None:
    """Write what a site's daemon loads: site.pem, ca.pem where there is none, the newest list. Raises ConfigError."""
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"can't make {out}: {error.strerror}") from None
    if not (out / CERTIFICATE).exists():  # an admin may have put those of other CAs there too
        files.write(out / CERTIFICATE, pem(authority.certificate))
    files.write(out / CRL, b"".join(map(crl_pem, _lists(authority, out))))
    files.write(out / SITE_FILE, pair.key_pem + pair.certificate_pem, secret=True)


def check_out(authority: Authority, site: str, out: Path, now: datetime.datetime) -> None:
    """Would `hand_out` destroy what is another's, or write where others can? Raises ConfigError."""
    files.check_place(out)
    _lists(authority, out)
    if (out / SITE_FILE).exists():
        there = files.certificates_in(out / SITE_FILE)[0]
        if there not in [one.certificate for one in authority.issued(now) if one.site == site]:
            raise ConfigError(f"{out / SITE_FILE} is not {site}'s of this CA", hint="take another --out")
    if (out / CERTIFICATE).exists() and authority.certificate not in files.certificates_in(out / CERTIFICATE):
        raise ConfigError(f"{out / CERTIFICATE} is of another CA", hint="take another --out, or add this CA to it")


def _lists(authority: Authority, out: Path) -> list[x509.CertificateRevocationList]:
    """Those of other CAs that are there, and the newest of this one. Raises ConfigError."""
    there = files.crls_in(out / CRL) if (out / CRL).exists() else []
    own = [one for one in there if is_of(one, authority.certificate)]
    newest = max((*own, authority.crl()), key=number_of)
    return [*(one for one in there if one not in own), newest]


def crl_pem(crl: x509.CertificateRevocationList) -> bytes:
    return crl.public_bytes(Encoding.PEM)


def _records(folder: Path) -> list[x509.Certificate]:
    return [files.certificates_in(path)[0] for path in sorted((folder / RECORDS).glob("*.pem"))[:MAX_RECORDS]]


def _seen(certificate: x509.Certificate, revoked: set[int], now: datetime.datetime) -> Issued:
    ended = now >= certificate.not_valid_after_utc
    state = State.ENDED if ended else State.GOOD
    return Issued(
        site=site_of(certificate),
        serial=certificate.serial_number,
        begins_at=certificate.not_valid_before_utc,
        ends_at=certificate.not_valid_after_utc,
        state=State.REVOKED if certificate.serial_number in revoked else state,
        certificate=certificate,
    )


def _extra(site: str, certificate: x509.Certificate) -> Extra:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return Extra(
        dns=tuple(one for one in dns_names(certificate) if one != dns_of(site)),
        addresses=tuple(ipaddress.ip_network(one) for one in addresses),
    )


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigError(f"another `fed pki` works in {folder}", hint="try again when it is done") from None
    finally:
        os.close(handle)
