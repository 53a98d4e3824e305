"""PURE: a job is signed where it was submitted, with the key of that site's certificate, and checked where it runs.

TLS proves which site is at the other end now; the signature proves, for as long as the record is kept, that this site
asked for exactly this script, for this user, under this token. The certificate travels with it.

What is signed is a text of its own, not the wire's: one value has one text, whatever the order or version of the wire.
A field that has its default is left out, so a newer site's new fields trouble an older one only when they are used.
"""

import datetime
import math
import struct
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
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


def verify(request: Request, signature: Signature, trust: Trust, now: datetime.datetime) -> bytes:
    """The id of the key it was signed with: the fingerprint of its certificate, for the audit log. Raises Untrusted."""
    if len(signature.certificate) > MAX_CERTIFICATE_BYTES:
        raise Untrusted("the job's certificate is too long")
    try:
        leaf = x509.load_der_x509_certificate(signature.certificate)
        public = leaf.public_key()
    except ValueError:
        raise Untrusted("the job carries no certificate") from None
    site = judge(leaf, trust, now)
    if site != request.origin:
        raise Untrusted(f"the job came from {request.origin} and is signed by {site}")
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise Untrusted(f"the key of {site} is not of the curve P-256")
    try:
        public.verify(signature.value, _WORD + canonical(request), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise Untrusted(f"the job is not the one that {site} signed", hint="are both sites the same version?") from None
    return fingerprint(leaf)


def canonical(value: object) -> bytes:
    """One text for one value: equal values of one type have equal texts, others never.

    Raises TypeError, ValueError (a number that is none).
    """
    match value:
        case None:
            return b"n"
        case bool():
            return b"t" if value else b"f"
        case int():
            return _sized(b"i", str(int(value)).encode())
        case float():
            return _number(value)
        case str():
            return _sized(b"s", str(value).encode("utf-8", "surrogatepass"))
        case bytes():
            return _sized(b"b", value)
        case UUID():
            return _sized(b"u", value.bytes)
        case tuple():
            return _sized(b"l", b"".join(canonical(one) for one in value))
    if is_dataclass(value) and not isinstance(value, type):
        told = [one for one in sorted(fields(value), key=lambda one: one.name) if not _default(one, value)]
        return _sized(b"o", b"".join(canonical(one.name) + canonical(getattr(value, one.name)) for one in told))
    raise TypeError(f"{type(value).__name__} has no canonical text")


def _number(value: float) -> bytes:
    if not math.isfinite(value):
        raise ValueError(f"{value} can't be signed")
    return canonical(int(value)) if value.is_integer() else _sized(b"d", struct.pack(">d", value))


def _sized(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack(">Q", len(data)) + data


def _default(one: Field[Any], value: object) -> bool:
    held = getattr(value, one.name)
    if one.default is not MISSING:
        return bool(held == one.default)
    return one.default_factory is not MISSING and bool(held == one.default_factory())
