"""PURE: is the certificate that the other side showed to be believed? TLS has checked that it holds the key."""

import datetime
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from federation.errors import Untrusted
from federation.pki.certificates import fingerprint
from federation.pki.names import site_of

MAX_ISSUED = 1024  # certificates whose issuer is remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What a site believes: CAs, less what they revoked, and of the rest only the sites on its list."""

    authorities: tuple[x509.Certificate, ...]
    revoked: frozenset[tuple[bytes, int]] = frozenset()  # (fingerprint of the CA, serial)
    allowed: Mapping[str, bytes] = field(default_factory=dict)  # site -> the one CA it may be from; empty: any of them


def judge(leaf: x509.Certificate, trust: Trust, now: datetime.datetime) -> str:
    """The site that a certificate proves. Raises Untrusted, with what its admin or ours can do."""
    site = site_of(leaf)
    issuer = issuer_of(leaf, trust.authorities)
    if issuer is None:
        raise Untrusted(f"the certificate of {site} is from a CA that is not believed here", hint="see tls.ca")
    try:
        _check(site, leaf, issuer, trust, now)
    except Untrusted as error:
        error.site = site
        raise
    return site


def _check(site: str, leaf: x509.Certificate, issuer: x509.Certificate, trust: Trust, now: datetime.datetime) -> None:
    """Of a certificate that a CA of ours did sign. Raises Untrusted."""
    _check_dates(f"certificate of {site}", leaf, now, hint=f"fed pki renew {site}")
    _check_dates(f"CA of {site}", issuer, now, hint="its admin makes another")
    mark = fingerprint(issuer)
    if (mark, leaf.serial_number) in trust.revoked:
        raise Untrusted(f"the certificate of {site} was revoked", hint="its CA's admin can issue another")
    if site not in trust.allowed:
        raise Untrusted(f"site {site} is not on the list of peers", hint="see peers")
    if trust.allowed[site] not in (b"", mark):
        raise Untrusted(f"the certificate of {site} is from another CA than the one given for it", hint="see peers")


@functools.lru_cache(maxsize=MAX_ISSUED)
def issuer_of(leaf: x509.Certificate, authorities: tuple[x509.Certificate, ...]) -> x509.Certificate | None:
    """The CA that signed it itself; there is nothing in between. Remembered: open calls are judged again and again."""
    for one in authorities:
        try:
            leaf.verify_directly_issued_by(one)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return one
    return None


def _check_dates(whose: str, certificate: x509.Certificate, now: datetime.datetime, *, hint: str) -> None:
    if now >= certificate.not_valid_after_utc:
        raise Untrusted(
            f"the {whose} ended on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
            hint=f"{hint}; here it is {now:%Y-%m-%d %H:%M} UTC",
        )
    if now < certificate.not_valid_before_utc:
        raise Untrusted(
            f"the {whose} begins on {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
            hint=f"here it is {now:%Y-%m-%d %H:%M} UTC: is this clock right?",
        )
