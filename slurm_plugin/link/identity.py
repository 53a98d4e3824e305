"""A server's key and self-signed certificate, made at start and kept in memory only."""

import datetime
import hashlib
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from slurm_plugin.link.handshake import SERVER_NAME

_LIFE = datetime.timedelta(days=3650)  # the pin is checked at every dial; the date protects nothing
_SKEW = datetime.timedelta(days=2)  # a caller's clock may be behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    key_pem: bytes
    certificate_pem: bytes
    fingerprint: str  # SHA-256 of the certificate's DER, in hex


def make_identity() -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Identity(
        key_pem=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        certificate_pem=certificate.public_bytes(serialization.Encoding.PEM),
        fingerprint=hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest(),
    )
