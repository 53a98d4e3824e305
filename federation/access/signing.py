"""PURE: a job is signed where it was submitted, with the key of that site's certificate, and checked where it runs.

TLS proves which site is at the other end now; the signature proves, for as long as the record is kept, that this site
asked for exactly this script, for this user, under this token. The certificate travels with it.

What is signed is a text of its own, not the wire's: one value has one text, whatever the order or version of the wire.
A field that has its default is left out, so a newer site's new fields trouble an older one only when they are used.
"""

import datetime
import functools
import math
import struct
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any
from uuid import UUID

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from federation.errors import Untrusted
from federation.model.spec import JobSpec
from federation.model.token import Key
from federation.pki.certificates import Pair, fingerprint
from federation.pki.judge import Trust, judge

MAX_CERTIFICATE_BYTES = 16 << 10
MAX_SIGNERS = 1024  # certificates whose verdict is remembered
_WORD = b"federation job 1\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an origin says: this attempt of this job, in that pool of that site."""

    origin: str
    target: str
    pool: str
    key: Key
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    value: bytes  # ECDSA over SHA-256, DER
    certificate: bytes  # DER, of the site that signed


def sign(request: Request, own: Pair) -> Signature:
    """Sign when it is sent, not when it was accepted: a job may wait for longer than a certificate lives."""
    value = own.key.sign(_WORD + canonical(request), ec.ECDSA(hashes.SHA256()))
    return Signature(value=value, certificate=own.certificate.public_bytes(serialization.Encoding.DER))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signer:
    site: str
    leaf: x509.Certificate
    key: ec.EllipticCurvePublicKey
    mark: bytes


class Verifier:
    """Checks signatures by one state of trust; make another when that changes. Bound: MAX_SIGNERS remembered."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._signers: dict[bytes, _Signer] = {}

    def verify(self, request: Request, signature: Signature, now: datetime.datetime) -> bytes:
        """The id of the key it was signed with: the fingerprint of its certificate, for the audit log.

        Raises Untrusted.
        """
        signer = self._signer(signature.certificate, now)
        if signer.site != request.origin:
            raise Untrusted(f"the job came from {request.origin} and is signed by {signer.site}")
        try:
            signer.key.verify(signature.value, _WORD + canonical(request), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            hint = "are both sites the same version?"
            raise Untrusted(f"the job is not the one that {signer.site} signed", hint=hint) from None
        return signer.mark

    def _signer(self, certificate: bytes, now: datetime.datetime) -> _Signer:
        if len(certificate) > MAX_CERTIFICATE_BYTES:
            raise Untrusted("the job's certificate is too long")
        known = self._signers.get(certificate)
        if known is not None and now < known.leaf.not_valid_after_utc:
            return known
        try:
            leaf = x509.load_der_x509_certificate(certificate)
            key = leaf.public_key()
        except ValueError:
            raise Untrusted("the job carries no certificate") from None
        site = judge(leaf, self._trust, now)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise Untrusted(f"the key of {site} is not of the curve P-256")
        if len(self._signers) >= MAX_SIGNERS:
            self._signers.clear()
        signer = self._signers[certificate] = _Signer(site=site, leaf=leaf, key=key, mark=fingerprint(leaf))
        return signer


def canonical(value: object) -> bytes:
    """One text for one value: equal values of one type have equal texts, others never.

    Raises TypeError, ValueError (a number that is none).
    """
    known = _TEXTS.get(type(value))
    if known is not None:
        return known(value)
    match value:
        case str():
            return _sized(b"s", str(value).encode("utf-8", "surrogatepass"))
        case int():
            return _sized(b"i", b"%d" % value)
    if is_dataclass(value) and not isinstance(value, type):
        told = []
        for text, name, default in _fields(type(value)):
            held = getattr(value, name)
            if held is not default and held != default:
                told.append(text + canonical(held))
        return _sized(b"o", b"".join(told))
    raise TypeError(f"{type(value).__name__} has no canonical text")


def _number(value: float) -> bytes:
    if not math.isfinite(value):
        raise ValueError(f"{value} can't be signed")
    return canonical(int(value)) if value.is_integer() else _sized(b"d", struct.pack(">d", value))


def _sized(kind: bytes, data: bytes) -> bytes:
    return kind + len(data).to_bytes(8, "big") + data


_TEXTS: dict[type, Callable[[Any], bytes]] = {
    bytes: lambda value: _sized(b"b", value),
    tuple: lambda value: _sized(b"l", b"".join([canonical(one) for one in value])),
    str: lambda value: _sized(b"s", value.encode("utf-8", "surrogatepass")),
    type(None): lambda _: b"n",
    bool: lambda value: b"t" if value else b"f",
    int: lambda value: _sized(b"i", b"%d" % value),
    float: _number,
    UUID: lambda value: _sized(b"u", value.bytes),
}
"""Of types that are met; those that are made from text or numbers, such as enums, are told apart above."""


@functools.cache
def _fields(kind: Any) -> tuple[tuple[bytes, str, object], ...]:
    """Name as text, name, default, in the order of names."""
    defaults = {one.name: one.default_factory() for one in fields(kind) if one.default_factory is not MISSING}
    defaults |= {one.name: one.default for one in fields(kind) if one.default is not MISSING}
    return tuple(
        (canonical(name), name, defaults.get(name, MISSING)) for name in sorted(one.name for one in fields(kind))
    )
